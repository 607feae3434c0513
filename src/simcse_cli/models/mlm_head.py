"""The masked-LM head of an architecture, on top of an encoder."""

from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel


class MlmHead(nn.Module):
    """The masked-LM head of an architecture, ``(B, L, H)`` to ``(B, L, V)``, tied to the input embedding.

    Args:
        config: configuration of the encoder.
        embeddings: the encoder's input embedding, shared with the output layer.
    """

    def __init__(self, config: PretrainedConfig, embeddings: nn.Embedding) -> None:
        super().__init__()
        model = AutoModelForMaskedLM.from_config(config)  # type: ignore[no-untyped-call]
        self.head = mlm_module(model)
        decoder = self.head.get_submodule(_decoder_path(self.head))
        decoder.weight = embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token states of the last layer to vocabulary scores."""
        scores: Tensor = self.head(tokens)
        return scores

    def load_pretrained(self, name_or_path: str) -> bool:
        """Copy the pre-trained head of a checkpoint; return whether it has one."""
        model, report = AutoModelForMaskedLM.from_pretrained(name_or_path, output_loading_info=True)
        head = mlm_module(model)
        prefix = next(name for name, module in model.named_children() if module is head)
        if any(key.startswith(f"{prefix}.") and "decoder" not in key for key in report["missing_keys"]):
            return False
        decoder = f"{_decoder_path(self.head)}.weight"
        state = {name: value for name, value in head.state_dict().items() if name != decoder}
        self.head.load_state_dict(state, strict=False)
        return True


def mlm_module(model: PreTrainedModel) -> nn.Module:
    """Return the part of a masked-LM model that follows its encoder."""
    children = [child for child in model.children() if child is not model.base_model]
    if len(children) != 1:
        raise ValueError(f"{type(model).__name__}: need one module after the encoder, found {len(children)}")
    return children[0]


def _decoder_path(head: nn.Module) -> str:
    """Return the dotted name of the last linear layer: the one that maps to the vocabulary."""
    names = [name for name, module in head.named_modules() if isinstance(module, nn.Linear)]
    return str(names[-1])
