"""Decide whether row 1 of a table holds the names of its columns, or data."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from statistics import median

from simcse_cli.data import kinds, names
from simcse_cli.data.kinds import Kind
from simcse_cli.data.text import count_words

_LEAST_STRONG = 5  # texts needed below row 1 to take its end mark or script as strong evidence
_LEAST_LABELS = 10  # rows needed before labels that recur below row 1 count as evidence
_LEAST_FOR_TENTH = 20  # texts needed to measure the shortest tenth of them
_PHRASE_WORDS = 5  # texts with a median of at most so many words are phrases
# The mark that each character stands for.
_END_MARKS = {
    **dict.fromkeys(".。।", "."),
    **dict.fromkeys("?？؟", "?"),
    **dict.fromkeys("!！", "!"),
    **{mark: mark for mark in ":;…：；"},
}


@dataclass(frozen=True)
class Header:
    """Whether row 1 is a header.

    ``found`` is the answer, or None if it is not certain. ``by_look`` says that only the look of
    row 1 has decided.
    """

    found: bool | None
    by_look: bool = False


def decide_header(rows: Sequence[Sequence[str]], given_names: Iterable[str] = ()) -> Header:
    """Decide whether row 1 is a header, by comparing it with the rows below it.

    ``given_names`` are the names of columns that the user typed: if row 1 has one, it is a header.
    """
    first = list(map(str.strip, rows[0]))
    below = rows[1:]
    if _holds_name(first, given_names):
        return Header(True)
    columns = [_column_below(rows, at) for at in range(len(first))]

    # A cell that occurs again in its column is data, as labels and premises are.
    for cell, column in zip(first, columns, strict=True):
        if not kinds.is_missing(cell) and cell in column:
            return Header(False)
    # pandas writes 0, 1, 2, ... above columns without names. Above texts, such a row is a header.
    if below and first == list(map(str, range(len(first)))):
        kinds_below = set(map(kinds.kind_of, columns))
        return Header(not kinds_below.isdisjoint((Kind.TEXT, Kind.WORD)))

    # Otherwise the kinds of the columns, usual names, and at last the look decide.
    votes = _votes_of_kinds(first, columns)
    is_usual = any(map(names.is_known, first)) or names.are_languages(first)
    if is_usual and False not in votes:
        return Header(True)
    if len(votes) > 1:  # for and against
        # A usual name such as sentence1 looks like an id, so only other cells may vote against.
        others = [at for at, cell in enumerate(first) if not names.is_known(cell)]
        votes = _votes_of_kinds([first[at] for at in others], [columns[at] for at in others])
        return Header(None if False in votes else True)
    if votes:
        return Header(votes.pop())
    if not below:
        return Header(False)
    if len(rows) >= _LEAST_LABELS and _all_labels_recur(first, columns):
        return Header(True)
    return _decide_by_look(first, columns)


def _holds_name(first: Sequence[str], given_names: Iterable[str]) -> bool:
    """Tell whether row 1 has one of the names that the user typed; numbers are no names."""
    folded = set(map(names.fold, first))
    return any(not name.isdigit() and names.fold(name) in folded for name in given_names)


def _column_below(rows: Sequence[Sequence[str]], at: int) -> list[str]:
    return [row[at].strip() for row in rows[1:] if at < len(row)]


def _filled(cells: Iterable[str]) -> list[str]:
    return list(filterfalse(kinds.is_missing, cells))


def _votes_of_kinds(first: Sequence[str], columns: Sequence[Sequence[str]]) -> set[bool]:
    """Return the distinct votes of the columns: True for a header, False against it.

    ``first`` holds the cells of row 1, and ``columns`` the cells below each of them. Only columns
    of numbers, ids, dates or lists vote. They vote against a header if the cell in row 1 is of the
    same kind as the cells below, and otherwise for it.
    """
    votes = set[bool]()
    for cell, column in zip(first, columns, strict=True):
        kind = kinds.kind_of(column)
        # Scores and labels vote only if they are numbers; ids, dates and lists need not be.
        is_numbers = kind in (Kind.SCORE, Kind.LABEL, Kind.ID) and _are_numbers(column)
        if not is_numbers and kind not in (Kind.ID, Kind.DATE, Kind.LIST):
            continue
        # An empty cell above row numbers is the header of pandas' index.
        if cell == "" and kind is Kind.ID and is_numbers:
            votes.add(True)
        elif not kinds.is_missing(cell):
            votes.add(not _is_of_kind(cell, kind, is_numbers=is_numbers))
    return votes


def _are_numbers(column: Sequence[str]) -> bool:
    return None not in map(kinds.to_number, _filled(column))


def _is_of_kind(cell: str, kind: Kind, *, is_numbers: bool) -> bool:
    """Tell whether a cell fits a column of a kind; ``is_numbers`` says that the column has numbers.

    Labels, scores and ids may be numbers.
    """
    if is_numbers:
        return kinds.to_number(cell) is not None
    if kind is Kind.DATE:
        return kinds.is_date(cell)
    if kind is Kind.LIST:
        return kinds.list_items(cell) is not None
    return kinds.is_id_token(cell)


def _all_labels_recur(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Tell whether there is a column of labels in which each label below row 1 occurs repeatedly.

    No cell of row 1 occurs again below it: ``decide_header`` has looked at that before.
    """
    for cell, column in zip(first, columns, strict=True):
        if kinds.is_missing(cell) or kinds.kind_of(column) is not Kind.LABEL:
            continue
        counts = Counter(_filled(column))
        if counts and min(counts.values()) > 1:
            return True
    return False


def _decide_by_look(first: Sequence[str], columns: Sequence[Sequence[str]]) -> Header:
    """Decide by the look of texts alone: each cell of a header differs from the cells below it."""
    looks: list[str] = []
    holds_more_than_words = False
    for cell, column in zip(first, columns, strict=True):
        texts = _filled(column)
        kind = kinds.kind_of(texts)
        if kind not in (Kind.TEXT, Kind.WORD):
            continue
        holds_more_than_words |= kind is Kind.TEXT
        looks.append(_look(cell, texts))
    if looks and "" not in looks and "strong" in looks:
        return Header(True, by_look=True)
    # It stays open if cells differ, but not clearly; and above words alone, since a header looks
    # like them. Otherwise no cell differs, so row 1 is data.
    are_words_alone = looks and not holds_more_than_words
    if any(looks) or are_words_alone:
        return Header(None)
    return Header(False)


def _look(cell: str, texts: Sequence[str]) -> str:
    """Return how a cell differs from the texts below it: ``strong``, ``weak``, or "" if not."""
    if not cell:
        return ""
    mark = _end_mark(cell)
    marks_below = Counter(map(_end_mark, texts))
    usual_mark, n_marked = marks_below.most_common(1)[0]
    is_shared = 10 * n_marked >= 9 * len(texts)  # by nine texts in ten
    if len(texts) >= _LEAST_STRONG:
        scripts_below = set[str]().union(*map(kinds.scripts_of, texts))
        if kinds.scripts_of(cell) and not kinds.scripts_of(cell) & scripts_below:
            return "strong"
        if is_shared and mark != usual_mark:
            return "strong"
    if mark and mark in marks_below:
        return ""  # the cell ends like texts below it; names seldom end with a mark
    # An end mark that the texts share and the cell lacks is weak evidence if the texts are few.
    if (is_shared and usual_mark) or _differs_weakly(cell, texts):
        return "weak"
    return ""


def _end_mark(text: str) -> str:
    """Return the mark at the end of a text, the same for all scripts; "" for none."""
    return _END_MARKS.get(text.rstrip("\"'”’»」』)）] ")[-1:], "")


def _differs_weakly(cell: str, texts: Sequence[str]) -> bool:
    """Tell whether a cell differs in length or in its first letter from the texts below it.

    It does if it is unusually short, is at least one and a half times as long as the longest text,
    or begins with a capital where all texts begin with a small letter.
    """
    # Phrases vary less in length than sentences do, so a cell below their median is short. Above
    # many sentences, a cell that would be in their shortest tenth is short; above few, only one
    # that is shorter than all of them.
    lengths = sorted(map(len, texts))
    if median(map(count_words, texts)) <= _PHRASE_WORDS:
        shortest_usual = median(lengths)
    elif len(lengths) >= _LEAST_FOR_TENTH:
        shortest_usual = lengths[len(lengths) // 10]
    else:
        shortest_usual = lengths[0]
    if len(cell) < shortest_usual or 2 * len(cell) >= 3 * lengths[-1]:
        return True
    return cell[0].isupper() and all(text[0].islower() for text in texts)
