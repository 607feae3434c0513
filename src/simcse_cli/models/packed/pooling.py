"""Sentence vectors from packed states, by the poolers that serve the padded path."""

from collections.abc import Sequence

import torch
from torch import Tensor

from simcse_cli.models.packed.backbone import PackedBackbone
from simcse_cli.models.poolers import LAYERS_READ, pool_layers
from simcse_cli.names import Pooler

# Packed sizes are rounded up to this, so that the kernels made for one batch serve most of the others.
_MULTIPLE = 64


def packed_vectors(
    packed: PackedBackbone, rows: Sequence[Sequence[int]], pooler: Pooler, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return sentence vectors before any head, ``(R, H)`` in float32 or wider; row i belongs to ``rows[i]``.

    Args:
        packed: the transformer.
        rows: token ids with special tokens, of any lengths.
        pooler: which states count.
        dtype: arithmetic of the transformer; default as in ``PackedBackbone.hidden_states``.
    """
    tokens = packed.pack(rows, multiple=_MULTIPLE)
    states = packed.hidden_states(tokens, layers=LAYERS_READ[pooler], dtype=dtype)
    groups = zip(*(tokens.rows(layer) for layer in states), strict=True)
    wide = torch.promote_types(states[0].dtype, torch.float32)
    pooled = torch.cat([pool_layers(pooler, [layer.to(wide) for layer in group]) for group in groups])
    return pooled.index_select(0, tokens.order.argsort())
