"""Transformer encoders on packed tokens, without padding, for inference and training."""

from simcse_cli.models.packed.backbone import PackedBackbone, packed_backbone
from simcse_cli.models.packed.pooling import packed_ahead, packed_vectors
from simcse_cli.models.packed.prepared import forget_prepared
from simcse_cli.models.packed.tokens import PackedTokens, pack

__all__ = [
    "PackedBackbone",
    "PackedTokens",
    "forget_prepared",
    "pack",
    "packed_ahead",
    "packed_backbone",
    "packed_vectors",
]
