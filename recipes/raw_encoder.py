"""What ``raw-encoder.sh`` starts from: an encoder with fresh layers, and text in full blocks.

``python raw_encoder.py start MODEL FOLDER`` writes some layers of a BERT-like model below fresh ones;
``python raw_encoder.py text MODEL FILE`` packs the corpora of ``$SIMCSE_DATA``.
"""

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from simcse_cli.models.model_files import find_model

LAYER = re.compile(r"encoder\.layer\.(\d+)\.")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
DEVIATION = 0.02
"""Of fresh weights (Devlin et al. 2019)."""


def fresh(
    weights: dict[str, torch.Tensor], layers: range, n_fresh: int, seed: int
) -> dict[str, torch.Tensor]:
    """Return these layers, counted from 0, and what is no layer; the last ``n_fresh`` as BERT starts.

    Matrices are drawn from a normal distribution with deviation 0.02, biases are 0, and the weights
    of a LayerNorm are 1.
    """
    generator = torch.Generator().manual_seed(seed)
    kept = {}
    for name in sorted(weights):
        layer = LAYER.search(name)
        value = weights[name]
        if layer is None:
            kept[name] = value
            continue
        number = int(layer[1])
        if number not in layers:
            continue
        if number >= layers.stop - n_fresh:
            value = torch.full_like(value, float("LayerNorm.weight" in name))
            if value.dim() == 2:
                value.normal_(0, DEVIATION, generator=generator)
        kept[LAYER.sub(f"encoder.layer.{number - layers.start}.", name)] = value
    return kept


def start(model: str, folder: Path, *, layers: range, n_fresh: int, seed: int) -> None:
    """Write a model folder without pooler and head: ``fresh`` of the model's weights."""
    base = find_model(model).base
    folder.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(base / name, folder / name)
    config = json.loads((base / "config.json").read_text()) | {"num_hidden_layers": len(layers)}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    weights = fresh(load_file(base / "model.safetensors"), layers, n_fresh, seed)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def layer_range(text: str) -> range:
    """Read the first and the last layer, counted from 1.

    >>> layer_range("4-6")
    range(3, 6)
    """
    first, last = text.split("-")
    return range(int(first) - 1, int(last))


def key(text: str) -> str:
    """Return what equal texts share: letters and digits in lower case.

    >>> key("A man 's dog .") == key("a man's dog")
    True
    """
    return re.sub(r"[\W_]+", "", text.lower())


def evaluation_keys(senteval: Path) -> set[str]:
    """Return the keys of all cells in the files of the STS tasks, of every split."""
    keys = set()
    for folder in ("STS", "SICK"):
        for path in sorted((senteval / "downstream" / folder).rglob("*")):
            if path.is_file():
                cells = path.read_text(encoding="utf-8", errors="replace").replace("\n", "\t")
                keys.update(map(key, cells.split("\t")))
    return keys


def sources(data: Path, seed: int) -> dict[str, list[str]]:
    """Return the texts of each corpus: Brown in its order, texts without an order shuffled.

    Captions of one image, and hypotheses of one premise, would else lie in one block, which would
    teach which of them mean the same.
    """
    captions = (data / "flickr30k" / "captions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    pairs = []
    for path in sorted((data / "nli").glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs += [json.loads(line) for line in lines]
    found = {
        "wiki": (data / "wiki" / "wiki1m_head.txt").read_text(encoding="utf-8").splitlines(),
        "brown": (data / "brown" / "brown.txt").read_text(encoding="utf-8").splitlines(),
        "captions": [line.split("\t")[1] for line in captions],
        "nli": [pair[side] for side in ("sentence1", "sentence2") for pair in pairs],
    }
    generator = np.random.default_rng(seed)
    for name in ("captions", "nli"):
        generator.shuffle(found[name])
    return found


def blocks(texts: Iterable[str], lengths: Iterable[int], limit: int) -> Iterator[str]:
    """Yield consecutive texts joined by blanks, as many as have ``limit`` sub-words together.

    >>> list(blocks(["a", "b c", "d"], [1, 2, 1], limit=3))
    ['a b c', 'd']
    """
    block: list[str] = []
    total = 0
    for text, length in zip(texts, lengths, strict=True):
        if block and total + length > limit:
            yield " ".join(block)
            block, total = [], 0
        block.append(text)
        total += length
    if block:
        yield " ".join(block)


def pack(model: str, file: Path, *, limit: int, seed: int) -> None:
    """Write the blocks of all corpora, and say how many texts were left out and why."""
    data = Path(os.environ["SIMCSE_DATA"])
    tokenizer = Tokenizer.from_file(str(find_model(model).base / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    evaluated = evaluation_keys(data / "senteval")
    seen: set[str] = set()
    packed: list[str] = []
    for name, texts in sources(data, seed).items():
        kept = []
        counts = {"empty": 0, "in an STS set": 0, "repeated": 0}
        for text in map(str.strip, texts):
            this = key(text)
            if not this:
                counts["empty"] += 1
            elif this in evaluated:
                counts["in an STS set"] += 1
            elif this in seen:
                counts["repeated"] += 1
            else:
                seen.add(this)
                kept.append(text)
        lengths = [len(each) for each in tokenizer.encode_batch(kept, add_special_tokens=False)]
        own = list(blocks(kept, lengths, limit))
        packed += own
        left_out = ", ".join(f"{count:,} {why}" for why, count in counts.items())
        sys.stderr.write(
            f"{name}: {len(kept):,} texts, {sum(lengths):,} sub-words, {len(own):,} blocks;"
            f" left out: {left_out}\n"
        )
    file.write_text("".join(f"{block}\n" for block in packed), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["start", "text"])
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=layer_range, default="1-6", help="first and last, from 1")
    parser.add_argument("--fresh", type=int, default=2)
    parser.add_argument("--sub-words", type=int, default=126)
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args(arguments)
    if given.what == "start":
        start(
            given.model,
            given.output,
            layers=given.layers,
            n_fresh=given.fresh,
            seed=given.seed,
        )
    else:
        pack(given.model, given.output, limit=given.sub_words, seed=given.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
