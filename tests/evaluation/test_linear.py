import numpy as np
import plain_loop
import pytest
import torch

from simcse_cli.errors import DataError, TrainingError
from simcse_cli.evaluation import linear
from simcse_cli.evaluation.folds import FitRows, epoch_orders
from simcse_cli.evaluation.linear import (
    OPTIMIZERS,
    FitSettings,
    difference_and_product,
    fit_linear,
    initial_weights,
    predict,
    require_finite,
    require_finite_weights,
    with_constant,
)
from simcse_cli.progress import SilentProgress

FAST = FitSettings("rmsprop", batch_size=128, tenacity=3, epoch_size=2)


def fit(design, labels, splits, penalties, settings=FAST):
    with SilentProgress().task("fit") as task:
        return fit_linear(
            design,
            labels,
            splits,
            np.array(penalties),
            settings,
            n_classes=int(labels.max()) + 1,
            task=task,
        )


def test_initial_weights_are_those_of_a_seeded_linear_layer_and_leave_the_global_stream_alone():
    torch.manual_seed(1111)
    layer = torch.nn.Linear(7, 3)
    state = torch.get_rng_state()
    weights = initial_weights(7, 3, seed=1111)
    assert torch.equal(weights[:, :-1], layer.weight)
    assert torch.equal(weights[:, -1], layer.bias)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "scale", [1.0, 1e-8]
)  # next to gradients as small as epsilon, epsilon counts
@pytest.mark.parametrize(
    ("name", "reference"), [("adam", torch.optim.Adam), ("rmsprop", torch.optim.RMSprop)]
)
def test_optimizers_equal_those_of_torch(name, reference, scale):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 3, 4, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    theirs, weights = reference([parameter], weight_decay=0.01 * scale), start.clone()
    ours = OPTIMIZERS[name](weights)
    for _ in range(20):
        gradient = scale * torch.randn(2, 3, 4, generator=generator)
        parameter.grad = gradient.clone()
        theirs.step()
        ours.step(weights, gradient + 0.01 * scale * weights)
    torch.testing.assert_close(weights, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_optimizer_keeps_the_state_of_the_rows_kept(name):
    gradient = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1))
    everything, kept = torch.zeros(3, 2, 2), torch.zeros(2, 2, 2)
    reference, reduced = OPTIMIZERS[name](everything), OPTIMIZERS[name](everything)
    rows = torch.tensor([0, 2])
    reduced.step(torch.zeros(3, 2, 2), gradient)
    reference.step(torch.zeros(3, 2, 2), gradient)
    reduced.keep(rows)
    reduced.step(kept, gradient[rows])
    reference.step(everything, gradient)
    assert torch.equal(kept, everything[rows])


def test_predict_returns_the_best_class_for_any_number_of_models():
    design = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    identity = torch.eye(2)
    assert predict(identity, design).tolist() == [0, 1]
    assert predict(torch.stack([identity, identity.flip(0)]), design).tolist() == [[0, 1], [1, 0]]


def test_splits_of_different_sizes_train_as_if_each_were_alone():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 6)).astype(np.float32)
    labels = (features[:, 0] + rng.normal(size=300) > 0).astype(np.int64)
    splits = [
        FitRows(np.arange(200), np.arange(200, 300)),
        FitRows(np.arange(50, 251), np.arange(50)),
        FitRows(np.arange(100, 300), np.arange(100)),
    ]
    penalties, config = (
        [1e-5, 0.1, 1.0, 10.0],
        plain_loop.CONFIGS["fast"] | {"tenacity": 1, "epoch_size": 1},
    )
    settings = FitSettings("rmsprop", batch_size=128, tenacity=1, epoch_size=1)
    fits = fit(with_constant(features), torch.from_numpy(labels), splits, [penalties] * 3, settings)
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    for i, split in enumerate(splits):
        for j, penalty in enumerate(penalties):
            model = plain_loop.PlainModel(6, 2, penalty, config)
            best = model.fit(x[split.train], y[split.train], x[split.dev], y[split.dev])
            assert fits.dev_accuracy[i, j] == pytest.approx(best, abs=1e-12)
            torch.testing.assert_close(
                fits.weights[i, j, :, :-1], model.layer.weight, rtol=1e-3, atol=1e-4
            )
            torch.testing.assert_close(
                fits.weights[i, j, :, -1], model.layer.bias, rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize(
    ("limits", "n_passes"),
    [
        ({"tenacity": 3}, 2 * (1 + 4)),
        ({"tenacity": 99, "max_epoch": 4}, 2 * 3),
    ],  # after 0, 2 and 4 passes
)
def test_training_ends_at_its_limits_and_every_model_is_counted_once(limits, n_passes, monkeypatch):
    orders, done = [], []

    def watched(stream, *, seed):
        for order in epoch_orders(stream, seed=seed):
            orders.append(order)
            yield order

    class Counter:
        def advance(self, amount=1):
            done.append(amount)

    monkeypatch.setattr(linear, "epoch_orders", watched)
    design, labels = (
        torch.zeros(8, 2),
        torch.tensor([0, 1] * 4),
    )  # half of the dev rows are right, always
    splits = [FitRows(np.arange(6), np.arange(6, 8)), FitRows(np.arange(2, 8), np.arange(2))]
    settings = FitSettings("adam", batch_size=8, epoch_size=2, **limits)
    fits = fit_linear(
        design, labels, splits, np.full((2, 3), 0.01), settings, n_classes=2, task=Counter()
    )
    assert (len(orders), sum(done)) == (n_passes, 6)
    assert (fits.dev_accuracy == 0.5).all()


def test_diverging_weights_are_reported():
    design = torch.full((8, 2), 3e38)
    labels = torch.tensor([0, 1] * 4)
    with pytest.raises(TrainingError, match="weights are not finite"):
        fit(design, labels, [FitRows(np.arange(6), np.arange(6, 8))], [[1e-3]])
    require_finite_weights(torch.tensor([1.0, 2.0]), "it")
    with pytest.raises(TrainingError, match="it diverged"):
        require_finite_weights(torch.tensor([1.0, np.inf]), "it")


def test_pair_features_are_the_absolute_difference_and_the_product():
    features = difference_and_product(np.array([[1.0, -2.0]]), np.array([[3.0, 4.0]]))
    assert features.tolist() == [[2.0, 6.0, 3.0, -8.0]]


def test_with_constant_appends_ones_in_float32():
    design = with_constant(np.array([[0.5, 2.0], [1.0, 3.0]]))
    assert design.dtype == torch.float32
    assert design.tolist() == [[0.5, 2.0, 1.0], [1.0, 3.0, 1.0]]


def test_require_finite_counts_the_rows_that_are_not():
    features = np.array([[1.0, 2.0], [np.inf, np.nan], [np.nan, 0.0]])
    with pytest.raises(DataError, match="MR: the vectors of 2 of 3 examples are not finite"):
        require_finite(features, "MR")
    assert require_finite(features[:1], "MR").tolist() == [[1.0, 2.0]]
