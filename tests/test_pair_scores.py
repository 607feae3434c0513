"""The file of per-pair scores: written, read back, and refused with the line that is wrong."""

from pathlib import Path

import numpy as np
import pytest

from simcse_cli.errors import DataError, OutputError
from simcse_cli.pair_scores import SubsetPairs, read_pair_scores, same_pairs, write_pair_scores

LINE = '{"task": "STS12", "subset": "a", "index": %d, "gold": 1.5, "cosine": 0.5}'


def test_pair_scores_come_back_as_written(tmp_path: Path) -> None:
    first = SubsetPairs(np.array([5.0, 0.25]), np.array([0.1, 1 / 3]), ("a", "ü "), ("b", 'c"'))
    second = SubsetPairs(np.array([2.0]), np.array([-0.5]))
    path = tmp_path / "pairs.jsonl"
    write_pair_scores(path, {"STS12": {"x": first, "y": second}})
    found = read_pair_scores(path)["STS12"]
    for subset, expected in (("x", first), ("y", second)):
        assert found[subset].gold.tolist() == expected.gold.tolist()
        assert found[subset].cosine.tolist() == expected.cosine.tolist()
        assert (found[subset].left, found[subset].right) == (expected.left, expected.right)


def test_pair_scores_are_sorted_by_index(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([LINE % 1, (LINE % 0).replace("0.5}", "0.7}")]) + "\n")
    assert read_pair_scores(path)["STS12"]["a"].cosine.tolist() == [0.7, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not a JSON object"),
        ('{"task": "STS12", "index": 0}', "line 1: no subset, gold, cosine"),
        ("[]", "line 1: no task"),
        ((LINE % 0).replace("1.5", '"high"'), "need to be numbers"),
        (LINE % 1, "STS12 a: indices are not 0 to 0"),
        (f"{LINE % 0}\n{LINE % 0}", "indices are not 0 to 1"),
    ],
)
def test_malformed_pair_scores_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DataError, match=message):
        read_pair_scores(path)


def test_pair_scores_are_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    write_pair_scores(path, {})
    with pytest.raises(OutputError, match="exists already"):
        write_pair_scores(path, {})


def test_same_pairs_needs_the_same_subsets_and_gold() -> None:
    a = {"t": {"s": SubsetPairs(np.array([1.0, 2.0]), np.array([0.1, 0.2]))}}
    other_gold = {"t": {"s": SubsetPairs(np.array([1.0, 3.0]), np.array([0.1, 0.2]))}}
    other_subset = {"t": {"u": a["t"]["s"]}}
    assert same_pairs(a, a, "t")
    assert not same_pairs(a, other_gold, "t")
    assert not same_pairs(a, other_subset, "t")
    assert not same_pairs(a, {}, "t")
