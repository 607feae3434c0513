"""Join entries, and find the Pareto front.

To join means to merge parts, add means of repetitions and take averages over the same tasks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simcse_cli.comparison.entries import Entry, EntryKind, join_parts
from simcse_cli.errors import ConfigError, ToleranceError
from simcse_cli.results.columns import (
    AVERAGE,
    DEV_SUFFIX,
    TIMES,
    TRANSFER_AVERAGE,
    in_order,
    is_score,
    label,
    lower_is_better,
)
from simcse_cli.results.report import mean_and_deviation
from simcse_cli.results.result import DEMO, PUBLISHED
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS

_AVERAGES = {
    AVERAGE: STS_TASKS,
    AVERAGE + DEV_SUFFIX: tuple(task + DEV_SUFFIX for task in STS_TASKS),
    TRANSFER_AVERAGE: TRANSFER_TASKS,
    TRANSFER_AVERAGE + DEV_SUFFIX: tuple(task + DEV_SUFFIX for task in TRANSFER_TASKS),
}
# what a setting can move, where that is not everything; STS-B and SICK-R have one test set
_MOVES = {
    "aggregation": frozenset({*STS_TASKS[:5], AVERAGE}),
    "transfer protocol": frozenset(
        _AVERAGES[TRANSFER_AVERAGE] + _AVERAGES[TRANSFER_AVERAGE + DEV_SUFFIX]
    ),
    "geometry data": frozenset({"alignment", "uniformity"}),
}
_SHOWN_DEVIATIONS = 5
# settings in which repetitions of one run may differ
_REPLICATE_KEYS = ("seed", "seeds", "output", "resume", "force")


@dataclass(frozen=True)
class ToleranceCheck:
    """The check of scores against a reference.

    It has the number of scores that were checked, and those further off than the tolerance (a
    fraction).

    ``outside`` holds the label, measure and score of each, and the score of the reference as
    ``expected``.
    """

    reference: str
    tolerance: float
    n_checked: int
    outside: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"tolerance": self.tolerance, "n_checked": self.n_checked, "outside": self.outside}

    def verdict(self) -> str:
        points = f"{100 * self.tolerance:g} points"
        if not self.outside:
            return f"check passed: {self.n_checked} scores within {points} of {self.reference}"
        shown = "; ".join(
            f"{each['label']} {label(each['measure'])} {100 * each['score']:.2f}, not "
            f"{100 * each['expected']:.2f}"
            for each in self.outside[:_SHOWN_DEVIATIONS]
        )
        n_more = len(self.outside) - _SHOWN_DEVIATIONS
        more = f"; and {n_more} more" if n_more > 0 else ""
        raise ToleranceError(
            f"{len(self.outside)} of {self.n_checked} scores are more than {points} off "
            f"{self.reference}: {shown}{more}",
            hint="see what differs in the warnings above, or allow more with --tolerance",
        )


@dataclass(frozen=True)
class System:
    """What is tested: the entries of one system, with their files of single examples.

    There is one entry for each seed.

    ``n_seeds`` counts the seeds of the system, with those that have no such file.
    """

    label: str
    members: tuple[tuple[Entry, Path], ...]
    n_seeds: int = 1

    @property
    def seeds(self) -> list[int | None]:
        return [entry.seed for entry, _ in self.members]

    @property
    def remark(self) -> str | None:
        """What the tests leave out, and how to save it; None if that is nothing."""
        if len(self.members) >= self.n_seeds:
            return None
        return (
            f"{self.label}: {len(self.members)} of {self.n_seeds} seeds have saved scores, and the "
            "tests are of these alone; save the others with `simcse eval --save-scores FILE`"
        )

    @property
    def chosen_pairs(self) -> list[str]:
        """The tasks whose pairs have chosen the model of a seed, so that they are no test of it."""
        tasks = (task for entry, _ in self.members for task in entry.chosen_pairs)
        return list(dict.fromkeys(tasks))

    def in_order_of(self, other: "System") -> tuple["System", bool]:
        """Return the system with its seeds in the order of the other system's seeds.

        The second value tells whether the two systems have the same seeds.
        """
        by_seed = {entry.seed: (entry, path) for entry, path in self.members}
        is_paired = None not in by_seed and len(by_seed) == len(self.members) == len(other.members)
        if not is_paired or by_seed.keys() != set(other.seeds):
            return self, False
        return replace(self, members=tuple(by_seed[seed] for seed in other.seeds)), True


@dataclass(frozen=True)
class Comparison:
    """A table of entries by measures.

    There is one line for each entry, and means come after the entries that they summarise.

    Differences are relative to ``reference``. ``warnings`` name reasons why the numbers are hard to
    compare; ``front`` holds the labels of the entries that no other dominates in
    ``pareto_measures``. ``unlike_data`` are the warnings that make differences meaningless; they
    are notes of the tables too.
    """

    entries: tuple[Entry, ...]
    measures: tuple[str, ...]
    reference: Entry | None = None
    warnings: tuple[str, ...] = ()
    pareto_measures: tuple[str, ...] = ()
    front: frozenset[str] = frozenset()
    unlike_data: tuple[str, ...] = ()

    def differences(self, entry: Entry) -> dict[str, float]:
        if self.reference is None:
            return {}
        expected = self.reference.scores
        shared = [name for name in self.measures if name in entry.scores and name in expected]
        return {name: entry.scores[name] - expected[name] for name in shared}

    def checked(self) -> list[Entry]:
        """Return the entries to check.

        They are the means, and the user's entries that are neither the reference nor part of a
        mean.
        """
        own = [entry for entry in self.entries if entry.kind is not EntryKind.PUBLISHED]
        return [entry for entry in without_members(own) if entry is not self.reference]

    def check(self, tolerance: float) -> ToleranceCheck:
        if self.reference is None:
            what = "--check needs one reference to hold the scores against"
            raise ConfigError(
                what, hint="name it with --against TABLE --row NAME, or with --baseline RUN"
            )
        gaps = [
            (entry, name, gap)
            for entry in self.checked()
            for name, gap in self.differences(entry).items()
            if is_score(name)
        ]
        outside = [
            {"label": entry.label, "measure": name}
            | {"score": entry.scores[name], "expected": entry.scores[name] - gap}
            for entry, name, gap in gaps
            if abs(gap) > tolerance + 1e-12
        ]
        return ToleranceCheck(self.reference.label, tolerance, len(gaps), outside)

    def saved(self, kind: Literal["pair_scores", "predictions"]) -> list[tuple[Entry, Path]]:
        """Return the entries with a file of single examples, the baseline of the tests first.

        The baseline is the reference of the comparison if its scores were saved, else the first
        with some.
        """
        found = [
            (entry, path) for entry in self.entries if (path := getattr(entry, kind)) is not None
        ]
        return sorted(found, key=lambda item: item[0] is not self.reference)

    @property
    def asks_for_seeds(self) -> bool:
        """Whether the reference is one of the entries behind a mean, so that seeds are compared."""
        reference = self.reference
        return reference is not None and any(
            reference.label in entry.members for entry in self.entries
        )

    def shown(self) -> list[Entry]:
        """Return the lines of the table.

        They are the systems. Their seeds are added only where the seeds are compared.
        """
        return list(self.entries) if self.asks_for_seeds else without_members(self.entries)

    def systems(self, kind: Literal["pair_scores", "predictions"]) -> list[System]:
        """Return the systems with files of single examples, the baseline of the tests first.

        The entries of a mean are the seeds of one system, unless the reference is one of them: then
        every entry is a system, so that seed is tested against seed. Results of the baseline under
        other settings are left out, since they are the same system.
        """
        saved = self.saved(kind)
        means = [] if self.asks_for_seeds else [each for each in self.entries if each.members]
        system_of = {label: mean.label for mean in means for label in mean.members}
        grouped: dict[str, list[tuple[Entry, Path]]] = {}
        for entry, path in saved:
            grouped.setdefault(system_of.get(entry.label, entry.label), []).append((entry, path))
        n_seeds = {mean.label: len(mean.members) for mean in means}
        found = [
            System(label, tuple(members), n_seeds.get(label, 1))
            for label, members in grouped.items()
        ]
        found.sort(
            key=lambda system: self.reference is None or system.label != self.reference.label
        )
        return found[:1] + [each for each in found[1:] if not self._is_variant(each, found[0])]

    def _is_variant(self, system: System, baseline: System) -> bool:
        """Tell whether a system is a run of the baseline that was measured under other settings.

        A run with another seed counts as one of the baseline.
        """
        own = {entry.label for entry, _ in baseline.members}
        seeds = own.union(*(each.members for each in self.entries if own & set(each.members)))
        folders = {each.folder for each in self.entries if each.label in seeds and not each.variant}
        return any(entry.variant and entry.folder in folders for entry, _ in system.members)


def merge_parts(entries: Sequence[Entry]) -> list[Entry]:
    """Join entries that have the same label and share no score, seed by seed.

    An example is ``ours=sts.json ours=transfer.json``.
    """
    merged: list[Entry] = []
    for entry in entries:
        for index, other in enumerate(merged):
            shared = other.scores.keys() & entry.scores.keys()
            is_same = other.label == entry.label and (
                None in (other.seed, entry.seed) or other.seed == entry.seed
            )
            if is_same and shared <= set(TIMES):
                merged[index] = join_parts(other, entry)
                break
        else:
            merged.append(entry)
    return merged


def add_means(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with a mean line after the last member of every group of repetitions.

    Repetitions are entries of the same label, and runs whose resolved settings differ in the seed
    only. Where one seed occurs twice among such runs, only those in one folder are repetitions of
    each other. Results of such runs under other settings are repetitions if they have one name.
    Members of one label are numbered to tell them apart, by seed where it is known. The mean is
    called by the common start of their labels, without a dangling ``-seed-``.
    """
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        if entry.variant:
            continue
        key: Any = entry.label
        if entry.kind is EntryKind.RUN and entry.config:
            kept = (name for name in entry.config if name.rpartition(".")[2] not in _REPLICATE_KEYS)
            key = tuple((name, repr(entry.config[name])) for name in sorted(kept))
        groups.setdefault(key, []).append(entry)

    # Results under other settings follow their system.
    lines: list[Entry] = []
    for members in _apart_by_folder(groups.values()):
        lines += _with_mean(members)
        folders = {member.folder for member in members if member.folder}
        variants: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.variant and entry.folder in folders:
                variants.setdefault(entry.variant, []).append(entry)
        for repetitions in variants.values():
            lines += _with_mean(repetitions)
    return lines


def _with_mean(members: list[Entry]) -> list[Entry]:
    """Return repetitions, told apart by their labels, with their mean if they are several."""
    labels = [member.label for member in members]
    if len(set(labels)) < len(labels):
        seeds = [
            f"seed {each.seed}" if each.seed is not None else i for i, each in enumerate(members, 1)
        ]
        members = [
            replace(m, label=f"{m.label} [{seed}]") for m, seed in zip(members, seeds, strict=True)
        ]
    if len(members) == 1:
        return members
    return [*members, _mean(_common_name(labels, members[0].variant), members)]


def _common_name(labels: Sequence[str], variant: str) -> str:
    ending = f" [{variant}]" if variant else ""
    plain = [each.removesuffix(ending) for each in labels]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*plain, strict=False))
    start = "".join(letter for letter, *_ in same)
    name = re.sub(r"[-_. /]*(seed|run)?[-_. /=]*$", "", start) or plain[0]
    return name + ending


def _apart_by_folder(groups: Iterable[list[Entry]]) -> Iterator[list[Entry]]:
    """Yield the groups, but cut a group of runs with a repeated seed by folder.

    The folder is the one that the runs are in.
    """
    for members in groups:
        seeds = [member.seed for member in members]
        labels = {member.label for member in members}
        if (
            members[0].kind is not EntryKind.RUN
            or len(labels) == 1
            or len(set(seeds)) == len(seeds)
        ):
            yield members
            continue
        by_folder: dict[Path, list[Entry]] = {}
        for member in members:
            by_folder.setdefault(Path(member.source).parent, []).append(member)
        yield from by_folder.values()


def _mean(name: str, members: Sequence[Entry]) -> Entry:
    first, *others = members
    spread: dict[str, Any] = {
        measure: mean_and_deviation([member.scores[measure] for member in members])
        for measure in first.scores
        if all(measure in other.scores for other in others)
    }
    return Entry(
        label=f"{name} (mean of {len(members)})",
        kind=EntryKind.MEAN,
        source=", ".join(member.source for member in members),
        scores={measure: mean for measure, (mean, _) in spread.items()},
        settings=_shared([member.settings for member in members]),
        deviations={measure: deviation for measure, (_, deviation) in spread.items()},
        data=_shared([member.data for member in members]),
        members=tuple(member.label for member in members),
    )


def _shared(texts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {
        key: text for key, text in texts[0].items() if all(each.get(key) == text for each in texts)
    }


def join(
    entries: Sequence[Entry],
    *,
    reference: Entry | None = None,
    measures: Sequence[str] = (),
    pareto_measures: Sequence[str] = (),
) -> Comparison:
    """Return the entries as one comparison, with differences to ``reference``.

    The reference is one of the entries.

    Averages are taken over the same tasks in every line: where some entry lacks tasks, all averages
    are recomputed over the tasks that every entry with tasks has, and a warning names them; fewer
    than two shared tasks have no average.

    Without ``measures`` the columns are those of a published reference that another entry has, else
    all but times, the single dev accuracies of the transfer tasks and the average of the dev sets.
    The front is drawn over ``pareto_measures``, by default the averages and geometry among the
    columns, if they are two or more.
    """
    # Levelling replaces entries, so the reference is found again by its place.
    position = next((i for i, entry in enumerate(entries) if entry is reference), None)
    levelled, warnings = _level_averages(entries)
    warnings += [remark for entry in levelled for remark in entry.remarks]
    reference = None if position is None else levelled[position]

    # The columns to show where the caller names none.
    if reference is not None and reference.kind is EntryKind.PUBLISHED:
        others = {name for entry in levelled if entry is not reference for name in entry.scores}
        usual = others & reference.scores.keys()
    else:
        minor = {*(task + DEV_SUFFIX for task in (*TRANSFER_TASKS, AVERAGE)), *TIMES}
        usual = {name for entry in levelled for name in entry.scores} - minor
    columns = tuple(measures) or tuple(in_order(usual))
    _require_common(levelled, reference, columns)

    # Settings are compared among the runs; published rows count as reference only.
    judged = [
        entry for entry in levelled if entry.kind is not EntryKind.PUBLISHED or entry is reference
    ]
    unlike_data = data_mismatches(levelled, columns)
    warnings += unlike_data + setting_mismatches(judged, columns)

    # The front, if enough systems have scores in all its measures.
    wanted = (AVERAGE, TRANSFER_AVERAGE, "alignment", "uniformity")
    front_over = tuple(pareto_measures or (name for name in wanted if name in columns))
    n_judged = sum(
        all(name in entry.scores for name in front_over) for entry in without_members(levelled)
    )
    if n_judged < 2 or (len(front_over) < 2 and not pareto_measures):
        front_over = ()  # a front needs two systems
    front = front_labels(levelled, front_over) if front_over else frozenset()
    return Comparison(
        tuple(levelled), columns, reference, tuple(warnings), front_over, front, tuple(unlike_data)
    )


def without_members(entries: Sequence[Entry]) -> list[Entry]:
    members = {name for entry in entries for name in entry.members}
    return [entry for entry in entries if entry.label not in members]


def setting_mismatches(entries: Sequence[Entry], measures: Sequence[str]) -> list[str]:
    remarks = []
    single = [entry for entry in entries if entry.kind is not EntryKind.MEAN]
    for key in dict.fromkeys(key for entry in entries for key in entry.settings if key != "model"):
        if key in _MOVES and not _MOVES[key].intersection(measures):
            continue
        labels: dict[str, list[str]] = {}
        for entry in single:
            if key in entry.settings:
                labels.setdefault(entry.settings[key], []).append(entry.label)
        if len(labels) > 1:
            values = "; ".join(f"{value} in {', '.join(names)}" for value, names in labels.items())
            remarks.append(f"unlike settings: {key} is {values}")
    return remarks


def data_mismatches(entries: Sequence[Entry], measures: Sequence[str]) -> list[str]:
    """Return a remark for each group of measures that entries have scored on different data."""
    grouped: dict[tuple[tuple[str, str], ...], list[str]] = {}
    examples: dict[str, str] = {}
    for name in measures:
        places: dict[str, dict[str, None]] = {}
        for entry in without_members(entries):
            if name in entry.scores and name in entry.data:
                what = entry.data[name]
                kind = what if what in (PUBLISHED, DEMO) else "other data"
                examples.setdefault(kind, what)
                who = "published rows" if entry.kind is EntryKind.PUBLISHED else entry.label
                places.setdefault(kind, {})[who] = None
        if len(places) > 1:
            key = tuple((kind, ", ".join(labels)) for kind, labels in places.items())
            grouped.setdefault(key, []).append(name)
    remarks = []
    for key, names in grouped.items():
        where = [
            f"on {kind} in {labels}" + (f" ({examples[kind]})" if examples[kind] != kind else "")
            for kind, labels in key
        ]
        remarks.append(f"NOT COMPARABLE: {', '.join(map(label, names))}: scored {', '.join(where)}")
    return remarks


def front_labels(entries: Sequence[Entry], measures: Sequence[str]) -> frozenset[str]:
    """Return the labels of the entries on the Pareto front.

    For these, no other entry is as good in all measures and better in one.

    Only entries with all the measures take part, means in place of their members. Alignment,
    uniformity and times count as better when lower.
    """
    judged = [
        entry
        for entry in without_members(entries)
        if all(name in entry.scores for name in measures)
    ]
    signs = [1 if lower_is_better(name) else -1 for name in measures]
    points = np.array([[entry.scores[name] for name in measures] for entry in judged]).reshape(
        -1, len(signs)
    )
    return frozenset(entry.label for entry in compress(judged, is_pareto_optimal(points * signs)))


def is_pareto_optimal(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of the points ``(N, M)`` no other point dominates.

    Lower is better in all columns.

    A point is dominated by one that is at most as high in all columns and lower in one; equal
    points do not dominate each other.
    """
    at_most = np.all(points[None, :, :] <= points[:, None, :], axis=2)
    lower = np.any(points[None, :, :] < points[:, None, :], axis=2)
    return np.asarray(~np.any(at_most & lower, axis=1))


def averaged_tasks(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return the tasks that each average of the entries is the mean of.

    An average is left out where no entry has single tasks.
    """
    found = {}
    for average, tasks in _AVERAGES.items():
        held = [entry.scores.keys() for entry in entries if average in entry.scores]
        over = [task for task in tasks if any(task in names for names in held)]
        if over:
            found[average] = over
    return found


def _level_averages(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    levelled, warnings = list(entries), []
    for average, tasks in _AVERAGES.items():
        held = [
            frozenset(tasks) & entry.scores.keys() for entry in levelled if average in entry.scores
        ]
        with_tasks = [names for names in held if names]
        common = frozenset(tasks).intersection(*with_tasks)
        alike = all(names == common for names in with_tasks)
        if alike and (len(common) == len(tasks) or len(with_tasks) == len(held)):
            continue
        over = [task for task in tasks if task in common]
        levelled = _with_averages(levelled, average, over)
        result = "is left out, as they share fewer than two"
        if len(over) > 1:
            result = f"is over {', '.join(map(label, over))}"
        warnings.append(f"the entries hold different tasks: {label(average)} {result}")
    return levelled, warnings


def _with_averages(entries: Sequence[Entry], average: str, tasks: Sequence[str]) -> list[Entry]:
    """Return the entries with averages over ``tasks``.

    The entries that are means also get the deviation over their members.
    """
    single = {entry.label: _with_average(entry, average, tasks) for entry in entries}
    found = []
    for entry in entries:
        new = single[entry.label]
        members = [single[name].scores.get(average) for name in entry.members]
        _, deviation = mean_and_deviation(members)
        if average in new.scores and deviation is not None:
            new = replace(new, deviations={**new.deviations, average: deviation})
        found.append(new)
    return found


def _with_average(entry: Entry, average: str, tasks: Sequence[str]) -> Entry:
    """Return the entry with its average over ``tasks``, or without one if it lacks any of them."""
    kept: dict[str, Any] = {
        name: {key: value for key, value in getattr(entry, name).items() if key != average}
        for name in ("scores", "intervals", "deviations")
    }
    scores = kept["scores"]
    if average in entry.scores and len(tasks) > 1 and all(task in scores for task in tasks):
        scores[average] = sum(scores[task] for task in tasks) / len(tasks)
    return replace(entry, **kept)


def _require_common(
    entries: Sequence[Entry], reference: Entry | None, columns: Sequence[str]
) -> None:
    others = [entry for entry in entries if entry is not reference]
    if any(name in entry.scores for entry in others for name in columns):
        return
    found = (
        "; ".join(f"{entry.label} has {_names(entry)}" for entry in others)
        or "there is one entry only"
    )
    if reference is None:
        raise ConfigError(
            f"no entry has {', '.join(columns) or 'a score'}: {found}",
            hint="choose among the measures named with --measures"
            if any(entry.scores for entry in others)
            else "score the run first: simcse eval sts --model RUN",
        )
    raise ConfigError(
        f"nothing to compare: {reference.label} has {_names(reference)}; {found}",
        hint="compare scores of one split: `simcse eval sts --split dev` or `--split test`",
    )


def _names(entry: Entry) -> str:
    return ", ".join(label(name) for name in in_order(set(entry.scores))) or "no scores"
