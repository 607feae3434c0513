"""BERT-flow: an invertible map that makes sentence vectors look like standard normal draws."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.arrays import AnyFloats, Array
from simcse_cli.machine.optimizers import UncorrectedAdamW
from simcse_cli.postprocess.base import PostProcessor, fit_matrix
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Postprocess

WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
ADAM_EPSILON = 1e-6
LOG_SCALE_FACTOR = 3.0
INIT_STD = 0.05
_SCALE_EPSILON = 1e-6
_TRANSFORM_ROWS = 8192


# The layers: actnorm, flow steps (actnorm, reversal, additive coupling), and their multi-level
# stack. Each maps ``(B, C)`` to ``(B, C)`` and also returns the log-determinant of its Jacobian,
# which is one scalar for all rows: only actnorm changes volume, by a factor that does not depend on
# its input.


class ActNorm(nn.Module):
    """Per-channel ``y = (x + bias) * exp(3 * log_scale)``, started from data.

    Source: Kingma and Dhariwal 2018.

    The first batch sets ``bias`` and ``log_scale`` so that the output has mean 0 and variance 1 in
    every channel; after that, both are trained. The log-determinant is the sum of ``3 * log_scale``
    over the channels.
    """

    initialised: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(n_channels))
        self.log_scale = nn.Parameter(torch.zeros(n_channels))
        self.register_buffer("initialised", torch.tensor(False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.initialised:
            with torch.no_grad():
                self.bias.copy_(-x.mean(dim=0))
                spread = (x + self.bias).square().mean(dim=0).sqrt()
                self.log_scale.copy_(-torch.log(spread + _SCALE_EPSILON) / LOG_SCALE_FACTOR)
                self.initialised.fill_(True)
        log_scale = LOG_SCALE_FACTOR * self.log_scale
        return (x + self.bias) * torch.exp(log_scale), log_scale.sum()


class CouplingNet(nn.Module):
    """The network of a coupling layer: it computes the shift from one half of the channels.

    It maps ``(B, n_channels)`` to ``(B, n_channels)``, where ``n_channels`` is the size of the
    half. It has two hidden layers of ``width`` units, each linear with actnorm and ReLU; their
    weights start normal with standard deviation 0.05. With the states h of the second layer, the
    output is

        (W h + b) * exp(3 s)

    where W, b and s start at zero, so that a new coupling layer is the identity.
    """

    def __init__(self, n_channels: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Linear(n_channels, width, bias=False)
        self.first_norm = ActNorm(width)
        self.second = nn.Linear(width, width, bias=False)
        self.second_norm = ActNorm(width)
        self.last = nn.Linear(width, n_channels)
        self.log_scale = nn.Parameter(torch.zeros(n_channels))
        nn.init.normal_(self.first.weight, std=INIT_STD, generator=generator)
        nn.init.normal_(self.second.weight, std=INIT_STD, generator=generator)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first_norm(self.first(x))[0])
        hidden = torch.relu(self.second_norm(self.second(hidden))[0])
        shift: Tensor = self.last(hidden) * torch.exp(LOG_SCALE_FACTOR * self.log_scale)
        return shift


class FlowStep(nn.Module):
    """Actnorm, reversal of the channels, and a shift of their second half.

    A network computes the shift from the first half.
    """

    def __init__(self, n_channels: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = ActNorm(n_channels)
        self.shift = CouplingNet(n_channels // 2, width, generator)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Reversal and coupling keep volume, so the log-determinant is that of actnorm.
        x, log_det = self.norm(x)
        first, second = x.flip(-1).chunk(2, dim=-1)
        return torch.cat([first, second + self.shift(first)], dim=-1), log_det


class MultiLevelFlow(nn.Module):
    """Levels of ``depth`` steps; only the first half of the channels goes on to the next level.

    Source: Li et al. 2020. For D = 768 and their three levels, the latent vector consists of the
    384 channels that are final after level 1, the 192 after level 2 and the 192 of level 3, in this
    order.
    """

    def __init__(self, dim: int, *, levels: int, depth: int, width: int, seed: int) -> None:
        super().__init__()
        if dim % 2**levels:
            raise ValueError(
                f"a flow of {levels} levels needs a dimension divisible by {2**levels}, got {dim}"
            )
        generator = torch.Generator().manual_seed(seed)
        self.levels = nn.ModuleList()
        for level in range(levels):
            n_channels = dim // 2**level
            steps = [FlowStep(n_channels, width, generator) for _ in range(depth)]
            self.levels.append(nn.ModuleList(steps))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latent vectors ``(B, D)`` and the log-determinant of the whole map."""
        final_halves: list[Tensor] = []
        log_det = x.new_zeros(())
        for number, level in enumerate(self.levels):
            if number > 0:  # the level before has finished the second half of its channels
                x, final_half = x.chunk(2, dim=-1)
                final_halves.append(final_half)
            for step in level.children():
                x, step_log_det = step(x)
                log_det = log_det + step_log_det
        return torch.cat([*final_halves, x], dim=-1), log_det


@dataclass(eq=False, kw_only=True)
class BertFlow(PostProcessor):
    """Train a flow to N(0, I) so that the fit vectors are likely under it; the encoder is frozen.

    Source: Li et al. 2020 and their released code. If a vector x of D dimensions has the likelihood
    p(x), the loss of x in bits per dimension is

        -log p(x) / (D ln 2)

    The loss of a batch is the mean over its examples, summed over the two sides of a pair. An
    example is a pair or, if the fit vectors are ``(N, D)``, one vector. The optimiser is Adam with
    decoupled weight decay of 0.01, without bias correction, at a constant rate; the gradient norm
    is clipped at 1. Actnorm is initialised from the first sides of the first batch.

    The defaults are those of the original: the configuration ``l3_d3_w32`` for levels, depth and
    width, and 1e-3, 1 and 32 for rate, epochs and batch size. Learned are the map ``flow_`` and
    ``losses_``, the mean loss per vector at each step. If the latent vectors are exactly standard
    normal and the flow keeps volume, the loss is ``log2(2 pi e) / 2 = 2.047``.
    """

    name: ClassVar[Postprocess] = Postprocess.FLOW

    levels: int = 3
    depth: int = 3
    width: int = 32
    learning_rate: float = 1e-3
    epochs: int = 1
    batch_size: int = 32
    seed: int = 42

    def __post_init__(self) -> None:
        smallest = min(self.levels, self.depth, self.width, self.epochs)
        if smallest < 1 or self.batch_size < 2 or self.learning_rate <= 0:
            raise ValueError(
                "levels, depth, width and epochs need 1 or more, batch_size 2, "
                "learning_rate above 0"
            )

    def fit(self, vectors: AnyFloats, *, progress: Progress = SILENT) -> Self:
        """Train the flow on vectors ``(N, D)`` or on pairs ``(N, 2, D)``.

        Raise ValueError if it diverges, if N is below 2, or if 2 ** levels does not divide D.
        """
        fit_matrix(vectors)  # only for its checks
        # An example is a vector or a pair, whose sides share a batch.
        examples = vectors.reshape(len(vectors), -1, vectors.shape[-1])
        n_sides = examples.shape[1]
        if len(examples) < 2:  # actnorm starts from a spread, which one pair does not have
            raise ValueError(f"need at least two pairs to fit on, got {len(examples)}")
        self.flow_ = self._new_flow(vectors.shape[-1])
        self.losses_: list[float] = []

        optimizer = UncorrectedAdamW(
            self.flow_.parameters(),
            lr=self.learning_rate,
            eps=ADAM_EPSILON,
            weight_decay=WEIGHT_DECAY,
        )
        n_steps = self.epochs * math.ceil(len(examples) / self.batch_size)
        with progress.task("training the flow", total=n_steps) as task:
            for batch in self._batches(examples):
                if not self.losses_:
                    with torch.no_grad():  # actnorm starts from the first sides of the first batch
                        self.flow_(batch[::n_sides])
                loss = self._loss(batch)
                optimizer.zero_grad()
                # The source adds up the means of both sides, and ``loss`` is the mean of all rows.
                (loss * n_sides).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self.flow_.parameters(), MAX_GRAD_NORM)
                optimizer.step()
                bits = loss.item()
                self.losses_.append(bits)
                if not math.isfinite(bits):
                    raise ValueError(f"the flow's loss became {bits} at step {len(self.losses_)}")
                task.update(bits=f"{bits:.3f}")
                task.advance()
        self.n_features_in_ = vectors.shape[-1]
        return self

    def transform(self, vectors: AnyFloats) -> AnyFloats:
        self.check_input(vectors)
        mapped = np.empty_like(vectors)
        with torch.inference_mode():
            for start in range(0, len(vectors), _TRANSFORM_ROWS):
                block = torch.from_numpy(
                    vectors[start : start + _TRANSFORM_ROWS].astype(np.float32)
                )
                mapped[start : start + len(block)] = self.flow_(block)[0].numpy()
        return mapped

    def state(self) -> dict[str, Array]:
        arrays = {
            f"flow.{name}": tensor.numpy() for name, tensor in self.flow_.state_dict().items()
        }
        return arrays | {"losses": np.asarray(self.losses_)}

    def load_state(self, arrays: dict[str, Array]) -> Self:
        """Restore the fit from the arrays of ``state``; raise ValueError if they do not fit."""
        dim = len(arrays["flow.levels.0.0.norm.bias"])  # the first actnorm has D channels
        # Refuse settings that would make a flow far larger than the arrays in the file. Every step
        # has several arrays, some of them with at least ``width`` entries.
        largest = max(array.size for array in arrays.values())
        if self.levels * self.depth > len(arrays) or self.width > largest:
            size = f"{self.levels} levels of {self.depth} steps of width {self.width}"
            raise ValueError(f"{size} are not in it")
        self.flow_ = self._new_flow(dim)
        tensors = {
            name: torch.from_numpy(arrays[f"flow.{name}"]) for name in self.flow_.state_dict()
        }
        try:
            self.flow_.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        self.losses_ = arrays["losses"].tolist()
        self.n_features_in_ = dim
        return self

    def _new_flow(self, dim: int) -> MultiLevelFlow:
        return MultiLevelFlow(
            dim, levels=self.levels, depth=self.depth, width=self.width, seed=self.seed
        )

    def _batches(self, examples: AnyFloats) -> Iterator[Tensor]:
        """Yield batches ``(batch * sides, D)`` in float32, in another order in each epoch."""
        generator = np.random.default_rng(self.seed)
        for _ in range(self.epochs):
            permutation = generator.permutation(len(examples))
            for start in range(0, len(permutation), self.batch_size):
                # The order in a batch does not change its loss; sorted rows are faster to read.
                rows = examples[np.sort(permutation[start : start + self.batch_size])]
                yield torch.from_numpy(rows.reshape(-1, rows.shape[-1]).astype(np.float32))

    def _loss(self, batch: Tensor) -> Tensor:
        """Return the mean of ``-log p(x) / (D ln 2)`` over the rows."""
        dim = batch.shape[-1]
        latent, log_det = self.flow_(batch)
        # log p(x) is the normal log-density of the latent vector plus the log-determinant.
        log_normal = -0.5 * (latent.square().sum(dim=-1) + dim * math.log(2 * math.pi))
        return -(log_normal + log_det).mean() / (dim * math.log(2))  # type: ignore[no-any-return]
