"""Open a model folder for encoding only, without the modelling code of transformers.

Importing that code takes longer than all the rest of encoding a few sentences. For a plain encoder
of the BERT family in one safetensors file, the packed forward pass needs only its tensors, under
the names of transformers; a plain fast tokenizer is read by the library ``tokenizers`` alone. For
everything else, and in case of doubt, the functions here return None. Then transformers loads the
folder, and reports what is wrong with it.
"""

import re
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn

from simcse_cli.errors import CheckpointError, DataError
from simcse_cli.files.schema import checked, foreign_format
from simcse_cli.models.record import sound_entries_of
from simcse_cli.models.tokens import NO_LIMIT
from simcse_cli.packed.architectures import (
    ARCHITECTURES,
    EMBEDDING_DROPOUT,
    EMBEDDING_NORM,
    plain_prefix,
)
from simcse_cli.packed.backbone import packed_backbone

_Entries = dict[str, Any]

# Entries of config.json that the forward pass needs, with the types that transformers accepts;
# transformers knows the defaults of missing ones.
_CONFIG_NEEDED: dict[str, tuple[type, ...]] = {
    "attention_probs_dropout_prob": (float, int),
    "hidden_act": (str,),
    "hidden_dropout_prob": (float, int),
    "hidden_size": (int,),
    "intermediate_size": (int,),
    "layer_norm_eps": (float,),
    "max_position_embeddings": (int,),
    "num_attention_heads": (int,),
    "num_hidden_layers": (int,),
    "pad_token_id": (int,),
    "type_vocab_size": (int,),
    "vocab_size": (int,),
}
# Entries that ask for more than a plain model or a plain tokenizer.
_CONFIG_EXTRAS = ("auto_map", "quantization_config", "pruned_heads", "chunk_size_feed_forward")
_TOKENIZER_EXTRAS = (
    "additional_special_tokens",
    "extra_special_tokens",
    "add_bos_token",
    "add_eos_token",
    "split_special_tokens",
    "auto_map",
)
# Tokenizers for which transformers takes tokenizer.json as it is.
_VERBATIM_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_BERT_CLASSES = ("BertTokenizer", "BertTokenizerFast")
# Buffers that files hold besides the weights.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
# transformers repairs the splitting rule of some tokenizers with larger vocabularies.
_MOST_WORDS = 100_000


WRAPPER = r"^((module|model|0\.auto_model)\.)+"
"""Begins the names of weights that were saved from inside another module.

The other module is ``DataParallel``, a module of Lightning, or ``SentenceTransformer``.
"""


FURTHER_MODULE = re.compile(r"[1-9]\d*\.")
"""Begins the names of weights of modules behind the transformer, in a whole SentenceTransformer."""


class EncodingBackbone(nn.Module):
    """The modules of a BERT-family encoder under transformers' names, for the packed pass only."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config

    def forward(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "opened for encoding only: load_encoder without encode_only has the forward pass"
        )

    def put(self, name: str, module: nn.Module) -> None:
        """Add a module under a dotted name, and the parent modules that are still missing."""
        *parent_names, own_name = name.split(".")
        parent: nn.Module = self
        for parent_name in parent_names:
            if not hasattr(parent, parent_name):
                parent.add_module(parent_name, nn.Module())
            parent = getattr(parent, parent_name)
        parent.add_module(own_name, module)


@dataclass(frozen=True)
class PlainTokenizer:
    """A Rust tokenizer with the attributes of a Hugging Face tokenizer that encoding needs."""

    backend_tokenizer: Tokenizer
    pad_token_id: int | None
    model_max_length: int
    truncation_side: str
    mask_token: str | None = None
    unk_token: str | None = None
    is_fast: bool = True

    @property
    def mask_token_id(self) -> int | None:
        return self._id_of(self.mask_token)

    @property
    def unk_token_id(self) -> int | None:
        return self._id_of(self.unk_token)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self.backend_tokenizer.token_to_id(token)


def plain_backbone(folder: Path) -> EncodingBackbone | None:
    """Return a folder's encoder in float32, or None if transformers must load it.

    Weights and their names, and therefore the digest, are those of ``AutoModel``. The
    architecture's own pooler is included if the file holds it.
    """
    # Leave everything that is not a plain encoder in one file to transformers, which reports what
    # is damaged.
    config = sound_entries_of(folder / "config.json")
    prefix = plain_prefix(config.get("model_type"))
    if prefix is None or not (folder / "model.safetensors").is_file():
        return None
    for key, kinds in _CONFIG_NEEDED.items():
        if type(config.get(key)) not in kinds:
            return None
    asks_for_more = any(config.get(key) for key in _CONFIG_EXTRAS)
    if asks_for_more or (folder / "adapter_config.json").exists():
        return None
    # BERT pads with token 0, RoBERTa with token 1; another id is left to transformers.
    if config["pad_token_id"] not in (0, 1):
        return None
    n_heads = config["num_attention_heads"]
    if n_heads < 1 or config["hidden_size"] % n_heads:
        return None
    # Read all tensors. In the file of a larger model, the encoder's have names with the prefix.
    try:
        tensors = read_tensors(folder)
        tensors = tensors_below(prefix, tensors) or tensors
        backbone = _assemble(SimpleNamespace(**config), tensors)
    except Exception:  # corrupt, incomplete, or not the plain model: transformers reports which
        return None
    packed = packed_backbone(backbone)
    if packed is None or packed.n_layers != config["num_hidden_layers"]:
        return None
    return backbone


def read_tensors(folder: Path, prefix: str = "") -> dict[str, Tensor]:
    """Return those tensors of a folder whose names start with ``prefix``, under names without it.

    If a wrapper of the model has put something before a name, such as ``module.``, it is dropped
    first. Legacy files, ``pytorch_model*.bin``, are read only if no safetensors file has such a
    tensor, by PyTorch's weights-only loader.
    """
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(folder, "model", ".safetensors"):
        with _as_checkpoint_error(path), safe_open(path, "pt") as stream:
            keys = stream.keys()  # the stream itself cannot be iterated
            for name in keys:
                own_name = _own_name(name)
                if own_name.startswith(prefix):
                    tensors[own_name.removeprefix(prefix)] = stream.get_tensor(name)
    if not tensors:
        for path in _weight_files(folder, "pytorch_model", ".bin"):
            with _as_checkpoint_error(path):
                is_new = zipfile.is_zipfile(path)  # only the format since PyTorch 1.6 can be mapped
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_new)
                own_state = {_own_name(name): tensor for name, tensor in state.items()}
                tensors |= tensors_below(prefix, own_state)
    return tensors


def tensors_below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, under names without it."""
    below: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            below[name.removeprefix(prefix)] = tensor
    return below


def require_floats(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse weights that are integers, because only their quantisation would tell their scale."""
    for name, weight in weights.items():
        if not weight.is_floating_point():
            kind = str(weight.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{folder}: the weights {name} are {kind} without a quantisation that is known, "
                "need float32, float16 or bfloat16",
                hint="take the model with weights of one of these types",
            )


def _own_name(name: str) -> str:
    """Return the name of a weight without what training code has put before it."""
    return re.sub(WRAPPER, "", name)


def _weight_files(folder: Path, stem: str, ending: str) -> list[Path]:
    """Return the files that transformers reads: the one with all weights, or else its parts."""
    whole = folder / f"{stem}{ending}"
    if whole.is_file():
        return [whole]
    return sorted(folder.glob(f"{stem}-*{ending}"))


def _as_checkpoint_error(path: Path) -> AbstractContextManager[None]:
    """Within the block, turn errors into a CheckpointError: the file holds no sound weights."""
    return foreign_format(path, "weights", error=CheckpointError, hint="copy or download it again")


def _assemble(config: SimpleNamespace, tensors: Mapping[str, Tensor]) -> EncodingBackbone:
    """Return an encoder of the sizes in ``config`` whose parameters are the tensors.

    Raise an error if a tensor is missing, or has another shape or an integer type. Raise one, too,
    for tensors without a place: of a further layer, of a module behind the transformer, or of
    another weight inside it.
    """
    backbone = EncodingBackbone(config)
    width = config.hidden_size
    # The modules, whose parameters are on the meta device and have no values yet. If PyTorch drew
    # the values of an embedding there, it would import its compiler, which takes seconds.
    tables = {
        "word_embeddings": config.vocab_size,
        "position_embeddings": config.max_position_embeddings,
        "token_type_embeddings": config.type_vocab_size,
    }
    for table, n_rows in tables.items():
        empty = torch.empty(n_rows, width, device="meta")
        module = nn.Embedding.from_pretrained(empty, freeze=False)  # type: ignore[no-untyped-call]
        backbone.put(f"embeddings.{table}", module)
    backbone.get_submodule("embeddings").padding_idx = config.pad_token_id  # for positions
    backbone.put(EMBEDDING_NORM, _empty_part("embedding_norm", config))
    backbone.put(EMBEDDING_DROPOUT, _empty_part("embedding_dropout", config))
    architecture = ARCHITECTURES[config.model_type]
    for index in range(config.num_hidden_layers):
        for part, name in architecture.layer_names(index)._asdict().items():
            backbone.put(name, _empty_part(part, config))
    if "pooler.dense.weight" in tensors:
        backbone.put("pooler.dense", nn.Linear(width, width, device="meta"))
    layer_beyond = architecture.layer_names(config.num_hidden_layers)
    if f"{layer_beyond.up}.weight" in tensors:
        raise CheckpointError("the tensors have more layers than the configuration")
    state_names = {name for name, _ in backbone.named_parameters()}
    if any(map(FURTHER_MODULE.match, tensors)):
        raise CheckpointError("there are weights of modules behind the transformer")
    if left_out := weights_left_out(set(tensors) - state_names, backbone):
        raise CheckpointError(f"the encoder has no place for {left_out[0]}")
    # The tensors take the place of these parameters.
    state = {name: tensors[name] for name in state_names}
    if not all(tensor.is_floating_point() for tensor in state.values()):
        raise CheckpointError("some weights are integers")
    state = {name: tensor.float() for name, tensor in state.items()}
    backbone.load_state_dict(state, assign=True)
    return backbone


def weights_left_out(names: Iterable[str], backbone: nn.Module) -> list[str]:
    """Return, sorted, the names of weights that belong inside the transformer.

    ``names`` are those of all weights for which ``backbone`` has no place. Among them may be heads,
    the architecture's own pooler, and buffers; these do not count.
    """
    parts = {name for name, _ in backbone.named_children()} - {"pooler"}
    left_out = []
    for name in sorted(names):
        path = name.split(".")  # of length 1 for a weight beside the transformer
        if path[0] in parts and path[-1] not in _BUFFERS:
            left_out.append(name)
    return left_out


def _empty_part(part: str, config: SimpleNamespace) -> nn.Module:
    """Return the module of one part of the encoder, with its parameters on the meta device."""
    width = config.hidden_size
    if part.endswith("norm"):
        return nn.LayerNorm(width, eps=config.layer_norm_eps, device="meta")
    if part == "attention_dropout":
        return nn.Dropout(config.attention_probs_dropout_prob)
    if part.endswith("dropout"):
        return nn.Dropout(config.hidden_dropout_prob)
    n_inputs = n_outputs = width
    if part == "down":
        n_inputs = config.intermediate_size
    if part == "up":
        n_outputs = config.intermediate_size
    return nn.Linear(n_inputs, n_outputs, device="meta")


def plain_tokenizer(folder: Path) -> PlainTokenizer | None:
    """Return a folder's tokenizer, or None if transformers must load it.

    ``tokenizer.json`` is used unchanged. transformers does the same for its general class, but
    rebuilds BERT's tokenizer from tokenizer_config.json, so for BERT both files must agree.
    """
    settings = sound_entries_of(folder / "tokenizer_config.json")
    content = sound_entries_of(folder / "tokenizer.json")
    # Before transformers 4.34, the special tokens were saved in a file of their own.
    if "added_tokens_decoder" not in settings:
        if (folder / "added_tokens.json").exists():
            return None
        settings |= sound_entries_of(folder / "special_tokens_map.json")
    kind = settings.get("tokenizer_class")
    try:
        with foreign_format(folder, "a tokenizer"):
            # Return None where transformers would make another tokenizer of these files.
            is_known = kind in (*_VERBATIM_CLASSES, *_BERT_CLASSES)
            if not is_known or not _special_tokens_agree(settings, content):
                return None
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            if kind in _BERT_CLASSES and not _is_plain_bert(settings, content, tokenizer):
                return None
            # The attributes that transformers would give it.
            pad = _text(settings.get("pad_token"))
            pad_id = None if pad is None else tokenizer.token_to_id(pad)
            length, side = _length_and_side(settings, content)
            mask = _text(settings.get("mask_token"))
            unknown = _text(settings.get("unk_token", content["model"].get("unk_token")))
            return PlainTokenizer(tokenizer, pad_id, length, side, mask, unknown)
    except DataError:  # damaged: transformers reports how
        return None


def _length_and_side(settings: _Entries, content: _Entries) -> tuple[int, str]:
    """Return the length limit and the truncation side that transformers reads from these files."""
    length = settings.get("model_max_length", settings.get("max_len"))
    direction = (content.get("truncation") or {}).get("direction", "right")
    side = settings.get("truncation_side", direction.lower())
    if side not in ("left", "right"):
        raise DataError(f"truncation_side {side!r}")
    if length is None:
        return NO_LIMIT, side
    return min(int(checked(length, float, "model_max_length")), NO_LIMIT), side


def _text(token: Any) -> str | None:
    """Return the text of a token, which is written as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _special_tokens_agree(settings: _Entries, content: _Entries) -> bool:
    """Tell whether the settings and tokenizer.json name the same special tokens.

    The result is False, too, if transformers might treat the tokens or the vocabulary in a way that
    is not repeated here.
    """
    if any(settings.get(key) for key in _TOKENIZER_EXTRAS):
        return False

    # Both files must list the same tokens, if both list them. The settings have ids only as keys;
    # from the tokens of the other file, ``pop`` removes them.
    added = content.get("added_tokens", [])
    by_id = {str(token.pop("id")): token for token in added}
    if settings.get("added_tokens_decoder", by_id) != by_id:
        return False

    # Each added token must be special, and neither depend on nor include what is beside it.
    for token in added:
        takes_more = token.get("lstrip") or token.get("rstrip") or token.get("single_word")
        if takes_more or not token.get("special"):
            return False

    # The settings must give these tokens, and no others, a role such as ``cls_token``.
    named: set[str | None] = set()
    for name, token in settings.items():
        if name.endswith("_token") and not name.startswith("add_"):
            named.add(_text(token))
    texts = {token.get("content") for token in added}
    have_roles = named - {None} == texts

    # The vocabulary must hold more than the special tokens. In a vocabulary of more than
    # ``_MOST_WORDS``, transformers may change the splitting rule.
    n_words = len(content.get("model", {}).get("vocab", ()))
    return bool(texts) and have_roles and len(texts) < n_words <= _MOST_WORDS


def _is_plain_bert(settings: _Entries, content: _Entries, tokenizer: Tokenizer) -> bool:
    """Tell whether tokenizer.json is what transformers builds for BERT from the settings."""
    model = content.get("model", {})
    start = tokenizer.token_to_id(_text(settings.get("cls_token", "[CLS]")) or "")
    end = tokenizer.token_to_id(_text(settings.get("sep_token", "[SEP]")) or "")
    framed_word = tokenizer.encode("a").ids  # must be [CLS] a [SEP]
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
        "lowercase": settings.get("do_lower_case", True),
    }
    return (
        content.get("normalizer") == normalizer
        and content.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and model.get("type", "WordPiece") == "WordPiece"
        and model.get("unk_token") == _text(settings.get("unk_token", "[UNK]"))
        and model.get("continuing_subword_prefix") == "##"
        and model.get("max_input_chars_per_word", 100) == 100
        and (len(framed_word), framed_word[0], framed_word[-1]) == (3, start, end)
    )
