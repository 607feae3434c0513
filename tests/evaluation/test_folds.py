import itertools

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from simcse_cli.evaluation.folds import FitRows, epoch_orders, holdout_split, stratified_folds


@pytest.mark.parametrize("n_classes", [2, 3, 6])
@pytest.mark.parametrize(("n_rows", "n_folds"), [(60, 2), (101, 5), (400, 10), (997, 10)])
def test_stratified_folds_equal_those_of_scikit_learn(n_rows, n_folds, n_classes):
    labels = np.random.default_rng(n_rows).choice(
        n_classes, n_rows, p=np.arange(1, n_classes + 1) / sum(range(n_classes + 1))
    )
    labels[: n_classes * n_folds] = np.tile(np.arange(n_classes)[::-1], n_folds)
    folds = stratified_folds(labels, n_folds, seed=1111)
    expected = StratifiedKFold(n_folds, shuffle=True, random_state=1111).split(
        np.zeros(n_rows), labels
    )
    for fold, (train, test) in zip(folds, expected, strict=True):
        assert np.array_equal(fold.train, train)
        assert np.array_equal(fold.test, test)


def test_stratified_folds_need_an_example_per_fold_and_class():
    with pytest.raises(ValueError, match="a class has 2 examples, need at least 3"):
        stratified_folds(np.array([0, 0, 0, 0, 1, 1]), 3, seed=0)


def test_one_example_per_fold_and_class_is_enough():
    folds = stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3, seed=0)
    assert [sorted(fold.test // 3) for fold in folds] == [[0, 1]] * 3


def test_rows_that_were_given_draw_nothing_before_the_batches():
    assert FitRows(np.arange(5), np.arange(5, 7)).stream == (5, 0)


def test_holdout_split_takes_the_first_rows_of_the_permutation():
    rows = np.arange(100, 199)
    split = holdout_split(rows, 0.05, seed=7)
    order = np.random.RandomState(7).permutation(99)
    assert np.array_equal(split.dev, rows[order[:4]])
    assert np.array_equal(split.train, rows[order[4:]])
    assert split.stream == (95, 99)


def test_epoch_orders_continue_the_stream_that_drew_the_holdout():
    rng = np.random.RandomState(3)
    rng.permutation(99)
    expected = [rng.permutation(95) for _ in range(3)]
    found = list(itertools.islice(epoch_orders((95, 99), seed=3), 3))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_epoch_orders_without_holdout_start_the_stream():
    expected = np.random.RandomState(3).permutation(95)
    assert np.array_equal(next(epoch_orders((95, 0), seed=3)), expected)
