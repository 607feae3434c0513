"""Join entries, and find the Pareto front.

To join means to merge parts, add means of repetitions and take averages over the same tasks.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, takewhile
from pathlib import Path
from shlex import quote
from typing import Any, Literal, TypeVar

import numpy as np

from simcse_cli.arrays import Booleans, Floats
from simcse_cli.comparison.entries import Entry, EntryKind, SavedExamples, ScoredData, join_parts
from simcse_cli.errors import ConfigError, ToleranceError
from simcse_cli.results.columns import (
    AVERAGE,
    AVERAGES,
    DEV_SUFFIX,
    TIMES,
    TRANSFER_AVERAGE,
    in_order,
    is_score,
    label,
    lower_is_better,
)
from simcse_cli.results.report import mean_and_deviation
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS

_Value = TypeVar("_Value")


def _dev(*names: str) -> tuple[str, ...]:
    return tuple(name + DEV_SUFFIX for name in names)


# Measures that have no column by default, unless a published reference has them.
_HIDDEN_MEASURES = {*_dev(*TRANSFER_TASKS, AVERAGE), *TIMES}
# The measures that a setting affects; a setting that is not here affects all. STS-B and SICK-R are
# one set each, so the aggregation does not affect them; a regressor affects them alone.
_AFFECTED_MEASURES = {
    "aggregation": frozenset({*STS_TASKS[:5], AVERAGE}),
    "regressor": frozenset({*STS_TASKS[5:], AVERAGE}),
    "transfer protocol": frozenset({*TRANSFER_TASKS, *_dev(*TRANSFER_TASKS)}),
    "geometry data": frozenset({"alignment", "uniformity"}),
}
_N_SHOWN_OUTSIDE = 5
# The settings in which repetitions of one run may differ.
_REPLICATE_KEYS = ("seed", "seeds", "output", "resume", "force")


@dataclass(frozen=True)
class ToleranceCheck:
    """The check of scores against a reference, within a tolerance (a fraction).

    ``outside`` holds a mapping for each score that is missing or not within the tolerance. Its keys
    are the ``label`` of the entry, the ``measure``, the ``score`` (None if it is missing), and
    ``expected``, the score of the reference.
    """

    reference: str
    tolerance: float
    n_checked: int
    outside: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"tolerance": self.tolerance, "n_checked": self.n_checked, "outside": self.outside}

    def verdict(self) -> str:
        """Return a sentence which says that the check passed; raise ToleranceError if it failed."""
        points = f"{100 * self.tolerance:g} points"
        if not self.outside:
            return f"check passed: {self.n_checked} scores within {points} of {self.reference}"
        shown = []
        for failed in self.outside[:_N_SHOWN_OUTSIDE]:
            score = "missing" if failed["score"] is None else f"{100 * failed['score']:.2f}"
            expected = f"{100 * failed['expected']:.2f}"
            shown.append(f"{failed['label']} {label(failed['measure'])} {score}, not {expected}")
        n_more = len(self.outside) - _N_SHOWN_OUTSIDE
        if n_more > 0:
            shown.append(f"and {n_more} more")
        what = f"more than {points} off {self.reference}"
        hint = "see what differs in the warnings above, or allow more with --tolerance"
        if any(failed["score"] is None for failed in self.outside):
            what = f"missing or {what}"
            hint = "`simcse eval sts --model MODEL` names each task without a score, and says why"
        raise ToleranceError(
            f"{len(self.outside)} of {self.n_checked} scores are {what}: {'; '.join(shown)}",
            hint=hint,
        )


@dataclass(frozen=True)
class System:
    """A system to test.

    ``members`` holds the entry of each seed that has example files, with these files. ``n_seeds``
    counts the seeds without files as well.
    """

    label: str
    members: tuple[tuple[Entry, Sequence[SavedExamples]], ...]
    n_seeds: int = 1

    @property
    def remark(self) -> str | None:
        """A note on seeds without saved scores, and how to save them; None if all are saved."""
        if len(self.members) >= self.n_seeds:
            return None
        return (
            f"{self.label}: {len(self.members)} of {self.n_seeds} seeds have saved scores, and the "
            "tests are of these alone; save the others with `simcse eval --save-scores FILE`"
        )

    @property
    def chosen_pairs(self) -> list[str]:
        """The tasks whose pairs were used to choose the model of a seed, and so do not test it."""
        tasks: list[str] = []
        for _, files in self.members:
            tasks += chain.from_iterable(file.chosen for file in files)
        return list(dict.fromkeys(tasks))

    def in_order_of(self, other: "System") -> tuple["System", bool]:
        """Return this system, and whether the two systems have the same seeds.

        If they have, the members of the returned system are in the order of the other's seeds.
        """
        by_seed = {entry.seed: (entry, files) for entry, files in self.members}
        seeds = [entry.seed for entry, _ in other.members]
        # Each seed must be known, and occur once on both sides.
        are_unique = len(by_seed) == len(self.members) == len(seeds)
        if None not in by_seed and are_unique and by_seed.keys() == set(seeds):
            return replace(self, members=tuple(by_seed[seed] for seed in seeds)), True
        return self, False


@dataclass(frozen=True)
class Comparison:
    """A table of entries by measures, with the differences to ``reference``.

    A mean comes after the entries that it summarises. ``warnings`` name reasons why the numbers are
    hard to compare. ``unlike_data`` holds the warnings that scores are of different data, so that
    their differences mean nothing; the tables have these warnings as notes. ``front`` holds the
    labels of the entries on the Pareto front over ``pareto_measures``.
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
        gaps = {}
        for name in self.measures:
            if name in entry.scores and name in expected:
                gaps[name] = entry.scores[name] - expected[name]
        return gaps

    def check(self, tolerance: float, *, are_required: bool = False) -> ToleranceCheck:
        """Compare the scores of the user's systems with the reference, within a tolerance.

        The mean of a system stands for its members. Published rows are not checked. If a system
        lacks a score that the reference has, the check fails in two cases: the columns
        ``are_required``, or the system's result lists the measure without a score.

        Raise ConfigError if there is no reference or nothing to check, or if the columns
        ``are_required`` and the reference lacks a score.
        """
        if self.reference is None:
            raise ConfigError(
                "--check needs one reference to hold the scores against",
                hint="name it with --against TABLE --row NAME, or with --baseline RUN",
            )
        if are_required:
            for name in filter(is_score, self.measures):
                if self.reference.scores.get(name) is None:
                    raise ConfigError(
                        f"--check: {self.reference.label} has no score of {label(name)}, which "
                        "--measures names",
                        hint="leave it out of --measures, or take a reference that has it",
                    )
        outside = []
        n_checked = 0
        n_shared = 0
        for entry in without_members(self.entries):
            if entry.kind is EntryKind.PUBLISHED or entry is self.reference:
                continue
            n_shared += sum(map(is_score, self.differences(entry)))
            for name in filter(is_score, self.measures):
                expected = self.reference.scores.get(name)
                score = entry.scores.get(name)
                # A variant need not have all that its run has.
                is_required = (are_required and not entry.variant) or name in entry.unscored
                if expected is None or (score is None and not is_required):
                    continue
                n_checked += 1
                # With 1e-12 more, a gap of just the tolerance passes in spite of rounding errors.
                if score is None or abs(score - expected) > tolerance + 1e-12:
                    outside.append(
                        {
                            "label": entry.label,
                            "measure": name,
                            "score": score,
                            "expected": expected,
                        }
                    )
        if not n_shared:
            raise ConfigError(
                f"--check: no other entry has a score that {self.reference.label} has",
                hint="score the same tasks and split: `simcse eval sts --model RUN --split test`",
            )
        return ToleranceCheck(self.reference.label, tolerance, n_checked, outside)

    def saved(
        self, kind: Literal["pair_scores", "predictions"]
    ) -> list[tuple[Entry, tuple[SavedExamples, ...]]]:
        """Return the entries with files of single examples, the baseline of the tests first.

        The baseline is the reference of the comparison if its examples were saved, else the first
        entry with saved examples.
        """
        with_examples = []
        for entry in self.entries:
            files = getattr(entry, kind)
            if files:
                with_examples.append((entry, files))
        # False sorts before True, so the reference comes first; the others keep their order.
        return sorted(with_examples, key=lambda item: item[0] is not self.reference)

    @property
    def asks_for_seeds(self) -> bool:
        """Whether the reference is a single seed of a mean; then seeds are compared, not means."""
        if self.reference is None:
            return False
        return any(self.reference.label in entry.members for entry in self.entries)

    def shown(self) -> list[Entry]:
        """Return the lines of the table: the systems, and their seeds if these are compared."""
        if self.asks_for_seeds:
            return list(self.entries)
        return without_members(self.entries)

    def systems(self, kind: Literal["pair_scores", "predictions"]) -> list[System]:
        """Return the systems with files of single examples, the baseline of the tests first.

        The members of a mean are the seeds of one system. But if the reference is itself a member
        of a mean, every entry is a system of its own, so that single seeds are tested against each
        other. Variants of the baseline are left out: they are the same model under other evaluation
        settings.
        """
        mean_of: dict[str, str] = {}  # from the label of an entry to the label of its mean
        n_seeds: dict[str, int] = {}  # from the label of a mean to the number of its members
        for entry in self.entries:
            if entry.members and not self.asks_for_seeds:
                mean_of |= dict.fromkeys(entry.members, entry.label)
                n_seeds[entry.label] = len(entry.members)

        # An entry without a mean is a system by itself.
        members_of: dict[str, list[tuple[Entry, tuple[SavedExamples, ...]]]] = {}
        for entry, files in self.saved(kind):
            system_label = mean_of.get(entry.label, entry.label)
            members_of.setdefault(system_label, []).append((entry, files))
        systems = []
        for system_label, members in members_of.items():
            systems.append(System(system_label, tuple(members), n_seeds.get(system_label, 1)))
        if not systems:
            return []

        # A reference that is a mean has no file itself, so its system is moved to the front here.
        if self.reference is not None:
            first_label = self.reference.label
            systems.sort(key=lambda system: system.label != first_label)
        baseline, *candidates = systems
        tested = [system for system in candidates if not self._is_variant(system, baseline)]
        return [baseline, *tested]

    def _is_variant(self, system: System, baseline: System) -> bool:
        """Tell whether a system has results of the baseline's runs under other evaluation settings.

        If the baseline is one of several seeds, the runs of the other seeds count as its runs, too.
        """
        labels = {entry.label for entry, _ in baseline.members}
        run_labels = set(labels)
        for entry in self.entries:
            # A mean that summarises one of these entries summarises all seeds of the baseline.
            if not labels.isdisjoint(entry.members):
                run_labels.update(entry.members)
        run_folders: set[str] = set()
        for entry in self.entries:
            if entry.label in run_labels and not entry.variant:
                run_folders.add(entry.folder)
        return any(entry.variant and entry.folder in run_folders for entry, _ in system.members)


def merge_parts(entries: Sequence[Entry]) -> list[Entry]:
    """Join the entries that are parts of one system, as in ``ours=sts.json ours=transfer.json``.

    Entries are parts of one system if they have the same label, no score in common, and no
    different seeds. Times may be in common, and so may an average that is over other tasks in each.
    """
    merged: list[Entry] = []
    for entry in entries:
        for index, earlier in enumerate(merged):
            if _are_parts(earlier, entry):
                merged[index] = join_parts(earlier, entry)
                break
        else:
            merged.append(entry)
    return merged


def _are_parts(a: Entry, b: Entry) -> bool:
    """Tell whether two entries are parts of one system, as ``merge_parts`` defines it."""
    common_scores = (a.scores.keys() & b.scores.keys()) - set(TIMES)
    for average, tasks in AVERAGES.items():
        # If both have tasks of an average, each average is over the tasks on its side.
        if not (a.scores.keys().isdisjoint(tasks) or b.scores.keys().isdisjoint(tasks)):
            common_scores.discard(average)
    if a.label != b.label or common_scores:
        return False
    return None in (a.seed, b.seed) or a.seed == b.seed


def add_means(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries in groups of repetitions, each group with its mean at the end.

    These are repetitions:

    - entries with the same label
    - runs whose resolved settings differ only in the seed. If a seed occurs twice among them, only
      runs in the same folder are repetitions.
    - variants of the same name, if their runs are repetitions. A variant is a result of a run under
      other evaluation settings.

    If labels in a group repeat, each label gets the seed at its end, or else a number. The mean is
    named after the common start of the labels, without a ``-seed-`` at its end.
    """
    repeated = _grouped([entry for entry in entries if not entry.variant], _repetition_key)

    # Variants follow the runs that they belong to.
    with_means: list[Entry] = []
    for members in _apart_by_folder(repeated):
        with_means += _with_mean(members)
        folders = {member.folder for member in members if member.folder}
        variants = [entry for entry in entries if entry.variant and entry.folder in folders]
        for repetitions in _grouped(variants, lambda entry: entry.variant):
            with_means += _with_mean(repetitions)
    return with_means


def _grouped(entries: Iterable[Entry], key: Callable[[Entry], Any]) -> list[list[Entry]]:
    """Return a list of entries for each value of the key, in the order of first appearance."""
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return list(groups.values())


def _repetition_key(entry: Entry) -> Any:
    """Return a key that is equal for repetitions.

    For a run with known settings, the key holds all settings in which repetitions must agree;
    otherwise it is the label.
    """
    if entry.kind is not EntryKind.RUN or not entry.config:
        return entry.label
    kept = []
    for name, value in sorted(entry.config.items()):
        if name.rpartition(".")[2] not in _REPLICATE_KEYS:
            kept.append((name, repr(value)))  # repr: a list would make the key unhashable
    return tuple(kept)


def _with_mean(members: list[Entry]) -> list[Entry]:
    """Return the repetitions, with labels that differ, and their mean if there are several."""
    labels = [member.label for member in members]
    if len(set(labels)) < len(labels):
        # Add the seed to each label, or a number if the seed is unknown, or both if it is repeated.
        seeds = [member.seed for member in members]
        for i, member in enumerate(members):
            mark = str(i + 1)
            if member.seed is not None:
                mark = f"seed {member.seed}"
                if seeds.count(member.seed) > 1:
                    mark += f", {i + 1}"
            members[i] = replace(member, label=f"{member.label} [{mark}]")
    if len(members) == 1:
        return members
    name = _common_name(labels, members[0].variant)
    return [*members, _mean(name, members)]


def _common_name(labels: Sequence[str], variant: str) -> str:
    """Return the common start of labels, without ``seed``, ``run`` or separators at its end.

    If the labels are of variants, they all end with the name ``variant`` in brackets, and so does
    the result.
    """
    ending = f" [{variant}]" if variant else ""
    plain = [entry_label.removesuffix(ending) for entry_label in labels]
    # The common start cannot go beyond the shortest label, where ``zip`` stops.
    common = takewhile(lambda letters: len(set(letters)) == 1, zip(*plain, strict=False))
    start = "".join(letters[0] for letters in common)
    name = re.sub(r"[-_. ,/]*(seed|run)?[-_. /=]*$", "", start) or plain[0]
    return name + ending


def _apart_by_folder(groups: Iterable[list[Entry]]) -> Iterator[list[Entry]]:
    """Yield the groups of entries, with some groups of runs split by folder.

    A group of runs is split if a seed occurs twice in it and the runs have different labels.
    """
    for members in groups:
        seeds = {member.seed for member in members}
        labels = {member.label for member in members}
        seed_repeats = len(seeds) < len(members)
        if members[0].kind is EntryKind.RUN and seed_repeats and len(labels) > 1:
            yield from _grouped(members, lambda member: Path(member.source).parent)
        else:
            yield members


def _mean(name: str, members: Sequence[Entry]) -> Entry:
    """Return the mean of the members, in each measure that all of them have.

    The mean has the settings and the data that are the same in all members.
    """
    first, *others = members
    scores: dict[str, Any] = {}
    deviations: dict[str, Any] = {}
    for measure in first.scores:
        if all(measure in other.scores for other in others):
            values = [member.scores[measure] for member in members]
            scores[measure], deviations[measure] = mean_and_deviation(values)
    return Entry(
        label=f"{name} (mean of {len(members)})",
        kind=EntryKind.MEAN,
        source=", ".join(member.source for member in members),
        scores=scores,
        settings=_shared_items([member.settings for member in members]),
        deviations=deviations,
        data=_shared_items([member.data for member in members]),
        members=tuple(member.label for member in members),
        unscored=tuple(dict.fromkeys(name for member in members for name in member.unscored)),
        variant=first.variant,
    )


def _shared_items(mappings: Sequence[Mapping[str, _Value]]) -> dict[str, _Value]:
    """Return the keys and values that are the same in all of the mappings."""
    shared = dict(mappings[0])
    for other in mappings[1:]:
        shared = {key: value for key, value in shared.items() if other.get(key) == value}
    return shared


def join(
    entries: Sequence[Entry],
    *,
    reference: Entry | None = None,
    measures: Sequence[str] = (),
    pareto_measures: Sequence[str] = (),
) -> Comparison:
    """Return the entries as one comparison, with differences to ``reference``, one of the entries.

    Averages are over the same tasks in every line. If some entry lacks tasks, all averages are
    recomputed over the tasks that every entry with tasks has, and a warning names these tasks. If
    they are fewer than two, there is no average.

    The columns are ``measures``. If none are named, they are

    - with a published row as the reference: those of its measures that another entry has, or lists
      without a score
    - otherwise: all measures except times, the dev accuracies of single transfer tasks, and the
      average of the STS dev sets.

    The Pareto front is over ``pareto_measures``. If none are named, it is over the columns of
    averages and geometry, if there are two or more of these.
    """
    # Entries with new averages are new objects, so the reference has to be replaced as well.
    levelled, warnings = _level_averages(entries)
    if reference is not None:
        reference = next(
            new for new, entry in zip(levelled, entries, strict=True) if entry is reference
        )
    for entry in levelled:
        warnings += entry.remarks
    columns = tuple(measures) or tuple(_usual_columns(levelled, reference))
    _require_common(levelled, reference, columns)

    # Published rows other than the reference do not count when settings are compared.
    judged = [
        entry for entry in levelled if entry.kind is not EntryKind.PUBLISHED or entry is reference
    ]
    unlike_data = data_mismatches(levelled, columns)
    warnings += [*unlike_data, *setting_mismatches(judged, columns).values()]

    # A front needs two systems, and two measures unless the user chose them.
    front_over = tuple(pareto_measures)
    if not front_over:
        usual = (AVERAGE, TRANSFER_AVERAGE, "alignment", "uniformity")
        front_over = tuple(name for name in usual if name in columns)
    has_few_measures = len(front_over) < 2 and not pareto_measures
    if has_few_measures or len(_systems_with_all(levelled, front_over)) < 2:
        front_over = ()
    front = front_labels(levelled, front_over) if front_over else frozenset()
    return Comparison(
        entries=tuple(levelled),
        measures=columns,
        reference=reference,
        warnings=tuple(warnings),
        pareto_measures=front_over,
        front=front,
        unlike_data=tuple(unlike_data),
    )


def _usual_columns(entries: Sequence[Entry], reference: Entry | None) -> list[str]:
    """Return the default columns, which ``join`` describes."""
    if reference is None or reference.kind is not EntryKind.PUBLISHED:
        return in_order(measures_of(entries) - _HIDDEN_MEASURES)
    compared = [entry for entry in entries if entry is not reference]
    listed = measures_of(compared).union(*(entry.unscored for entry in compared))
    return in_order(listed & reference.scores.keys())


def measures_of(entries: Iterable[Entry]) -> set[str]:
    """Return the measures that at least one entry has."""
    return set().union(*(entry.scores for entry in entries))


def without_members(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without those that a mean summarises."""
    members = {name for entry in entries for name in entry.members}
    return [entry for entry in entries if entry.label not in members]


def setting_mismatches(entries: Sequence[Entry], measures: Sequence[str]) -> dict[str, str]:
    """Return a remark by setting, for each one that differs between entries and affects a measure.

    The model may differ, since it is what is compared.
    """
    # From a setting to its values, and from each value to the labels of the entries that have it.
    labels_by_value: dict[str, dict[str, list[str]]] = {}
    for entry in entries:
        # The members of a mean are entries themselves, and the mean only repeats their settings.
        if entry.kind is EntryKind.MEAN:
            continue
        for key, value in entry.settings.items():
            labels_by_value.setdefault(key, {}).setdefault(value, []).append(entry.label)
    labels_by_value.pop("model", None)

    remarks = {}
    for key, labels_of in labels_by_value.items():
        if key in _AFFECTED_MEASURES and _AFFECTED_MEASURES[key].isdisjoint(measures):
            continue
        if len(labels_of) > 1:
            values = [f"{value} in {', '.join(labels)}" for value, labels in labels_of.items()]
            remarks[key] = f"unlike settings: {key} is {'; '.join(values)}"
    return remarks


def data_mismatches(entries: Sequence[Entry], measures: Sequence[str]) -> list[str]:
    """Return a remark for each group of measures that entries have scored on different data."""
    systems = without_members(entries)
    # The summary of a measure says which systems used known data, by name, and which used other
    # data. Measures with the same summary share one remark, which also describes the other data
    # (those of the first of these measures).
    remark_by_summary: dict[str, str] = {}
    measures_by_summary: dict[str, list[str]] = {}
    for name in measures:
        # Earlier versions recorded data without a digest. Such data count as equal to all data with
        # the same words, so the digests of all these are ignored.
        found = list(_scored_on(systems, name))
        words_without_digest = {data.words for data, _ in found if data.sha256 is None}
        systems_on: dict[ScoredData, dict[str, None]] = {}  # the inner keys are an ordered set
        for data, system in found:
            if data.words in words_without_digest:
                data = ScoredData(data.words)
            systems_on.setdefault(data, {})[system] = None
        if len(systems_on) < 2:
            continue

        parts = []
        described_parts = []
        for data, labels in systems_on.items():
            part = f"on {data if data.are_known else 'other data'} in {', '.join(labels)}"
            parts.append(part)
            described_parts.append(part if data.are_known else f"{part} ({data})")
        summary = ", ".join(parts)
        remark_by_summary.setdefault(summary, ", ".join(described_parts))
        measures_by_summary.setdefault(summary, []).append(name)
    return [
        f"NOT COMPARABLE: {', '.join(map(label, names))}: scored {remark_by_summary[summary]}"
        for summary, names in measures_by_summary.items()
    ]


def _scored_on(systems: Iterable[Entry], measure: str) -> Iterator[tuple[ScoredData, str]]:
    """Yield the data of a measure and the label of the system, for systems with known data.

    All published rows have the same label.
    """
    for entry in systems:
        data = entry.data.get(measure)
        if data is not None and measure in entry.scores:
            system = "published rows" if entry.kind is EntryKind.PUBLISHED else entry.label
            yield data, system


def front_labels(entries: Sequence[Entry], measures: Sequence[str]) -> frozenset[str]:
    """Return the labels of the entries on the Pareto front.

    An entry is on the front if no other entry is at least as good in all measures and better in
    one. Entries that lack a measure take no part, and a mean stands for its members. Alignment,
    uniformity and seconds are better when lower.
    """
    judged = _systems_with_all(entries, measures)
    points = np.empty((len(judged), len(measures)))
    for column, name in enumerate(measures):
        points[:, column] = [entry.scores[name] for entry in judged]
        if not lower_is_better(name):
            points[:, column] *= -1  # in ``points``, lower is always better
    return frozenset(entry.label for entry in compress(judged, is_pareto_optimal(points)))


def _systems_with_all(entries: Sequence[Entry], measures: Sequence[str]) -> list[Entry]:
    """Return the entries that have all of the measures, with means in place of their members."""
    required = set(measures)
    return [entry for entry in without_members(entries) if entry.scores.keys() >= required]


def is_pareto_optimal(points: Floats) -> Booleans:
    """Return which of the points ``(N, M)`` no other point dominates; lower is better.

    A point dominates another if it is at most as high in all columns and lower in at least one.
    """
    # Element [i, j] of each array tells how point j compares with point i.
    nowhere_higher = np.all(points[None, :, :] <= points[:, None, :], axis=2)
    somewhere_lower = np.any(points[None, :, :] < points[:, None, :], axis=2)
    return np.asarray(~np.any(nowhere_higher & somewhere_lower, axis=1))


def averaged_tasks(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return the tasks that each average is the mean of, for averages that some entry has.

    An average is left out if no entry has both the average and scores of its tasks.
    """
    tasks_of = {}
    for average, tasks in AVERAGES.items():
        task_sets = _averaged_task_sets(entries, average) - {frozenset()}
        if task_sets:
            # ``_level_averages`` has taken the average over the tasks that all these sets share.
            common = frozenset.intersection(*task_sets)
            tasks_of[average] = [task for task in tasks if task in common]
    return tasks_of


def _averaged_task_sets(entries: Sequence[Entry], average: str) -> set[frozenset[str]]:
    """Return the sets of tasks that an average is over in the entries, each distinct set once.

    An entry that has the average alone, without scores of its tasks, gives an empty set.
    """
    averaged = [entry for entry in entries if average in entry.scores]
    return {frozenset(AVERAGES[average]).intersection(entry.scores) for entry in averaged}


def _level_averages(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """Return the entries with averages over the same tasks, and a warning for each change."""
    levelled = list(entries)
    warnings: list[str] = []
    for average, tasks in AVERAGES.items():
        all_tasks = frozenset(tasks)
        task_sets = _averaged_task_sets(levelled, average)
        nonempty = task_sets - {frozenset()}
        common = all_tasks.intersection(*nonempty)

        # Averages stay if all are over the same tasks. An entry that has the average alone is taken
        # to have it over all tasks, so the others must have all tasks, too.
        are_equal = nonempty <= {common}
        some_lack_tasks = frozenset() in task_sets
        if are_equal and (common == all_tasks or not some_lack_tasks):
            continue
        common_tasks = [task for task in tasks if task in common]
        levelled = _with_averages(levelled, average, common_tasks)
        result = "is left out, as they share fewer than two"
        if len(common_tasks) > 1:
            result = f"is over {', '.join(map(label, common_tasks))}"
        warnings.append(f"the entries hold different tasks: {label(average)} {result}")
    return levelled, warnings


def _with_averages(entries: Sequence[Entry], average: str, tasks: Sequence[str]) -> list[Entry]:
    """Return the entries with averages over ``tasks``, and means with new deviations as well."""
    by_label = {entry.label: _with_average(entry, average, tasks) for entry in entries}
    averaged_entries = []
    for entry in entries:
        averaged = by_label[entry.label]
        member_averages = [by_label[name].scores.get(average) for name in entry.members]
        _, deviation = mean_and_deviation(member_averages)
        if average in averaged.scores and deviation is not None:
            averaged = replace(averaged, deviations={**averaged.deviations, average: deviation})
        averaged_entries.append(averaged)
    return averaged_entries


def _with_average(entry: Entry, average: str, tasks: Sequence[str]) -> Entry:
    """Return the entry with its average over ``tasks``, or without one if it lacks a task."""
    own_tasks = entry.scores.keys() & set(AVERAGES[average])
    if own_tasks == set(tasks) and len(tasks) > 1:
        return entry  # its average is over these tasks already

    # The interval and the deviation of the old average do not hold for the new one.
    fields: dict[str, Any] = {}
    for name in ("scores", "intervals", "deviations"):
        fields[name] = dict(getattr(entry, name))
        fields[name].pop(average, None)
    scores = fields["scores"]
    # An average needs at least two tasks.
    if average in entry.scores and len(tasks) > 1 and scores.keys() >= set(tasks):
        scores[average] = sum(scores[task] for task in tasks) / len(tasks)
    return replace(entry, **fields)


def _require_common(
    entries: Sequence[Entry], reference: Entry | None, columns: Sequence[str]
) -> None:
    """Raise ConfigError if no entry besides the reference has any of the columns."""
    compared = [entry for entry in entries if entry is not reference]
    measures = measures_of(compared)
    if not measures.isdisjoint(columns):
        return
    others_have = "there is one entry only"
    if compared:
        others_have = "; ".join(f"{entry.label} has {_measure_names(entry)}" for entry in compared)
    all_unscored = any(entry.unscored for entry in compared) and not any(map(is_score, measures))
    why_unscored = "`simcse eval sts --model MODEL` names each task without a score, and says why"
    if reference is not None:
        hint = "compare scores of one split: `simcse eval sts --split dev` or `--split test`"
        found = "nothing to compare"
        # Others have none of the columns. But there may be other measures that both sides have.
        columns_of_reference = [label(name) for name in columns if name in reference.scores]
        common = in_order((measures & reference.scores.keys()).difference(TIMES))
        if all_unscored:
            hint = why_unscored
        elif common:
            if columns_of_reference:
                found = f"only {reference.label} has {', '.join(columns_of_reference)}"
            names = quote(",".join(map(label, common)))
            hint = f"choose among what others have as well: --measures {names}"
        raise ConfigError(
            f"{found}: {reference.label} has {_measure_names(reference)}; {others_have}", hint=hint
        )
    hint = "score the run first: simcse eval sts --model RUN"
    if all_unscored:
        hint = why_unscored
    elif measures:
        hint = "choose among the measures named with --measures"
    raise ConfigError(f"no entry has {', '.join(columns) or 'a score'}: {others_have}", hint=hint)


def _measure_names(entry: Entry) -> str:
    scores = ", ".join(label(name) for name in in_order(set(entry.scores))) or "no scores"
    unscored = set(entry.unscored).difference(entry.scores)
    if unscored:
        return f"{scores} (without a score: {', '.join(map(label, in_order(unscored)))})"
    return scores
