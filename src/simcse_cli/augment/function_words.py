"""English words of the closed classes: EDA's stop words, and what the synonym operator never replaces."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARTICLES_AND_DETERMINERS = _words(
    "a an the this that these those each every either neither another any some no such both all half"
)
POSSESSIVES = _words("my your his her its our their whose")
SUBJECT_PRONOUNS = _words("i you he she it we they who")
OTHER_PRONOUNS = _words(
    "me him us them mine yours hers ours theirs myself yourself himself herself itself ourselves yourselves "
    "themselves oneself one which what whom someone somebody something anyone anybody anything everyone "
    "everybody everything nobody nothing none there here"
)
PREPOSITIONS = _words(
    "of in on at by for with from into onto upon about over under above below between among through during "
    "before after against across along around behind beside besides beyond despite down except inside near "
    "off out outside per since till until toward towards underneath up via with within without as like than"
)
CONJUNCTIONS = _words(
    "and or but nor so yet if because although though unless while whereas whether when where why how"
)
BE_AND_HAVE = _words(
    "am is are was were be been being have has had having isn't aren't wasn't weren't haven't hasn't hadn't"
)
MODALS_AND_DO = _words(
    "can could may might must shall should will would ought cannot do does did don't doesn't didn't won't "
    "wouldn't can't couldn't shouldn't mustn't shan't"
)
PARTICLES = _words("to not n't too very just only again then once more most other same own now doing")

NOUN_INTRODUCERS = ARTICLES_AND_DETERMINERS | POSSESSIVES
FUNCTION_WORDS = (
    NOUN_INTRODUCERS
    | SUBJECT_PRONOUNS
    | OTHER_PRONOUNS
    | PREPOSITIONS
    | CONJUNCTIONS
    | BE_AND_HAVE
    | MODALS_AND_DO
    | PARTICLES
)
# EDA removes apostrophes before it looks words up, so "don't" arrives as "dont".
EDA_STOP_WORDS = frozenset(word.replace("'", "") for word in FUNCTION_WORDS) | _words("s t")
