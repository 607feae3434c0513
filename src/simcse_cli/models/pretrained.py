"""Backbones, tokenizers and masked-LM heads as transformers loads them.

Importing transformers takes seconds that a folder which ``fast_load`` opens need not cost, so it is imported
on first use, here and nowhere else in the package of models.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from simcse_cli.errors import CheckpointError, reason_of

# Configuration keys that hold a dropout probability, over the architectures of transformers.
_DROPOUT_KEYS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "hidden_dropout",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "activation_dropout",
)


def _transformers() -> ModuleType:
    import transformers

    return transformers


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from drawing bars and from reporting what we check and report ourselves."""
    logging = _transformers().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_backbone(folder: Path, *, dropout: float | None = None) -> tuple[nn.Module, set[str]]:
    """Return the transformer in float32 and the names of weights that its files lack.

    Args:
        folder: with config.json and weights.
        dropout: probability for every dropout; default is the checkpoint's.

    Raises:
        CheckpointError: it cannot be loaded.
    """
    try:
        config = _transformers().AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if dropout is not None:
            for key in _DROPOUT_KEYS:
                if isinstance(getattr(config, key, None), float | int):
                    setattr(config, key, dropout)
        with quiet_transformers():
            backbone, info = _transformers().AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers, safetensors and torch raise many types for a broken file
        raise CheckpointError(
            f"{folder}: the model cannot be loaded ({reason_of(error)})",
            hint="the files may be incomplete or corrupt: copy or download them again",
        ) from error
    if info.get("mismatched_keys"):
        raise CheckpointError(
            f"{folder}: weights of another shape than config.json says: {info['mismatched_keys']}"
        )
    return backbone, set(info["missing_keys"])


def load_tokenizer(folder: Path) -> Any:
    """Return the fast tokenizer of a model folder, or raise CheckpointError."""
    try:
        with quiet_transformers():
            return _transformers().AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
    except Exception as error:  # as above
        raise CheckpointError(f"{folder}: the tokenizer cannot be loaded ({reason_of(error)})") from error


def auto_model(folder: Path) -> tuple[Any, Any]:
    """Return model and tokenizer as anybody gets them from ``AutoModel``, the model in evaluation mode."""
    with quiet_transformers():
        model = _transformers().AutoModel.from_pretrained(folder, local_files_only=True)
        return model.eval(), _transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)


def blank_pooler(config: Any) -> nn.Module | None:
    """Return the architecture's own pooler with uninitialised weights; None without one of a single ``dense``."""
    with torch.device("meta"):
        model = _transformers().AutoModel.from_config(config)
    pooler: Any = getattr(model, "pooler", None)
    if not isinstance(getattr(pooler, "dense", None), nn.Linear):
        return None
    blank: nn.Module = pooler.to_empty(device="cpu")
    return blank


class MlmHead(nn.Module):
    """The masked-LM head of an architecture, ``(B, L, H)`` to ``(B, L, V)``.

    Its output matrix is the encoder's input embedding, or starts as a copy of it.

    Raises:
        ValueError: an architecture with more than one module after its encoder.
    """

    def __init__(self, config: Any, embeddings: nn.Embedding, *, tied: bool) -> None:
        super().__init__()
        self.tied = tied
        self.head = _after_encoder(_transformers().AutoModelForMaskedLM.from_config(config))
        own = nn.Parameter(embeddings.weight.detach().clone())
        self.head.get_submodule(_decoder_path(self.head)).weight = embeddings.weight if tied else own

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(tokens)  # type: ignore[no-any-return]

    def load_pretrained(self, name_or_path: str) -> bool:
        """Copy the pre-trained head of a checkpoint; return whether it has one."""
        model, info = _transformers().AutoModelForMaskedLM.from_pretrained(
            name_or_path, output_loading_info=True
        )
        head = _after_encoder(model)
        prefix = next(name for name, module in model.named_children() if module is head)
        if any(key.startswith(f"{prefix}.") and "decoder" not in key for key in info["missing_keys"]):
            return False
        state = head.state_dict()
        if self.tied:  # the checkpoint's matrix would replace the encoder's embedding
            del state[f"{_decoder_path(self.head)}.weight"]
        self.head.load_state_dict(state, strict=False)
        return True


def _after_encoder(model: Any) -> nn.Module:
    children: list[nn.Module] = [child for child in model.children() if child is not model.base_model]
    if len(children) != 1:
        raise ValueError(f"{type(model).__name__}: need one module after the encoder, found {len(children)}")
    return children[0]


def _decoder_path(head: nn.Module) -> str:
    """Return the dotted name of the last linear layer: the one that maps to the vocabulary."""
    return str([name for name, module in head.named_modules() if isinstance(module, nn.Linear)][-1])
