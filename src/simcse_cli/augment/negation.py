"""Negate an English sentence by a few rules and word lists, without a parser."""

import re
from itertools import pairwise

from simcse_cli.augment.words import (
    BE_AND_HAVE,
    DETERMINERS,
    MODALS_AND_DO,
    PREPOSITIONS,
    VERBS,
    match_case,
    split_punctuation,
    split_words,
)

_WITHOUT_NOT = {"cannot": "can", "can't": "can", "won't": "will", "shan't": "shall"}
_WITHOUT_NOT |= {f"{word}n't": word for word in BE_AND_HAVE | MODALS_AND_DO if "'" not in word}
_NOT_FINITE = frozenset(("be", "been", "being", "having"))
_AUXILIARIES = (BE_AND_HAVE | MODALS_AND_DO) - _NOT_FINITE - _WITHOUT_NOT.keys()
_NEGATIONS_OF_HAVE = {"have": "do not have", "has": "does not have", "had": "did not have"}
_SHORT_AUXILIARY = re.compile(r"\w+'(m|re|ll|ve|d)|(it|he|she|that|there|who|what)'s")
_BASE_FORM_SUBJECTS = frozenset(("i", "you", "we", "they"))


def _find_negations() -> dict[str, str]:
    """Return the negations of the listed verbs, by third person and by past.

    For example, falls gives does not fall, and fell gives did not fall.
    """
    negations = {}
    for entry in VERBS:  # LEMMA, or LEMMA/PAST
        lemma, _, past = entry.partition("/")
        # cry: cries, cried; wash: washes, washed; bake: bakes, baked.
        stem = re.sub(r"(?<=[^aeiou])y$", "i", lemma)
        takes_es = stem != lemma or lemma.endswith(("s", "x", "z", "ch", "sh", "o"))
        negations[stem + ("es" if takes_es else "s")] = f"does not {lemma}"
        if not past:
            past = stem.removesuffix("e") + "ed"
        negations[past] = f"did not {lemma}"
    return negations


_NEGATIONS = _find_negations()
_LEMMAS = frozenset(entry.partition("/")[0] for entry in VERBS)
_LEMMAS -= {"found"}  # it is nearly always the past of "find"


def negate(text: str) -> str:
    """Return the sentence with the opposite truth: one "not" less, or one more.

    After Wang et al. 2022 (SNCSE), whose code parses the sentence. The first of these rules that
    fits any word is applied:

    - A "not" or "n't" is removed.
    - An auxiliary or a form of be gets a "not"; but "has a" becomes "does not have a".
    - A listed verb becomes its lemma behind "do not", "does not" or "did not". A word behind a
      determiner or a preposition is no verb. A lemma is a verb only behind I, you, we or they, or
      if it is a past form as well.

    If no rule fits, "Not" is put before the sentence.

    ``"The cat sleeps."`` gives ``"The cat does not sleep."``, and ``"He can't go."`` gives
    ``"He can go."``.
    """
    words = split_words(text)
    parts = [split_punctuation(word.replace("’", "'")) for word in words]
    cores = [core for _, core, _ in parts]
    bare_words = list(map(str.lower, cores))

    def sentence_with(place: int, changed: str) -> str:
        """Return the sentence with another word at a place, between the same punctuation."""
        before, _, after = parts[place]
        words[place] = before + changed + after
        return " ".join(filter(None, words))

    # Remove the first "not" or "n't", if there is one.
    for place, word in enumerate(bare_words):
        if word == "not" or word in _WITHOUT_NOT:
            return sentence_with(place, match_case(cores[place], _WITHOUT_NOT.get(word, "")))

    # Otherwise negate the first auxiliary. Before a determiner, "have" is a full verb: has a cat.
    for place, (word, following) in enumerate(pairwise([*bare_words, ""])):
        if word in _NEGATIONS_OF_HAVE and following in DETERMINERS:
            return sentence_with(place, _NEGATIONS_OF_HAVE[word])
        if word in _AUXILIARIES or _SHORT_AUXILIARY.fullmatch(word):
            return sentence_with(place, f"{cores[place]} not")

    # Without an auxiliary, a listed verb behind the first word gets a form of "do" with "not".
    for place, (previous, word) in enumerate(pairwise(bare_words), start=1):
        changed = _negated_verb(word, previous)
        if changed is not None:
            return sentence_with(place, changed)
    return " ".join(("Not", *words))


def _negated_verb(word: str, previous: str) -> str | None:
    """Return the negation of a listed verb, or None if ``word`` is no verb behind ``previous``."""
    if previous in DETERMINERS or previous in PREPOSITIONS:
        return None
    if word in _LEMMAS and previous in _BASE_FORM_SUBJECTS:
        return f"do not {word}"
    return _NEGATIONS.get(word)
