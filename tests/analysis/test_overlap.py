import numpy as np
import pytest

from helpers import Told
from simcse_cli.analysis.options import OverlapOptions
from simcse_cli.analysis.overlap import overlap_analysis, overlap_figure, read_overlaps, summarize
from simcse_cli.data.given import Given
from simcse_cli.errors import DataError
from simcse_cli.progress import SILENT, SilentProgress

COLUMNS = Given({"left": "anchor", "right": "positive"})


def test_read_overlaps_of_known_pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(
        "anchor,positive\na dog runs,a dog sleeps here\nyes,no\nsame words,words same\n"
    )
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


def test_read_overlaps_leaves_out_and_counts_pairs_without_a_word(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\n.,.\n\U0001f600,\U0001f600\na b,b c\na,!\n")
    progress = Told()
    assert read_overlaps(path, "mine", COLUMNS, progress).tolist() == [0.5, 0.0]
    assert progress.lines == [f"{path}: left out 2 pairs without any word"]
    path.write_text("anchor,positive\n.,.\n")
    with pytest.raises(DataError, match=r"no pair has a word"):
        read_overlaps(path, "mine", COLUMNS, SILENT)


def test_read_overlaps_names_a_missing_column(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\na,b\n")
    with pytest.raises(DataError, match="hypo"):
        read_overlaps(path, "mine", Given({"left": "anchor", "right": "hypo"}), SilentProgress())


def test_all_labelled_snli_pairs_overlap_less_than_entailment_pairs(shared_data):
    path = shared_data / "nli" / "snli_dev.jsonl"
    overlaps = read_overlaps(
        path, "snli", Given({"left": "sentence1", "right": "sentence2"}), SilentProgress()
    )
    assert len(overlaps) == 9842
    assert summarize(overlaps)["mean"] < 0.39


def test_read_overlaps_of_a_file_without_rows_is_refused(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\n")
    with pytest.raises(DataError, match=r"pairs\.csv has no rows"):
        read_overlaps(path, "mine", COLUMNS, SILENT)


def test_overlap_figure_shows_shares_of_pairs_in_twentieths_and_the_mean():
    (axes,) = overlap_figure({"file": np.array([0.0, 0.5, 1.0, 1.0])}).axes
    shares = axes.patches[0].get_data()
    assert shares.edges.tolist() == pytest.approx([edge / 20 for edge in range(21)])
    expected = dict.fromkeys(range(20), 0) | {0: 25, 10: 25, 19: 50}
    assert shares.values.tolist() == list(expected.values())
    assert axes.lines[0].get_xdata() == [0.625, 0.625]
    assert axes.get_xlim() == (0, 1)
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["file (mean 62%)"]


def test_overlap_analysis_of_two_files(tmp_path):
    for name, rows in (("a", "well well well,well\nyes sir,no\n"), ("b", "a dog,a dog\n")):
        (tmp_path / f"{name}.csv").write_text("anchor,positive\n" + rows)
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    found = overlap_analysis(files, OverlapOptions(), ["one", "two"], SILENT)
    rows = found.tables[0].cells()
    assert rows == [
        ["one", "2", "25.00", "12.50", "25.00", "37.50"],
        ["two", "1", "100.00", "100.00", "100.00", "100.00"],
    ]
    assert found.payload == {"analysis": "overlap", "multiset": True, "files": found.tables[0].rows}
    empty = " " * 19
    halves = f"one  ▄{empty[:9]}▄{empty[:9]}".rstrip()
    lines = found.terminal_plot().splitlines()
    assert [lines[0].rstrip(), *lines[1:]] == [
        halves,
        f"two  {empty}█",
        "F1 from 0 (left) to 1 (right)",
    ]
    distinct = overlap_analysis(files, OverlapOptions(distinct=True), None, SILENT).payload
    assert (distinct["multiset"], distinct["files"][0]["mean"]) == (False, 0.5)
