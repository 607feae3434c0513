"""A queue of vectors of past batches, from a slowly moving copy of the encoder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from simcse_cli.machine.gather import gather_with_grad
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.padding import TokenRows


class VectorQueue(nn.Module):
    """The newest ``size`` vectors of past batches, made by a copy that follows the encoder slowly.

    Source: Wu et al. 2021 (ESimCSE) and the authors' code. The vectors serve as negatives that
    belong to no row. The copy starts with the weights of the encoder. In step t, its weights m_t
    follow the weights w_t of the encoder:

        m_t = momentum * m_(t-1) + (1 - momentum) * w_t

    Then the copy encodes the anchors without dropout, the encoder's present head is applied, and
    the vectors join the queue. An epoch starts with an empty queue.

    With momentum 0, the copy always has the encoder's weights; with momentum 1, it keeps those from
    before training.
    """

    vectors: Tensor

    def __init__(self, encoder: SentenceEncoder, size: int, momentum: float, *, width: int) -> None:
        super().__init__()
        self.size = size
        self.momentum = momentum
        self.encoder = encoder.copied().requires_grad_(False)
        self.encoder.change(head=None)
        self.register_buffer("vectors", torch.zeros(size, width))
        self.n_filled = 0
        self.epoch = 0

    def negatives(self, epoch: int) -> Tensor:
        """Return the vectors ``(M, D)``, the oldest first; a new epoch first empties the queue."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.n_filled = 0
        return self.vectors[self.size - self.n_filled :]  # the newest vectors are at the end

    @torch.no_grad()
    def push(self, trained: SentenceEncoder, anchors: TokenRows, counts: Sequence[int]) -> None:
        """Update the weights of the copy, then add its vectors of the anchors to the queue.

        ``anchors`` are those of this process, but the vectors of all processes are added;
        ``counts`` holds the number of anchors of each process.
        """
        slow_weights = self.encoder.backbone.parameters()
        for slow, fast in zip(slow_weights, trained.backbone.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.momentum)
        # Outside of training mode, the copy would prepare its weights for inference anew in every
        # step, because they change in every step.
        self.encoder.train()
        pooled = self.encoder.embed_rows(anchors, dropout=False)
        new = gather_with_grad(trained.apply_head(pooled), counts).to(self.vectors.dtype)
        self.vectors = torch.cat([self.vectors, new])[-self.size :]
        self.n_filled = min(self.n_filled + len(new), self.size)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.n_filled, self.epoch])

    def set_extra_state(self, state: Tensor) -> None:
        self.n_filled, self.epoch = state.tolist()
