"""What stands before and after the layers of a training pass, by compiled kernels: embeddings, first tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from simcse_cli.models.cores import map_on_cores
from simcse_cli.models.packed.architectures import BackboneParts
from simcse_cli.models.packed.dropout import DRAWS_A_WORD, NO_DROPOUT, DropoutMasks, drop_threshold
from simcse_cli.models.packed.memory import Memory, memory_of
from simcse_cli.models.packed.tokens import LANES, PackedTokens


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


def can_mix_from_first(states: Tensor, tokens: PackedTokens) -> bool:
    """Tell whether ``mix_from_first`` is there for these states, and pays: a training pass in float32."""
    is_fit = states.dtype is torch.float32 and states.shape[1] % LANES == 0
    return is_fit and states.requires_grad and tokens.is_large


def first_states(states: Tensor, tokens: PackedTokens, memory: Memory) -> Tensor:
    """Return the states of each sentence's first token, ``(R, H)`` of ``(T, H)``; gradients stand in ``memory``."""
    first: Tensor = _First.apply(states, tokens.first_tokens(), memory)  # type: ignore[no-untyped-call]
    return first


class _First(torch.autograd.Function):
    """Selection of rows, each at most once."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor, memory: Memory) -> Tensor:
        """Return the rows."""
        ctx.rows, ctx.memory, ctx.sizes = rows, memory, tuple(states.shape)
        return states.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the states."""
        of_states = ctx.memory.tensor(ctx.sizes, gradient.dtype).zero_()
        return of_states.index_copy_(0, ctx.rows, gradient), None, None


def mix_from_first(
    states: Tensor,
    tokens: PackedTokens,
    queries: Tensor,
    offsets: Tensor,
    p: float,
    masks: DropoutMasks | None,
    memory: Memory,
) -> tuple[Tensor, Tensor]:
    """Return the states mixed for first tokens, ``(R, n_heads, H)``, and the sums of weights, ``(R, n_heads)``.

    Args:
        states: ``(T, H)``, float32 on the CPU.
        tokens: which tokens form a sentence.
        queries: ``(R, n_heads, H)``, scaled; weights are the softmax of their products with the states.
        offsets: ``(R, n_heads)``, added to the products.
        p: probability to drop a weight.
        masks: where the masks come from; None for no dropout.
        memory: where gradients stand.
    """
    threshold = drop_threshold(p) if masks is not None and p > 0 else NO_DROPOUT
    mixed: tuple[Tensor, Tensor] = _MixFromFirst.apply(  # type: ignore[no-untyped-call]
        tokens, threshold, masks, memory, states, queries, offsets
    )
    return mixed


class _Piece(NamedTuple):
    """Sentences of one length whose masks come from one stream."""

    rows: slice
    tokens: slice
    length: int


class _Section(NamedTuple):
    """Pieces whose masks come from one stream, and its owner; None for no dropout."""

    masks: DropoutMasks | None
    pieces: list[_Piece]


def _sections(tokens: PackedTokens, masks: DropoutMasks | None) -> list[_Section]:
    """Return all sentences in their order."""
    n_rows = len(tokens.order)
    ends = [(None, n_rows)] if masks is None else masks.sections(n_rows)
    sections = [_Section(own, []) for own, _ in ends]
    row = section = 0
    for group in tokens.groups:
        start, left = group.start, group.n_rows
        while left:
            while row == ends[section][1]:
                section += 1
            n = min(left, ends[section][1] - row)
            end = start + n * group.length
            sections[section].pieces.append(_Piece(slice(row, row + n), slice(start, end), group.length))
            row, start, left = row + n, end, left - n
    return sections


@dataclass(frozen=True)
class _Kept:
    """What the backward pass needs of the forward pass: pieces with their weights, section by section."""

    sections: Sequence[Sequence[tuple[_Piece, np.ndarray]]]
    threshold: int

    @property
    def n_tokens(self) -> int:
        """Tokens of all sentences."""
        ends: list[int] = [piece.tokens.stop for section in self.sections for piece, _ in section]
        return max(ends)


class _MixFromFirst(torch.autograd.Function):
    """``kernels.attend_from_first`` with its gradients, the sections of the masks side by side."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: PackedTokens,
        threshold: int,
        masks: DropoutMasks | None,
        memory: Memory,
        states: Tensor,
        queries: Tensor,
        offsets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return mixed states and sums of weights."""
        from simcse_cli.models.packed import kernels

        queries, offsets = queries.contiguous(), offsets.contiguous()
        mixed, sums = torch.empty_like(queries), torch.empty_like(offsets)
        given, found = _arrays(states, queries, offsets), _arrays(mixed, sums)
        padded = -(-queries.shape[1] // LANES) * LANES

        def mix(section: _Section) -> list[tuple[_Piece, np.ndarray]]:
            stream = np.zeros(4, np.uint64) if section.masks is None else section.masks.stream()
            kept = []
            for piece in section.pieces:
                shape = (piece.rows.stop - piece.rows.start, piece.length, padded)
                weights = np.empty(shape, np.float32)
                kernels.attend_from_first(
                    given[0][piece.tokens],
                    given[1][piece.rows],
                    given[2][piece.rows],
                    piece.length,
                    threshold,
                    stream,
                    weights,
                    found[0][piece.rows],
                    found[1][piece.rows],
                )
                kept.append((piece, weights))
            if section.masks is not None:
                section.masks.continue_from(stream)
            return kept

        ctx.kept = _Kept(list(map_on_cores(mix, _sections(tokens, masks))), threshold)
        ctx.memory = memory
        ctx.save_for_backward(states, queries)
        return mixed, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mixed: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of states, queries and offsets."""
        from simcse_cli.models.packed import kernels

        states, queries = ctx.saved_tensors
        kept: _Kept = ctx.kept
        of_mixed, of_sums = of_mixed.contiguous(), of_sums.contiguous()
        of_states, of_queries = ctx.memory.tensor(tuple(states.shape)), torch.empty_like(queries)
        of_offsets = torch.empty_like(of_sums)
        given, found = _arrays(states, queries, of_mixed, of_sums), _arrays(of_states, of_queries, of_offsets)

        def mix_backward(section: Sequence[tuple[_Piece, np.ndarray]]) -> None:
            for piece, weights in section:
                kernels.attend_from_first_backward(
                    given[0][piece.tokens],
                    given[1][piece.rows],
                    piece.length,
                    kept.threshold,
                    weights,
                    given[2][piece.rows],
                    given[3][piece.rows],
                    found[0][piece.tokens],
                    found[1][piece.rows],
                    found[2][piece.rows],
                )

        for _ in map_on_cores(mix_backward, kept.sections):
            pass
        of_states[kept.n_tokens :] = 0
        return None, None, None, None, of_states, of_queries, of_offsets


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in tensors]
