"""BERT-flow: an invertible map that is trained to make sentence vectors look like standard normal draws."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simcse_cli.machine.optimizers import UncorrectedAdamW
from simcse_cli.postprocess.base import FloatArray, PostProcessor, fit_matrix
from simcse_cli.postprocess.flow_layers import MultiLevelFlow
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Postprocess

WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
ADAM_EPSILON = 1e-6
_TRANSFORM_ROWS = 8192


class BertFlow(PostProcessor):
    """Maximise the likelihood of the vectors under a flow to N(0, I); the encoder stays frozen.

    Source: Li et al. 2020 and their released code. Loss per vector: ``-log p(x) / (D ln 2)``, bits per
    dimension, mean over the batch, summed over the two sides of a pair. Adam with decoupled weight decay
    0.01 and without bias correction, constant rate, gradient norm clipped at 1. Actnorm starts from the first
    sides of the first batch.

    Args:
        levels, depth, width: the configuration ``l3_d3_w32``.
        learning_rate, epochs, batch_size: 1e-3, 1 and 32 examples in the original; an example is a pair, or
            one vector where the fit vectors are ``(N, D)``.
        seed: of the weights and of the order of the examples.

    Attributes:
        flow_: the trained map.
        losses_: the loss per vector of each step, in bits per dimension. A standard normal matched exactly
            gives ``log2(2 pi e) / 2 = 2.047``.
    """

    name: ClassVar[Postprocess] = Postprocess.FLOW
    parameters: ClassVar = ("levels", "depth", "width", "learning_rate", "epochs", "batch_size", "seed")

    def __init__(
        self,
        *,
        levels: int = 3,
        depth: int = 3,
        width: int = 32,
        learning_rate: float = 1e-3,
        epochs: int = 1,
        batch_size: int = 32,
        seed: int = 42,
    ) -> None:
        if min(levels, depth, width, epochs) < 1 or batch_size < 2 or learning_rate <= 0:
            raise ValueError(
                "levels, depth, width and epochs need 1 or more, batch_size 2, learning_rate above 0"
            )
        self.levels, self.depth, self.width = levels, depth, width
        self.learning_rate, self.epochs, self.batch_size, self.seed = learning_rate, epochs, batch_size, seed

    def fit(self, vectors: FloatArray, *, progress: Progress = SILENT) -> Self:
        """Train the flow; raise ValueError also if D is not divisible by ``2 ** levels`` or the loss diverges."""
        fit_matrix(vectors)
        examples = vectors.reshape(len(vectors), -1, vectors.shape[-1])
        self.flow_ = self._new_flow(vectors.shape[-1])
        self.losses_: list[float] = []
        optimizer = UncorrectedAdamW(
            self.flow_.parameters(), lr=self.learning_rate, eps=ADAM_EPSILON, weight_decay=WEIGHT_DECAY
        )
        n_steps = self.epochs * math.ceil(len(examples) / self.batch_size)
        with progress.task("training the flow", total=n_steps) as task:
            for batch in self._batches(examples):
                if not self.losses_:
                    with torch.no_grad():  # actnorm starts from the first sides of the first batch
                        self.flow_(batch[:: examples.shape[1]])
                loss = self._loss(batch)
                optimizer.zero_grad()
                (loss * examples.shape[1]).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self.flow_.parameters(), MAX_GRAD_NORM)
                optimizer.step()
                self.losses_.append(loss.item())
                if not math.isfinite(self.losses_[-1]):
                    raise ValueError(f"the flow's loss became {self.losses_[-1]} at step {len(self.losses_)}")
                task.update(bits=f"{self.losses_[-1]:.3f}")
                task.advance()
        self.n_features_in_ = vectors.shape[-1]
        return self

    def transform(self, vectors: FloatArray) -> FloatArray:
        self.check_input(vectors)
        mapped = np.empty_like(vectors)
        with torch.inference_mode():
            for start in range(0, len(vectors), _TRANSFORM_ROWS):
                block = torch.from_numpy(vectors[start : start + _TRANSFORM_ROWS].astype(np.float32))
                mapped[start : start + len(block)] = self.flow_(block)[0].numpy()
        return mapped

    def state(self) -> dict[str, NDArray[Any]]:
        arrays = {f"flow.{name}": tensor.numpy() for name, tensor in self.flow_.state_dict().items()}
        return arrays | {"losses": np.asarray(self.losses_)}

    def load_state(self, arrays: dict[str, NDArray[Any]]) -> Self:
        dim = len(arrays["flow.levels.0.0.norm.bias"])
        largest = max(array.size for array in arrays.values())
        if self.levels * self.depth > len(arrays) or self.width > largest:
            size = f"{self.levels} levels of {self.depth} steps of width {self.width}"
            raise ValueError(f"{size} are not in it")
        self.flow_ = self._new_flow(dim)
        tensors = {name: torch.from_numpy(arrays[f"flow.{name}"]) for name in self.flow_.state_dict()}
        try:
            self.flow_.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        self.losses_ = arrays["losses"].tolist()
        self.n_features_in_ = dim
        return self

    def _new_flow(self, dim: int) -> MultiLevelFlow:
        return MultiLevelFlow(dim, levels=self.levels, depth=self.depth, width=self.width, seed=self.seed)

    def _batches(self, examples: FloatArray) -> Iterator[Tensor]:
        """Yield ``(batch * sides, D)`` float32 batches, each epoch in its own order."""
        order = np.random.default_rng(self.seed)
        for _ in range(self.epochs):
            permutation = order.permutation(len(examples))
            for start in range(0, len(permutation), self.batch_size):
                rows = examples[np.sort(permutation[start : start + self.batch_size])]
                yield torch.from_numpy(rows.reshape(-1, rows.shape[-1]).astype(np.float32))

    def _loss(self, batch: Tensor) -> Tensor:
        """Return the mean of ``-log p(x) / (D ln 2)`` over the rows."""
        dim = batch.shape[-1]
        latent, log_det = self.flow_(batch)
        log_normal = -0.5 * (latent.square().sum(dim=-1) + dim * math.log(2 * math.pi))
        return -(log_normal + log_det).mean() / (dim * math.log(2))  # type: ignore[no-any-return]
