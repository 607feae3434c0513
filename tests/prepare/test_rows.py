import json
import os
from pathlib import Path

import pytest

from helpers import Told
from simcse_cli.errors import DataError, OutputError
from simcse_cli.files.atomic import temporary_beside
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.streams import iter_lines
from simcse_cli.prepare.options import NliOptions, PairOptions, RowOptions, SentenceOptions
from simcse_cli.prepare.pairs import PairCounts, prepare_pairs
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.prepare.sentences import prepare_sentences
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Dedup

PAIR = ("anchor", "positive")
GUITAR, DOGS = (
    "A man plays a guitar.",
    "Two dogs are running through a field of tall grass near the river.",
)


def write(rows, output, columns=("text",), *, options=RowOptions, **settings):
    writer = RowWriter(options(output=output, **settings), SilentProgress())
    return writer.write("sentences", rows, columns, inputs=[], settings={})


def test_row_writer_cleans_filters_and_counts(tmp_path):
    rows = [(" a  b ",), ("",), ("A b!",), ("c",)]
    result = write(rows, tmp_path / "a.txt", dedup=Dedup.EXACT, min_words=2)
    assert (tmp_path / "a.txt").read_text() == "a b\n"
    assert result.counts.dropped == {"empty": 1, "duplicate": 1, "too_short": 1}
    assert (result.counts.read, result.counts.kept) == (4, 1)


@pytest.fixture
def evaluation_sets(tmp_path):
    """Return a SentEval folder with one task of two sentences."""
    folder = tmp_path / "evaluation" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (folder / f"sts-{split}.csv").write_text(f"main\tfile\t2017\t0001\t2.5\t{GUITAR}\t{DOGS}\n")
    return tmp_path / "evaluation"


@pytest.mark.parametrize("leak_near", [True, False])
def test_row_writer_tells_and_records_all_it_found(tmp_path, evaluation_sets, leak_near):
    rows = [
        ("a b", "b c"),
        ("a b", "B c."),
        ("d", "e"),
        (GUITAR, "x y"),
        (DOGS.replace("tall", "dry"), "z z"),
    ]
    chosen = NliOptions(output=tmp_path / "o.tsv", check_leak=evaluation_sets, leak_near=leak_near, sample=3,
                        keep_order=True, dedup=Dedup.EXACT, min_words=2)  # fmt: skip
    progress, counts = Told(), PairCounts(n_hard_negatives=7)
    writer = RowWriter(chosen, progress)
    writer.write("pairs", rows, PAIR, inputs=[], settings={"own": 1}, corpus=counts)
    near, n_rows = (" and 1 nearly", 2) if leak_near else ("", 1)
    assert progress.lines == [
        "left out 7 hard negatives; `simcse train` reads such files as they are",
        "pairs: 5 rows made, 3 kept",
        "  dropped           1  too short",
        "  dropped           1  duplicate",
        "  lint              1  duplicate pair (20.00%), first in row 2 of those made: a b | B c.",
        "  lint              1  shared text (20.00%), first in row 2 of those made: a b | B c.",
        f"  leak    {n_rows:>11}  rows hold 1 of 2 sentences of STSBenchmark exactly{near}",
        "  overlap        16.7  % lexical overlap F1, mean of 3 pairs",
        f"wrote {chosen.output} and {chosen.output}.manifest.json",
    ]
    assert progress.warnings == []
    manifest = json.loads((tmp_path / "o.tsv.manifest.json").read_text())
    assert {"own": 1, "check_leak": str(evaluation_sets), "min_words": 2}.items() <= manifest[
        "settings"
    ].items()
    assert list(manifest["counts"]["dropped"].items()) == [("duplicate", 1), ("too_short", 1)]
    assert manifest["leaks"][0]["n_rows"] == n_rows
    assert manifest["corpus"] == {"other_labels": {}, "n_hard_negatives": 7}


def test_row_writer_tells_what_it_did_not_find(tmp_path, evaluation_sets, capsys):
    chosen = RowOptions(output=Path("-"), check_leak=evaluation_sets, sample=3)
    progress = Told()
    RowWriter(chosen, progress).write(
        "sentences", [("a",), ("b",)], ("text",), inputs=[], settings={}
    )
    assert sorted(capsys.readouterr().out.split()) == ["a", "b"]
    assert progress.lines == [
        "sentences: 2 rows made, 2 kept",
        "  no sentence of the 1 evaluation tasks occurs in the rows",
    ]
    assert progress.warnings == ["only 2 rows, fewer than --sample 3"]
    assert write([("a",)], tmp_path / "a.txt", sample=1).counts.dropped == {}
    manifest = json.loads((tmp_path / "a.txt.manifest.json").read_text())
    assert (manifest["settings"]["check_leak"], manifest["leaks"], "corpus" in manifest) == (
        None,
        None,
        False,
    )


@pytest.mark.parametrize(
    ("settings", "dropped"),
    [
        ({}, {}),
        ({"dedup": Dedup.EXACT}, {"duplicate": 1}),
        ({"dedup": Dedup.NEAR}, {"duplicate": 1, "near_duplicate": 1}),
        ({"dedup": Dedup.NEAR, "near_threshold": 0.9}, {"duplicate": 1}),
        ({"max_words": 12}, {"too_long": 2}),
        ({"min_words": 13}, {"too_short": 2}),
    ],
)
def test_row_writer_chooses_filters(tmp_path, settings, dropped):
    rows = [(DOGS,), (DOGS.replace("tall", "dry"),), (GUITAR,), (GUITAR.upper(),)]
    assert write(rows, tmp_path / "a.txt", **settings).counts.dropped == dropped


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
        DataError,
        match=r"no row is left of 2 \(dropped: too_short 1, empty 1\)|empty 1, too_short 1",
    ):
        write([("a",), ("",)], tmp_path / "a.txt", min_words=2)
    assert list(tmp_path.iterdir()) == []


def failing_rows():
    yield ("a", "b")
    raise DataError("line 2 is wrong")


@pytest.mark.parametrize(
    ("rows", "message"),
    [(failing_rows(), "line 2 is wrong"), ([("", "b")], "no row is left"), ([], "gives no row")],
)
def test_standard_output_gets_no_header_before_an_error(capsys, rows, message):
    with pytest.raises(DataError, match=message):
        write(rows, Path("-"), PAIR)
    assert capsys.readouterr().out == ""


def prepare(folder, **options):
    writer = RowWriter(RowOptions(output=folder / "out.txt", **options), SilentProgress())
    writer.write(
        "sentences", iter_rows(folder), ("text",), inputs=[str(folder / "in.txt")], settings={}
    )


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


def found_control_characters(folder, prepare, options, *inputs):
    """Return the counts of a manifest, the place of the first finding, and the told lines."""
    progress = Told()
    prepare([str(folder / name) for name in inputs], options, RowWriter(options, progress))
    manifest = json.loads(Path(f"{options.output}.manifest.json").read_text())
    (finding,) = [each for each in manifest["lint"] if each["check"] == "control_characters"]
    counts = manifest["counts"]
    file = None if finding["file"] is None else Path(finding["file"]).name
    return (counts["input_rows"], counts["read"]), (file, finding["first_row"]), progress.lines


HARD_NEGATIVES = "anchor,positive,hard_negative\na,b,x\na,b,y\nc\x07,d,z\n"
LISTS = '{"query": "a", "pos": ["b", "c"]}\n{"query": "d", "pos": ["e\\u0007"]}\n'
LABELS = "anchor,positive,label\na,b,1\nc,d,0\ne,f\x07,1\n"
LATE_LIST = (
    '{"anchor": "a", "positive": "b"}\n' * 200
    + '{"anchor": "a", "positive": ["b", "c"]}\n'
    + '{"anchor": "d\\u0007", "positive": "e"}\n'
)


@pytest.mark.parametrize(
    ("name", "text", "counts", "row", "told"),
    [
        ("a.csv", HARD_NEGATIVES, (3, 2), 3, "3 rows read, 2 rows made of them, 2 kept"),
        ("a.jsonl", LISTS, (2, 3), 2, "2 rows read, 3 rows made of them, 3 kept"),
        ("l.csv", LABELS, (3, 2), 3, "3 rows read, 2 rows made of them, 2 kept"),
        ("late.jsonl", LATE_LIST, (202, 203), 202, "202 rows read, 203 rows made of them, 203 kept"),
    ],
)  # fmt: skip
def test_pairs_count_rows_of_the_input_and_lint_names_them(tmp_path, name, text, counts, row, told):
    (tmp_path / "first.csv").write_text("anchor,positive\ng,h\n")
    (tmp_path / name).write_text(text)
    options = PairOptions(output=tmp_path / "o.csv")
    found = found_control_characters(tmp_path, prepare_pairs, options, name)
    assert found[:2] == (counts, (name, row))
    assert f"pairs: {told}" in found[2]
    options = PairOptions(output=tmp_path / "o.csv", force=True)
    found = found_control_characters(tmp_path, prepare_pairs, options, "first.csv", name)
    assert found[:2] == ((counts[0] + 1, counts[1] + 1), (name, row))


def test_pairs_of_lines_and_captions_have_the_place_that_they_can_have(tmp_path):
    (tmp_path / "a.src").write_text("a\nb\n")
    (tmp_path / "a.dst").write_text("c\nd\x07\n")
    options = PairOptions(output=tmp_path / "o.csv", parallel=True)
    found = found_control_characters(tmp_path, prepare_pairs, options, "a.src", "a.dst")
    assert found[:2] == ((2, 2), ("a.src", 2))
    (tmp_path / "a.token").write_text("1.jpg#0\ta\n1.jpg#1\tb\n1.jpg#2\tc\x07\n")
    options = PairOptions(output=tmp_path / "p.csv", flickr30k=True)
    found = found_control_characters(tmp_path, prepare_pairs, options, "a.token")
    assert found[:2] == ((None, 3), (None, 2))
    assert found[2][0] == "pairs: 3 rows made, 3 kept"
    assert "first in row 2 of those made: a | c" in found[2][1]


@pytest.mark.parametrize(
    ("split", "counts", "told"),
    [
        (False, (5, 5), "5 rows read, 5 kept"),
        (True, (5, 6), "5 rows read, 6 rows made of them, 6 kept"),
    ],
)
def test_sentences_of_a_folder_have_their_file_and_row(tmp_path, split, counts, told):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("One here. Two here.\nThree.\n")
    (tmp_path / "in" / "b.txt").write_text("Four.\nFive.\nSix \x07.\n")
    options = SentenceOptions(output=tmp_path / "o.txt", split_sentences=split)
    found = found_control_characters(tmp_path, prepare_sentences, options, "in")
    assert found[:2] == (counts, ("b.txt", 3))
    assert found[2][0] == f"sentences: {told}"
    assert f"first in {tmp_path / 'in' / 'b.txt'}, row 3: Six" in found[2][1]
