"""Replace words by WordNet synonyms of the same part of speech, in the same form and case.

There is no tagger. The part of speech is the likeliest by three signs: the counts of WordNet's
sense-tagged texts, how often a lemma has the form of the word, and the word before it (an article
asks for a noun, ``to`` for a base verb). WordNet's exception lists name every form that its rules
cannot undo (``ran``, ``running``, ``mice``), so a lemma without an exception is regular.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain

import regex

from simcse_cli.augment.wordnet import Pos, WordNet
from simcse_cli.augment.words import (
    BE_AND_HAVE,
    DETERMINERS,
    FUNCTION_WORDS,
    MODALS_AND_DO,
    PREPOSITIONS,
    SUBJECT_PRONOUNS,
    match_case,
    word_set,
)

# Punctuation before, the word, a possessive ending, punctuation after.
_WORD_PARTS = regex.compile(
    r"(?P<before>\P{L}*)(?P<core>\p{L}(?:[\p{L}\p{M}'’-]*?\p{L})??)(?P<after>(?:['’]s)?\P{L}*)"
)
_SENTENCE_END = (".", "!", "?", ":", '."', '!"', '?"', ".”", "!”", "?”")
_AUXILIARY_WINDOW = 3
_UNLIKELY = 0.01  # factor for the weight of a reading if the word before it speaks against it
_SIBILANT = re.compile("(s|x|z|ch|sh)$")
_HARD_CH = word_set("epoch eunuch loch matriarch monarch oligarch patriarch stomach tech")
_CONSONANT_Y = re.compile("[^aeiou]y$")
_VOWEL_GROUP = re.compile("[aeiouy]+")
# Forms equal to the base form are in no exception list, so these words are listed here.
_SAME_PAST = word_set(
    "bet bid burst cast cost cut hit hurt knit let put quit read rid set shed shut slit split "
    "spread thrust upset"
)
_SAME_PLURAL = word_set(
    "aircraft deer fish means moose offspring salmon series sheep spacecraft species swine trout"
)
# Verbs with i whose past and participle differ: sang, sung. Most others share a form: clung.
_CHANGES_TWICE = word_set("begin drink ring shrink sing sink spring stink swim")
# Words in -man with the plural -mans: humans, shamans.
_PLURAL_MANS = re.compile("(hu|sha|ro|nor|ger|otto|talis|cai)man$")
_NOUN_PREPOSITIONS = word_set("of in on at by for to with from de")


class Inflection(Enum):
    BASE = auto()  # as the dictionary lists it
    PLURAL = auto()
    THIRD_PERSON = auto()
    PAST = auto()
    PARTICIPLE = auto()
    GERUND = auto()
    COMPARATIVE = auto()
    SUPERLATIVE = auto()


# WordNet counts lemmas; this is roughly how often a lemma shows each form in running text.
_FORM_SHARE = {
    (Pos.NOUN, Inflection.BASE): 0.75,
    (Pos.NOUN, Inflection.PLURAL): 0.25,
    (Pos.VERB, Inflection.BASE): 0.3,
    (Pos.VERB, Inflection.THIRD_PERSON): 0.1,
    (Pos.VERB, Inflection.PAST): 0.25,
    (Pos.VERB, Inflection.PARTICIPLE): 0.2,
    (Pos.VERB, Inflection.GERUND): 0.15,
    (Pos.ADJECTIVE, Inflection.COMPARATIVE): 0.05,
    (Pos.ADJECTIVE, Inflection.SUPERLATIVE): 0.05,
}


@dataclass(frozen=True)
class Reading:
    lemma: str
    pos: Pos
    inflection: Inflection


def replace_with_synonyms(
    words: Sequence[str], count: int, rng: random.Random, wordnet: WordNet
) -> list[str]:
    """Replace up to ``count`` words that have a synonym; words and synonyms are drawn uniformly."""
    replaced = list(words)
    positions = list(range(len(words)))
    rng.shuffle(positions)
    for position in positions:
        if synonyms := synonyms_in_place(words, position, wordnet):
            replaced[position] = rng.choice(synonyms)
            count -= 1
        if not count:
            break
    return replaced


def synonyms_in_place(words: Sequence[str], position: int, wordnet: WordNet) -> list[str]:
    """Return the words that could replace ``words[position]``, in its form, case and punctuation.

    Function words, abbreviations in capitals and words without a letter have none.
    """
    # Leave out function words, abbreviations, and words that WordNet does not know.
    parts = _WORD_PARTS.fullmatch(words[position])
    if parts is None or parts["core"].lower() in FUNCTION_WORDS:
        return []
    core = parts["core"]  # the word without punctuation
    if _is_shouted(core) and not " ".join(words).isupper():
        return []  # an abbreviation, since the other words are not in capitals
    reading = read_word(words, position, core.lower(), wordnet)
    if reading is None:
        return []

    # Take the other words of the synsets, in the same form.
    starts_sentence = position == 0 or words[position - 1].endswith(_SENTENCE_END)
    synsets = _fitting_synsets(reading, core, starts_sentence, wordnet)
    replacements: dict[str, None] = {}  # a set that keeps the order
    for synonym in chain.from_iterable(synsets):
        if synonym.lower() == reading.lemma:
            continue
        form = inflect(synonym, reading.pos, reading.inflection, wordnet)
        if form is not None and form.lower() != core.lower():
            replacements[parts["before"] + match_case(core, form) + parts["after"]] = None
    return list(replacements)


def read_word(words: Sequence[str], position: int, core: str, wordnet: WordNet) -> Reading | None:
    """Return the likeliest reading of ``core``, the lower-case word at ``position``.

    The result is None if WordNet does not know the word.
    """
    # An auxiliary shortly before tells a participle from a past, as in "had shown".
    before = [_bare(word) for word in words[max(0, position - _AUXILIARY_WINDOW) : position]]
    after_auxiliary = not BE_AND_HAVE.isdisjoint(before)
    previous = before[-1] if before else ""

    # The weight of a reading is how often its lemma has this form in running text. A lemma that
    # WordNet never counted is still possible, so 0.5 is added. Adverbs and plain adjectives seldom
    # have another form, so their share is 1.0.
    best: Reading | None = None
    best_weight = 0.0
    for pos in Pos:
        for lemma in wordnet.base_forms(core, pos):
            form = inflection_of(core, lemma, pos, wordnet, after_auxiliary=after_auxiliary)
            weight = (wordnet.frequency(lemma, pos) + 0.5) * _FORM_SHARE.get((pos, form), 1.0)
            if _is_unlikely(previous, pos, form):
                weight *= _UNLIKELY
            if weight > best_weight:
                best = Reading(lemma, pos, form)
                best_weight = weight
    return best


def _is_unlikely(previous: str, pos: Pos, inflection: Inflection) -> bool:
    """Tell whether the word before, ``previous``, speaks against a part of speech in this form."""
    if previous in DETERMINERS:
        return pos is Pos.VERB
    if previous in PREPOSITIONS or previous in BE_AND_HAVE:
        return pos is Pos.VERB and inflection not in (Inflection.GERUND, Inflection.PARTICIPLE)
    if previous == "to" or previous in MODALS_AND_DO:
        return pos is not Pos.VERB or inflection is not Inflection.BASE
    return previous in SUBJECT_PRONOUNS and pos not in (Pos.VERB, Pos.ADVERB)


def _fitting_synsets(
    reading: Reading, core: str, starts_sentence: bool, wordnet: WordNet
) -> Sequence[tuple[str, ...]]:
    """Return the synsets that agree with the case of ``core``, the word as the text spells it.

    - Within a sentence, a word with a capital gets the synsets that spell the lemma with one, and a
      word without a capital the others: ``China`` is the state, and ``china`` the porcelain.
    - If every synset has a capital, a word without one gets all of them.
    - A word at the start of a sentence or all in capitals gets all synsets.
    """
    synsets = wordnet.synsets(reading.lemma, reading.pos)
    if starts_sentence or _is_shouted(core):
        return synsets
    # A synset without ``reading.lemma``, which is in lower case, spells it with a capital.
    has_capital = not core[0].islower()
    fitting = [synset for synset in synsets if (reading.lemma not in synset) == has_capital]
    if not fitting and not has_capital:
        return synsets
    return fitting


def _is_shouted(core: str) -> bool:
    return len(core) > 1 and core.isupper()


def _bare(word: str) -> str:
    parts = _WORD_PARTS.fullmatch(word)
    return word.lower() if parts is None else parts["core"].lower()


def inflection_of(
    word: str, lemma: str, pos: Pos, wordnet: WordNet, *, after_auxiliary: bool
) -> Inflection:
    """Return which form of ``lemma`` the lower-case ``word`` is; ``lemma`` is a base form of it.

    If past and participle look alike, the word is a participle ``after_auxiliary``: a form of be or
    have stands shortly before it.
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
    """Return ``lemma`` in the form ``inflection``, or None if this form is not certain.

    In an expression of several words, one is inflected: in a verb, the first (gave up); in a noun,
    the word before a preposition (men of the world), or else the last. ``inflect("jog", Pos.VERB,
    Inflection.GERUND, wordnet)`` is jogging.
    """
    if inflection is Inflection.BASE:
        return lemma
    words = lemma.split(" ")
    head = 0
    if pos is not Pos.VERB:
        places = (place for place, word in enumerate(words) if word in _NOUN_PREPOSITIONS)
        first_preposition = next(places, len(words))
        head = max(0, first_preposition - 1)
    if not words[head].isalpha():
        return None
    if pos is Pos.ADJECTIVE:
        return _comparative_or_superlative(lemma, inflection, wordnet)
    form = _inflect_word(words[head], pos, inflection, wordnet)
    return None if form is None else " ".join([*words[:head], form, *words[head + 1 :]])


def _inflect_word(word: str, pos: Pos, inflection: Inflection, wordnet: WordNet) -> str | None:
    """Return a noun or verb of one word in the form ``inflection``.

    If the past has several forms, none of them is certain, and the result is None.
    """
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
    """Return the past forms and the participles of a verb, irregular or regular."""
    if lemma in _SAME_PAST:
        return [lemma], [lemma]
    # Forms in n or ne are participles (eaten, borne). But if the lemma ends in n or ne, so may its
    # past (win, won).
    participle_endings = () if lemma.endswith(("n", "ne")) else ("n", "ne")
    participles: list[str] = []  # eaten, gone, born; sung
    pasts: list[str] = []
    for form in wordnet.irregular_forms(lemma, Pos.VERB):
        if form.endswith(("ing", "s")):
            continue
        is_u_participle = lemma in _CHANGES_TWICE and "u" in form
        if form.endswith(participle_endings) or is_u_participle:
            participles.append(form)
        else:
            pasts.append(form)
    if not pasts and not participles:
        return [_with_ed(lemma)], [_with_ed(lemma)]
    if lemma.endswith(("come", "run")):
        return pasts, [lemma]  # came, ran: the participle is the base form, which is in no list
    if not participles:
        return pasts, pasts
    if not pasts:
        pasts = [_with_ed(lemma)]  # only the participle is irregular: showed, shown
    return pasts, participles


def _comparative_or_superlative(lemma: str, inflection: Inflection, wordnet: WordNet) -> str:
    """Return the form ``inflection`` of an adjective: its comparative or its superlative."""
    adverb = "more"
    ending = "er"
    if inflection is Inflection.SUPERLATIVE:
        adverb = "most"
        ending = "est"
    for form in wordnet.irregular_forms(lemma, Pos.ADJECTIVE):
        if form.endswith(ending):
            return form
    is_polysyllabic = len(_VOWEL_GROUP.findall(lemma.removesuffix("e"))) > 1
    if is_polysyllabic or " " in lemma or lemma.endswith(("ing", "ed")):
        return f"{adverb} {lemma}"
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
    if _SIBILANT.search(word) and word not in _HARD_CH:
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
