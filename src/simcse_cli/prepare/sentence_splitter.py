"""Running text to sentences by rule: no model, no download, the same result everywhere."""

import re

_TITLES = ("mr", "mrs", "ms", "dr", "prof", "rev", "gen", "col", "lt", "sgt", "capt", "st", "jr", "sr")
_MONTHS = ("jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec")
_OTHERS = ("vs", "inc", "ltd", "co", "corp", "fig", "no", "vol", "pp", "ed", "eds", "al", "e.g", "i.e", "cf")
_ABBREVIATIONS = frozenset((*_TITLES, *_MONTHS, *_OTHERS, "a.m", "p.m", "u.s", "u.k"))
# An end mark with closing quotes or brackets, white space, and what may start a sentence; or a CJK end mark.
_BOUNDARY = re.compile(
    r"""(?<=[.!?…])(["'”’»)\]]*)\s+(?=["'“‘«(\[]*[^\W_a-z])|(?<=[。！？])(["”」』）]*)\s*(?=\S)"""
)
_LAST_WORD = re.compile(r"([^\s(\[\"'“‘«]+)\.$")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, stripped; nothing is lost but white space between them.

    A full stop does not end a sentence after an abbreviation or an initial (``J. Smith``, ``e.g. this``), nor
    when a lower-case letter follows.
    """
    sentences: list[str] = []
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        end = boundary.end(1) if boundary.group(1) is not None else boundary.end(2)
        if not _ends_in_abbreviation(text[start : boundary.start()]):
            sentences.append(text[start:end].strip())
            start = end
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_in_abbreviation(text: str) -> bool:
    match = _LAST_WORD.search(text)
    if match is None:
        return False
    word = match.group(1)
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word.isupper())
