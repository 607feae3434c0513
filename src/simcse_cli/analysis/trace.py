"""The path of a training run through alignment and uniformity, read from its ``metrics.jsonl``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.errors import DataError
from simcse_cli.files import iter_lines

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """Measurements of one run in step order, each array ``(T,)``; a dev score that was not taken is NaN."""

    name: str
    steps: NDArray[np.int64]
    alignment: Floats
    uniformity: Floats
    dev_score: Floats

    def until(self, step: int) -> "Trace":
        """Return the measurements up to and including ``step``."""
        kept = self.steps <= step
        return Trace(
            self.name, self.steps[kept], self.alignment[kept], self.uniformity[kept], self.dev_score[kept]
        )

    @property
    def points(self) -> Floats:
        """``(T, 2)``: uniformity and alignment, the two axes of the figure."""
        return np.stack([self.uniformity, self.alignment], axis=1)

    @property
    def best(self) -> int | None:
        """Position of the highest dev score, the first of equal ones; None without any."""
        return int(np.nanargmax(self.dev_score)) if np.isfinite(self.dev_score).any() else None


def read_trace(run: Path | str, name: str) -> Trace:
    """Return the steps of a run at which alignment and uniformity were measured.

    A step logged twice (a resumed run repeats those after its checkpoint) keeps its last measurement.

    Args:
        run: a run folder of ``simcse train``, or a ``metrics.jsonl`` file.
        name: what figures and tables call the run.

    Raises:
        DataError: the file is missing, a line is not JSON, or fewer than two steps have both measures.
    """
    path = Path(run)
    if path.is_dir():
        path = path / "metrics.jsonl"
    hint = "train with --eval-every N and --dev-file FILE or --dev-suite sts; each evaluation measures both"
    if not path.exists():
        raise DataError(f"{run} has no metrics.jsonl, need a run folder of `simcse train`", hint=hint)
    by_step: dict[int, tuple[float, float, float]] = {}
    for line_no, line in enumerate(iter_lines(path), start=1):
        values = _parse(line, path, line_no)
        if values.get("alignment") is not None and values.get("uniformity") is not None:
            dev = values.get("dev_score")
            by_step[int(values["step"])] = (
                float(values["alignment"]),
                float(values["uniformity"]),
                np.nan if dev is None else float(dev),
            )
    if len(by_step) < 2:
        raise DataError(
            f"{path} measures alignment and uniformity at {len(by_step)} steps, need 2", hint=hint
        )
    steps = np.array(sorted(by_step), dtype=np.int64)
    columns = np.array([by_step[step] for step in steps.tolist()]).T
    return Trace(name, steps, columns[0], columns[1], columns[2])


def _parse(line: str, path: Path, line_no: int) -> dict[str, Any]:
    try:
        values = json.loads(line) if line.strip() else {}
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {line_no}: not valid JSON ({error.msg})") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}, line {line_no}: need one JSON object")
    return values


def pareto_front(points: Floats) -> NDArray[np.bool_]:
    """Return which points no other point beats, where lower is better in both columns.

    A point is beaten by one that is at most as high in both columns and lower in one; equal points do not
    beat each other.

    Args:
        points: ``(N, 2)``.
    """
    at_most = np.all(points[None, :, :] <= points[:, None, :], axis=2)
    lower = np.any(points[None, :, :] < points[:, None, :], axis=2)
    return np.asarray(~np.any(at_most & lower, axis=1))
