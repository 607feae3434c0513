"""Sentence vectors from packed states, with the poolers of the padded pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from simcse_cli.machine.precision import wide
from simcse_cli.models.poolers import POOLERS, Reduction, at_last, mean_of_layers
from simcse_cli.packed.backbone import PackedBackbone
from simcse_cli.packed.tokens import ROUNDED_TO, PackedRows, PackedTokens
from simcse_cli.settings.choices import Pooler


def packed_ahead(packed: PackedBackbone, rows: Sequence[Sequence[int]]) -> PackedRows:
    """Return rows packed on the device of the model; packed rows are returned unchanged."""
    if isinstance(rows, PackedRows):
        return rows
    return PackedRows(rows, packed.pack(rows, multiple=ROUNDED_TO))


def packed_vectors(
    packed: PackedBackbone,
    rows: Sequence[Sequence[int]],
    pooler: Pooler,
    *,
    dtype: torch.dtype | None = None,
    n_skipped: int = 0,
    mask_id: int = -1,
) -> Tensor:
    """Return sentence vectors before any head, ``(R, H)`` in float32 or wider, in order of rows.

    Pooling ignores the first ``n_skipped`` tokens of each row; every row must have more tokens than
    that. ``dtype`` is the type of matrix products, by default that of autocast or of the weights.
    ``mask_id`` is the id of [MASK], which only the pooler ``mask`` reads.
    """
    tokens = packed_ahead(packed, rows).tokens
    spec = POOLERS[pooler]
    if spec.reduction is Reduction.MASK:
        (last,) = packed.hidden_states(tokens, dtype=dtype)
        pooled = _at_masks(last, tokens, mask_id)
    elif n_skipped or spec.reduction is Reduction.MEAN:
        layers = packed.hidden_states(tokens, layers=spec.layers, dtype=dtype)
        if packed.nested and not n_skipped:
            pooled = _means_at_once(layers, tokens)
        else:
            # The mean of all tokens after the skipped ones, or only the first of these tokens.
            stop = None if spec.reduction is Reduction.MEAN else n_skipped + 1
            pooled = _means_by_group(layers, tokens, slice(n_skipped, stop))
    else:
        pooled = wide(packed.first_token_states(tokens, dtype=dtype))
    # Undo the order in which the rows were packed.
    return pooled.index_select(0, tokens.order.argsort())


def _at_masks(states: Tensor, tokens: PackedTokens, mask_id: int) -> Tensor:
    """Return the state of each row's last [MASK]."""
    # Each group has rows of one length. The ids are grouped as if they were states of width 1.
    groups = zip(tokens.rows(wide(states)), tokens.rows(tokens.ids[:, None]), strict=True)
    return torch.cat([at_last(block, ids.squeeze(2) == mask_id) for block, ids in groups])


def _means_at_once(layers: list[Tensor], tokens: PackedTokens) -> Tensor:
    """Return the mean over all tokens of each row and over layers, in one call for all lengths."""
    # "unsafe" skips a check of the offsets that would wait for the GPU.
    means = [
        torch.segment_reduce(wide(layer), "mean", offsets=tokens.offsets, axis=0, unsafe=True)
        for layer in layers
    ]
    return mean_of_layers(means)


def _means_by_group(layers: list[Tensor], tokens: PackedTokens, span: slice) -> Tensor:
    """Return the mean over the tokens in ``span`` of each row and over layers."""
    parts: list[Tensor] = []
    # Each group has rows of one length: a tensor ``(rows, length, H)`` for every layer.
    for group in zip(*map(tokens.rows, layers), strict=True):
        means = [wide(layer)[:, span].mean(dim=1) for layer in group]
        parts.append(mean_of_layers(means))
    return torch.cat(parts)


def packed_states(
    packed: PackedBackbone, rows: Sequence[Sequence[int]], *, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Return the last layer's states end to end, ``(T, H)``, and where each row starts, ``(R,)``.

    ``dtype`` is the type of matrix products, None for that of autocast or of the weights.
    """
    tokens = packed_ahead(packed, rows).tokens
    (states,) = packed.hidden_states(tokens, dtype=dtype)
    return wide(states), tokens.first_tokens().index_select(0, tokens.order.argsort())
