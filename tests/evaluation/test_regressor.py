import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from helpers import CountingProgress
from simcse_cli.data.senteval import read_sts_task
from simcse_cli.errors import DataError, UsageError
from simcse_cli.evaluation import regressor
from simcse_cli.evaluation.eval_sts import eval_sts
from simcse_cli.evaluation.options import EncoderOptions, StsOptions
from simcse_cli.evaluation.regressor import (
    PairVectors,
    fit_regressor,
    grade_distribution,
    regress_task,
)
from simcse_cli.evaluation.sts import StsSuite, evaluate_sts, resolve_setting
from simcse_cli.progress import SilentProgress


def rated(n, dim, seed):
    rng = np.random.default_rng(seed)
    left, noise = rng.normal(size=(2, n, dim)).astype(np.float32)
    share = rng.uniform(size=(n, 1)).astype(np.float32)
    right = share * left + (1 - share) * noise
    gold = np.clip(np.round(5 * share[:, 0] + 0.3 * rng.normal(size=n), 1), 0, 5).astype(np.float64)
    return PairVectors(left, right, gold)


def plain_regressor(train, dev, test):
    """The protocol written out: autograd, torch.optim.Adam, one batch at a time."""

    def features(pairs):
        u, v = torch.from_numpy(pairs.left), torch.from_numpy(pairs.right)
        return torch.cat([(u - v).abs(), u * v], dim=1)

    def targets(scores):
        table = torch.zeros(len(scores), 5)
        for row, score in zip(table, scores, strict=True):
            floor = int(np.floor(score))
            if floor >= 1:
                row[floor - 1] = floor + 1 - score
            if floor < 5:
                row[floor] = score - floor
        return table

    def expected(model, x):
        with torch.no_grad():
            return model(x).numpy() @ np.arange(1, 6)

    np.random.seed(1111)
    torch.manual_seed(1111)
    x, y = features(train), targets(train.gold)
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 5), torch.nn.Softmax(dim=-1))
    optimizer = torch.optim.Adam(model.parameters())
    best, strikes, epoch, stop = -1.0, 0, 0, False
    while not stop and epoch <= 1000:
        for _ in range(50):
            order = np.random.permutation(len(x))
            for start in range(0, len(x), 64):
                rows = torch.from_numpy(order[start : start + 64])
                loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epoch += 50
        score = pearsonr(expected(model, features(dev)), dev.gold)[0]
        if score > best:
            best, kept = score, copy.deepcopy(model)
        else:
            stop = strikes >= 3
            strikes += 1
    return expected(kept, features(test)), best


def test_gradient_of_a_batch_is_that_of_the_mean_squared_error():
    generator = torch.Generator().manual_seed(0)
    design = torch.randn(70, 4, generator=generator)
    weights, targets = (
        torch.randn(5, 4, generator=generator),
        torch.rand(70, 5, generator=generator),
    )
    order, found = torch.randperm(70, generator=generator), []
    optimizer = SimpleNamespace(step=lambda weights, gradient: found.append(gradient))
    regressor._pass(weights, optimizer, design, targets, order)
    leaf = weights.clone().requires_grad_()
    for gradient, rows in zip(found, (order[:64], order[64:]), strict=True):
        loss = torch.nn.functional.mse_loss((design[rows] @ leaf.T).softmax(dim=1), targets[rows])
        torch.testing.assert_close(gradient, torch.autograd.grad(loss, leaf)[0])


def test_training_ends_at_the_fourth_failure_or_after_a_thousand_passes(monkeypatch):
    train, dev = rated(4, 1, 0), rated(6, 1, 1)
    constant = PairVectors(dev.left, dev.right, np.ones(6))  # has no correlation, which counts as 0
    progress = CountingProgress()
    fit_regressor(train, constant, dev, progress=progress, name="SICK")
    assert progress.said == "SICK: Pearson 0.00 on the dev set"
    assert (progress.n_done, progress.n_expected) == (50 * (1 + 4), 1050)
    monkeypatch.setattr(regressor, "TENACITY", 99)
    fit_regressor(train, constant, dev, progress=progress, name="regressor")
    assert progress.n_done == 1050


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        (3.6, [0, 0, 0.4, 0.6, 0]),
        (5.0, [0, 0, 0, 0, 1]),
        (1.0, [1, 0, 0, 0, 0]),
        (0.4, [0.4, 0, 0, 0, 0]),
        (0.0, [0, 0, 0, 0, 0]),
    ],
)
def test_grade_distribution_lies_on_the_two_nearest_grades(gold, expected):
    (row,) = grade_distribution(np.array([gold]))
    np.testing.assert_allclose(row, expected, atol=1e-6)


@pytest.mark.parametrize("gold", [1.0, 2.25, 4.999])
def test_grade_distribution_has_the_gold_score_as_expected_value(gold):
    (row,) = grade_distribution(np.array([gold]))
    assert row.sum() == pytest.approx(1, abs=1e-6)
    assert row @ np.arange(1, 6) == pytest.approx(gold, abs=1e-6)


def test_vectors_that_are_not_finite_are_reported():
    train = rated(20, 3, 0)
    huge = PairVectors(train.left * 1e25, train.right * 1e25, train.gold)
    with pytest.raises(DataError, match="SICK: the vectors of 20 of 20 examples are not finite"):
        fit_regressor(huge, train, train, name="SICK")


def test_regressor_equals_the_plain_loop():
    train, dev, test = (rated(n, 6, seed) for seed, n in enumerate((150, 60, 70)))
    predicted, best = plain_regressor(train, dev, test)
    progress = CountingProgress()
    found = fit_regressor(train, dev, test, progress=progress, name="SICK")
    assert progress.said == f"SICK: Pearson {100 * best:.2f} on the dev set"
    np.testing.assert_allclose(found, predicted, atol=2e-3)
    assert found.min() >= 1
    assert found.max() <= 5


def write_sick(root, sizes):
    folder = root / "SICK"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, n in zip(
        ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"), sizes, strict=True
    ):
        rows = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        for i in range(n):
            a, b = (" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 6))) for _ in range(2))
            rows.append(f"{i}\t{a}\t{b}\t{1 + 4 * len(set(a) & set(b)) / 9:.2f}\tNEUTRAL")
        (folder / name).write_text("\n".join(rows) + "\n")


def letter_counts(sentences):
    return np.array(
        [[s.count(letter) for letter in "abcdefgh"] for s in sentences], dtype=np.float32
    )


def test_regress_task_returns_predictions_in_file_order(tmp_path):
    write_sick(tmp_path, (120, 40, 50))
    found = regress_task("SICKRelatedness", letter_counts, tmp_path)
    parts = [
        read_sts_task(tmp_path, "SICKRelatedness", split=s).subsets[s]
        for s in ("train", "dev", "test")
    ]
    pairs = []
    for part in parts:
        words = [
            (len(a.split()), len(b.split())) for a, b in zip(part.left, part.right, strict=True)
        ]
        order = sorted(range(part.n_pairs), key=lambda i: (*words[i], part.gold[i]))
        left, right = letter_counts(part.left), letter_counts(part.right)
        pairs.append((PairVectors(left[order], right[order], part.gold[order]), order))
    predicted, _ = plain_regressor(*(rated_pairs for rated_pairs, _ in pairs))
    np.testing.assert_allclose(found[pairs[2][1]], predicted, atol=2e-3)


def test_the_regressor_replaces_only_the_tasks_with_a_training_set(tmp_path):
    write_sick(tmp_path, (80, 30, 40))
    tasks = ("STS13", "STSBenchmark", "SICKRelatedness")
    result = evaluate_sts(letter_counts, StsSuite(tmp_path, tasks))
    regressed = evaluate_sts(
        letter_counts, StsSuite(tmp_path, tasks), resolve_setting(StsOptions(regressor=True))
    )
    assert [name for name, score in regressed.tasks.items() if score is None] == [
        "STS13",
        "STSBenchmark",
    ]
    cosine = result.examples["SICKRelatedness"]["test"].cosine
    grades = regressed.examples["SICKRelatedness"]["test"].cosine
    assert cosine.max() <= 1 < grades.max()


def test_the_regressor_needs_the_test_split():
    with pytest.raises(UsageError, match="predicts the test split, not dev"):
        eval_sts(
            EncoderOptions(), StsOptions(split="dev", regressor=True), SilentProgress(), force=False
        )
