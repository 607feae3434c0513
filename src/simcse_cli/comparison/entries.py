"""What stands in a comparison: every run folder, result file and published row becomes an ``Entry``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from simcse_cli.comparison.published import System
from simcse_cli.metrics import STSB_DEV, STSB_DEV_DATA


class EntryKind(StrEnum):
    """Where the figures of an entry come from."""

    RUN = "run"
    RESULT = "result"
    PUBLISHED = "published"
    MEAN = "mean"


@dataclass(frozen=True)
class Entry:
    """One line of a comparison.

    Attributes:
        label: name in the table.
        kind: run, result file, published row, or the mean of several entries.
        source: path or table id.
        scores: measure -> score as a fraction (plain numbers as they are).
        settings: how the scores were measured: metric, aggregation, split, pooler, protocol, ...
        config: resolved settings of a run by dotted key; empty for others.
        seed: of the run, None where unknown.
        intervals: measure -> low and high end of its confidence interval, where the result has one.
        deviations: measure -> sample deviation over members, for a mean.
        members: labels behind a mean.
        pair_scores: the file with the score of each STS pair, where it was saved.
        predictions: the file with the predicted class of each transfer example, where it was saved.
        remarks: what the reader of the table should know of this entry.
    """

    label: str
    kind: EntryKind
    source: str
    scores: Mapping[str, float]
    settings: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    pair_scores: Path | None = None
    predictions: Path | None = None
    remarks: tuple[str, ...] = ()


def from_system(system: System) -> Entry:
    """Return a published row as an entry."""
    settings = dict(system.settings)
    if settings.pop("suite", None) != "sts":
        settings.pop("metric", None)  # the word belongs to STS; elsewhere it is fixed by the suite
    if STSB_DEV in system.scores:
        settings["dev data"] = STSB_DEV_DATA
    return Entry(
        f"{system.table}: {system.label}", EntryKind.PUBLISHED, system.table, dict(system.scores), settings
    )
