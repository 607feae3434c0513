import json
import os

import pytest

from simcse_cli.errors import DataError, OutputError
from simcse_cli.files.atomic import temporary_beside
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.streams import iter_lines, sha256_file
from simcse_cli.prepare.options import NliOptions, RowOptions
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Dedup

PAIR = ("anchor", "positive")


def write(rows, output, columns=("text",), *, options=RowOptions, **settings):
    writer = RowWriter(options(output=output, **settings), SilentProgress())
    return writer.write("sentences", rows, columns, inputs=[], settings={})


def test_row_writer_cleans_filters_and_counts(tmp_path):
    rows = [(" a  b ",), ("",), ("A b!",), ("c",)]
    result = write(rows, tmp_path / "a.txt", dedup=Dedup.EXACT, min_words=2)
    assert (tmp_path / "a.txt").read_text() == "a b\n"
    assert result.counts.dropped == {"empty": 1, "duplicate": 1, "too_short": 1}
    assert (result.counts.read, result.counts.kept) == (4, 1)


def test_row_writer_samples_after_filtering(tmp_path):
    rows = [(f"row number {i}",) for i in range(100)] + [("x",)] * 100
    result = write(rows, tmp_path / "a.txt", min_words=2, sample=10, keep_order=True)
    lines = (tmp_path / "a.txt").read_text().splitlines()
    numbers = [int(line.split()[-1]) for line in lines]
    assert len(lines) == result.counts.kept == 10
    assert numbers == sorted(numbers)
    assert result.counts.dropped == {"too_short": 100, "not_sampled": 90}


def test_row_writer_measures_overlap_of_what_is_written(tmp_path):
    rows = [("a b", "a b"), ("a", "b"), ("", "c")]
    assert write(rows, tmp_path / "a.csv", PAIR, options=NliOptions).overlap.value == 0.5
    assert write(rows, tmp_path / "b.csv", PAIR).overlap.value is None


def test_row_writer_with_strict_writes_nothing_after_a_finding(tmp_path):
    with pytest.raises(DataError, match="lint found empty 1"):
        write([("a",), ("",)], tmp_path / "a.txt", strict=True)
    assert list(tmp_path.iterdir()) == []
    assert write([("a",)], tmp_path / "a.txt", strict=True).counts.kept == 1


def test_row_writer_says_why_no_row_is_left(tmp_path):
    with pytest.raises(
        DataError, match=r"no row is left of 2 \(dropped: too_short 1, empty 1\)|empty 1, too_short 1"
    ):
        write([("a",), ("",)], tmp_path / "a.txt", min_words=2)
    assert list(tmp_path.iterdir()) == []


def prepare(folder, **options):
    writer = RowWriter(RowOptions(output=folder / "out.txt", **options), SilentProgress())
    writer.write("sentences", iter_rows(folder), ("text",), inputs=[str(folder / "in.txt")], settings={})


def iter_rows(folder):
    for line in iter_lines(folder / "in.txt"):
        yield (line,)


def test_row_writer_puts_the_manifest_there_first(tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    (tmp_path / "out.txt").write_text("older")
    seen = []
    replace = os.replace

    def note(source, target):
        seen.append((target.name, (tmp_path / "out.txt").exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    prepare(tmp_path, force=True)
    assert seen[-2:] == [("out.txt.manifest.json", False), ("out.txt", False)]
    manifest = json.loads((tmp_path / "out.txt.manifest.json").read_text())
    assert manifest["outputs"] == [
        {"path": "out.txt", "bytes": 8, "sha256": sha256_file(tmp_path / "out.txt"), "rows": 2}
    ]


def test_row_writer_has_one_writer_and_removes_what_a_kill_left(tmp_path):
    (tmp_path / "in.txt").write_text("one\n")
    left, mine = temporary_beside(tmp_path / "out.txt"), tmp_path / ".out.txt.tmp"
    mine.write_text("mine")
    with sole_writer(tmp_path / "out.txt"):
        with pytest.raises(OutputError, match="being written by process"):
            prepare(tmp_path)
        left.mkdir()
    prepare(tmp_path)
    assert not left.exists()
    assert mine.read_text() == "mine"


def test_row_writer_refuses_an_input_that_changes_while_it_is_read(tmp_path, monkeypatch):
    source = tmp_path / "in.txt"
    source.write_text("one\n")

    def lines_of_a_growing_file(path):
        yield from ["one"]
        source.write_text("one\ntwo\n")

    monkeypatch.setitem(globals(), "iter_lines", lines_of_a_growing_file)
    with pytest.raises(DataError, match=r"in\.txt has changed while it was read"):
        prepare(tmp_path)
    assert list(tmp_path.iterdir()) == [source]


def test_row_writer_takes_no_file_of_the_user_for_a_manifest(tmp_path):
    (tmp_path / "in.txt").write_text("one\n")
    (tmp_path / "out.txt.manifest.json").write_text("mine")
    with pytest.raises(OutputError, match=r"out\.txt\.manifest\.json exists already"):
        prepare(tmp_path)
    assert (tmp_path / "out.txt.manifest.json").read_text() == "mine"
