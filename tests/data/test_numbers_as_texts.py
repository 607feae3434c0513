"""Scores and labels are never trained on as if they were texts."""

import json

import pytest

from simcse_cli.data.columns import is_number
from simcse_cli.data.training_file import read_scored_rows, read_training_rows
from simcse_cli.errors import DataError

PAIRS = [("laptop warranty?", "pair the printer?"), ("a", "b"), ("c", "d"), ("e", "f")]


@pytest.mark.parametrize("header", ["", "query,title,negative\n"])
def test_a_third_column_of_scores_is_refused_with_its_rows_and_the_ways_out(tmp_path, header):
    path = tmp_path / "scored.csv"
    path.write_text(header + "".join(f"{a},{b},0.5{i}\n" for i, (a, b) in enumerate(PAIRS)))
    columns = {"anchor": "query", "positive": "title"} if header else None
    if header:
        assert read_training_rows(path, columns).columns == ("anchor", "positive")
        path.write_text(path.read_text().replace("query,title", "query,passage"))
    with pytest.raises(DataError, match=r"hard_negative texts holds numbers") as caught:
        read_training_rows(path)
    assert "laptop warranty? | pair the printer? | 0.50" in caught.value.message
    assert "--objective cosent" in caught.value.hint
    assert "--columns" in caught.value.hint


def test_labels_beside_sentences_are_no_positives(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps({"anchor": a, "positive": str(i % 2)}) + "\n" for i, (a, _) in enumerate(PAIRS)))
    with pytest.raises(DataError, match="positive texts holds numbers"):
        read_training_rows(path)


def test_sentences_that_hold_numbers_are_texts(tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("a,1 apple,0.5\nb,2 pears,some\nc,3,4\n")
    assert read_training_rows(path).rows[2] == ("c", "3", "4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.543", True),
        (" -1 ", True),
        ("1e-3", True),
        ("0,5", True),
        ("1.2.3", False),
        ("", False),
        ("4 cats", False),
    ],
)
def test_a_number_is_a_number_alone(text, expected):
    assert is_number(text) is expected


def test_any_scored_file_trains_and_equal_scores_are_refused(tmp_path):
    path = tmp_path / "scored.csv"
    path.write_text("sentence1,sentence2,score\n" + "".join(f"{a},{b},{i}\n" for i, (a, b) in enumerate(PAIRS)))
    found = read_scored_rows(path)
    assert found.rows[1] == ("a", "b", "1.0")
    path.write_text("sentence1,sentence2,score\na,b,1\nc,d,1\n")
    with pytest.raises(DataError, match=r"all 2 scores are 1\.0"):
        read_scored_rows(path)
