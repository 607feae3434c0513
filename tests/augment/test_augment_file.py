import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import LIMIT_S
from simcse_cli.augment import augment_file
from simcse_cli.augment.augment_file import AugmentJob, number_lines, write_pairs
from simcse_cli.augment.augmentations import make_augmenter, sentence_key, word_augmenter
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Augmentation

DELETE = make_augmenter(Augmentation.DELETE, 0.3)
LINES = [f"line {i} has a few words, some of which go" if i % 7 else "" for i in range(60)]


def pairs_of(
    job: AugmentJob, lines: list[str], *, workers: int = 1
) -> tuple[list[tuple[str, str]], Counter[str]]:
    rows: list[tuple[str, str]] = []
    counts = write_pairs(lines, rows.append, job, workers=workers, progress=SilentProgress())
    return rows, counts


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few lines enough for several chunks, and so for several workers."""
    monkeypatch.setattr(augment_file, "_CHUNK_LINES", 5)


def test_write_pairs_gives_each_line_its_own_key() -> None:
    rows, _ = pairs_of(AugmentJob(DELETE, seed=3), ["one two  three four", "", "five six seven eight nine"])
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
    assert counts == Counter(lines=3, blank=1, rows=6, unchanged=4, unspaced=1)


def test_write_pairs_draws_copies_and_sides_independently() -> None:
    line = "one two three four five six seven eight nine ten"
    job = AugmentJob(DELETE, seed=1, copies=30, both_sides=True)
    rows, _ = pairs_of(job, [line])
    cells = [cell for row in rows for cell in row]
    assert len(rows) == 30
    assert all(len(cell.split()) == 7 for cell in cells)
    assert len(set(cells)) > 40  # 60 draws from 120 possibilities


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
def test_write_pairs_is_the_same_for_any_number_of_workers(small_chunks: None, workers: int) -> None:
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

    results = augment_file._results(augment_file._chunks(endless()), AugmentJob(DELETE, seed=0), workers=2)
    for _ in range(20):
        next(results)
    results.close()  # type: ignore[attr-defined]
    assert taken <= 5 * (20 + 2 * augment_file._CHUNKS_PER_WORKER + augment_file._CHUNKS_WITHOUT_WORKERS)


def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = (
        "import os; from concurrent.futures import ProcessPoolExecutor; from multiprocessing import get_context\n"
        "from simcse_cli.augment.augment_file import _start_worker\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(1, get_context('spawn'), _start_worker, (None,)) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline())
        parent.kill()
        ended, _, _ = select.select([parent.stdout], [], [], LIMIT_S)  # once nobody can write to it any more
        assert ended
