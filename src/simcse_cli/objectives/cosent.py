"""CoSENT: train on pairs with scores of similarity."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from simcse_cli.losses.cosent import cosent
from simcse_cli.machine.devices import to_device
from simcse_cli.machine.gather import gather_views, gather_with_grad
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, DataKind, Losses, Objective
from simcse_cli.settings.choices import ObjectiveName


class Cosent(Objective):
    """One encoder and the ranking loss over all pairs of the batch.

    Source: Su 2022; the defaults are those of sentence-transformers for STS-B, the batch size is a toolkit default.
    """

    name = ObjectiveName.COSENT
    reads = DataKind.SCORED
    defaults: ClassVar[Mapping[str, Any]] = {
        "batch_size": 32,
        "epochs": 4.0,
        "head": "none",
        "lr": 2e-5,
        "max_length": 128,
        "pooler": "avg",
        "warmup": 0.1,
    }

    def __init__(self, encoder: SentenceEncoder, *, max_length: int = 128, temperature: float = 0.05) -> None:
        super().__init__(encoder, max_length=max_length)
        self.temperature = temperature

    def examples(self, data: Any, generator: np.random.Generator) -> Sequence[tuple[str, ...]]:
        return data.rows  # type: ignore[no-any-return]

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        left, right, scores = zip(*examples, strict=True)
        rows = self.encoder.tokenize([*left, *right], max_length=self.max_length)
        numbers = torch.tensor([float(score) for score in scores], dtype=torch.float64)
        return Batch(rows, len(examples), texts=list(examples), extra={"scores": numbers})

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        left, right = gather_views(representations[0].chunk(2), batch.counts)
        scores = gather_with_grad(to_device(batch.extra["scores"], left.device), batch.counts)
        return {"cosent": cosent(left, right, scores, temperature=self.temperature)}, {}
