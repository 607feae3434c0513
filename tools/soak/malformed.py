"""Malformed inputs for every reader: a valid file, damaged; the command that reads it has to say what is wrong with it.

An error leaves nothing behind; whatever is accepted gives finite results. Each case is a function
of its seed.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet
import transformers
import yaml
from safetensors.numpy import save_file

import simcse_cli.analysis.analyses
import simcse_cli.comparison.compare
import simcse_cli.encoding.encode_file
import simcse_cli.prepare.pairs  # noqa: F401 - forks find all of these imported
from helpers import SENTENCES, build_tiny_model, write_sts_folder, write_transfer_folder
from soak.damage import ANY, ARRAYS, JSON, LINES, Damage
from soak.workbench import Result, Workbench

_NOT_FINITE = re.compile(rb"(^|[\t ])(NaN|-?Infinity|1e999|9{400,})$", re.MULTILINE)
_LABELS = ("entailment", "neutral", "contradiction")
_RUN = (
    "train --mode unsup --train-file lines.txt --model bert --pooler avg --max-steps 2 "
    "--batch-size 4 --device cpu"
)
_EVAL = "eval sts --model bert --data-dir senteval"
_ENCODE = "encode lines.txt -o out.npy --device cpu"


@dataclass(frozen=True)
class Reader:
    """A file, what may happen to it, and a command that reads it; its other files are as they should be."""

    name: str
    file: str
    damages: tuple[Damage, ...]
    command: str
    output: str | None = None  # what the command writes
    has_digest: bool = (
        False  # in or beside the file: what is accepted gives the same as the undamaged file
    )
    ends_in_numbers: bool = False  # its lines do, and the numbers have to be finite


_STS = "senteval/downstream/STS"
_SICK = "senteval/downstream/SICK"
_YEAR = f"{_EVAL} --tasks STS12 --format json"
_GLOVE = "--vectors glove.txt --data-dir senteval --format json"
_COUNTS = f"eval sts {_GLOVE} --tasks STS12 --sif-counts counts.txt"
_PAIRS = "--sentences pairs.txt --pair-file pairs.tsv --format json"
_VECTORS = f"--embeddings vectors.npy {_PAIRS}"
_SEARCH = "analyze retrieval --query rain --format json"
_CORPUS = "analyze retrieval --model bert --corpus lines.txt --format json"
_ROWS = "encode rows.jsonl -o out.npy --model bert --column anchor"
_TRANSFER = f"eval transfer {_GLOVE} --tasks SST2 --protocol fast --no-cache"
_WHITENED = f"{_ENCODE} --model bert --postprocess whitening.safetensors"
_MODERN = f"{_ENCODE} --model modern --pooler avg"
_TRAIN_ROWS = _RUN.replace("lines.txt", "rows.csv")

READERS = (
    Reader("text", "lines.txt", LINES, f"{_ENCODE} --model bert", "out.npy"),
    Reader("gzip", "lines.txt.gz", ANY, "encode lines.txt.gz -o out.npy --model bert", "out.npy"),
    Reader("csv", "rows.csv", LINES, "prepare pairs rows.csv -o out.tsv", "out.tsv"),
    Reader("csv of training", "rows.csv", LINES, f"{_TRAIN_ROWS} -o out --dry-run"),
    Reader("tsv", "rows.tsv", LINES, "prepare pairs rows.tsv -o out.csv", "out.csv"),
    Reader("jsonl", "rows.jsonl", JSON, "prepare pairs rows.jsonl -o out.csv", "out.csv"),
    Reader("jsonl to encode", "rows.jsonl", JSON, _ROWS, "out.npy"),
    Reader("parquet", "rows.parquet", ANY, "prepare sentences rows.parquet -o out.txt", "out.txt"),
    Reader("nli jsonl", "nli.jsonl", JSON, "prepare nli nli.jsonl -o out.csv", "out.csv"),
    Reader("nli senteval", "nli/labels.dev", LINES, "prepare nli nli -o out.csv", "out.csv"),
    Reader("documents", "lines.txt", LINES, "prepare neighbours lines.txt -o out.csv", "out.csv"),
    Reader(
        "augment", "rows.jsonl", JSON, "augment rows.jsonl -o out.csv --method delete", "out.csv"
    ),
    Reader("sts pairs", f"{_STS}/STS12-en-test/STS.input.MSRpar.txt", LINES, _YEAR),
    Reader(
        "sts gold", f"{_STS}/STS12-en-test/STS.gs.MSRpar.txt", LINES, _YEAR, ends_in_numbers=True
    ),
    Reader(
        "sts-b", f"{_STS}/STSBenchmark/sts-dev.csv", LINES, f"{_EVAL} --split dev --format json"
    ),
    Reader("sick", f"{_SICK}/SICK_test_annotated.txt", LINES, f"{_EVAL} --tasks SICKRelatedness"),
    Reader(
        "senteval check", f"{_SICK}/SICK_train.txt", LINES, "prepare senteval --data-dir senteval"
    ),
    Reader("transfer", "senteval/downstream/SST/binary/sentiment-dev", LINES, _TRANSFER),
    Reader("glove", "glove.txt", LINES, f"eval sts {_GLOVE} --tasks STS12"),
    Reader("sif counts", "counts.txt", LINES, _COUNTS, ends_in_numbers=True),
    Reader("npy", "vectors.npy", ARRAYS, f"analyze spectrum {_VECTORS}"),
    Reader("npz", "vectors.npz", ARRAYS, f"analyze geometry --embeddings vectors.npz {_PAIRS}"),
    Reader(
        "tensors",
        "vectors.safetensors",
        ARRAYS,
        f"analyze density --embeddings vectors.safetensors {_PAIRS}",
    ),
    Reader("pair file", "pairs.tsv", LINES, f"analyze density {_VECTORS}", ends_in_numbers=True),
    Reader(
        "corpus vectors", "corpus.npy", ARRAYS, f"{_CORPUS} --embeddings corpus.npy --query rain"
    ),
    Reader(
        "shard",
        "shards.shard-2-of-2.npy",
        ARRAYS,
        "encode --merge shards.npy",
        "shards.npy",
        has_digest=True,
    ),
    Reader(
        "index",
        "index.safetensors",
        ARRAYS,
        f"{_SEARCH} --index index.safetensors",
        has_digest=True,
    ),
    Reader(
        "faiss index",
        "faiss.safetensors",
        ARRAYS,
        f"{_SEARCH} --index faiss.safetensors",
        has_digest=True,
    ),
    Reader("judgements", "qrels.tsv", LINES, f"{_CORPUS} --queries lines.txt --qrels qrels.tsv"),
    Reader("recipe", "recipe.yaml", LINES, f"{_RUN} -o out --config recipe.yaml --dry-run"),
    Reader(
        "settings",
        "settings.yaml",
        LINES,
        "encode lines.txt -o out.npy --config settings.yaml",
        "out.npy",
    ),
    Reader(
        "own table",
        "table.yaml",
        LINES,
        "compare sts.json --against table.yaml --row mine --format json",
    ),
    Reader("run record", "run/run.json", JSON, "compare run sts.json --format json"),
    Reader("metrics", "run/metrics.jsonl", JSON, "analyze trace run --format json"),
    Reader("metrics to compare", "run/metrics.jsonl", JSON, "compare run sts.json --format json"),
    Reader("result", "sts.json", JSON, "compare sts.json other.json --format json"),
    Reader("saved scores", "sts.pairs.jsonl", JSON, "compare sts.json other.json --format json"),
    Reader("config", "bert/config.json", JSON, f"{_ENCODE} --model bert", "out.npy"),
    Reader("config in full", "modern/config.json", JSON, _MODERN, "out.npy"),
    Reader("tokenizer", "bert/tokenizer.json", JSON, f"{_ENCODE} --model bert", "out.npy"),
    Reader(
        "tokenizer config", "bert/tokenizer_config.json", JSON, f"{_ENCODE} --model bert", "out.npy"
    ),
    Reader("weights", "bert/model.safetensors", ARRAYS, f"{_ENCODE} --model bert", "out.npy"),
    Reader("weights in full", "modern/model.safetensors", ARRAYS, _MODERN, "out.npy"),
    Reader("record of a model", "run/model/simcse.json", JSON, f"{_ENCODE} --model run", "out.npy"),
    Reader("modules", "st/modules.json", JSON, f"{_ENCODE} --model st", "out.npy"),
    Reader("pooling", "st/1_Pooling/config.json", JSON, f"{_ENCODE} --model st", "out.npy"),
    Reader("length", "st/sentence_bert_config.json", JSON, f"{_ENCODE} --model st", "out.npy"),
    Reader(
        "post-processor", "whitening.safetensors", ARRAYS, _WHITENED, "out.npy", has_digest=True
    ),
)


def build(bench: Workbench) -> Path:
    """Return a folder with the valid files that the commands read, made once."""
    if bench.good is not None:
        return bench.good
    for name in ("BertModel", "ModernBertModel", "BertTokenizer", "AutoModel", "AutoTokenizer"):
        getattr(transformers, name)  # imported on first use, here rather than in each fork
    bench.good = folder = bench.folder / "good"
    folder.mkdir()
    bench.call(partial(write_inputs, bench.model, folder))
    for command in (
        "prepare pairs rows.jsonl -o rows.csv",
        "prepare pairs rows.jsonl -o rows.tsv",
        "prepare sentences lines.txt -o lines.txt.gz",
        f"{_RUN} -o run --eval-every 1 --dev-file senteval/downstream/STS/STSBenchmark/sts-dev.csv",
        f"{_EVAL} -o sts.json --save-scores sts.pairs.jsonl",
        f"{_EVAL} -o other.json --save-scores other.pairs.jsonl --pooler cls_before_pooler",
        f"{_EVAL} --tasks STS12 --postprocess whitening --fit lines.txt --save-postprocess "
        "whitening.safetensors",
        "encode lines.txt -o corpus.npy --model bert --index index.safetensors",
        "encode lines.txt -o shards.npy --model bert --shard 1/2",
        "encode lines.txt -o shards.npy --model bert --shard 2/2",
        "analyze retrieval --model bert --corpus lines.txt --backend faiss --faiss-factory Flat "
        "--save-index faiss.safetensors",
    ):
        if (result := bench.run(*command.split(), cwd=folder)).code:
            raise RuntimeError(f"{command}: {result.error}")
    shutil.copytree(folder / "run" / "model", folder / "st")
    (folder / "st" / "simcse.json").unlink()
    return folder


def write_inputs(model: Path, folder: Path) -> None:
    """Write those that no command makes."""
    os.chdir(folder)
    shutil.copytree(model, "bert")
    build_tiny_model(Path("modern"), model_type="modernbert")
    write_sts_folder(Path("senteval"))
    write_transfer_folder(Path("senteval"))
    lines = "".join(f"{sentence}\n" + "\n" * (i % 7 == 6) for i, sentence in enumerate(SENTENCES))
    Path("lines.txt").write_text(lines)
    rows = [{"anchor": a, "positive": b} for a, b in pairwise(SENTENCES)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _write_nli()
    _write_vectors()
    _write_table()
    Path("recipe.yaml").write_text(
        "# a recipe\nlr: 3.0e-5\nbatch_size: 4\ntemperature: 0.05\nseed: 7\n"
    )
    Path("settings.yaml").write_text(
        "model: bert\nmax-length: 20\nnormalize: true\ndtype: float16\n"
    )


def _write_nli() -> None:
    Path("nli").mkdir()
    pairs = [(a, b, _LABELS[i % 3]) for i, (a, b) in enumerate(pairwise(SENTENCES))]
    keys = ("sentence1", "sentence2", "gold_label")
    Path("nli.jsonl").write_text(
        "".join(json.dumps(dict(zip(keys, pair, strict=True))) + "\n" for pair in pairs)
    )
    for name, column in zip(
        ("s1.dev", "s2.dev", "labels.dev"), zip(*pairs, strict=True), strict=True
    ):
        Path("nli", name).write_text("".join(f"{cell}\n" for cell in column))


def _write_vectors() -> None:
    rng = np.random.default_rng(0)
    pyarrow.parquet.write_table(
        pyarrow.table({"text": list(SENTENCES), "number": list(range(len(SENTENCES)))}),
        "rows.parquet",
    )
    words = sorted(
        {word for sentence in SENTENCES for word in (*sentence.split(), *sentence.lower().split())}
    )
    words += ["good", "bad", "fine", "poor", *(f"w{i}" for i in range(30))]
    vectors = rng.normal(size=(len(words), 8))
    lines = (
        f"{word} {' '.join(f'{value:.4f}' for value in row)}\n"
        for word, row in zip(words, vectors, strict=True)
    )
    Path("glove.txt").write_text("".join(lines))
    Path("counts.txt").write_text("".join(f"{word} {i + 1}\n" for i, word in enumerate(words)))
    Path("pairs.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    pairs = zip(SENTENCES[::2], SENTENCES[1::2], (5.0, 4.5, 1.0, 2.0) * 3, strict=True)
    rows = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in pairs)
    Path("pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + rows)
    matrix = rng.normal(size=(len(SENTENCES), 16)).astype(np.float32)
    np.save("vectors.npy", matrix)
    np.savez("vectors.npz", vectors=matrix)
    save_file({"vectors": matrix}, "vectors.safetensors")
    Path("qrels.tsv").write_text("".join(f"{i}\t0\t{i + 1}\t1\n" for i in range(1, 20)))


def _write_table() -> None:
    table = {
        "id": "mine.1",
        "source": "somebody 2020",
        "label": "Table 1",
        "title": "Scores",
        "columns": ["STS12"],
    }
    table |= {
        "measures": ["STS12"],
        "rows": [{"name": "mine", "values": [60.0], "settings": {"pooler": "avg"}}],
    }
    Path("table.yaml").write_text(yaml.safe_dump(table, sort_keys=False))


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each reader in turn, another damage each time, without end."""
    good = build(bench)
    while True:
        for reader in rng.sample(READERS, len(READERS)):
            seed = rng.randrange(1 << 32)
            yield f"{reader.name}, seed {seed}", partial(damaged, bench, good, reader, seed)


def damage(reader: Reader, good: Path, rng: Random) -> bytes:
    """Return the file of a reader after one of the things that may happen to it."""
    data = (good / reader.file).read_bytes()
    try:
        return rng.choice(reader.damages)(rng, data)
    except (ValueError, KeyError, IndexError, TypeError):  # this damage is not for this file
        return data[: len(data) // 2]


def damaged(bench: Workbench, good: Path, reader: Reader, seed: int) -> None:
    """Run the command of a reader on a damaged file and report what is wrong with how it took it."""
    data = damage(reader, good, Random(seed))
    folder = copy_of(bench, good)
    (folder / reader.file).unlink()
    (folder / reader.file).write_bytes(data)
    before = set(folder.rglob("*"))
    result = bench.run(*reader.command.split(), cwd=folder)
    if result.code:
        _judge_error(
            bench,
            result,
            sorted(str(path.relative_to(folder)) for path in {*folder.rglob("*")} - before),
        )
        return
    if reader.ends_in_numbers and _NOT_FINITE.search(data):
        bench.report("wrong successes", "a number that is not finite")
    try:
        if reader.output == "out.npy" and not np.isfinite(np.load(folder / "out.npy")).all():
            bench.report("wrong successes", "vectors that are not finite")
        elif reader.output is not None and not (folder / reader.output).is_file():
            bench.report("wrong successes", f"no {reader.output}")
        if "--format json" in reader.command:
            json.loads(result.stdout, parse_constant=int)
        if reader.has_digest:
            whole = copy_of(bench, good)
            right = bench.run(*reader.command.split(), cwd=whole)
            made = [
                (each / reader.output).read_bytes() if reader.output else b""
                for each in (folder, whole)
            ]
            if result.stdout != right.stdout or made[0] != made[1]:
                bench.report("wrong successes", "another result than that of the undamaged file")
    except ValueError as error:
        bench.report("wrong successes", f"output that cannot be read: {error}")


def copy_of(bench: Workbench, good: Path) -> Path:
    folder = bench.new_folder() / "work"
    shutil.copytree(good, folder, copy_function=os.link)
    return folder


def _judge_error(bench: Workbench, result: Result, left: list[str]) -> None:
    if result.code not in (1, 2) or "rror" not in result.stderr:
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    if any(sign in result.stderr for sign in ("\x1b", "\x07", "\u202e")):
        bench.report("wrong errors", f"a terminal would obey {result.error!r}")
    left = [name for name in left if ".part" not in name]  # what can be continued
    if left:
        bench.report("left files", f"{', '.join(left)} ({result.error})")
