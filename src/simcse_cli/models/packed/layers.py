"""The transformer layers over packed tokens, one after the other."""

from collections.abc import Collection, Sequence

from torch import Tensor

from simcse_cli.models.packed.architectures import BackboneParts
from simcse_cli.models.packed.cls_attention import QueryKeyValue, attend_from_first
from simcse_cli.models.packed.dropout import active_probability
from simcse_cli.models.packed.operators import LayerWeights, Operators
from simcse_cli.models.packed.tokens import PackedTokens


def run_layers(
    parts: BackboneParts,
    operators: Operators,
    weights: Sequence[LayerWeights],
    states: Tensor,
    tokens: PackedTokens,
    *,
    wanted: Collection[int],
    first: QueryKeyValue | None = None,
) -> dict[int, Tensor]:
    """Return the states after the wanted layers, ``(T, H)`` each.

    Args:
        parts: the model, for what is no parameter: heads, dropout, epsilons.
        operators: what the layers are made of.
        weights: parameters, layer by layer.
        states: embeddings, ``(T, H)``.
        tokens: which tokens form a sentence.
        wanted: numbers of layers, 0 for the embeddings.
        first: given, the last layer attends from first tokens only, by these linear layers, and gives ``(R, H)``.
    """
    kept = {0: states} if 0 in wanted else {}
    x = states
    for number, (layer, own) in enumerate(zip(parts.layers, weights, strict=True), 1):
        dropout = active_probability(layer.attention_dropout)
        bias = parts.relative_bias
        if first is not None and number == len(weights):
            states, context = attend_from_first(
                states,
                tokens,
                first,
                parts.n_heads,
                dropout=dropout,
                mix=operators.mix_states,
                relative_bias=bias,
            )
        else:
            context = operators.attend(x, own.qkv, tokens, parts.n_heads, dropout=dropout, relative_bias=bias)
        states, x = operators.dropout_add_norm(
            states,
            context,
            own.out_proj,
            own.attention_norm,
            epsilon=layer.attention_norm.eps,
            dropout=active_probability(layer.out_dropout),
        )
        states, x = operators.dropout_add_norm(
            states,
            operators.activate(x, own.up),
            own.down,
            own.output_norm,
            epsilon=layer.output_norm.eps,
            dropout=active_probability(layer.output_dropout),
        )
        if number in wanted:
            kept[number] = states
    return kept
