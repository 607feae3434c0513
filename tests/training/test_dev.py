"""What scores a model during training: correlations, mean over tasks, dev accuracies; which data it takes."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from helpers import write_transfer_folder
from simcse_cli.data.senteval import StsSubset, StsTask, read_sts_task, sts_files
from simcse_cli.errors import ConfigError, DataError, UsageError
from simcse_cli.evaluation.bootstrap import PairedSample, paired_bootstrap
from simcse_cli.evaluation.sts import StsSuite, evaluate_sts
from simcse_cli.evaluation.transfer import TransferSuite, evaluate_transfer
from simcse_cli.files.digests import sha256_file
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import Gain
from simcse_cli.settings.choices import STS_TASKS, DevSuite, Metric, TransferProtocol
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.dev import (
    NO_SCORE,
    DevMasked,
    DevPairs,
    DevRetrieval,
    DevSts,
    build_dev_set,
    gain_of,
)


def encode(sentences):
    """Return vectors that depend on the words alone."""
    rows = [
        sum(
            np.random.default_rng([ord(c) for c in word]).normal(size=12)
            for word in (*s.split(), "x")
        )
        for s in sentences
    ]
    return np.array(rows, dtype=np.float32)


def unlike(sentences):
    return np.full((len(sentences), 4), np.nan, dtype=np.float32)


def sts_config(folder, **settings):
    return TrainConfig(dev_suite=DevSuite.STS, data_dir=str(folder), **settings)


@pytest.fixture
def transfer_folder(tmp_path):
    return write_transfer_folder(tmp_path / "transfer", n_good=40, n_bad=36)


def cosines(task):
    (subset,) = task.subsets.values()
    left, right = encode(subset.left).astype(float), encode(subset.right).astype(float)
    return (left * right).sum(1) / np.sqrt((left**2).sum(1) * (right**2).sum(1)), subset.gold


@pytest.mark.parametrize("metric", [Metric.SPEARMAN, Metric.PEARSON])
def test_sts_suite_is_the_mean_of_the_dev_correlations(sts_folder, metric):
    stsb = sts_files(sts_folder, "STSBenchmark", split="dev")[0]
    stsb.write_text(
        "".join(stsb.read_text().splitlines(keepends=True)[:-1])
    )  # no two pairs of equal sentences
    correlation = spearmanr if metric is Metric.SPEARMAN else pearsonr
    names = ("STSBenchmark", "SICKRelatedness")
    expected = {
        f"{n}-dev": correlation(*cosines(read_sts_task(sts_folder, n, split="dev")))[0]
        for n in names
    }
    dev_set, facts = build_dev_set(sts_config(sts_folder, dev_metric=metric), SilentProgress())
    found = dev_set.score(encode)
    assert found.tasks == pytest.approx(expected)
    assert found.score == pytest.approx(np.mean(list(expected.values())))
    assert facts["dev_tasks"] == list(expected)


def other(sentences):
    return encode([text[::-1] for text in sentences])


def test_the_gain_is_the_paired_bootstrap_over_the_pairs_that_chose(sts_folder):
    path = sts_files(sts_folder, "STSBenchmark", split="dev")[0]
    task = read_sts_task(sts_folder, "STSBenchmark", split="dev")
    dev, _ = build_dev_set(TrainConfig(dev_file=str(path)), SilentProgress())
    before, after = dev.score(encode), dev.score(other)
    gain = gain_of(dev, after.examples, before.examples)
    assert gain.difference == pytest.approx(after.score - before.score)
    sample = PairedSample(cosines(task)[1], after.examples["pairs"], before.examples["pairs"])
    expected = paired_bootstrap({"pairs": [sample]})[1]
    assert (gain.low, gain.high, gain.p_value) == (expected.low, expected.high, expected.p_value)
    assert (gain.n_examples, gain.unit) == (task.n_pairs, "pairs")
    assert gain_of(dev, before.examples, before.examples).p_value == 1.0
    assert gain_of(dev, after.examples, {}) is None  # a state of an earlier version


def test_undefined_resamples_of_a_gain_are_counted():
    pairs = StsSubset(["a", "b", "c"], ["d", "e", "f"], np.arange(3.0))
    progress = SilentProgress()
    after, before = {"pairs": np.array([0.1, 0.3, 0.2])}, {"pairs": np.array([0.3, 0.1, 0.2])}
    assert gain_of(DevPairs(pairs), after, before, progress) is not None
    (warning,) = progress.warnings
    assert "resamples have no correlation and are left out" in warning


def test_the_gain_of_a_suite_is_that_of_the_mean_over_tasks(sts_folder, transfer_folder):
    suite, _ = build_dev_set(sts_config(sts_folder), SilentProgress())
    before, after = suite.score(encode), suite.score(other)
    gain = gain_of(suite, after.examples, before.examples)
    assert gain.difference == pytest.approx(after.score - before.score)
    assert gain.n_examples == sum(task.n_pairs for task in suite.tasks)

    transfer = TrainConfig(dev_suite=DevSuite.TRANSFER, data_dir=str(transfer_folder))
    accuracies, _ = build_dev_set(transfer, SilentProgress())
    assert gain_of(accuracies, accuracies.score(encode).examples, {}) is None


def test_the_gain_of_a_search_is_paired_over_the_queries():
    rows = [(f"question {i}", f"answer {i % 7} of {i}") for i in range(30)]
    search = DevRetrieval.of_pairs(rows)
    before, after = search.score(encode), search.score(other)
    gain = gain_of(search, after.examples, before.examples)
    assert gain.difference == pytest.approx(after.score - before.score)
    assert (gain.n_examples, gain.unit) == (30, "queries")
    assert str(Gain(0.012, 0.004, 0.02, 0.01, 30, "queries")) == "+1.20 (+0.40 to +2.00)"


def test_sts_suite_takes_the_geometry_of_stsb(sts_folder):
    dev_set, _ = build_dev_set(sts_config(sts_folder), SilentProgress())
    (pairs,) = read_sts_task(sts_folder, "STSBenchmark", split="dev").subsets.values()
    left, right = encode(pairs.left).astype(float), encode(pairs.right).astype(float)
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    high = pairs.gold > 4
    every = np.concatenate([left, right])
    squared = [((a - b) ** 2).sum() for i, a in enumerate(every) for b in every[:i]]
    found = dev_set.score(encode)
    assert found.alignment == pytest.approx(((left - right)[high] ** 2).sum(1).mean(), rel=1e-5)
    assert found.uniformity == pytest.approx(
        np.log(np.mean(np.exp(-2 * np.array(squared)))), rel=1e-5
    )


def test_sts_suite_with_test_sets_agrees_with_the_evaluation_and_warns(sts_folder):
    progress = SilentProgress()
    dev_set, facts = build_dev_set(sts_config(sts_folder, dev_tasks="sts12, STS16"), progress)
    expected = evaluate_sts(encode, StsSuite(sts_folder, ("STS12", "STS16")))
    found = dev_set.score(encode)
    assert found.tasks == pytest.approx(expected.scores)
    assert found.score == pytest.approx(expected.average)
    assert found.uniformity is not None
    assert facts["dev_tasks"] == ["STS12", "STS16"]
    (warning,) = progress.warnings
    assert "STS12, STS16" in warning
    assert "test data" in warning


def test_default_sts_tasks_never_touch_test_data(sts_folder):
    for name in STS_TASKS:
        for path in sts_files(sts_folder, name):
            path.unlink()
    progress = SilentProgress()
    dev_set, _ = build_dev_set(sts_config(sts_folder), progress)
    assert dev_set.score(encode).score is not None
    assert not progress.warnings


def test_transfer_suite_is_the_mean_dev_accuracy_of_the_fast_protocol(transfer_folder, sts_folder):
    config = TrainConfig(
        dev_suite=DevSuite.TRANSFER, data_dir=str(transfer_folder), dev_tasks="CR,trec,SST-2"
    )
    dev_set, facts = build_dev_set(config, SilentProgress())
    suite = TransferSuite(transfer_folder, ("CR", "TREC", "SST2"), protocol=TransferProtocol.FAST)
    expected = evaluate_transfer(encode, suite)
    found = dev_set.score(encode)
    assert found.score == pytest.approx(expected.figures["average_dev"])
    assert found.tasks["CR-dev"] == expected.tasks["CR"].extra["dev_accuracy"]
    assert (found.alignment, found.uniformity) == (None, None)
    assert facts["dev_tasks"] == ["CR-dev", "TREC-dev", "SST2-dev"]
    assert facts["dev_suite"] == "transfer"
    dev_file = sts_files(sts_folder, "STSBenchmark", split="dev")[0]
    with_pairs, _ = build_dev_set(
        dataclasses.replace(config, dev_file=str(dev_file)), SilentProgress()
    )
    alone, _ = build_dev_set(TrainConfig(dev_file=str(dev_file)), SilentProgress())
    measured, reference = with_pairs.score(encode), alone.score(encode)
    assert measured.score == found.score
    assert (measured.alignment, measured.uniformity) == (reference.alignment, reference.uniformity)


def test_vectors_that_are_not_finite_give_no_score(transfer_folder, sts_folder):
    transfer = TrainConfig(
        dev_suite=DevSuite.TRANSFER, data_dir=str(transfer_folder), dev_tasks="CR"
    )
    for config in (sts_config(sts_folder), transfer):
        dev_set, _ = build_dev_set(config, SilentProgress())
        found = dev_set.score(unlike)
        assert found.score is None
        assert "not finite" in found.why


def test_equal_vectors_give_no_sts_score(sts_folder):
    dev_set, _ = build_dev_set(sts_config(sts_folder), SilentProgress())
    found = dev_set.score(lambda sentences: np.ones((len(sentences), 4), dtype=np.float32))
    assert found.score is None
    assert found.uniformity == pytest.approx(0.0)


def test_facts_hold_the_digest_of_every_file(sts_folder, transfer_folder):
    _, facts = build_dev_set(sts_config(sts_folder), SilentProgress())
    stsb = sts_files(sts_folder, "STSBenchmark", split="dev")[0]
    assert facts["dev_files"].keys() == {"STS/STSBenchmark/sts-dev.csv", "SICK/SICK_trial.txt"}
    assert facts["dev_files"]["STS/STSBenchmark/sts-dev.csv"] == sha256_file(stsb)
    config = TrainConfig(dev_suite=DevSuite.TRANSFER, data_dir=str(transfer_folder), dev_tasks="CR")
    assert build_dev_set(config, SilentProgress())[1]["dev_files"].keys() == {
        "CR/custrev.pos",
        "CR/custrev.neg",
    }


def test_no_dev_settings_no_dev_set():
    assert build_dev_set(TrainConfig(), SilentProgress()) == (None, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dev_suite": DevSuite.STS}, "no data"),
        (
            {"dev_suite": DevSuite.TRANSFER, "data_dir": "x", "dev_tasks": "SST3"},
            "did you mean SST2",
        ),
        ({"dev_suite": DevSuite.STS, "data_dir": "x", "dev_tasks": "MR"}, "unknown task 'MR'"),
        ({"dev_suite": DevSuite.STS, "data_dir": "x", "dev_tasks": ","}, "no task in"),
    ],
)
def test_bad_suite_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_dev_set(TrainConfig(**settings), SilentProgress())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dev_tasks": "MR"}, "--dev-tasks: has no use without --dev-suite sts or"),
        ({"data_dir": "x"}, "--data-dir: has no use without --dev-suite sts or"),
        (
            {"dev_suite": DevSuite.TRANSFER, "dev_metric": Metric.PEARSON},
            "--dev-metric: has no use with --dev-suite transfer, whose score is the accuracy",
        ),
        ({"keep_checkpoints": -1}, "--keep-checkpoints -1"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises((ConfigError, UsageError), match=message):
        TrainConfig(**settings)


def test_missing_files_name_the_tasks_that_are_there(sts_folder, transfer_folder):
    sts_files(sts_folder, "SICKRelatedness", split="dev")[0].unlink()
    with pytest.raises(DataError, match=r"--dev-suite sts.*SICK_trial") as caught:
        build_dev_set(sts_config(sts_folder), SilentProgress())
    assert "--dev-tasks STSBenchmark" in caught.value.hint
    (transfer_folder / "downstream/TREC/TREC_10.label").unlink()
    config = TrainConfig(
        dev_suite=DevSuite.TRANSFER, data_dir=str(transfer_folder), dev_tasks="CR,TREC"
    )
    with pytest.raises(DataError, match=r"--dev-suite transfer.*TREC_10") as caught:
        build_dev_set(config, SilentProgress())
    assert "--dev-tasks CR" in caught.value.hint


def test_too_few_examples_for_the_folds_are_refused_before_training(tmp_path):
    folder = write_transfer_folder(tmp_path / "small", n_good=5, n_bad=5)
    config = TrainConfig(dev_suite=DevSuite.TRANSFER, data_dir=str(folder), dev_tasks="CR")
    with pytest.raises(DataError, match="a class has 5 training examples"):
        build_dev_set(config, SilentProgress())


def test_masked_texts_whose_loss_overflows_have_no_score():
    loss = torch.tensor([torch.nan])
    objective = SimpleNamespace(eval=lambda: None, encode=lambda _: (loss,))
    assert DevMasked(objective, [None], n_masked=1).score(None) == NO_SCORE


@pytest.mark.parametrize(
    ("n_pairs", "why"),
    [(1, "a correlation needs two pairs or more"), (2, "all pairs have the same cosine")],
)
def test_a_dev_score_that_is_undefined_says_why(n_pairs, why, tmp_path):
    path = tmp_path / "dev.csv"
    rows = ["a,b,1", "c,d,2"][:n_pairs]
    path.write_text("\n".join(["sentence1,sentence2,score", *rows]) + "\n")
    dev_set, _ = build_dev_set(TrainConfig(dev_file=str(path)), SilentProgress())
    found = dev_set.score(lambda texts: np.ones((len(texts), 2), np.float32))
    assert (found.score, found.why) == (None, why)
    task = StsTask("STS12", "test", {"own": dev_set.pairs})
    suite = DevSts([task], Metric.SPEARMAN, dev_set.pairs)
    assert suite.score(lambda texts: np.ones((len(texts), 2), np.float32)).why == f"STS12: {why}"
    assert dev_set.score(lambda texts: np.full((len(texts), 2), np.nan)).why == NO_SCORE.why
