"""What a column holds, by its cells: texts, words, labels, scores, ids, dates or lists of texts."""

import ast
import json
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Any

import regex

from simcse_cli.data.text import count_words


class Kind(StrEnum):
    EMPTY = "empty"
    LIST = "list"
    ID = "id"
    DATE = "date"
    LABEL = "label"
    SCORE = "score"
    WORD = "word"
    TEXT = "text"


MISSING = frozenset(
    ("", "nan", "NaN", "None", "NULL", "null", "\\N", "NA", "N/A", "n/a", "<NA>", "#N/A")
)
"""Cells without a value, as spreadsheets, databases and pandas write them in tables."""

_END_MARKS = ".?!。？！؟…।"
_YES_NO = frozenset(
    ["yes", "no", "true", "false", "y", "n", "t", "f", "ja", "nein", "oui", "non", "si", "sí"]
)
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?\s*%?", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d+(\.0+)?")
_TOKEN = re.compile(r"(?=.*\d)[!-~]+|\w+://[!-~]+")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
    r"([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?(Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( \d{1,2}:\d{2}(:\d{2})?( ?[AaPp][Mm])?)?"
    r"|\d{1,2}:\d{2}(:\d{2})?"
)
_LEAST_ID = 100  # whole numbers from here on are ids, if no two are equal


def cell_text(value: Any) -> str:
    """Return a cell as text: numbers and objects in JSON spelling, "" for a missing value."""
    if isinstance(value, str):
        return value
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)  # dates and decimal numbers, which JSON would put in quotes


def is_missing(text: str) -> bool:
    return text.strip() in MISSING


def to_number(text: str) -> float | None:
    """Return the number in a cell such as ``4.2``, ``4,2`` or ``85%`` (85); None for any other."""
    text = text.strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    digits = text.removesuffix("%").strip()
    value = float(digits if "." in digits else digits.replace(",", "."))
    return value if math.isfinite(value) else None


def list_items(text: str) -> list[str] | None:
    """Return the texts of a list in JSON or Python spelling; None for any other cell."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for parse in (json.loads, _python_value):
        try:
            items = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return items
    return None


def _python_value(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of "\d", and reads it all the same
        return ast.literal_eval(text)


def is_date(text: str) -> bool:
    return _DATE.fullmatch(text.strip()) is not None


def is_id_token(text: str) -> bool:
    """Tell whether a cell is an ASCII token with a digit, such as ``doc_12``, or a URL."""
    return _TOKEN.fullmatch(text.strip()) is not None


def kind_of(values: Iterable[Any]) -> Kind:
    """Return the kind of a column; missing cells do not count.

    Example:
        >>> [kind_of(each) for each in (["1", "2", "3"], ["4.2", "0"], ["yes", "no", "yes"])]
        [<Kind.ID: 'id'>, <Kind.SCORE: 'score'>, <Kind.LABEL: 'label'>]
    """
    cells: list[str] = []
    for value in values:
        # Objects and lists of other things than texts count as ids, which are not taken for texts.
        if isinstance(value, dict):
            return Kind.ID
        if isinstance(value, list):
            return Kind.LIST if all(isinstance(item, str | None) for item in value) else Kind.ID
        text = cell_text(value)
        if not is_missing(text):
            cells.append(text.strip())
    if not cells:
        return Kind.EMPTY
    if None not in map(list_items, cells):
        return Kind.LIST
    if None not in map(to_number, cells):
        return _kind_of_numbers(cells)
    if all(map(is_date, cells)):
        return Kind.DATE
    if all(map(is_id_token, cells)):
        return Kind.ID
    return _kind_of_words(cells)


def _kind_of_numbers(cells: Sequence[str]) -> Kind:
    """Return whether numbers are labels, ids or scores."""
    # All cells are numbers, so ``or 0.0`` only helps the type checker.
    numbers = [to_number(cell) or 0.0 for cell in cells]
    distinct = set(numbers)
    if distinct <= {0, 1} or distinct <= {-1, 1}:
        return Kind.LABEL
    is_whole = all(map(_WHOLE.fullmatch, cells))
    if is_whole and len(distinct) == len(numbers) and _are_ids(numbers):
        return Kind.ID
    if len(numbers) > 1 and len(distinct) == 1:
        return Kind.LABEL
    return Kind.SCORE


def _are_ids(numbers: Sequence[float]) -> bool:
    """Tell whether whole numbers, all different, are at least 100 or rise in even steps."""
    if min(numbers) >= _LEAST_ID:
        return True
    steps = {after - before for before, after in pairwise(numbers)}
    # Two numbers have only one step, which then must be 1.
    if len(numbers) == 2:
        return steps == {1}
    return len(steps) == 1 and min(steps) > 0


def _kind_of_words(cells: Sequence[str]) -> Kind:
    """Return whether cells are labels, texts or words; short words that recur are labels."""
    distinct = set(cells)
    if len(cells) > 1 and len(distinct) == 1:
        return Kind.LABEL
    if _YES_NO.issuperset(map(str.lower, cells)):
        return Kind.LABEL
    n_words = list(map(count_words, cells))
    is_short = median(n_words) <= 2 and max(n_words) <= 4
    if not is_short or any(cell[-1] in _END_MARKS for cell in cells):
        return Kind.TEXT
    # Words that recur are labels: at least a third of the cells repeat another.
    if 3 * len(distinct) <= 2 * len(cells):
        return Kind.LABEL
    return Kind.WORD


def is_judgement(cells: Iterable[str]) -> bool:
    """Tell whether all labels, except for missing ones, are numbers or words for yes and no.

    A column of such labels holds no texts, even if its name is usual for texts.
    """
    for cell in cells:
        if is_missing(cell) or cell.strip().lower() in _YES_NO:
            continue
        if to_number(cell) is None:
            return False
    return True


_SCRIPT_NAMES = (
    "Latin Han Hiragana Katakana Hangul Cyrillic Greek Arabic Hebrew "
    "Devanagari Thai Bengali Tamil Telugu Gujarati Georgian Armenian"
)
_SCRIPTS = {name: regex.compile(rf"\p{{{name}}}") for name in _SCRIPT_NAMES.split()}
_JAPANESE = {"Han", "Hiragana", "Katakana"}


def scripts_of(text: str) -> set[str]:
    """Return the names of the scripts in a text.

    Hiragana and Katakana count as ``Han``, because Japanese mixes the three.
    """
    if text.isascii():
        return {"Latin"} if any(map(str.isalpha, text)) else set()
    scripts = set()
    for name, pattern in _SCRIPTS.items():
        if pattern.search(text):
            scripts.add("Han" if name in _JAPANESE else name)
    return scripts
