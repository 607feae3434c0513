"""Encoders with random weights in the shape of published ones: timing needs no download."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from simcse_cli.models.resolve import resolve_model

PREFIX = "random:"
SHAPES = {  # model type, hidden size, layers, heads, inner size, vocabulary
    "bert-base": ("bert", 768, 12, 12, 3072, 30522),
    "roberta-large": ("roberta", 1024, 24, 16, 4096, 50265),
    "modernbert-base": ("modernbert", 768, 22, 12, 1152, 50368),
    "tiny": ("bert", 64, 2, 2, 128, 30522),
}


def model_folder(name: str, work: Path) -> str:
    """Return the folder of a model; ``random:SHAPE`` is made below ``work``, with MiniLM's tokenizer.

    Raises:
        SystemExit: the shape is not known.
    """
    if not name.startswith(PREFIX):
        return str(resolve_model(name))
    shape = name.removeprefix(PREFIX)
    if shape not in SHAPES:
        raise SystemExit(
            f"--model {name}: need one of {', '.join(PREFIX + known for known in SHAPES)}"
        )
    model_type, hidden, layers, heads, inner, vocabulary = SHAPES[shape]
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": 514,
    }
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("minilm"))
    torch.manual_seed(0)
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    folder = work / shape
    AutoModel.from_config(AutoConfig.for_model(model_type, **sizes, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
