"""The entries of a configuration that the forward pass of a transformer reads."""

import re
from typing import Any

from simcse_cli.packed.architectures import plain_prefix

# The entries that matter for plain models. For other models, transformers tells which entries
# differ from its defaults, but plain models may be opened without it.
_PLAIN = ("hidden_act", "layer_norm_eps", "model_type", "num_attention_heads", "pad_token_id")
# Entries that no state depends on: origin, training, names, and outputs of heads.
_UNREAD = re.compile(
    r"_.*|architectures|auto_map|transformers_version|(torch_)?dtype|tokenizer_class"
    r"|finetuning_task|task_specific_params"
    r"|(?!token_).*(dropout|drop_prob|_drop|layerdrop)(_.*)?|initializer_(range|factor)|init_.*"
    r"|(id2label|label2id|num_labels|problem_type)"
    r"|output_(attentions|hidden_states|past|scores)|return_dict|use_cache|gradient_checkpointing"
    r"|tie_word_embeddings|classifier_\w+"
    r"|(bos|eos|sep|cls|decoder_start)_token_id|vocab_size"
)


def read_entries(config: Any) -> dict[str, Any]:
    """Return the entries of a configuration on which states depend.

    For plain models, sizes are left out: the shapes of the weights tell them.
    """
    if plain_prefix(config.model_type) is not None:
        return {name: getattr(config, name, None) for name in _PLAIN}
    non_default: dict[str, Any] = config.to_diff_dict()
    return {name: value for name, value in non_default.items() if not _UNREAD.fullmatch(name)}
