import numpy as np
import pytest

from simcse_cli.analysis.overlap import overlap_figure, read_overlaps, summarize
from simcse_cli.errors import DataError
from simcse_cli.progress import SilentProgress

COLUMNS = {"left": "anchor", "right": "positive"}


def test_read_overlaps_of_known_pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\na dog runs,a dog sleeps here\nyes,no\nsame words,words same\n")
    overlaps = read_overlaps(path, "mine", COLUMNS, SilentProgress())
    assert overlaps.tolist() == pytest.approx([4 / 7, 0.0, 1.0])
    assert summarize(overlaps) == pytest.approx(
        {"mean": 11 / 21, "q25": 2 / 7, "median": 4 / 7, "q75": 11 / 14}
    )


def test_read_overlaps_counts_repeated_words_only_with_multisets(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\nno no no,no\n")
    assert read_overlaps(path, "mine", COLUMNS, SilentProgress()).tolist() == pytest.approx([0.5])
    distinct = read_overlaps(path, "mine", COLUMNS, SilentProgress(), multiset=False)
    assert distinct.tolist() == pytest.approx([1.0])


def test_read_overlaps_names_a_missing_column(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\na,b\n")
    with pytest.raises(DataError, match="hypo"):
        read_overlaps(path, "mine", {"left": "anchor", "right": "hypo"}, SilentProgress())


def test_all_labelled_snli_pairs_overlap_less_than_entailment_pairs(shared_data):
    path = shared_data / "nli" / "snli_dev.jsonl"
    overlaps = read_overlaps(path, "snli", {"left": "sentence1", "right": "sentence2"}, SilentProgress())
    assert len(overlaps) == 9842
    assert summarize(overlaps)["mean"] < 0.39


def test_overlap_figure_shares_add_up_to_all_pairs():
    figure = overlap_figure({"file": np.array([0.0, 0.5, 1.0, 1.0])})
    assert figure.axes[0].patches[0].get_data().values.sum() == pytest.approx(100)
