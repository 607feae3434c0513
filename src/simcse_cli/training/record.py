"""Write a run's record, metrics and model card, and check the data of a resumed run."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from simcse_cli.data.senteval import resolve_senteval_dir
from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest, sha256_file
from simcse_cli.models.card import base_facts, write_cards
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.models.export import verify_export
from simcse_cli.progress import Progress, ProgressTask
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Report
from simcse_cli.results.runs import RunRecord, duration, is_run, read_run_record
from simcse_cli.settings.choices import DevSuite
from simcse_cli.training.dev import DevScore
from simcse_cli.training.setup import split_weight
from simcse_cli.training.trackers import RunLog, start_tracker


@dataclass(frozen=True)
class StepResult:
    """The loss, its terms, metrics, gradient norm and learning rate of an optimizer step.

    Sentences and tokens (of all processes) and seconds are sums over the steps since the previous
    result.
    """

    loss: float
    losses: dict[str, float]
    metrics: dict[str, float]
    grad_norm: float
    lr: float
    n_sentences: int
    n_tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.n_sentences / self.seconds


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Session:
    """One call of the program that works on a run.

    ``started`` tells when the first call on the run began, ``peak_memory_bytes`` is the highest
    peak of all calls so far, and ``earlier_seconds`` is the time of the earlier calls.
    """

    started: str = field(default_factory=_now)
    peak_memory_bytes: int = 0
    earlier_seconds: float = 0.0
    _lap_start: float = field(default_factory=time.perf_counter)

    def lap(self) -> float:
        """Return the seconds since the last lap, or since the start of the session."""
        lap_start = self._lap_start
        self._lap_start = time.perf_counter()
        return self._lap_start - lap_start


def earlier_session(run_dir: Path) -> Session:
    """Return a session that goes on from the start, time and memory peak in a run's record."""
    if not is_run(run_dir):
        return Session()
    record = read_run_record(run_dir)
    seconds = 3600 * (record.timings.get("hours") or 0.0)
    return Session(
        started=record.started or _now(),
        peak_memory_bytes=record.peak_memory_bytes or 0,
        earlier_seconds=seconds,
    )


def open_log(run_dir: Path, record: RunRecord, progress: Progress, *, resumed: bool) -> RunLog:
    """Start the run's tracker, write the run's first record, and return its metrics log."""
    last_step = record.step if resumed else None
    tracker = start_tracker(record, run_dir, progress, last_step=last_step)
    record.write(run_dir)
    return RunLog(run_dir / "metrics.jsonl", tracker, progress, last_step=last_step)


def score_line(score: DevScore | None) -> dict[str, Any]:
    if score is None:
        return {}
    line: dict[str, Any] = {
        "dev_score": score.score,
        "alignment": _finite(score.alignment),
        "uniformity": _finite(score.uniformity),
    }
    if score.tasks:
        line["dev_tasks"] = dict(score.tasks)
    return line


def step_line(
    step: int, epoch: float, result: StepResult, score: DevScore | None
) -> dict[str, Any]:
    """Return the line of ``metrics.jsonl`` for a step, with the dev score if there is one."""
    return {
        "step": step,
        "epoch": epoch,
        "loss": result.loss,
        "losses": result.losses,
        **{name: _finite(value) for name, value in result.metrics.items()},
        "lr": result.lr,
        "grad_norm": _finite(result.grad_norm),
        "sentences_per_second": result.rate,
        "tokens_per_second": result.n_tokens / result.seconds,
        **score_line(score),
    }


def show_step(
    task: ProgressTask, result: StepResult, score: DevScore | None, best: float | None
) -> None:
    if score is not None:
        geometry = score.alignment, score.uniformity
        align, uniform = ("–" if value is None else f"{value:.3f}" for value in geometry)
        task.update(dev=percent(score.score), best=percent(best), align=align, uniform=uniform)
    rate = f"{result.rate:.0f}" if result.rate >= 10 else f"{result.rate:.2g}"
    task.update(loss=f"{result.loss:.4f}", rate=f"{rate} sentences/s")


def complete_record(record: RunRecord, run_dir: Path, start: Path | None) -> None:
    """Verify the exported model, describe it in the record, and write the model cards.

    All libraries must get the same vectors from the model. ``start`` is the folder of the model
    that training started from.
    """
    differences = verify_export(run_dir / "model")
    exported = load_encoder(run_dir / "model", device="cpu")
    record.pooler = exported.pooler.value
    record.model_digest = ReadyEncoder(exported).digest
    record.scores = {"probe_max_abs_difference": differences}
    record.base = base_facts(record.model, start)
    record.finished = _now()
    write_cards(run_dir, record, exported)


def require_same_data(run_dir: Path, data: Mapping[str, Any]) -> None:
    """Raise DataError if a file of a recorded run has another digest in ``data``, or none."""
    if not is_run(run_dir):
        return
    digests_now = _digests_by_name(data)
    for name, recorded in _digests_by_name(read_run_record(run_dir).data).items():
        if digests_now.get(name) != recorded:
            raise DataError(
                f"{name} has changed since the run in {run_dir} started "
                f"(SHA-256 {recorded[:12]}, now {digests_now.get(name, 'missing')[:12]})",
                hint="restore the file, or start another run with a new -o",
            )


def require_same_files(run_dir: Path, record: RunRecord) -> None:
    """Raise DataError if a file that a complete run has read has changed since.

    Only files that are still there are compared. Models and data sets of the Hub are not.
    """
    for files, recorded in _files_of(record):
        if not all(map(Path.is_file, files)):
            continue
        digests = [_sha256(file, _state_of(file)) for file in files]
        # The record has the digest of one file, or the digest of the digests of several. A single
        # file may be recorded in either way.
        if recorded not in (digests[0], digest(" ".join(digests))):
            raise DataError(
                f"{', '.join(map(str, files))} has changed since the run in {run_dir} was trained",
                hint="restore the file, choose another folder with -o, or start over with --force",
            )


def _files_of(record: RunRecord) -> Iterator[tuple[list[Path], str]]:
    """Yield lists of files that a run has read, each list with its recorded digest.

    All training files are one list, which comes first; each other file is a list of its own.
    """
    given = record.config.get("train_file") or ()
    sources = [given] if isinstance(given, str) else given  # a single file may be a text
    others = _digests_by_name(record.data)
    trained_on = others.pop(str(record.data.get("train_file")), None)
    if sources and trained_on is not None:
        yield [Path(split_weight(source)[0]) for source in sources], trained_on
    # The files of STS and transfer tasks are recorded by their places in the folder of the data.
    if record.data.get("dev_suite") in (DevSuite.STS, DevSuite.TRANSFER):
        with suppress(DataError):  # the folder is not there any more
            folder = resolve_senteval_dir(record.config.get("data_dir") or "")
            for name in record.data.get("dev_files", ()):
                yield [folder / name], others.pop(name)
    for name, recorded in others.items():
        yield [Path(name)], recorded


@cache
def _sha256(file: Path, _state: tuple[int, ...]) -> str:
    """Return the SHA-256 of a file; it is computed again only if ``_state`` has changed."""
    return sha256_file(file)


def _state_of(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _digests_by_name(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests that ``data`` records of files, code, teachers and models, by name."""
    digests = {data.get(f"{kind}_file"): data.get(f"{kind}_sha256") for kind in ("train", "dev")}
    for kind in ("dev_files", "code_files", "teachers", "models"):
        digests |= dict(data.get(kind, {}))
    return {str(name): recorded for name, recorded in digests.items() if recorded is not None}


def run_report(record: RunRecord, run_dir: Path) -> Report:
    keys = ["run", "objective", "steps"]
    notes = []
    if record.best_score is not None:
        keys += ["start", "best", "best_step"]
        notes.append(f"dev score: {record.chosen_by}")
    if record.gain is not None:
        notes.append(f"gain: {record.gain}, {record.gain.meaning}")
    row = {
        "run": str(run_dir),
        "objective": record.objective,
        "steps": record.step,
        "start": record.start_score,
        "best": record.best_score,
        "best_step": record.best_step,
        "rate": record.timings.get("sentences_per_second"),
        "duration": duration(record.timings.get("hours")),
    }
    return Report("", columns(*keys, "rate", "duration"), [row], notes)


def percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.2f}"


def _finite(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value
