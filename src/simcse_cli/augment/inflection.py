"""English inflection over WordNet: what form a word has, and the same form of another lemma.

WordNet's exception lists name every form that its rules cannot undo (``ran``, ``running``, ``mice``), so a
lemma without an exception is regular. A form that is not certain is None, and the caller does without.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from simcse_cli.augment.wordnet import Pos, WordNet

_SIBILANT = re.compile("(s|x|z|ch|sh)$")
_CONSONANT_Y = re.compile("[^aeiou]y$")
_VOWEL_GROUP = re.compile("[aeiouy]+")
# Forms equal to the base form are in no exception list.
_SAME_PAST = frozenset(
    {"bet", "bid", "burst", "cast", "cost", "cut", "hit", "hurt", "knit", "let", "put", "quit", "read", "rid"}
    | {"set", "shed", "shut", "slit", "split", "spread", "thrust", "upset"}
)
_SAME_PLURAL = frozenset(
    {"aircraft", "deer", "fish", "means", "moose", "offspring", "salmon", "series", "sheep", "species"}
    | {"spacecraft", "swine", "trout"}
)
# Verbs in i with another vowel in past and participle: sang, sung; most have one, as clung.
_CHANGES_TWICE = frozenset({"begin", "drink", "ring", "shrink", "sing", "sink", "spring", "stink", "swim"})
_PLURAL_MANS = re.compile("(hu|sha|ro|nor|ger|otto|talis|cai)man$")
_NOUN_PREPOSITIONS = frozenset({"of", "in", "on", "at", "by", "for", "to", "with", "from", "de"})


class Inflection(Enum):
    """Form of a word; BASE is the form the dictionary lists."""

    BASE = auto()
    PLURAL = auto()
    THIRD_PERSON = auto()
    PAST = auto()
    PARTICIPLE = auto()
    GERUND = auto()
    COMPARATIVE = auto()
    SUPERLATIVE = auto()


def inflection_of(word: str, lemma: str, pos: Pos, wordnet: WordNet, *, after_auxiliary: bool) -> Inflection:
    """Return the form in which ``word`` shows ``lemma``, one of its base forms.

    Args:
        word: lower case, as in the text.
        lemma: one of ``wordnet.base_forms(word, pos)``.
        pos: part of speech of both.
        wordnet: the database.
        after_auxiliary: whether a form of be or have stands shortly before; decides between past and
            participle where both look alike.
    """
    if word == lemma or pos is Pos.ADVERB:
        return Inflection.BASE
    if pos is Pos.NOUN:
        return Inflection.PLURAL
    if pos is Pos.ADJECTIVE:
        return Inflection.SUPERLATIVE if word.endswith("st") else Inflection.COMPARATIVE
    if word.endswith("ing"):
        return Inflection.GERUND
    if word.endswith("s"):
        return Inflection.THIRD_PERSON
    pasts, participles = _past_forms(lemma, wordnet)
    if word in pasts and word not in participles:
        return Inflection.PAST
    if word in participles and word not in pasts:
        return Inflection.PARTICIPLE
    return Inflection.PARTICIPLE if after_auxiliary else Inflection.PAST


def inflect(lemma: str, pos: Pos, inflection: Inflection, wordnet: WordNet) -> str | None:
    """Return ``lemma`` in the form ``inflection``, or None where its form is not certain.

    In an expression the head is inflected: the first word of a verb (gave up), the last of a noun or the one
    before a preposition (men of the world). ``inflect("jog", Pos.VERB, Inflection.GERUND, w)`` is jogging.
    """
    if inflection is Inflection.BASE:
        return lemma
    words = lemma.split(" ")
    head = _head_position(words, pos)
    if not words[head].isalpha():
        return None
    if pos is Pos.ADJECTIVE:
        return _compare(lemma, inflection, wordnet)
    form = _inflect_word(words[head], pos, inflection, wordnet)
    return None if form is None else " ".join([*words[:head], form, *words[head + 1 :]])


def _head_position(words: Sequence[str], pos: Pos) -> int:
    if pos is Pos.VERB:
        return 0
    prepositions = (position for position, word in enumerate(words) if word in _NOUN_PREPOSITIONS)
    return max(0, next(prepositions, len(words)) - 1)


def _inflect_word(word: str, pos: Pos, inflection: Inflection, wordnet: WordNet) -> str | None:
    irregular = wordnet.irregular_forms(word, pos)
    if pos is Pos.NOUN:
        return irregular[0] if irregular else _plural(word)
    if inflection is Inflection.THIRD_PERSON:
        return next((form for form in irregular if form.endswith("s")), _with_s(word, after_o="es"))
    if inflection is Inflection.GERUND:
        return next((form for form in irregular if form.endswith("ing")), _with_ing(word))
    pasts, participles = _past_forms(word, wordnet)
    if inflection is Inflection.PARTICIPLE:
        return participles[0]  # several are spellings of one: born, borne
    return pasts[0] if len(pasts) == 1 else None


def _past_forms(lemma: str, wordnet: WordNet) -> tuple[list[str], list[str]]:
    """Return the possible past forms and past participles of a verb, irregular before regular."""
    if lemma in _SAME_PAST:
        return [lemma], [lemma]
    irregular = [form for form in wordnet.irregular_forms(lemma, Pos.VERB) if not form.endswith(("ing", "s"))]
    if not irregular:
        return [_with_ed(lemma)], [_with_ed(lemma)]
    participles = [form for form in irregular if _looks_like_participle(form, lemma)]
    pasts = [form for form in irregular if form not in participles]
    if lemma.endswith(("come", "run")):  # came, ran: the participle is the base form and no exception
        return pasts, [lemma]
    if not participles:
        return pasts, pasts
    # A participle alone is beside a regular past: shown, showed.
    return pasts or [_with_ed(lemma)], participles


def _looks_like_participle(form: str, lemma: str) -> bool:
    if form.endswith(("n", "ne")) and not lemma.endswith(("n", "ne")):
        return True  # eaten, gone, born
    return lemma in _CHANGES_TWICE and "u" in form


def _compare(lemma: str, inflection: Inflection, wordnet: WordNet) -> str:
    ending = "est" if inflection is Inflection.SUPERLATIVE else "er"
    irregular = [form for form in wordnet.irregular_forms(lemma, Pos.ADJECTIVE) if form.endswith(ending)]
    if irregular:
        return irregular[0]
    is_long = len(_VOWEL_GROUP.findall(lemma.removesuffix("e"))) > 1
    if is_long or " " in lemma or lemma.endswith(("ing", "ed")):
        return f"{'most' if inflection is Inflection.SUPERLATIVE else 'more'} {lemma}"
    return lemma.removesuffix("e") + ending


def _plural(noun: str) -> str:
    if noun in _SAME_PLURAL:
        return noun
    if noun.endswith("man") and not _PLURAL_MANS.search(noun):
        return noun.removesuffix("man") + "men"
    return _with_s(noun)


def _with_s(word: str, after_o: str = "s") -> str:
    if _CONSONANT_Y.search(word):
        return word[:-1] + "ies"
    if _SIBILANT.search(word):
        return word + "es"
    return word + (after_o if word.endswith("o") else "s")


def _with_ed(word: str) -> str:
    if _CONSONANT_Y.search(word):
        return word[:-1] + "ied"
    return word + ("d" if word.endswith("e") else "ed")


def _with_ing(word: str) -> str:
    if word.endswith("ie"):
        return word[:-2] + "ying"
    if word.endswith("e") and not word.endswith(("ee", "oe", "ye")):
        return word[:-1] + "ing"
    return word + "ing"
