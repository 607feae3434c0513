"""How token states become one sentence vector: one implementation for training and evaluation."""

from collections.abc import Sequence

from torch import Tensor

from simcse_cli.choices import Pooler

# States that each pooler averages: 0 is the embedding output, -1 the last layer. ``avg_first_last`` takes the
# first transformer layer, as the SimCSE repository, Su et al. and Li et al. do; ``avg_emb_last`` takes the
# embedding output, as the "first-last avg." rows of the SimCSE paper did.
LAYERS_READ: dict[Pooler, tuple[int, ...]] = {
    Pooler.CLS: (-1,),
    Pooler.CLS_BEFORE_POOLER: (-1,),
    Pooler.AVG: (-1,),
    Pooler.AVG_TOP2: (-2, -1),
    Pooler.AVG_FIRST_LAST: (1, -1),
    Pooler.AVG_EMB_LAST: (0, -1),
}
# Poolers that read other layers than the last one need every hidden state of the forward pass.
NEEDS_ALL_LAYERS = frozenset(pooler for pooler, layers in LAYERS_READ.items() if len(layers) > 1)
# Poolers that average over tokens; the two others read the first token.
AVERAGES = NEEDS_ALL_LAYERS | {Pooler.AVG}


def masked_mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean over real tokens, special ones included: ``(B, L, D)`` and ``(B, L)`` to ``(B, D)``."""
    mask = attention_mask.unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)


def layer_mix(pooler: Pooler, hidden_states: Sequence[Tensor]) -> Tensor:
    """Return the token states that a pooler reads: one layer, or the mean of two.

    Args:
        pooler: which layers count, see ``LAYERS_READ``.
        hidden_states: embedding output first, then one tensor a layer, all of one shape; the last alone is
            enough for poolers that read no other.
    """
    layers = [hidden_states[index] for index in LAYERS_READ[pooler]]
    return layers[0] if len(layers) == 1 else (layers[0] + layers[1]) / 2


def pool(pooler: Pooler, hidden_states: Sequence[Tensor], attention_mask: Tensor) -> Tensor:
    """Return sentence vectors before any head, ``(B, D)``.

    Args:
        pooler: the rule; ``cls`` and ``cls_before_pooler`` both give the first token's last state here (a head
            on top makes the difference).
        hidden_states: embedding output first, then one ``(B, L, D)`` tensor a layer; poolers of the last
            layer need only that one.
        attention_mask: ``(B, L)``, 1 on real tokens.
    """
    states = layer_mix(pooler, hidden_states)
    return masked_mean(states, attention_mask) if pooler in AVERAGES else states[:, 0]
