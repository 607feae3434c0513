"""A queue of vectors of past batches, from a slowly moving copy of the encoder."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from simcse_cli.machine.gather import gather_with_grad
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.padding import TokenRows


class VectorQueue(nn.Module):
    """The newest vectors of a copy of the encoder that follows it slowly: negatives of no row.

    Source: Wu et al. 2021 (ESimCSE) and the authors' code. In step t, with the weights w_t of the
    step, ``copy_t = momentum * copy_(t-1) + (1 - momentum) * w_t``, and the anchors' vectors by the
    copy without dropout, through the present head, go to the end; the newest ``size`` stay. The
    copy starts as ``w_0``, and an epoch starts with an empty queue.

    Momentum 0: the encoder's own vectors without dropout; momentum 1: those of the untrained one.
    """

    vectors: Tensor

    def __init__(self, encoder: SentenceEncoder, size: int, momentum: float, *, width: int) -> None:
        super().__init__()
        self.size = size
        self.momentum = momentum
        shared = {id(encoder.tokenizer): encoder.tokenizer}
        self.encoder = copy.deepcopy(encoder, shared).requires_grad_(False)
        self.encoder.change(head=None)
        self.register_buffer("vectors", torch.zeros(size, width))
        self.n_filled = 0
        self.epoch = 0

    def negatives(self, epoch: int) -> Tensor:
        """Return the vectors, ``(M, D)``, oldest first; another epoch empties the queue."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.n_filled = 0
        return self.vectors[self.size - self.n_filled :]

    @torch.no_grad()
    def push(self, trained: SentenceEncoder, anchors: TokenRows, counts: Sequence[int]) -> None:
        """Move the copy, and store the vectors of the anchors of all processes."""
        weights = self.encoder.backbone.parameters(), trained.backbone.parameters()
        for slow, fast in zip(*weights, strict=True):
            slow.lerp_(fast, 1 - self.momentum)
        # In training mode the copy prepares no weights, which are other ones in the next step.
        self.encoder.train()
        pooled = self.encoder.embed_rows(anchors, dropout=False)
        rows = gather_with_grad(trained.apply_head(pooled), counts).to(self.vectors.dtype)
        self.vectors = torch.cat([self.vectors, rows])[-self.size :]
        self.n_filled = min(self.n_filled + len(rows), self.size)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.n_filled, self.epoch])

    def set_extra_state(self, state: Tensor) -> None:
        self.n_filled, self.epoch = state.tolist()
