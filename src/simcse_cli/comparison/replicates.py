"""Entries that belong together: parts of one system are merged, repetitions of one run get a mean line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean, stdev
from typing import Any

from simcse_cli.comparison.entries import Entry, EntryKind
from simcse_cli.metrics import TIMES

# settings in which repetitions of one run may differ
_REPLICATE_KEYS = ("seed", "seeds", "output", "resume", "force")


def merge_parts(entries: Sequence[Entry]) -> list[Entry]:
    """Join entries of the same label that share no measure (``ours=sts.json ours=transfer.json``)."""
    merged: list[Entry] = []
    for entry in entries:
        for index, other in enumerate(merged):
            if other.label == entry.label and not (other.scores.keys() & entry.scores.keys()).difference(
                TIMES
            ):
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
    )


def _group_key(entry: Entry) -> Any:
    if entry.kind is EntryKind.RUN and entry.config:
        return tuple(sorted((key, repr(value)) for key, value in entry.config.items() if _defines_run(key)))
    return entry.label


def _defines_run(key: str) -> bool:
    return key.rpartition(".")[2] not in _REPLICATE_KEYS


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
    prefix = "".join(
        letters[0] for letters in takewhile(lambda same: len(set(same)) == 1, zip(*labels, strict=False))
    )
    return re.sub(r"[-_. /]*(seed|run)?[-_. /=]*$", "", prefix) or labels[0]


def _mean(name: str, members: Sequence[Entry]) -> Entry:
    shared = set.intersection(*(set(member.scores) for member in members))
    values = {measure: [member.scores[measure] for member in members] for measure in members[0].scores}
    return Entry(
        label=f"{name} (mean of {len(members)})",
        kind=EntryKind.MEAN,
        source=", ".join(member.source for member in members),
        scores={measure: fmean(values[measure]) for measure in values if measure in shared},
        settings=_shared_settings([member.settings for member in members]),
        deviations={measure: stdev(values[measure]) for measure in values if measure in shared},
        members=tuple(member.label for member in members),
    )


def _shared_settings(settings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {
        key: value
        for key, value in settings[0].items()
        if all(other.get(key) == value for other in settings[1:])
    }
