"""How token states become one sentence vector: one implementation for training and evaluation."""

from collections.abc import Sequence

from torch import Tensor

from simcse_cli.names import Pooler

# Poolers that read other layers than the last one need every hidden state of the forward pass.
NEEDS_ALL_LAYERS = frozenset({Pooler.AVG_TOP2, Pooler.AVG_FIRST_LAST, Pooler.AVG_EMB_LAST})
# Poolers that average over tokens; the two others read the first token.
AVERAGES = NEEDS_ALL_LAYERS | {Pooler.AVG}


def masked_mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean over real tokens, special ones included: ``(B, L, D)`` and ``(B, L)`` to ``(B, D)``."""
    mask = attention_mask.unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)


def layer_mix(pooler: Pooler, hidden_states: Sequence[Tensor]) -> Tensor:
    """Return the token states that a pooler reads.

    Args:
        pooler: which layers count. ``avg_first_last`` takes the first transformer layer, as the SimCSE
            repository, Su et al. and Li et al. do; ``avg_emb_last`` takes the embedding output, as the
            "first-last avg." rows of the SimCSE paper did.
        hidden_states: embedding output first, then one tensor a layer, all of one shape.

    Returns:
        A tensor of that shape: the last layer, or the mean of two layers.
    """
    last = hidden_states[-1]
    match pooler:
        case Pooler.AVG_TOP2:
            return (last + hidden_states[-2]) / 2
        case Pooler.AVG_FIRST_LAST:
            return (last + hidden_states[1]) / 2
        case Pooler.AVG_EMB_LAST:
            return (last + hidden_states[0]) / 2
        case _:
            return last


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
