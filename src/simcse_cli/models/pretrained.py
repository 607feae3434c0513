"""Load backbones, tokenizers and masked-LM heads with transformers.

Importing transformers takes seconds, and folders that ``fast_load`` can open do not need it. It is
therefore imported only in this module, on first use.
"""

import contextlib
import copy
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from simcse_cli.errors import CheckpointError, reason_of
from simcse_cli.files.atomic import write_json
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import foreign_format
from simcse_cli.models.fast_load import (
    FURTHER_MODULE,
    WRAPPER,
    read_tensors,
    require_floats,
    weights_left_out,
)
from simcse_cli.models.record import entries_of
from simcse_cli.progress import SILENT, Progress

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

# How files are read: none of their code is run, nothing is fetched, and attention is one of
# transformers' own (if config.json named another one, it would be looked up on the Hub).
_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
FROM_FOLDER: dict[str, Any] = {**_LOCAL, "attn_implementation": None}
_LAYER_NUMBER = re.compile(r"\.\d+\.")
# Architectures whose states depend on padding, some of them only in longer texts.
_READ_PADDING = ("convbert", "fnet", "mobilebert", "mra", "nystromformer", "yoso")
_LFS_POINTER = b"version https://git-lfs"
# Where weights may be that are not read; the last one found is named.
_OTHER_WEIGHTS = (
    "*.gguf",
    "*.onnx",
    "onnx/*.onnx",
    "*.h5",
    "*.msgpack",
    "checkpoint-*",
    "model.*.safetensors",
)
TOKENIZER_SETTINGS = "tokenizer_config.json"
TEXT_PROCESSOR = "AutoTokenizer"
"""The ``processor_class`` of a model that reads text alone."""
_BACKWARDS_ONLY = (
    "whose tokens see only those before them; its vector is the state of the last token, a pooler "
    "that this toolkit does not have"
)
_TAKE_AN_ENCODER = "take a text encoder, for example of the BERT, RoBERTa or MPNet family"


def _transformers() -> ModuleType:
    import transformers

    # Threads that read one tensor each make loading a fifth slower, because the files are mapped.
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
    return transformers


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers; callers check for problems."""
    logging = _transformers().utils.logging
    verbosity = logging.get_verbosity()
    had_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def load_backbone(
    folder: Path, *, dropout: float | None, progress: Progress = SILENT
) -> tuple[nn.Module, set[str]]:
    """Return the transformer in float32, and the names of the weights that its files lack.

    ``dropout`` is the probability for every dropout; None keeps those of the checkpoint. The user
    is warned of code and weights in the folder that the transformer leaves out.
    """
    # The configuration is refused or changed before the weights are read.
    own_code = _checked_own_code(folder)
    with as_checkpoint_error(folder, "a model"), quiet_transformers():
        config = _transformers().AutoConfig.from_pretrained(folder, **_LOCAL)
        _require_encoder(folder, config)
        _require_computed_positions(folder, config)
        if dropout is not None:
            for key in _DROPOUT_KEYS:
                if isinstance(getattr(config, key, None), float | int):
                    setattr(config, key, dropout)
        backbone, info = _auto_backbone(folder, config)
        # A wrapper puts its own name before those of the weights: read them again without it.
        is_wrapped = any(re.match(WRAPPER, name) for name in info["unexpected_keys"])
        if info["missing_keys"] and is_wrapped:
            backbone, info = _auto_backbone(folder, config, key_mapping={WRAPPER: ""})
    # What was read must be a text encoder, with weights of the right shapes.
    if "state_dict" in info["unexpected_keys"]:
        path = folder / "pytorch_model.bin"
        command = "import sys, torch; f = sys.argv[1]; torch.save(torch.load(f)['state_dict'], f)"
        raise CheckpointError(
            f"{path} holds the weights within the entry state_dict, need them at the top",
            hint=f'save that entry alone: python -c "{command}" {shlex.quote(str(path))}',
        )
    if mismatched := sorted(info["mismatched_keys"]):
        name, found, needed = mismatched[0]
        raise CheckpointError(
            f"{folder}: the weights {name} have shape {tuple(found)}, config.json says "
            f"{tuple(needed)}",
            hint="config.json and weights are of different models: take both from the same one",
        )
    prefix = f"{backbone.base_model_prefix}."
    if getattr(backbone, "hf_quantizer", None) is None:  # quantised weights may be integers
        parameters = {name for name, _ in backbone.named_parameters()}
        tensors = read_tensors(folder).items()
        weights = {
            name: tensor for name, tensor in tensors if name.removeprefix(prefix) in parameters
        }
        require_floats(weights, folder)
    unused = {key.removeprefix(prefix) for key in info["unexpected_keys"]}
    _refuse_more_layers(folder, backbone, unused)
    _refuse_further_modules(folder, unused)
    has_width = isinstance(getattr(config, "hidden_size", None), int)
    if backbone.main_input_name != "input_ids" or not has_width:
        raise CheckpointError(
            f"{folder}: {config.model_type} is no text encoder", hint=_TAKE_AN_ENCODER
        )
    _require_text_alone(folder, backbone)
    if _is_causal(backbone):
        raise CheckpointError(
            f"{folder}: {config.model_type} is a causal model, {_BACKWARDS_ONLY}",
            hint=_TAKE_AN_ENCODER,
        )
    _tell_what_is_left_out(folder, backbone, own_code, unused, progress)
    return backbone, set(info["missing_keys"])


def _tell_what_is_left_out(
    folder: Path, backbone: Any, own_code: Mapping[str, Any], unused: set[str], progress: Progress
) -> None:
    """Warn of a model class in ``own_code``, and of ``unused`` weights inside the transformer."""
    kind = backbone.config.model_type
    if "AutoModel" in own_code:
        progress.warn(
            f"{folder / 'config.json'}: auto_map names code of the folder, which is not run; the "
            f"model is computed as {kind} of transformers"
        )
    if left_out := weights_left_out(unused, backbone):
        noun = "weight has" if len(left_out) == 1 else "weights have"
        progress.warn(
            f"{folder}: {len(left_out):,} {noun} no place in {kind} of transformers, so the "
            f"vectors do not depend on them (first: {left_out[0]})"
        )


def _auto_backbone(folder: Path, config: Any, **how: Any) -> tuple[Any, dict[str, Any]]:
    """Return what ``AutoModel`` loads, and what it tells about the names of the weights."""
    try:
        backbone, info = _transformers().AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the caller names them
            **how,
            **FROM_FOLDER,
        )
    except ImportError as error:
        if getattr(config, "quantization_config", None) is None:
            raise
        raise CheckpointError(
            f"{folder / 'config.json'}: its weights are quantised ({reason_of(error)})",
            hint="take the model with weights in float32, float16 or bfloat16",
        ) from error
    except Exception as error:  # SafetensorError and OSError, among others
        _explain_weights(folder, error)
        raise
    return backbone, info


def _explain_weights(folder: Path, error: Exception) -> None:
    """Raise a CheckpointError if ``error`` comes from weights that are not there to be read.

    They are a pointer of Git LFS, or missing, or elsewhere, or in a format that is not read. After
    any other error, return.
    """
    weights = [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")]
    for path in weights:
        with path.open("rb") as stream:
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise CheckpointError(
                    f"{path} is a pointer of Git LFS, need the weights themselves",
                    hint=f"fetch them: git -C {shlex.quote(str(folder))} lfs pull",
                ) from error
    if "no file named" not in str(error):
        return
    found = [path for pattern in _OTHER_WEIGHTS for path in sorted(folder.glob(pattern))]
    if not found:
        raise CheckpointError(
            f"{folder} holds no weights, need model.safetensors or pytorch_model.bin",
            hint="copy or download the model again, with all its files",
        ) from error
    path = found[-1]
    hint = "take the same model with weights in the file model.safetensors"
    if path.is_dir():
        hint = f"name the folder of one checkpoint: --model {shlex.quote(str(path))}"
    elif path.match("model.*.safetensors"):
        whole = folder / "model.safetensors"
        hint = f"rename the file: mv {shlex.quote(str(path))} {shlex.quote(str(whole))}"
    raise CheckpointError(
        f"{folder} holds {path.relative_to(folder)} but no weights that are read, need "
        "model.safetensors or pytorch_model.bin",
        hint=hint,
    ) from error


def _refuse_more_layers(folder: Path, backbone: Any, unused: Iterable[str]) -> None:
    """Refuse files that hold layers beyond those that config.json counts.

    ``unused`` names the weights that have no place in the transformer. A weight belongs to such
    a layer if layer 0 has a weight of the same name, apart from the number of the layer.
    """
    names = set(backbone.state_dict())
    for name in sorted(unused):
        if _LAYER_NUMBER.sub(".0.", name, count=1) in names:
            raise CheckpointError(
                f"{folder}: config.json has no layer for the weights {name}",
                hint="config.json and weights are of different models: take both from the same one",
            )


def _refuse_further_modules(folder: Path, unused: Iterable[str]) -> None:
    """Refuse ``unused`` weights of modules behind the transformer, such as a Dense.

    The file of a whole SentenceTransformer has them; only modules.json would say what they do.
    """
    for name in sorted(unused):
        if FURTHER_MODULE.match(name):
            raise CheckpointError(
                f"{folder}: the weights {name} are of a module behind the transformer, need the "
                "folder that sentence-transformers saves, in which modules.json lists the modules",
                hint="save the model with SentenceTransformer.save_pretrained, and take its folder",
            )


def load_decoder(folder: Path, config: Any) -> nn.Module:
    """Return a causal language model with cross-attention from the weights of an encoder's folder.

    ``config`` is that of the encoder. The cross-attention starts with new weights, and so does the
    head if the files hold none.
    """
    decoder_config = copy.deepcopy(config)
    decoder_config.is_decoder = decoder_config.add_cross_attention = True
    try:
        with as_checkpoint_error(folder, "a decoder"), quiet_transformers():
            decoder: nn.Module = _transformers().AutoModelForCausalLM.from_pretrained(
                folder, config=decoder_config, dtype=torch.float32, **FROM_FOLDER
            )
    except ValueError as error:
        raise CheckpointError(
            f"{folder}: transformers has no decoder of {config.model_type} ({reason_of(error)})",
            hint="take a BERT or RoBERTa encoder",
        ) from error
    has_cross = any("crossattention" in name for name, _ in decoder.named_modules())
    if not has_cross:
        raise CheckpointError(
            f"{folder}: the decoder of {config.model_type} has no cross-attention",
            hint="take a BERT or RoBERTa encoder",
        )
    return decoder


def weights_as_bytes(module: nn.Module) -> list[str | memoryview]:
    """Return the name, type, shape and bytes of each weight, sorted by name, for a digest."""
    parts: list[str | memoryview] = []
    for name, weight in sorted(module.state_dict().items()):
        tensor = weight.detach().cpu().contiguous()
        parts.append(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}")
        parts.append(tensor.view(-1).view(torch.uint8).numpy().data)
    return parts


def load_masked_lm(folder: Path) -> Any:
    """Return a masked language model in float32 and in evaluation mode.

    Raise CheckpointError if the files lack any of its weights, such as those of the head.
    """
    _checked_own_code(folder)
    with as_checkpoint_error(folder, "a masked language model"), quiet_transformers():
        model, info = _transformers().AutoModelForMaskedLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **FROM_FOLDER
        )
    if missing := sorted(info["missing_keys"]):
        raise CheckpointError(
            f"{folder}: has no masked-LM head, its weights would be random ({missing[0]}, ...)",
            hint="take a masked language model, such as bert-base, or a run of "
            "`train --objective mlm`",
        )
    return model.eval()


def _checked_own_code(folder: Path) -> dict[str, Any]:
    """Return the names of a folder's own code, by the class that it would replace (``auto_map``).

    Raise CheckpointError if transformers does not know the architecture without this code.
    """
    config = read_json(folder / "config.json", dict[str, Any])
    kind = config.get("model_type")
    own_code = config.get("auto_map")
    if own_code and kind not in _transformers().CONFIG_MAPPING:
        raise CheckpointError(
            f"{folder / 'config.json'}: model_type {kind!r} needs code from the folder "
            "(auto_map), which is not run",
            hint=f"this toolkit runs no code of models; {_TAKE_AN_ENCODER}",
        )
    return own_code if isinstance(own_code, dict) else {}


def _require_computed_positions(folder: Path, config: Any) -> None:
    """Refuse positions that the architecture of transformers does not compute, such as alibi."""
    kind = getattr(config, "position_embedding_type", None)
    default = type(config)()
    # Rotary models do not read this entry either, but there it says only what is computed anyway.
    is_read = hasattr(default, "position_embedding_type")
    is_rotary = hasattr(default, "rope_parameters")
    if kind in (None, "absolute") or is_read or is_rotary:
        return
    raise CheckpointError(
        f"{folder / 'config.json'}: position_embedding_type {kind!r} is not computed by "
        f"{config.model_type} of transformers, need absolute",
        hint=_TAKE_AN_ENCODER,
    )


def _require_encoder(folder: Path, config: Any) -> None:
    """Refuse decoders, and models that have a decoder besides an encoder."""
    kind = config.model_type
    # An encoder that was saved without its decoder has is_encoder_decoder false, but the default of
    # its class is still true.
    if config.is_encoder_decoder or type(config)().is_encoder_decoder:
        raise CheckpointError(
            f"{folder}: {kind} has an encoder and a decoder, need an encoder alone",
            hint=_TAKE_AN_ENCODER,
        )
    if not (getattr(config, "is_decoder", False) or _reads_only_backwards(kind)):
        return
    sees_all = (
        getattr(config, "use_bidirectional_attention", False)
        or getattr(config, "is_causal", True) is False
    )
    if sees_all:
        what = "a decoder whose tokens see each other, which this toolkit does not compute"
    else:
        what = f"a decoder, {_BACKWARDS_ONLY}"
    raise CheckpointError(f"{folder}: {kind} is {what}", hint=_TAKE_AN_ENCODER)


def _require_text_alone(folder: Path, backbone: Any) -> None:
    """Refuse an architecture whose forward pass needs more than the sub-words of a text."""
    kind = backbone.config.model_type
    needed_shape = (1, 3, backbone.config.hidden_size)
    try:
        shape = tuple(_states(backbone, length=3).shape)
        if shape != needed_shape:
            raise ValueError(f"states of shape {shape}, need {needed_shape}")
    except Exception as error:  # whatever its code raises without the rest of its input
        raise CheckpointError(
            f"{folder}: {kind} gives no states for the sub-words of a text alone "
            f"({reason_of(error)})",
            hint=_TAKE_AN_ENCODER,
        ) from error


def _is_causal(backbone: Any) -> bool:
    """Tell whether the last sub-word of a text reads the first, but the first does not read it."""
    states = _states(backbone, length=3)[0]
    with_other_last = _states(backbone, length=3, changed=2)[0]
    with_other_first = _states(backbone, length=3, changed=0)[0]
    first_reads_last = not torch.equal(states[0], with_other_last[0])
    last_reads_first = not torch.equal(states[2], with_other_first[2])
    return last_reads_first and not first_reads_last


def reads_padding(backbone: Any) -> bool:
    """Tell whether the states of a text depend on the padding behind it.

    This is known of some architectures. For others, two short texts are computed with and without
    padding.
    """
    config = backbone.config
    is_sparse = getattr(config, "attention_type", None) == "block_sparse"
    if config.model_type in _READ_PADDING or is_sparse:
        return True
    for length, n_padded in ((3, 2), (7, 5)):
        alone = _states(backbone, length)
        padded = _states(backbone, length, n_padded)[:, :length]
        tolerance = 1e-4 * max(1.0, float(alone.abs().max()))
        if not torch.allclose(alone, padded, rtol=0, atol=tolerance):
            return True
    return False


def attend_as_configured(backbone: Any) -> None:
    """Restore BigBird's sparse attention, which its code replaces for good at a short text."""
    if hasattr(backbone, "set_attention_type"):
        backbone.set_attention_type(backbone.config.attention_type)


@torch.inference_mode()
def _states(backbone: Any, length: int, n_padded: int = 0, *, changed: int | None = None) -> Tensor:
    """Return the last states ``(1, length + n_padded, H)`` of a made-up text and its padding.

    The text always has the same ``length`` sub-words, except that the one at the position
    ``changed``, if given, is replaced. The model is left in evaluation mode.
    """
    config = backbone.config
    # The ids start at 5, because most vocabularies begin with the special tokens. The remainder
    # keeps them inside a tiny vocabulary; it changes nothing where the size is not known.
    words = torch.arange(5, 5 + length)
    if changed is not None:
        words[changed] += 1
    words %= max(1, int(getattr(config, "vocab_size", 6 + length)))
    padding = torch.full((n_padded,), int(getattr(config, "pad_token_id", None) or 0))
    mask = torch.cat([torch.ones(length), torch.zeros(n_padded)]).long()
    output = backbone.eval()(input_ids=torch.cat([words, padding])[None], attention_mask=mask[None])
    attend_as_configured(backbone)  # the pass may have changed the attention
    states: Tensor = output.last_hidden_state
    return states


def as_checkpoint_error(folder: Path, what: str) -> contextlib.AbstractContextManager[None]:
    """Within the block, turn errors into a CheckpointError: the files are not ``what``."""
    hint = "the files may be incomplete or corrupt: copy or download them again"
    return foreign_format(folder, what, error=CheckpointError, hint=hint)


def _reads_only_backwards(model_type: str) -> bool:
    """Tell whether transformers has a causal language model of an architecture but no masked one.

    XLNet does not count: without its masks for generation, its tokens see the whole text.
    """
    auto = _transformers().models.auto.modeling_auto
    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return model_type in causal and model_type not in masked and model_type != "xlnet"


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a model folder.

    Raise CheckpointError if it cannot be loaded, or has no words.
    """
    with as_checkpoint_error(folder, "a tokenizer"), quiet_transformers():
        tokenizer = _auto_tokenizer(folder)
        # If the files are missing, transformers makes a tokenizer without words.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise CheckpointError(
                f"{folder} holds no vocabulary: its tokenizer.json or vocab.txt is missing or "
                "empty",
                hint="copy or download the model again, with all its files",
            )
    return tokenizer


def _auto_tokenizer(folder: Path) -> Any:
    """Return the tokenizer that ``AutoTokenizer`` loads from a folder.

    Raise CheckpointError if it needs a package that is not installed, or code from the folder.
    """
    try:
        return _transformers().AutoTokenizer.from_pretrained(folder, **_LOCAL)
    except ImportError as error:  # tokenizers of some languages cut words by a library of their own
        package = error.name or _named_package(str(error))
        hint = "install the package that it names"
        if package:
            hint = f"pip install {package}"
        raise CheckpointError(
            f"{folder}: its tokenizer needs a package that is not installed ({reason_of(error)})",
            hint=hint,
        ) from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise CheckpointError(
            f"{folder / TOKENIZER_SETTINGS}: needs code from the folder (auto_map), "
            "which is not run",
            hint=f"this toolkit runs no code of models; {_TAKE_AN_ENCODER}",
        ) from error


def _named_package(message: str) -> str | None:
    """Return the package or dictionary that an error message of transformers asks for."""
    match = re.search(
        r"need to install (\w+) to use|The (\w+) dictionary is not installed", message
    )
    if match is None:
        return None
    return match[1] or match[2]


def auto_model(folder: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer that ``AutoModel`` and ``AutoTokenizer`` load.

    The model is in evaluation mode.
    """
    with quiet_transformers():
        model = _transformers().AutoModel.from_pretrained(folder, local_files_only=True)
        return model.eval(), _transformers().AutoTokenizer.from_pretrained(
            folder, local_files_only=True
        )


def wants_processor(folder: Path) -> bool:
    """Tell whether other libraries want a processor that the folder does not have.

    They want a processor of pages or pictures for some architectures, such as MarkupLM. A folder
    that ``mark_as_text`` has marked needs none.
    """
    kind = read_json(folder / "config.json", dict[str, Any]).get("model_type")
    if kind not in _transformers().models.auto.processing_auto.PROCESSOR_MAPPING_NAMES:
        return False
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            return False
    return bool(entries_of(folder / TOKENIZER_SETTINGS).get("processor_class") != TEXT_PROCESSOR)


def mark_as_text(folder: Path) -> None:
    """Mark a saved model so that other libraries load its tokenizer, and no processor of pages."""
    path = folder / TOKENIZER_SETTINGS
    write_json(path, entries_of(path) | {"processor_class": TEXT_PROCESSOR})


def blank_pooler(config: Any) -> nn.Module | None:
    """Return the architecture's own pooler with uninitialised weights.

    The result is None if the architecture has no pooler, or one without a linear layer ``dense``.
    """
    with torch.device("meta"):
        model = _transformers().AutoModel.from_config(config)
    pooler: Any = getattr(model, "pooler", None)
    if not isinstance(getattr(pooler, "dense", None), nn.Linear):
        return None
    blank: nn.Module = pooler.to_empty(device="cpu")
    return blank


class MlmHead(nn.Module):
    """The masked-LM head of an architecture: it maps ``(B, L, H)`` states to ``(B, L, V)`` logits.

    The output matrix is the encoder's input embedding if ``tied``, else a separate copy of it.
    """

    def __init__(self, config: Any, embeddings: nn.Embedding, *, tied: bool) -> None:
        super().__init__()
        self.tied = tied
        _, self.head = _head_of(_transformers().AutoModelForMaskedLM.from_config(config))
        matrix = embeddings.weight
        if not tied:
            matrix = nn.Parameter(matrix.detach().clone())
        self.head.get_submodule(_decoder_path(self.head)).weight = matrix

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(tokens)  # type: ignore[no-any-return]

    def load_pretrained(self, folder: str) -> bool:
        """Copy the head of a checkpoint and return True; return False if there is no head."""
        model, info = _transformers().AutoModelForMaskedLM.from_pretrained(
            folder, output_loading_info=True, **FROM_FOLDER
        )
        prefix, head = _head_of(model)
        # Of the head, only the decoder may be missing: its matrix is then the embedding.
        for key in info["missing_keys"]:
            if key.startswith(f"{prefix}.") and "decoder" not in key:
                return False
        state = head.state_dict()
        if self.tied:  # the checkpoint's matrix would replace the encoder's embedding
            del state[f"{_decoder_path(self.head)}.weight"]
        self.head.load_state_dict(state, strict=False)
        return True

    def save(
        self, backbone: Any, folder: Path, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        """Write transformer and head as the masked language model of their architecture.

        If given, ``weights`` are saved in place of those of the transformer. The configuration
        records whether the head is tied to the embedding.
        """
        with torch.device("meta"):
            model = _transformers().AutoModelForMaskedLM.from_config(backbone.config)
        model.config.tie_word_embeddings = self.tied
        prefix, _ = _head_of(model)
        state_by_module = {
            model.base_model_prefix: weights or backbone.state_dict(),
            prefix: self.head.state_dict(),
        }
        state: dict[str, Tensor] = {}
        for module_name, module_state in state_by_module.items():
            for name, value in module_state.items():
                state[f"{module_name}.{name}"] = value
        model.save_pretrained(folder, state_dict=state)


def _head_of(model: Any) -> tuple[str, nn.Module]:
    """Return the name and the module of the head, the only module besides the encoder."""
    heads: dict[str, nn.Module] = dict(model.named_children())
    for name, module in model.named_children():
        if module is model.base_model:
            del heads[name]
    if len(heads) != 1:
        raise ValueError(
            f"{type(model).__name__}: need one module after the encoder, found {len(heads)}"
        )
    return heads.popitem()


def _decoder_path(head: nn.Module) -> str:
    """Return the dotted name of the last linear layer, which maps to the vocabulary."""
    modules = head.named_modules()
    linear_layers = [name for name, module in modules if isinstance(module, nn.Linear)]
    return str(linear_layers[-1])
