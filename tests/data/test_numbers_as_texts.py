"""Scores and labels are never trained on as if they were texts."""

import json

import pytest

from simcse_cli.data.training_file import read_scored_rows, read_training_rows
from simcse_cli.errors import DataError

PAIRS = [("laptop warranty?", "pair the printer?"), ("a", "b"), ("c", "d"), ("e", "f")]


@pytest.mark.parametrize("header", ["", "query,title,negative\n"])
def test_a_third_column_of_scores_is_refused_with_its_rows_and_the_ways_out(tmp_path, header):
    path = tmp_path / "scored.csv"
    path.write_text(header + "".join(f"{a},{b},0.5{i}\n" for i, (a, b) in enumerate(PAIRS)))
    with pytest.raises(DataError, match=r"column (3|negative) judges the pairs") as caught:
        read_training_rows(path, n_columns=2)
    assert "laptop warranty? | 2: pair the printer? | 3: 0.50" in caught.value.message
    assert "--objective cosent" in caught.value.hint
    assert "--columns" in caught.value.hint


def test_labels_beside_sentences_are_no_positives(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text(
        "".join(
            json.dumps({"anchor": a, "positive": str(i % 2)}) + "\n"
            for i, (a, _) in enumerate(PAIRS)
        )
    )
    with pytest.raises(DataError, match="no two columns look like texts"):
        read_training_rows(path, n_columns=2)


def test_any_scored_file_trains_and_equal_scores_are_refused(tmp_path):
    path = tmp_path / "scored.csv"
    path.write_text(
        "sentence1,sentence2,score\n" + "".join(f"{a},{b},{i}\n" for i, (a, b) in enumerate(PAIRS))
    )
    found = read_scored_rows(path)
    assert found.rows[1] == ("a", "b", "1.0")
    path.write_text("sentence1,sentence2,score\na,b,1\nc,d,1\n")
    with pytest.raises(DataError, match=r"all 2 scores are 1\.0"):
        read_scored_rows(path)
