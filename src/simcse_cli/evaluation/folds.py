"""Splits of the transfer protocol: stratified folds, the hold-out of the final fit, batch orders.

All draws come from ``numpy.random.RandomState``, whose streams are frozen by NumPy's compatibility
policy, so the folds are the same on every version.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simcse_cli.arrays import Integers

RowIndices = Integers


@dataclass(frozen=True)
class Fold:
    """Rows to train on and rows to score, both in ascending order."""

    train: RowIndices
    test: RowIndices


@dataclass(frozen=True)
class FitRows:
    """Training rows, and the dev rows that decide when to stop.

    ``n_drawn`` is the number of rows that were permuted to draw the split; 0 if the split was
    given. The random generator that drew the split then orders the batches. So two models with the
    same seed have the same batch order if their ``n_drawn`` and their numbers of training rows are
    equal.
    """

    train: RowIndices
    dev: RowIndices
    n_drawn: int = 0

    @property
    def stream(self) -> tuple[int, int]:
        """The number of training rows and ``n_drawn``, which fix the batch order for a seed."""
        return len(self.train), self.n_drawn


def stratified_folds(labels: Integers, n_folds: int, *, seed: int) -> list[Fold]:
    """Return folds with nearly equal shares of the classes.

    The folds are those of scikit-learn's ``StratifiedKFold`` with ``shuffle``. The classes are
    numbered in order of first appearance. The sorted labels are dealt out to the folds in turn,
    which fixes how many examples of each class a fold gets. Then, class by class, the fold numbers
    are shuffled over the examples of the class.
    """
    _, first, codes, counts = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    if counts.min() < n_folds:
        raise ValueError(
            f"a class has {counts.min()} examples, need at least {n_folds} for {n_folds} folds"
        )

    # Number the classes by first appearance: argsort twice gives the rank of each class.
    codes = np.argsort(np.argsort(first))[codes]

    # Deal out the sorted labels, and shuffle the folds over the examples of each class.
    sorted_codes = np.sort(codes)
    rng = np.random.RandomState(seed)
    fold_of = np.empty(len(codes), dtype=np.int64)
    for code in range(len(counts)):
        # A fold gets every n_folds-th of the sorted labels.
        per_fold = [
            np.count_nonzero(sorted_codes[fold::n_folds] == code) for fold in range(n_folds)
        ]
        folds_of_class = np.repeat(np.arange(n_folds), per_fold)
        rng.shuffle(folds_of_class)
        fold_of[codes == code] = folds_of_class

    folds = []
    for fold in range(n_folds):
        is_test = fold_of == fold
        folds.append(Fold(np.flatnonzero(~is_test), np.flatnonzero(is_test)))
    return folds


def holdout_split(rows: RowIndices, share: float, *, seed: int) -> FitRows:
    """Return a random split of ``rows`` in which ``int(share * len(rows))`` are dev rows."""
    order = np.random.RandomState(seed).permutation(len(rows))
    n_held_out = int(share * len(rows))
    return FitRows(train=rows[order[n_held_out:]], dev=rows[order[:n_held_out]], n_drawn=len(rows))


def epoch_orders(stream: tuple[int, int], *, seed: int) -> Iterator[RowIndices]:
    """Yield a permutation of the positions of the training rows for each epoch, without end.

    ``stream`` is ``FitRows.stream``: the number of training rows, and ``n_drawn``.
    """
    n_train, n_drawn = stream
    rng = np.random.RandomState(seed)
    # Repeat the draw of the split, so that the orders are what the generator draws after it.
    if n_drawn:
        rng.permutation(n_drawn)
    while True:
        yield rng.permutation(n_train)
