import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from helpers import CountingProgress
from simcse_cli.errors import TrainingError
from simcse_cli.evaluation.folds import Fold, stratified_folds
from simcse_cli.evaluation.probe import (
    INVERSE_PENALTIES,
    MAX_ITERATIONS,
    _fit_sklearn,
    run_sklearn_probe,
)
from simcse_cli.progress import SilentProgress


def make_task(n_rows, n_features, n_classes=2, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    signal = features @ rng.normal(size=(n_features, n_classes)) + rng.normal(
        size=(n_rows, n_classes)
    )
    return features, signal.argmax(axis=1)


def run(features, labels, outer, **options):
    return run_sklearn_probe(features, labels, outer, progress=SilentProgress(), **options)


def regression(features, labels, rows, strength):
    """Return the accuracy on other rows of a regression on standardised features."""
    scaler = StandardScaler().fit(features[rows])
    model = LogisticRegression(C=strength, max_iter=1000).fit(
        scaler.transform(features[rows]), labels[rows]
    )
    return lambda others: model.score(scaler.transform(features[others]), labels[others])


def plain_choice(features, labels, scaled_on, splits):
    """Return the best mean accuracy over (train, dev) rows, and the first strength that has it."""
    scaled = StandardScaler().fit(features[scaled_on]).transform(features)
    means = []
    for strength in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0):
        models = [
            LogisticRegression(C=strength, max_iter=1000).fit(scaled[a], labels[a])
            for a, _ in splits
        ]
        means.append(
            np.mean(
                [m.score(scaled[b], labels[b]) for m, (_, b) in zip(models, splits, strict=True)]
            )
        )
    return max(means), (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)[int(np.argmax(means))]


def test_penalty_and_accuracy_are_those_of_a_plain_search():
    features, labels = make_task(160, 5)
    outer = stratified_folds(labels, 2, seed=1111)
    result = run(features, labels, outer)
    accuracies, chosen = [], []
    for fold in outer:
        inner = StratifiedKFold(5, shuffle=True, random_state=1111).split(
            fold.train, labels[fold.train]
        )
        splits = [(fold.train[a], fold.train[b]) for a, b in inner]
        chosen.append(plain_choice(features, labels, fold.train, splits))
        accuracies.append(regression(features, labels, fold.train, chosen[-1][1])(fold.test))
    assert result.penalties == tuple(strength for _, strength in chosen)
    assert result.dev_accuracy == pytest.approx(np.mean([accuracy for accuracy, _ in chosen]))
    assert result.accuracy == pytest.approx(np.mean(accuracies))


def test_given_dev_rows_choose_the_penalty_and_train_the_last_fit():
    features, labels = make_task(300, 4, n_classes=3)
    train, dev, test = np.arange(200), np.arange(200, 250), np.arange(250, 300)
    result = run(features, labels, [Fold(train, test)], dev_rows=dev)
    accuracy, strength = plain_choice(features, labels, np.arange(250), [(train, dev)])
    assert (result.dev_accuracy, result.penalties) == (pytest.approx(accuracy), (strength,))
    assert result.accuracy == pytest.approx(
        regression(features, labels, np.arange(250), strength)(test)
    )
    assert np.array_equal(result.test_rows, test)


def test_weights_are_those_of_the_optimum():
    """That of C times the sum of the losses plus half the squared weights, found by BFGS.

    The features are wider than the rows are many, as those of a small task; the penalty of C = 10
    is weak.
    """
    features, labels = make_task(40, 60, n_classes=3)
    rows = np.arange(40)
    with SilentProgress().task("", 30) as task:
        pipeline = _fit_sklearn(features, labels, rows, None, MAX_ITERATIONS, task=task)
    classifier = pipeline[-1]
    scaled = np.c_[pipeline[0].transform(features).astype(float), np.ones(40)]
    onehot = np.eye(3)[labels]
    strength = float(classifier.C_)

    def loss(flat):
        weights = flat.reshape(3, -1)
        logits = scaled @ weights.T
        total = (logsumexp(logits, axis=1) - logits[rows, labels]).sum()
        errors = softmax(logits, axis=1) - onehot
        gradient = strength * errors.T @ scaled
        gradient[:, :-1] += weights[:, :-1]  # the bias has no penalty
        return strength * total + (weights[:, :-1] ** 2).sum() / 2, gradient.ravel()

    found = minimize(loss, np.zeros(3 * 61), jac=True, method="BFGS", options={"gtol": 1e-10})
    weights = found.x.reshape(3, -1)
    np.testing.assert_allclose(classifier.coef_, weights[:, :-1], atol=1e-4 * abs(weights).max())
    # The losses do not change if all biases move together.
    centred = weights[:, -1] - weights[:, -1].mean()
    bias = classifier.intercept_ - classifier.intercept_.mean()
    np.testing.assert_allclose(bias, centred, atol=1e-4 * abs(weights).max())


def test_progress_counts_each_strength_on_each_inner_fold():
    features, labels = make_task(60, 4)
    outer = stratified_folds(labels, 2, seed=1111)
    progress = CountingProgress()
    run_sklearn_probe(features, labels, outer, progress=progress)
    assert progress.n_done == progress.n_expected == 60


def test_documented_grid_and_limit():
    assert INVERSE_PENALTIES == (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    assert MAX_ITERATIONS == 1000


def test_probe_that_does_not_converge_is_an_error():
    features, labels = make_task(120, 20)
    with pytest.raises(TrainingError, match="did not converge in 1 iterations"):
        run(features, labels, stratified_folds(labels, 5, seed=1), max_iterations=1)
