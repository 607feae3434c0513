"""Replace words by WordNet synonyms of the same part of speech, in the same form and case.

There is no tagger: the part of speech is the likeliest by the counts of WordNet's sense-tagged texts, by how
often a lemma has the form seen, and by the word before it (an article asks for a noun, ``to`` for a
base verb). Words of the closed classes, abbreviations in capitals and words without a letter
are never replaced.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import regex

from simcse_cli.augment.function_words import (
    BE_AND_HAVE,
    FUNCTION_WORDS,
    MODALS_AND_DO,
    NOUN_INTRODUCERS,
    PREPOSITIONS,
    SUBJECT_PRONOUNS,
)
from simcse_cli.augment.inflection import Inflection, inflect, inflection_of
from simcse_cli.augment.text_units import match_case
from simcse_cli.augment.wordnet import Pos, WordNet

# Punctuation before, the word, a possessive ending, punctuation after.
_WORD_PARTS = regex.compile(
    r"(?P<before>\P{L}*)(?P<core>\p{L}(?:[\p{L}\p{M}'’-]*?\p{L})??)(?P<after>(?:['’]s)?\P{L}*)"
)
_SENTENCE_END = (".", "!", "?", ":", '."', '!"', '?"', ".”", "!”", "?”")
_AUXILIARY_WINDOW = 3
_UNLIKELY = 0.01  # weight of a reading that the word before speaks against
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
    """One way to read a word: as ``lemma`` of part of speech ``pos`` in the form ``inflection``."""

    lemma: str
    pos: Pos
    inflection: Inflection


def replace_with_synonyms(
    words: Sequence[str], count: int, rng: random.Random, wordnet: WordNet
) -> list[str]:
    """Replace up to ``count`` words, drawn uniformly from those with a synonym, each by one drawn uniformly.

    Words without a synonym are passed over; with none at all the words come back as they are. A synonym may
    be an expression of several words.
    """
    replaced = list(words)
    positions = list(range(len(words)))
    rng.shuffle(positions)
    for position in positions:
        synonyms = synonyms_in_place(words, position, wordnet)
        if synonyms:
            replaced[position] = rng.choice(synonyms)
            count -= 1
        if not count:
            break
    return replaced


def synonyms_in_place(words: Sequence[str], position: int, wordnet: WordNet) -> list[str]:
    """Return what could stand for ``words[position]``, with its form, case and punctuation; never itself."""
    parts = _WORD_PARTS.fullmatch(words[position])
    if parts is None or parts["core"].lower() in FUNCTION_WORDS:
        return []
    core = parts["core"]
    if _is_shouted(core) and not " ".join(words).isupper():
        return []  # an abbreviation
    reading = read_word(words, position, core.lower(), wordnet)
    if reading is None:
        return []
    forms = (
        inflect(synonym, reading.pos, reading.inflection, wordnet)
        for synset in _fitting_synsets(reading, core, _starts_sentence(words, position), wordnet)
        for synonym in synset
        if synonym.lower() != reading.lemma
    )
    cased = dict.fromkeys(
        match_case(core, form) for form in forms if form is not None and form.lower() != core.lower()
    )
    return [parts["before"] + form + parts["after"] for form in cased]


def read_word(words: Sequence[str], position: int, core: str, wordnet: WordNet) -> Reading | None:
    """Return the likeliest reading of ``core``, the lower-case word at ``position``, or None."""
    before = [_bare(word) for word in words[max(0, position - _AUXILIARY_WINDOW) : position]]
    after_auxiliary = not BE_AND_HAVE.isdisjoint(before)
    previous = before[-1] if before else ""
    best: Reading | None = None
    best_weight = 0.0
    for pos in Pos:
        for lemma in wordnet.base_forms(core, pos):
            form = inflection_of(core, lemma, pos, wordnet, after_auxiliary=after_auxiliary)
            frequency = (wordnet.frequency(lemma, pos) + 0.5) * _FORM_SHARE.get((pos, form), 1.0)
            weight = frequency * _context_weight(previous, pos, form)
            if weight > best_weight:
                best, best_weight = Reading(lemma, pos, form), weight
    return best


def _context_weight(previous: str, pos: Pos, inflection: Inflection) -> float:
    """Return how well a reading goes with the word before it: 1, or a small weight where it does not."""
    is_finite_verb = pos is Pos.VERB and inflection not in (Inflection.GERUND, Inflection.PARTICIPLE)
    if previous in NOUN_INTRODUCERS:
        return _UNLIKELY if pos is Pos.VERB else 1.0
    if previous in PREPOSITIONS or previous in BE_AND_HAVE:
        return _UNLIKELY if is_finite_verb else 1.0
    if previous == "to" or previous in MODALS_AND_DO:
        return 1.0 if pos is Pos.VERB and inflection is Inflection.BASE else _UNLIKELY
    if previous in SUBJECT_PRONOUNS:
        return 1.0 if pos in (Pos.VERB, Pos.ADVERB) else _UNLIKELY
    return 1.0


def _fitting_synsets(
    reading: Reading, core: str, starts_sentence: bool, wordnet: WordNet
) -> Sequence[tuple[str, ...]]:
    """Return the synsets whose own spelling of the lemma has the case of the text.

    ``china`` is the porcelain and ``China`` the state. A capital at the start of a sentence, and text all in
    capitals, say nothing. Lower-case text may also mean the name where WordNet has nothing else.
    """
    synsets = wordnet.synsets(reading.lemma, reading.pos)
    if starts_sentence or _is_shouted(core):
        return synsets
    is_name = not core[0].islower()
    fitting = [synset for synset in synsets if (reading.lemma not in synset) == is_name]
    return fitting if is_name or fitting else synsets


def _is_shouted(core: str) -> bool:
    return len(core) > 1 and core.isupper()


def _starts_sentence(words: Sequence[str], position: int) -> bool:
    return position == 0 or words[position - 1].endswith(_SENTENCE_END)


def _bare(word: str) -> str:
    parts = _WORD_PARTS.fullmatch(word)
    return word.lower() if parts is None else parts["core"].lower()
