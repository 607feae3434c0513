"""Many softmax regressions trained side by side; the transfer protocol trains one at a time.

A *cohort* holds the models whose training sets have the same size and whose batches have the same
order of positions. With the protocol's one seed, all models also start from the same weights. So a
cohort advances in lockstep, and one batched matrix product computes all of its models. The bias is
one more weight, on a constant feature; the protocol applies weight decay to it too.

Shapes: ``F`` splits, ``R`` penalties per split, ``K`` classes, ``D`` features with the constant,
``B`` rows of a batch. Weights are ``(F, R*K, D)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from simcse_cli.arrays import AnyFloats, Booleans, Floats
from simcse_cli.errors import DataError, TrainingError
from simcse_cli.evaluation.folds import FitRows, epoch_orders
from simcse_cli.progress import ProgressTask

Features = AnyFloats
ProbeOptimizer = Literal["adam", "rmsprop"]


def with_constant(features: Features) -> Tensor:
    """Return ``(N, D)`` float32 features with a last column of ones."""
    design = torch.ones(features.shape[0], features.shape[1] + 1)
    design[:, :-1] = torch.from_numpy(np.ascontiguousarray(features))
    return design


def difference_and_product(left: Features, right: Features) -> Features:
    """Return the features of sentence pairs, ``[|u - v|, u * v]``.

    Two arrays ``(N, D)`` give one array ``(N, 2D)``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.hstack([np.abs(left - right), left * right])


def require_finite(features: Features, name: str) -> Features:
    n_bad = int((~np.isfinite(features).all(axis=1)).sum())
    if n_bad:
        what = f"{name}: the vectors of {n_bad:,} of {len(features):,} examples are not finite"
        raise DataError(what, hint="check the model, or use --precision fp32")
    return features


# Optimisers. They are written out here because a split that is finished must be removed from their
# state.


class RmsProp:
    """RMSprop with PyTorch's defaults.

    The learning rate is 0.01, the smoothing is 0.99, and the epsilon of 1e-8 is added after the
    root.
    """

    learning_rate = 1e-2
    smoothing = 0.99
    epsilon = 1e-8

    def __init__(self, weights: Tensor) -> None:
        self._square = torch.zeros_like(weights)

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        self._square.mul_(self.smoothing).addcmul_(gradient, gradient, value=1 - self.smoothing)
        weights.addcdiv_(
            gradient, self._square.sqrt().add_(self.epsilon), value=-self.learning_rate
        )

    def keep(self, rows: Tensor) -> None:
        self._square = self._square[rows]


class Adam:
    """Adam with PyTorch's defaults.

    The learning rate is 0.001, the betas are 0.9 and 0.999, and the epsilon of 1e-8 is added after
    the root.
    """

    learning_rate = 1e-3
    beta1 = 0.9
    beta2 = 0.999
    epsilon = 1e-8

    def __init__(self, weights: Tensor) -> None:
        self._mean = torch.zeros_like(weights)
        self._square = torch.zeros_like(weights)
        self._n_steps = 0

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        self._n_steps += 1
        self._mean.lerp_(gradient, 1 - self.beta1)
        self._square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        root = self._square.sqrt().div_((1 - self.beta2**self._n_steps) ** 0.5).add_(self.epsilon)
        weights.addcdiv_(
            self._mean, root, value=-self.learning_rate / (1 - self.beta1**self._n_steps)
        )

    def keep(self, rows: Tensor) -> None:
        self._mean = self._mean[rows]
        self._square = self._square[rows]


OPTIMIZERS: dict[ProbeOptimizer, type[RmsProp] | type[Adam]] = {"adam": Adam, "rmsprop": RmsProp}


@dataclass(frozen=True)
class FitSettings:
    """How one model is trained.

    The dev accuracy is measured after every ``epoch_size`` passes, and the weights with the best
    one are kept. Training ends once more than ``tenacity`` measurements have brought no new best
    accuracy; the count is never reset. It also ends after more than ``max_epoch`` passes.
    """

    optimizer: ProbeOptimizer
    batch_size: int
    tenacity: int
    epoch_size: int
    max_epoch: int = 200
    seed: int = 1111


@dataclass(frozen=True)
class Fits:
    """The best model for each of ``F`` splits and ``R`` penalties, and its dev accuracy.

    ``weights`` is ``(F, R, K, D)`` for ``K`` classes and ``D`` features; ``dev_accuracy`` is
    ``(F, R)`` in float64.
    """

    weights: Tensor
    dev_accuracy: Floats


def initial_weights(n_features: int, n_classes: int, *, seed: int) -> Tensor:
    """Return start weights ``(K, n_features + 1)`` for K classes; the last column is the bias.

    The weights are those of a fresh ``torch.nn.Linear`` under ``seed``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(n_features, n_classes)
    return torch.cat([layer.weight.detach(), layer.bias.detach()[:, None]], dim=1)


def require_finite_weights(weights: Tensor, name: str) -> None:
    if not weights.isfinite().all():
        raise TrainingError(
            f"{name} diverged: its weights are not finite",
            hint="look at the vectors with `simcse analyze geometry`; very long ones overflow",
        )


def predict(weights: Tensor, design: Tensor) -> Tensor:
    """Return the most probable class of each example by each model.

    Weights ``(..., K, D)`` and design ``(N, D)`` give ``(..., N)``.
    """
    return (weights @ design.T).argmax(dim=-2)


def fit_linear(
    design: Tensor,
    labels: Tensor,
    splits: Sequence[FitRows],
    penalties: Floats,
    settings: FitSettings,
    *,
    n_classes: int,
    task: ProgressTask,
) -> Fits:
    """Train a softmax regression for every split and penalty; return each at its best dev accuracy.

    ``design`` holds features ``(N, D)``, with a constant as the last. ``penalties`` ``(F, R)`` are
    R weight decays for each of F splits. A model's weights times its decay are added to the
    gradient of the mean cross-entropy. ``task`` advances by one for every model that stops.
    """
    n_splits, n_penalties = penalties.shape
    weights = torch.empty(n_splits, n_penalties, n_classes, design.shape[1])
    accuracy = np.empty((n_splits, n_penalties))
    # Splits with the same batch order are trained together.
    for stream in sorted({split.stream for split in splits}):
        indices = [i for i, split in enumerate(splits) if split.stream == stream]
        members = [splits[i] for i in indices]
        cohort = _Cohort(design, labels, members, penalties[indices], settings, n_classes)
        cohort.train(task)
        weights[indices] = cohort.best_weights
        accuracy[indices] = cohort.best_accuracy
    return Fits(weights, accuracy)


@dataclass
class _Cohort:
    """Models that advance in lockstep, one for each split and penalty.

    A split is finished when all of its models have stopped. Its models are then removed.
    """

    design: Tensor
    labels: Tensor
    splits: Sequence[FitRows]
    penalties: Floats
    settings: FitSettings
    n_classes: int

    def __post_init__(self) -> None:
        n_splits, n_penalties = self.penalties.shape
        self._dev = [torch.from_numpy(split.dev) for split in self.splits]
        self._rows = torch.from_numpy(np.stack([split.train for split in self.splits]))

        # All models start from the same weights, ``(F, R*K, D)``. A model has K rows, and each of
        # them has the penalty of the model.
        n_features = self.design.shape[1] - 1  # the last column is the constant
        start = initial_weights(n_features, self.n_classes, seed=self.settings.seed)
        self._weights = start.repeat(n_splits, n_penalties, 1)
        decay = torch.from_numpy(self.penalties).float().repeat_interleave(self.n_classes, dim=1)
        self._decay = decay[:, :, None]
        self._optimizer = OPTIMIZERS[self.settings.optimizer](self._weights)
        self._active = list(range(n_splits))  # numbers of the splits that are not finished
        self._failures = np.zeros((n_splits, n_penalties), dtype=np.int64)
        self.best_accuracy = np.full((n_splits, n_penalties), -1.0)
        self.best_weights = self._by_model(self._weights).clone()

    def _by_model(self, values: Tensor) -> Tensor:
        """View ``(F, R*K, ...)`` as ``(F, R, K, ...)``."""
        return values.view(len(values), -1, self.n_classes, values.shape[-1])

    def train(self, task: ProgressTask) -> None:
        """Train all models until they stop; advance ``task`` by one for each that has stopped."""
        settings = self.settings
        orders = epoch_orders(self.splits[0].stream, seed=settings.seed)
        epoch = 0
        while self._active and epoch <= settings.max_epoch:
            for _ in range(settings.epoch_size):
                for batch in torch.split(torch.from_numpy(next(orders)), settings.batch_size):
                    self._step(self._rows[:, batch])
            epoch += settings.epoch_size
            n_stopped = self._judge()
            task.advance(n_stopped)
        task.advance(int(self._is_running().sum()))  # the models that only max_epoch has stopped

    def _step(self, rows: Tensor) -> None:
        """Train all models on one batch.

        ``rows`` is ``(F, B)``: for each of the F splits, the rows of its B examples in ``design``.
        Each split has R models, one for each penalty, and each model has K classes.
        """
        n_splits, n_rows = rows.shape
        inputs = self.design.index_select(0, rows.flatten()).view(n_splits, n_rows, -1)
        logits = torch.bmm(self._weights, inputs.transpose(1, 2))  # (F, R*K, B)
        # The gradient of the cross-entropy with respect to the logits is the probabilities, less 1
        # for the right class: the -1 is added at the label of each example.
        errors = self._by_model(logits).softmax(dim=2)  # (F, R, K, B)
        n_penalties = errors.shape[1]
        labels = self.labels[rows][:, None, None, :].expand(-1, n_penalties, 1, -1)  # (F, R, 1, B)
        errors.scatter_add_(2, labels, torch.tensor(-1.0).expand(labels.shape))
        # The gradient of the weights, (F, R*K, D), is a mean over the batch. Then the weights times
        # their decay are added.
        gradient = torch.bmm(errors.flatten(1, 2), inputs).div_(n_rows)
        self._optimizer.step(self._weights, gradient.addcmul_(self._weights, self._decay))

    def _is_running(self) -> Booleans:
        """Return a mask ``(F, R)`` of the models that are still trained, over all splits."""
        return self._failures <= self.settings.tenacity

    def _judge(self) -> int:
        """Score the models on their dev rows, keep better weights, and drop finished splits.

        Return the number of models that stop now.
        """
        require_finite_weights(self._weights, "the probe")
        was_running = self._is_running()
        models = self._by_model(self._weights)  # (F, R, K, D)
        for split_models, split in zip(models, self._active, strict=True):
            dev = self._dev[split]
            is_right = predict(split_models, self.design.index_select(0, dev)) == self.labels[dev]
            accuracy = is_right.sum(dim=1).numpy() / len(dev)
            is_better = (accuracy > self.best_accuracy[split]) & was_running[split]
            self.best_accuracy[split, is_better] = accuracy[is_better]
            self.best_weights[split, is_better] = split_models[is_better]
            self._failures[split] += ~is_better  # a stopped model counts too: it stays stopped

        # Keep only the splits with a model that is still trained.
        is_running = self._is_running()
        kept = [position for position, split in enumerate(self._active) if is_running[split].any()]
        if len(kept) < len(self._active):
            positions = torch.tensor(kept, dtype=torch.long)
            self._active = [self._active[position] for position in kept]
            self._rows = self._rows[positions]
            self._weights = self._weights[positions]
            self._decay = self._decay[positions]
            self._optimizer.keep(positions)
        return int(was_running.sum() - is_running.sum())
