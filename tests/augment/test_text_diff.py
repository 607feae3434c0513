import random
from functools import cache

import pytest

from simcse_cli.augment.words import TextChange, diff_row, word_changes
from simcse_cli.results.report import DiffRow
from simcse_cli.settings.choices import TextUnit


def plain_distance(before: str, after: str) -> int:
    """Return the edit distance straight from its recursive definition."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        same = before[i - 1] == after[j - 1]
        return min(
            distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (not same)
        )

    return distance(len(before), len(after))


@pytest.mark.parametrize(
    ("before", "after", "distance", "changes"),
    [
        ("a b c", "a b c", 0, [TextChange(("a", "b", "c"), ("a", "b", "c"))]),
        (
            "a b c",
            "a c",
            1,
            [TextChange(("a",), ("a",)), TextChange(("b",), ()), TextChange(("c",), ("c",))],
        ),
        (
            "a b",
            "a x y b",
            2,
            [TextChange(("a",), ("a",)), TextChange((), ("x", "y")), TextChange(("b",), ("b",))],
        ),
        ("a b", "c", 2, [TextChange(("a", "b"), ("c",))]),
        ("", "", 0, []),
    ],
)
def test_word_changes_lists_equal_and_changed_stretches(
    before: str, after: str, distance: int, changes: list[TextChange]
) -> None:
    assert word_changes(before.split(), after.split()) == (distance, changes)


def test_word_changes_agrees_with_the_definition_and_rebuilds_both_texts() -> None:
    rng = random.Random(3)
    for _ in range(200):
        before = "".join(rng.choices("abc", k=rng.randrange(9)))
        after = "".join(rng.choices("abc", k=rng.randrange(9)))
        distance, changes = word_changes(before, after)
        assert distance == plain_distance(before, after)
        assert distance == sum(max(map(len, change)) for change in changes if not change.is_equal)
        assert "".join(word for change in changes for word in change.before) == before
        assert "".join(word for change in changes for word in change.after) == after


@pytest.mark.parametrize(
    ("unit", "separator", "before", "after"),
    [(TextUnit.WORD, " ", "b c", "d"), (TextUnit.CHAR, "", " b c", " d")],
)
def test_diff_row_marks_what_differs(
    unit: TextUnit, separator: str, before: str, after: str
) -> None:
    row = diff_row("x", "a b c", "a d", unit)
    assert row == DiffRow(
        f"x: distance 2, 3 {unit}s",
        [("a", False), (before, True)],
        [("a", False), (after, True)],
        separator,
    )
