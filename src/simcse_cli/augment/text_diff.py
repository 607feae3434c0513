"""Compare two texts word by word."""

from collections.abc import Sequence
from itertools import chain, groupby
from typing import NamedTuple

from simcse_cli.augment.words import split_units
from simcse_cli.results.report import DiffRow
from simcse_cli.settings.choices import TextUnit


class Change(NamedTuple):
    """A stretch of words in both texts: equal, replaced, removed or added (one side empty)."""

    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return self.before == self.after


def diff_row(name: str, before: str, after: str, unit: TextUnit) -> DiffRow:
    units = split_units(before, unit)
    distance, changes = word_changes(units, split_units(after, unit))
    separator = " " if unit is TextUnit.WORD else ""
    return DiffRow(
        f"{name}: distance {distance}, {len(units)} {unit}s",
        [(separator.join(change.before), not change.is_equal) for change in changes if change.before],
        [(separator.join(change.after), not change.is_equal) for change in changes if change.after],
        separator,
    )


def word_changes(before: Sequence[str], after: Sequence[str]) -> tuple[int, list[Change]]:
    """Return the word-level edit distance and the changes of one cheapest way from ``before`` to ``after``.

    The distance counts removed, added and replaced words (Levenshtein): 0 for equal texts, at most the longer length.
    """
    costs = _cost_table(before, after)
    changes: list[Change] = []
    i, j = len(before), len(after)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (before[i - 1] != after[j - 1]):
            i, j = i - 1, j - 1
            changes.append(Change((before[i],), (after[j],)))
        elif i and costs[i][j] == costs[i - 1][j] + 1:
            i -= 1
            changes.append(Change((before[i],), ()))
        else:
            j -= 1
            changes.append(Change((), (after[j],)))
    stretches = [
        zip(*same, strict=True) for _, same in groupby(reversed(changes), lambda each: each.is_equal)
    ]
    return costs[-1][-1], [Change(*(tuple(chain(*side)) for side in sides)) for sides in stretches]


def _cost_table(before: Sequence[str], after: Sequence[str]) -> list[list[int]]:
    """Return the distance of every prefix of ``before`` (rows) to every prefix of ``after``."""
    costs = [list(range(len(after) + 1))]
    for i, word in enumerate(before, start=1):
        row = [i]
        for j, other in enumerate(after, start=1):
            row.append(min(costs[-1][j] + 1, row[-1] + 1, costs[-1][j - 1] + (word != other)))
        costs.append(row)
    return costs
