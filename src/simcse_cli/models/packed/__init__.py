"""Transformer encoders on packed tokens, without padding, for inference and training."""

from simcse_cli.models.packed.backbone import PackedBackbone, packed_backbone
from simcse_cli.models.packed.pooling import packed_vectors
from simcse_cli.models.packed.tokens import PackedTokens, pack

__all__ = ["PackedBackbone", "PackedTokens", "pack", "packed_backbone", "packed_vectors"]
