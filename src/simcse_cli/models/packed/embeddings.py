"""The embeddings of a training pass by compiled kernels."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from simcse_cli.models.packed.architectures import BackboneParts
from simcse_cli.models.packed.dropout import DRAWS_A_WORD, NO_DROPOUT, DropoutMasks, drop_threshold
from simcse_cli.models.packed.memory import memory_of
from simcse_cli.models.packed.tokens import PackedTokens


def can_embed(parts: BackboneParts) -> bool:
    """Tell whether ``embed`` computes this model's embeddings: plain tables and a plain norm in float32."""
    tables = [parts.words, parts.position_table, *([parts.segment_table] if parts.segment_table else [])]
    norm = parts.embedding_norm
    is_wide = parts.words.embedding_dim % DRAWS_A_WORD == 0
    return (
        is_wide
        and all(
            table.weight.dtype is torch.float32
            and table.max_norm is None
            and not table.sparse
            and not table.scale_grad_by_freq
            for table in tables
        )
        and (norm.weight is not None and norm.bias is not None)
    )


def embed(parts: BackboneParts, tokens: PackedTokens, p: float, masks: DropoutMasks | None) -> Tensor:
    """Return the embeddings of tokens after norm and dropout, ``(T, H)``; a projection is not applied.

    Args:
        parts: see ``can_embed``.
        tokens: on the CPU.
        p: probability to drop.
        masks: where the masks come from; None for no dropout.
    """
    segments = None if parts.segment_table is None else parts.segment_table.weight
    norm = parts.embedding_norm
    embedded: Tensor = _Embed.apply(  # type: ignore[no-untyped-call]
        parts,
        tokens,
        drop_threshold(p) if masks is not None and p > 0 else NO_DROPOUT,
        masks,
        parts.words.weight,
        parts.position_table.weight,
        segments,
        norm.weight,
        norm.bias,
    )
    return embedded


class _Embed(torch.autograd.Function):
    """``kernels.embed`` with its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        parts: BackboneParts,
        tokens: PackedTokens,
        threshold: int,
        masks: DropoutMasks | None,
        words: Tensor,
        position_table: Tensor,
        segments: Tensor | None,
        gain: Tensor,
        shift: Tensor,
    ) -> Tensor:
        """Return the embeddings."""
        from simcse_cli.models.packed import kernels

        width = words.shape[1]
        segment = np.zeros(width, np.float32) if segments is None else segments[0].numpy()
        sizes = (len(tokens.ids), width)
        memory = memory_of(parts.words)
        states = memory.tensor(sizes)
        found = memory.tensors({"normed": (sizes, torch.float32), "inverse": (sizes[:1], torch.float32)})
        stream = np.zeros(4, np.uint64) if masks is None else masks.stream()
        ctx.parts, ctx.tokens, ctx.threshold, ctx.found, ctx.stream = (
            parts,
            tokens,
            threshold,
            found,
            stream.copy(),
        )
        kernels.embed(
            tokens.ids.numpy(),
            tokens.positions.numpy(),
            words.numpy(),
            position_table.numpy(),
            segment,
            gain.numpy(),
            shift.numpy(),
            parts.embedding_norm.eps,
            threshold,
            stream,
            states.numpy(),
            found["normed"].numpy(),
            found["inverse"].numpy(),
        )
        if masks is not None:
            masks.continue_from(stream)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tables and of the norm."""
        from simcse_cli.models.packed import kernels

        parts, tokens = ctx.parts, ctx.tokens
        norm, segments = parts.embedding_norm, parts.segment_table
        shapes = {
            "words": (tuple(parts.words.weight.shape), torch.float32),
            "positions": (tuple(parts.position_table.weight.shape), torch.float32),
            "segments": ((1 if segments is None else len(segments.weight), gradient.shape[1]), torch.float32),
            "gain": ((gradient.shape[1],), torch.float32),
            "shift": ((gradient.shape[1],), torch.float32),
        }
        found = {name: tensor.zero_() for name, tensor in memory_of(parts.words).tensors(shapes).items()}
        kernels.embed_backward(
            tokens.ids.numpy(),
            tokens.positions.numpy(),
            _padding(parts.words),
            _padding(parts.position_table),
            norm.weight.detach().numpy(),
            ctx.threshold,
            ctx.stream,
            ctx.found["normed"].numpy(),
            ctx.found["inverse"].numpy(),
            gradient.contiguous().numpy(),
            found["words"].numpy(),
            found["positions"].numpy(),
            found["segments"][0].numpy(),
            found["gain"].numpy(),
            found["shift"].numpy(),
        )
        ctx.found = None
        of_segments = None if segments is None else found["segments"]
        return (
            None,
            None,
            None,
            None,
            found["words"],
            found["positions"],
            of_segments,
            found["gain"],
            found["shift"],
        )


def _padding(table: nn.Embedding) -> int:
    return -1 if table.padding_idx is None else table.padding_idx
