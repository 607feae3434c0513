"""The changes between two entries of a comparison.

They are the settings that differ, and the examples that one entry scores better than the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from simcse_cli.arrays import Floats
from simcse_cli.comparison.entries import Entry, read_saved
from simcse_cli.comparison.join import System
from simcse_cli.results.columns import columns, label
from simcse_cli.results.examples import (
    PairScores,
    SubsetPairs,
    TaskPredictions,
    same_examples,
    same_pairs,
)
from simcse_cli.results.report import Report

Change = dict[str, Any]
"""A setting or an example that differs, as a JSON object."""
Changes = tuple[list[Change], Report | None]
"""Changes, and the table that shows them; the table is None if there is nothing to compare."""
# The keys of the numbers in the change of a pair. The gain is the error before minus the one after.
_PAIR_VALUES = ("cosine_before", "cosine_after", "error_before", "error_after", "gain")


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the settings that differ, in the order of ``before``; a missing value is None.

    Settings that only ``after`` has come last.
    """
    changes: list[Change] = []
    for key in {**before, **after}:
        change = {"key": key, "before": before.get(key), "after": after.get(key)}
        if change["before"] != change["after"]:
            changes.append(change)
    return changes


def changed_pairs(before: PairScores, after: PairScores, *, n: int) -> list[Change]:
    """Return the ``n`` pairs whose rank error moved most, from the largest gain to the worst loss.

    The rank error of a pair is the distance of its rank by cosine from its rank by gold score,
    within its task: 0 is the right rank, 1 the opposite end. Only tasks that both models have with
    the same pairs are compared, and pairs with an unchanged error are left out. Sentences are empty
    if they were not saved.
    """
    changes: list[Change] = []
    for task in before:
        if same_pairs(before, after, task):
            found = _pair_changes(task, before[task], after[task])
            changes += [change for change in found if change["gain"]]
    # Choose by the size of the move, then order from gains to losses.
    largest_moves = sorted(changes, key=lambda change: -abs(change["gain"]))[:n]
    return sorted(largest_moves, key=lambda change: -change["gain"])


def changed_predictions(
    before: Mapping[str, TaskPredictions], after: Mapping[str, TaskPredictions], *, n: int
) -> list[Change]:
    """Return ``n`` examples that only one model gets right: first the gains, then the losses.

    A gain is an example that only ``after`` gets right. If there are enough of both kinds, half of
    the ``n`` are losses. The tasks take turns, and each gives its examples in the order of the
    evaluation: the shortest come first. Only tasks that both models have with the same examples are
    compared.
    """
    gains_by_task = []
    losses_by_task = []
    for task in before:
        if same_examples(before, after, task):
            changes = list(_prediction_changes(task, before[task], after[task]))
            gains_by_task.append([change for change in changes if change["is_gain"]])
            losses_by_task.append([change for change in changes if not change["is_gain"]])
    gains = _in_turns(gains_by_task)
    losses = _in_turns(losses_by_task)
    # Losses get half of the places, or all that the gains leave free; gains get the rest.
    n_losses = min(len(losses), max(n // 2, n - len(gains)))
    return gains[: n - n_losses] + losses[:n_losses]


def _in_turns(by_task: Sequence[list[Change]]) -> list[Change]:
    """Return the first change of each task, then the second of each, and so on."""
    turns = chain.from_iterable(zip_longest(*by_task))
    return [change for change in turns if change is not None]


def rank_errors(cosine: Floats, gold: Floats) -> Floats:
    """Return the distance of each pair's rank by cosine from its rank by gold score, ``(n,)``.

    The distances are divided by ``n - 1``, so that they are in [0, 1]. Ties have their mean rank.
    For example, ``[1, 2, 3]`` against ``[3, 2, 1]`` gives ``[1, 0, 1]``.
    """
    difference = np.abs(rankdata(cosine) - rankdata(gold))
    errors: Floats = difference / max(1, gold.size - 1)  # a single pair has the distance 0
    return errors


def _pair_changes(
    task: str, before: Mapping[str, SubsetPairs], after: Mapping[str, SubsetPairs]
) -> Iterator[Change]:
    """Yield every pair of a task, with its cosines and its rank errors before and after."""
    gold = np.concatenate([pairs.gold for pairs in before.values()])
    cosine_before = np.concatenate([pairs.cosine for pairs in before.values()])
    cosine_after = np.concatenate([after[subset].cosine for subset in before])
    error_before = rank_errors(cosine_before, gold)
    error_after = rank_errors(cosine_after, gold)
    gain = error_before - error_after
    # Each row has the numbers of one pair. ``rows`` runs through all subsets of the task.
    values = [cosine_before, cosine_after, error_before, error_after, gain]  # order of _PAIR_VALUES
    rows = iter(np.stack(values, axis=1).tolist())
    for subset, pairs in before.items():
        left, right = _sentences(pairs, after[subset])
        for index, score in enumerate(pairs.gold.tolist()):
            yield {
                "task": task,
                "subset": subset,
                "index": index,
                "gold": score,
                "left": left[index],
                "right": right[index],
                **dict(zip(_PAIR_VALUES, next(rows), strict=True)),
            }


def _prediction_changes(
    task: str, before: TaskPredictions, after: TaskPredictions
) -> Iterator[Change]:
    """Yield the examples of a task that only one of the two models gets right."""
    left, right = _sentences(before, after)
    classes = np.stack([before.gold, before.predicted, after.predicted], axis=1).tolist()
    for index in np.flatnonzero(before.correct != after.correct).tolist():
        gold, old, new = classes[index]
        yield {
            "task": task,
            "index": index,
            "gold": gold,
            "predicted_before": old,
            "predicted_after": new,
            "left": left[index],
            "right": right[index],
            "is_gain": new == gold,
        }


def _sentences(
    before: SubsetPairs | TaskPredictions, after: SubsetPairs | TaskPredictions
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the left and the right sentences of the examples.

    Each side is from ``before``, or else from ``after``. If neither has it, the texts are empty.
    """
    empty = ("",) * before.gold.size
    left = before.left or after.left or empty
    right = before.right or after.right or empty
    return left, right


def setting_changes(entries: Sequence[Entry]) -> Changes:
    """Return the settings that differ if exactly two of the entries are runs, else no changes."""
    runs = [entry for entry in entries if entry.config]
    if len(runs) != 2:
        return [], None
    before, after = runs
    changes = changed_settings(before.config, after.config)

    rows = []
    for change in changes:
        row = dict(change)
        # The table shows only the start of a digest.
        for side in ("before", "after"):
            if change["key"].endswith("sha256") and isinstance(change[side], str):
                row[side] = f"{change[side][:12]}…"
        rows.append(row)
    shown = columns("key", "before", "after", key="setting", before=before.label, after=after.label)
    return changes, Report("Settings that differ", shown, rows)


def example_changes(
    systems: Sequence[System],
    read: Callable[[Path], Mapping[str, Any]],
    find: Callable[..., list[Change]],
    table: Callable[[Sequence[Change], str, str], Report],
    n: int,
) -> Changes:
    """Return the ``n`` examples that changed most from the baseline to the last system.

    The baseline is the first system. All examples are of one seed, which both systems have: the
    first seed with changes. If the systems share no seed, the first entry of each is compared.
    ``read`` reads a file of examples, ``find`` returns the changes between the examples of two
    entries, and ``table`` makes a table of the changes.
    """
    if len(systems) < 2 or n == 0:
        return [], None
    baseline, *_, last = systems
    same_seed = []
    for old_member, new_member in product(baseline.members, last.members):
        (before, _), (after, _) = old_member, new_member
        if before.seed is not None and before.seed == after.seed:
            same_seed.append((old_member, new_member))
    member_pairs = same_seed or [(baseline.members[0], last.members[0])]
    for (before, before_files), (after, after_files) in member_pairs:
        changes = find(read_saved(before_files, read), read_saved(after_files, read), n=n)
        if changes:
            return changes, table(changes, before.label, after.label)
    return [], None


def pairs_table(changes: Sequence[Change], before: str, after: str) -> Report:
    # The gain is the difference of the two errors, so it is not shown.
    shown = columns("task", "pair", "gold", *_PAIR_VALUES[:-1], "left", "right")
    rows = []
    for change in changes:
        pair = f"{change['subset']} {change['index']}"
        rows.append(change | {"task": label(change["task"]), "pair": pair})
    note = (
        f"before: {before}; after: {after}. Rank error: distance of the rank of the cosine "
        "from that of the gold score within the task, in % of its pairs; largest gain first, "
        "largest loss last"
    )
    return Report("Pairs that changed most", shown, rows, [note])


def predictions_table(changes: Sequence[Change], before: str, after: str) -> Report:
    predicted = columns("predicted_before", "predicted_after", "text", text="sentence")
    shown = [*columns("task", "index"), *columns("gold", kind="count"), *predicted]
    rows = []
    for change in changes:
        text = " | ".join(filter(None, (change["left"], change["right"])))
        rows.append(change | {"task": label(change["task"]), "text": text})
    note = f"before: {before}; after: {after}. Examples that only one gets right, gains first"
    return Report("Predictions that changed", shown, rows, [note])
