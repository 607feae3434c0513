"""What stands in a comparison: every run folder, result file and published row becomes an ``Entry``.

Parts of one system are merged; repetitions of one run get a line with their mean.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from simcse_cli.comparison.published import PublishedSystem
from simcse_cli.results.columns import AVERAGE, STSB_DEV, STSB_DEV_DATA, TIMES
from simcse_cli.results.evaluation_sets import PUBLISHED

# settings in which repetitions of one run may differ
_REPLICATE_KEYS = ("seed", "seeds", "output", "resume", "force")


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
        source: path or table id.
        scores: measure -> score as a fraction (plain numbers as they are).
        settings: how the scores were measured: metric, aggregation, split, pooler, protocol, ...
        config: resolved settings of a run by dotted key; empty for others.
        intervals: measure -> low and high end of its confidence interval, where the result has one.
        deviations: measure -> sample deviation over members, for a mean.
        members: labels behind a mean.
        pair_scores: the file with the score of each STS pair, where it was saved.
        predictions: the file with the predicted class of each transfer example, where it was saved.
        data: measure -> what it was scored on, where published scores of it exist.
        cost: what a run was computed on and took; empty for others.
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
    data: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def from_published(system: PublishedSystem) -> Entry:
    settings = dict(system.settings)
    if settings.pop("suite", None) != "sts":
        settings.pop("metric", None)  # the word belongs to STS; elsewhere it is fixed by the suite
    if STSB_DEV in system.scores:
        settings["dev data"] = STSB_DEV_DATA
    label = f"{system.table}: {system.label}"
    data = dict.fromkeys(system.scores, PUBLISHED)
    return Entry(label, EntryKind.PUBLISHED, system.table, dict(system.scores), settings, data=data)


def merge_parts(entries: Sequence[Entry]) -> list[Entry]:
    """Join entries of the same label that share no score (``ours=sts.json ours=transfer.json``), seed by seed."""
    merged: list[Entry] = []
    for entry in entries:
        for index, other in enumerate(merged):
            shared = other.scores.keys() & entry.scores.keys()
            is_same = other.label == entry.label and (
                None in (other.seed, entry.seed) or other.seed == entry.seed
            )
            if is_same and shared <= set(TIMES):
                merged[index] = _join(other, entry)
                break
        else:
            merged.append(entry)
    return merged


def add_means(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with a mean line after the last member of every group of repetitions.

    Repetitions are entries of the same label, and runs whose resolved settings differ in the seed only.
    Members of one label are numbered to tell them apart, by seed where it is known.
    """
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(_group_key(entry), []).append(entry)
    lines: list[Entry] = []
    for members in groups.values():
        named = _tell_apart(members)
        lines += named
        if len(members) > 1:
            lines.append(_mean(_common_name([member.label for member in members]), named))
    return lines


def _join(a: Entry, b: Entry) -> Entry:
    return replace(
        a,
        source=f"{a.source}, {b.source}",
        scores={**a.scores, **b.scores},
        settings={**b.settings, **a.settings},
        config=a.config or b.config,
        seed=b.seed if a.seed is None else a.seed,
        intervals={**a.intervals, **b.intervals},
        pair_scores=a.pair_scores or b.pair_scores,
        predictions=a.predictions or b.predictions,
        data={**a.data, **b.data},
        remarks=(*a.remarks, *b.remarks),
    )


def add_missing(run: Entry, result: Entry) -> Entry | None:
    """Return the run with the scores of a result that it lacks; None where the two differ in a score.

    Averages may differ: they are over the tasks of one result.
    """
    shared = run.scores.keys() & result.scores.keys() - set(TIMES)
    if any(run.scores[name] != result.scores[name] for name in shared if AVERAGE not in name):
        return None
    new = {name: score for name, score in result.scores.items() if name not in run.scores}
    return _join(run, replace(result, scores=new))


def _group_key(entry: Entry) -> Any:
    if entry.kind is not EntryKind.RUN or not entry.config:
        return entry.label
    return tuple(
        sorted(
            (key, repr(value))
            for key, value in entry.config.items()
            if key.rpartition(".")[2] not in _REPLICATE_KEYS
        )
    )


def _tell_apart(members: Sequence[Entry]) -> list[Entry]:
    labels = [member.label for member in members]
    if len(set(labels)) == len(labels):
        return list(members)
    return [
        replace(member, label=f"{member.label} [{number if member.seed is None else f'seed {member.seed}'}]")
        for number, member in enumerate(members, start=1)
    ]


def _common_name(labels: Sequence[str]) -> str:
    """Return what the labels start with, without a dangling ``-seed-``."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*labels, strict=False))
    return re.sub(r"[-_. /]*(seed|run)?[-_. /=]*$", "", "".join(letter for letter, *_ in same)) or labels[0]


def _mean(name: str, members: Sequence[Entry]) -> Entry:
    first, *others = members
    values = {
        measure: [member.scores[measure] for member in members]
        for measure in first.scores
        if all(measure in other.scores for other in others)
    }
    return Entry(
        label=f"{name} (mean of {len(members)})",
        kind=EntryKind.MEAN,
        source=", ".join(member.source for member in members),
        scores={measure: fmean(found) for measure, found in values.items()},
        settings=_shared([member.settings for member in members]),
        deviations={measure: stdev(found) for measure, found in values.items()},
        data=_shared([member.data for member in members]),
        members=tuple(member.label for member in members),
    )


def _shared(texts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {key: text for key, text in texts[0].items() if all(each.get(key) == text for each in texts)}
