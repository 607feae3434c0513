"""Two encoders that start equal and are updated apart, for the objectives that want them."""

import copy
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, Objective


class ServedEncoder(StrEnum):
    """Which of two encoders is evaluated and saved."""

    FIRST = "first"
    SECOND = "second"


def twin_of(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return an encoder with equal weights of its own and the same tokenizer."""
    tokenizer = encoder.tokenizer
    return copy.deepcopy(encoder, {id(tokenizer): tokenizer})


class TwoEncoders(Objective):
    """An objective whose first view goes through one encoder and whose other views may go through a second.

    Source: Gao et al. 2021, Table 2, "two encoders"; Contrastive Tension; QuickThoughts.

    Args:
        encoder: of the first view; of all views without ``dual_encoder``.
        dual_encoder: train a second encoder, at first an exact copy.
        serve_encoder: which of the two is evaluated and saved.
    """

    always_two: ClassVar[bool] = False

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        dual_encoder: bool = False,
        serve_encoder: ServedEncoder | str = ServedEncoder.FIRST,
    ) -> None:
        super().__init__(encoder)
        if serve_encoder not in list(ServedEncoder):
            raise ConfigError(f"--set serve_encoder={serve_encoder}: need one of {', '.join(ServedEncoder)}")
        dual_encoder = dual_encoder or self.always_two
        self.serve_encoder = ServedEncoder(serve_encoder)
        if self.serve_encoder is ServedEncoder.SECOND and not dual_encoder:
            raise ConfigError("--set serve_encoder=second: there is one encoder", hint="add --dual-encoder")
        self.second = twin_of(encoder) if dual_encoder else None

    def embed(self, batch: Batch) -> Tensor:
        """Return the embeddings ``(R, D)`` of the rows, each from the encoder of its view."""
        if self.second is None:
            return self.encoder.embed_rows(batch.rows)
        n_first = sum(batch.view_of(row) == 0 for row in range(len(batch.rows)))
        parts = ((self.encoder, batch.rows[:n_first]), (self.second, batch.rows[n_first:]))
        return torch.cat([encoder.embed_rows(rows) for encoder, rows in parts if rows])

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the embeddings of the rows."""
        return (self.embed(batch),)

    def eval_encoder(self) -> SentenceEncoder:
        """Return the encoder that is evaluated and saved."""
        if self.second is not None and self.serve_encoder is ServedEncoder.SECOND:
            return self.second
        return self.encoder
