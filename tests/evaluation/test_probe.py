import dataclasses

import numpy as np
import plain_loop
import pytest

from helpers import CountingProgress
from simcse_cli.evaluation.folds import Fold, stratified_folds
from simcse_cli.evaluation.probe import PROBE_SETTINGS, choose_penalties, collect_result, run_probe
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import TransferProtocol


def make_task(n_rows, n_features, n_classes, *, noise, seed=0):
    """Return features of unit norm with a weak linear signal, and labels of unequal frequency."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    signal = features @ rng.normal(size=(n_features, n_classes)) + noise * rng.normal(
        size=(n_rows, n_classes)
    )
    signal[:, 0] += 0.2
    return features, signal.argmax(axis=1)


def settings_of(protocol, **changes):
    return dataclasses.replace(PROBE_SETTINGS[TransferProtocol(protocol)], **changes)


def run(features, labels, outer, settings, dev_rows=None):
    return run_probe(
        features, labels, outer, settings, dev_rows=dev_rows, progress=SilentProgress()
    )


def assert_same(result, expected):
    dev_accuracy, accuracy, penalties = expected
    assert result.penalties == penalties
    assert result.dev_accuracy == pytest.approx(dev_accuracy, abs=1e-9)
    assert result.accuracy == pytest.approx(accuracy, abs=1e-9)


@pytest.mark.parametrize(("protocol", "n_folds"), [("fast", 5), ("default", 3)])
def test_nested_folds_equal_the_plain_loop(protocol, n_folds):
    features, labels = make_task(331, 12, 2, noise=0.5)
    outer = stratified_folds(labels, n_folds, seed=1111)
    result = run(features, labels, outer, settings_of(protocol, n_folds=n_folds))
    assert_same(result, plain_loop.plain_nested(features, labels, protocol, n_folds))
    assert np.array_equal(result.test_rows, np.arange(331))


@pytest.mark.parametrize("protocol", ["fast", "default"])
def test_given_test_set_equals_the_plain_loop(protocol):
    features, labels = make_task(301, 10, 4, noise=0.3)
    result = run(
        features, labels, [Fold(np.arange(201), np.arange(201, 301))], settings_of(protocol)
    )
    assert_same(result, plain_loop.plain_kfold(features, labels, 201, protocol))
    accuracy = (result.predictions == labels[result.test_rows]).mean()
    assert accuracy == pytest.approx(result.accuracy)


@pytest.mark.parametrize("protocol", ["fast", "default"])
def test_given_dev_set_equals_the_plain_loop(protocol):
    features, labels = make_task(500, 10, 2, noise=0.3)
    outer = [Fold(np.arange(300), np.arange(400, 500))]
    result = run(features, labels, outer, settings_of(protocol), dev_rows=np.arange(300, 400))
    assert_same(result, plain_loop.plain_split(features, labels, 300, 100, protocol))


def test_protocol_settings_are_those_of_the_published_configurations():
    default, fast = (PROBE_SETTINGS[protocol] for protocol in TransferProtocol)
    assert (default.n_folds, fast.n_folds) == (10, 5)
    assert (default.fit.optimizer, fast.fit.optimizer) == ("adam", "rmsprop")
    assert (default.fit.batch_size, fast.fit.batch_size) == (64, 128)
    assert (default.fit.tenacity, fast.fit.tenacity) == (5, 3)
    assert (default.fit.epoch_size, fast.fit.epoch_size) == (4, 2)
    for settings in (default, fast):
        assert settings.penalties == (1e-5, 1e-4, 1e-3, 1e-2)
        assert (settings.fit.max_epoch, settings.fit.seed) == (200, 1111)


def test_choose_penalties_takes_the_first_of_those_equal_after_rounding():
    accuracies = np.array([[0.80001, 0.80004, 0.7], [0.5, 0.5001, 0.4], [0.1234, 0.123449, 0.1]])
    assert choose_penalties(accuracies).tolist() == [0, 1, 0]


def test_collect_result_orders_predictions_by_row_and_averages_over_splits():
    labels = np.array([0, 1, 1, 0, 1])
    outer = [
        Fold(np.array([0, 1]), np.array([2, 4, 3])),
        Fold(np.array([2, 3, 4]), np.array([1, 0])),
    ]
    predictions = [np.array([1, 1, 1]), np.array([0, 0])]
    result = collect_result(
        labels, outer, predictions, dev_accuracies=[0.5, 1.0], penalties=[1.0, 2.0]
    )
    assert result.predictions.tolist() == [0, 0, 1, 1, 1]
    assert result.accuracy == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert result.dev_accuracy == 0.75


def test_vectors_that_are_the_labels_score_one():
    labels = np.arange(200) % 2
    features = np.eye(2, dtype=np.float32)[labels]
    result = run(features, labels, stratified_folds(labels, 5, seed=1111), settings_of("fast"))
    assert (result.dev_accuracy, result.accuracy) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("n_outer", "dev_rows", "n_models"), [(3, None, 3 * (5 * 4 + 1)), (1, [0, 1], 4)]
)
def test_progress_expects_every_model_that_is_trained(n_outer, dev_rows, n_models):
    features, labels = make_task(90, 3, 2, noise=0.3)
    progress = CountingProgress()
    outer = stratified_folds(labels, 3, seed=1111)[:n_outer]
    dev_rows = None if dev_rows is None else np.array(dev_rows)
    run_probe(features, labels, outer, settings_of("fast"), dev_rows=dev_rows, progress=progress)
    assert (progress.n_expected, progress.n_done) == (n_models, n_models)
