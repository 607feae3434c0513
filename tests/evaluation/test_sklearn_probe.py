import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from simcse_cli.errors import TrainingError
from simcse_cli.evaluation.folds import Fold, stratified_folds
from simcse_cli.evaluation.sklearn_probe import INVERSE_PENALTIES, run_sklearn_probe
from simcse_cli.progress import SilentProgress


def make_task(n_rows, n_features, n_classes=2, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    signal = features @ rng.normal(size=(n_features, n_classes)) + rng.normal(size=(n_rows, n_classes))
    return features, signal.argmax(axis=1)


def run(features, labels, outer, **options):
    return run_sklearn_probe(features, labels, outer, progress=SilentProgress(), **options)


def test_test_accuracy_is_that_of_the_chosen_regression_on_standardised_features():
    features, labels = make_task(240, 5)
    outer = stratified_folds(labels, 4, seed=1111)
    result = run(features, labels, outer)
    accuracies = []
    for fold, strength in zip(outer, result.penalties, strict=True):
        scaler = StandardScaler().fit(features[fold.train])
        model = LogisticRegression(C=strength, max_iter=1000).fit(
            scaler.transform(features[fold.train]), labels[fold.train]
        )
        accuracies.append(model.score(scaler.transform(features[fold.test]), labels[fold.test]))
    assert set(result.penalties) <= set(INVERSE_PENALTIES)
    assert result.accuracy == pytest.approx(np.mean(accuracies), abs=0.01)
    assert 0.5 < result.dev_accuracy <= 1


def test_given_dev_rows_choose_the_penalty():
    features, labels = make_task(300, 4, n_classes=3)
    outer = [Fold(np.arange(200), np.arange(250, 300))]
    result = run(features, labels, outer, dev_rows=np.arange(200, 250))
    assert np.array_equal(result.test_rows, np.arange(250, 300))
    assert result.dev_accuracy * 50 == pytest.approx(round(result.dev_accuracy * 50))


def test_probe_that_does_not_converge_is_an_error():
    features, labels = make_task(120, 20)
    with pytest.raises(TrainingError, match="did not converge in 1 iterations"):
        run(features, labels, stratified_folds(labels, 5, seed=1), max_iterations=1)
