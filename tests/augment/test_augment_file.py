import json
import os
import re
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import LIMIT_S, CountingProgress, Told
from simcse_cli.augment import augment_file
from simcse_cli.augment.augment_file import AugmentJob, number_lines, write_pairs
from simcse_cli.augment.augmentations import make_augmenter, sentence_key, word_augmenter
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.augment.wordnet import find_wordnet
from simcse_cli.errors import DataError, UsageError
from simcse_cli.progress import SilentProgress
from simcse_cli.results.report import DiffRow
from simcse_cli.settings.choices import Augmentation, Sides, TextUnit
from tiny_wordnet import write_wordnet

DELETE = make_augmenter(Augmentation.DELETE, 0.3)
LINES = [f"line {i} has a few words, some of which go" if i % 7 else "" for i in range(60)]


def pairs_of(
    job: AugmentJob, lines: list[str], *, workers: int = 1
) -> tuple[list[tuple[str, str]], Counter[str]]:
    rows: list[tuple[str, str]] = []
    counts = write_pairs(lines, rows.append, job, workers=workers, progress=SilentProgress())
    return rows, counts


class Exclaim:
    """Adds a word to every text but those that begin with ``same``."""

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]:
        return [text if text.startswith("same") else f"{text} !" for text in texts]


def augmented(folder: Path, lines: Sequence[str], **options: Any) -> tuple[Told, list[str]]:
    """Augment the lines into ``o.csv``; return what the user is told and the labels of the preview."""
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    chosen = AugmentOptions(**{"method": "crop", "output": folder / "o.csv", **options})
    progress = Told()
    shown: list[DiffRow] = []
    augment_file.augment_file(
        str(folder / "in.txt"), chosen, lambda _: Exclaim(), show=shown.extend, progress=progress
    )
    return progress, [row.label for row in shown]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("crop:0.2", {"method": "crop", "rate": 0.2}),
        ("crop:0.2+delete", {"method": "crop:0.2+delete", "rate": None}),
    ],
)
def test_augment_file_tells_and_records_what_it_made(
    tmp_path: Path, method: str, settings: dict[str, object]
) -> None:
    progress, labels = augmented(tmp_path, ["a", " ", "same b", "c"], method=method, copies=2)
    output = tmp_path / "o.csv"
    assert (
        output.read_text()
        == "anchor,positive\na,a !\na,a !\nsame b,same b\nsame b,same b\nc,c !\nc,c !\n"
    )
    assert progress.lines == [
        f"{output}: 6 pairs of 3 sentences, 2 of them unchanged, 1 blank lines skipped"
    ]
    assert progress.said == f"wrote {output}.manifest.json"
    assert (progress.warnings, labels) == ([], [])
    manifest = json.loads((tmp_path / "o.csv.manifest.json").read_text())
    assert {**settings, "copies": 2, "model": None}.items() <= manifest["settings"].items()
    assert manifest["counts"] == {"sentences": 3, "blank": 1, "unchanged": 2}


def test_augment_file_writes_to_stdout_without_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress, _ = augmented(tmp_path, ["a"], output=Path("-"))
    assert capsys.readouterr().out == "anchor,positive\na,a !\n"
    assert progress.lines == ["standard output: 1 pairs of 1 sentences, 0 of them unchanged"]
    assert progress.said == ""


@pytest.mark.parametrize(
    ("lines", "unit", "warning"),
    [
        (["a"] * 5 + ["same"] * 5, TextUnit.WORD, ""),
        (["a"] * 6 + ["same"] * 4, TextUnit.WORD, ""),
        (
            ["a"] * 4 + ["same"] * 6,
            TextUnit.WORD,
            "more than half of the positives equal their anchor",
        ),
        (["a"] * 99 + ["今天天气很好"], TextUnit.WORD, ""),
        (["a"] * 98 + ["今天天气很好"] * 2, TextUnit.WORD, "2 sentences hold text without spaces"),
        (["a"] * 98 + ["今天天气很好"] * 2, TextUnit.CHAR, ""),
    ],
)
def test_augment_file_warns_of_text_that_it_hardly_changes(
    tmp_path: Path, lines: list[str], unit: TextUnit, warning: str
) -> None:
    progress, _ = augmented(tmp_path, lines, unit=unit)
    assert len(progress.warnings) == bool(warning)
    assert warning in "".join(progress.warnings)


def test_augment_file_refuses_blank_lines_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match=r"in\.txt has no sentences, only 3 blank lines"):
        augmented(tmp_path, ["", " ", "\x07"], output=Path("-"))
    assert capsys.readouterr().out == ""  # no header either


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"preview": 2}, ["line 2", "line 4"]),
        ({"preview": 9}, ["line 2", "line 4", "line 5"]),
        ({"preview": 1, "copies": 2}, ["line 2, copy 1", "line 2, copy 2"]),
        ({"preview": 1, "sides": Sides.BOTH}, ["line 2, anchor", "line 2, positive"]),
    ],
)
def test_augment_file_previews_as_many_sentences_as_asked_for(
    tmp_path: Path, options: dict[str, Any], names: list[str]
) -> None:
    lines = ["", "a b", " ", "c d", "e f"]
    progress, labels = augmented(tmp_path, lines, output=None, **options)
    assert labels == [f"{name}: distance 1, 2 words" for name in names]
    assert (progress.lines, [path.name for path in tmp_path.iterdir()]) == ([], ["in.txt"])
    progress, again = augmented(tmp_path, lines, **options)
    assert again == labels
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 1 + 3 * options.get("copies", 1)


@pytest.mark.parametrize(
    ("options", "affinity", "n_cores", "expected"),
    [
        ({}, range(7), 5, 7),
        ({"workers": 3}, range(7), 5, 3),
        ({"method": "crop+mlm"}, range(7), 5, 1),
        ({}, None, 5, 5),
        ({}, None, None, 1),
    ],
)
def test_augment_file_has_a_worker_for_each_core_unless_told_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    affinity: range | None,
    n_cores: int | None,
    expected: int,
) -> None:
    used: list[int] = []

    def write_pairs(
        _: object, write: Callable[..., object], job: object, *, workers: int, progress: object
    ) -> Any:
        used.append(workers)
        write(("a", "b"))
        return Counter(rows=1)

    monkeypatch.setattr(augment_file, "write_pairs", write_pairs)
    monkeypatch.setattr(os, "cpu_count", lambda: n_cores)
    if affinity is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", {0: affinity}.__getitem__, raising=False)
    augmented(tmp_path, ["a"], **options)
    assert used == [expected]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few lines enough for several chunks, and so for several workers."""
    monkeypatch.setattr(augment_file, "_CHUNK_LINES", 5)


def test_write_pairs_gives_each_line_its_own_key() -> None:
    rows, _ = pairs_of(
        AugmentJob(DELETE, seed=3), ["one two  three four", "", "five six seven eight nine"]
    )
    assert rows == [
        ("one two three four", DELETE("one two three four", sentence_key(3, 0))),
        ("five six seven eight nine", DELETE("five six seven eight nine", sentence_key(3, 2))),
    ]


def test_number_lines_leaves_blank_lines_out_of_the_rows_but_not_of_the_count() -> None:
    assert number_lines(["a", " \t", " b\x07 c "], start=10) == [(10, "a"), (12, "b c")]


def test_write_pairs_counts_lines_rows_and_what_stayed() -> None:
    _, counts = pairs_of(
        AugmentJob(DELETE, seed=0, copies=2), ["a b c d", " ", "single", "今天天气很好我们去公园"]
    )
    assert counts == Counter(lines=3, blank=1, rows=6, unchanged=4, unspaced=1, not_english=1)


def test_write_pairs_draws_copies_and_sides_independently() -> None:
    line = "one two three four five six seven eight nine ten"
    job = AugmentJob(DELETE, seed=1, copies=30, both_sides=True)
    rows, _ = pairs_of(job, [line])
    cells = [cell for row in rows for cell in row]
    assert len(rows) == 30
    assert all(len(cell.split()) == 7 for cell in cells)
    assert len(set(cells)) > 40  # 60 draws from 120 possibilities


def test_write_pairs_gives_each_side_of_a_copy_its_own_key_and_counts_lines() -> None:
    job, line, progress = (
        AugmentJob(DELETE, 1, copies=2, both_sides=True),
        LINES[1],
        CountingProgress(),
    )
    rows: list[tuple[str, str]] = []
    write_pairs(["", line], rows.append, job, workers=1, progress=progress)
    assert rows == [
        (DELETE(line, sentence_key(1, 1, copy, 1)), DELETE(line, sentence_key(1, 1, copy, 0)))
        for copy in (0, 1)
    ]
    assert progress.n_done == 2


@pytest.mark.parametrize(
    ("n_chunks", "workers", "has_pool"), [(3, 5, False), (4, 2, True), (9, 1, False)]
)
def test_write_pairs_starts_workers_for_four_chunks(
    small_chunks: None, monkeypatch: pytest.MonkeyPatch, n_chunks: int, workers: int, has_pool: bool
) -> None:
    asked: list[int] = []

    def refuse(workers: int, *_: object) -> None:
        asked.append(workers)
        raise InterruptedError

    monkeypatch.setattr(augment_file, "ProcessPoolExecutor", refuse)
    try:
        pairs_of(AugmentJob(DELETE, seed=5), ["a b"] * 5 * n_chunks, workers=workers)
    except InterruptedError:
        assert asked == [workers]
    assert bool(asked) is has_pool


def test_write_pairs_does_not_depend_on_seedless_state_or_chunks(small_chunks: None) -> None:
    job = AugmentJob(DELETE, seed=5)
    first, counts = pairs_of(job, LINES)
    again, _ = pairs_of(job, LINES)
    other, _ = pairs_of(AugmentJob(DELETE, seed=6), LINES)
    assert first == again != other
    assert counts["rows"] == sum(map(bool, LINES))


def test_workers_take_no_modules_from_the_current_folder(
    small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Callable[..., Any]
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES))
    (tmp_path / "pickle.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    outcome = invoke("augment", "in.txt", "-o", "out.csv", "--method", "delete-one", "--workers", 2)
    assert outcome.exit_code == 0, outcome.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("workers", [2, 3])
def test_write_pairs_is_the_same_for_any_number_of_workers(
    small_chunks: None, workers: int
) -> None:
    combined = word_augmenter(AugmentOptions(method="crop:0.2+delete:0.3+delete-one"))
    job = AugmentJob(combined, seed=5, copies=2, both_sides=True)
    assert pairs_of(job, LINES, workers=workers) == pairs_of(job, LINES)


def test_write_pairs_reads_only_a_few_chunks_ahead(small_chunks: None) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "a few words here"

    results = augment_file._results(
        augment_file._chunks(endless()), AugmentJob(DELETE, seed=0), workers=2
    )
    for _ in range(20):
        next(results)
    results.close()  # type: ignore[attr-defined]
    assert taken == 5 * (20 + 2 * 3)  # three chunks a worker wait


def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = (
        "import os; from concurrent.futures import ProcessPoolExecutor; from multiprocessing "
        "import get_context\nfrom simcse_cli.augment.augment_file import _start_worker\nif "
        "__name__ == '__main__':\n    with ProcessPoolExecutor(1, get_context('spawn'), "
        "_start_worker, (None,)) as pool:\n        print(pool.submit(os.getpid).result(), "
        "flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline())
        parent.kill()
        ended, _, _ = select.select(
            [parent.stdout], [], [], LIMIT_S
        )  # once nobody can write to it any more
        assert ended


def test_manifest_records_how_the_input_was_read(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text;text\na b;c d\n")
    read = {"column": "2", "header": True, "separator": ";", "encoding": "latin-1", "sheet": None}
    options = AugmentOptions("delete-one", tmp_path / "o.csv", **read)
    source = str(tmp_path / "in.csv")
    augment_file.augment_file(
        source, options, lambda _: Exclaim(), show=print, progress=SilentProgress()
    )
    assert (tmp_path / "o.csv").read_text() == "anchor,positive\nc d,c d !\n"
    settings = json.loads((tmp_path / "o.csv.manifest.json").read_text())["settings"]
    assert {**read, "keep_label": None, "wordnet": []}.items() <= settings.items()


def test_manifest_records_the_wordnet_and_the_model_of_a_step(
    tmp_path: Path, wordnet_dir: Path
) -> None:
    def settings(method: str) -> dict[str, Any]:
        augmented(tmp_path, ["a"], method=method, wordnet_dir=wordnet_dir, force=True)
        manifest = json.loads((tmp_path / "o.csv.manifest.json").read_text())
        return manifest["settings"]  # type: ignore[no-any-return]

    other = write_wordnet(tmp_path / "other")
    (other / "noun.exc").write_text("oxen ox\n")
    digests = [find_wordnet(folder).digest for folder in (wordnet_dir, other)]
    assert digests[0] != digests[1]
    assert settings("synonym")["wordnet"] == digests[:1]
    assert settings(f"eda:0.1:{other}")["wordnet"] == digests[1:]
    assert settings(f"synonym+crop+eda:0.1:{other}")["wordnet"] == digests
    assert settings("mlm:0.15:roberta-base")["model"] == "roberta-base"


@pytest.mark.parametrize("method", ["negate", "crop-prefix-chars:0.2", "crop-prefix-chars+negate"])
def test_copies_are_refused_if_nothing_is_drawn(tmp_path: Path, method: str) -> None:
    with pytest.raises(UsageError, match=rf"no use with --method {re.escape(method)}") as caught:
        augmented(tmp_path, ["a b c"], method=method, copies=2)
    assert caught.value.option == "--copies"
    assert not (tmp_path / "o.csv").exists()
    augmented(tmp_path, ["a b c"], method=method)
    augmented(tmp_path, ["a b c"], method=f"crop+{method}", copies=2, force=True)
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 3
