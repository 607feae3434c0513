"""Files made by somebody who means harm: nothing of them is run, looked up, or obeyed by a terminal, no memory filled.

Every payload creates the file that the variable ``SOAK_CANARY`` names, which the workbench looks
for after each run.
"""

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load_file, save_file

from helpers import SENTENCES
from soak.workbench import Result, Workbench

PAYLOAD = "import os; os.close(os.open(os.environ['SOAK_CANARY'], os.O_CREAT | os.O_WRONLY))"
ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eevil"
ENCODE = ("encode", "in.txt", "-o", "out.npy", "--model", "model", "--pooler", "avg")
Attack = Callable[[Path, Random], tuple[object, ...]]
"""Prepares a folder that holds ``model`` and ``in.txt``; returns the command that falls into it."""


class _Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (exec, (PAYLOAD,))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def pickled_weights(folder: Path, rng: Random) -> tuple[object, ...]:
    (folder / "model" / "model.safetensors").unlink()
    bomb = pickle.dumps(
        {"embeddings.word_embeddings.weight": _Bomb()}, protocol=rng.choice((0, 2, 4))
    )
    target = folder / "model" / rng.choice(("pytorch_model.bin", "model.safetensors"))
    if rng.random() < 0.5:
        target.write_bytes(bomb)
    else:
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("archive/data.pkl", bomb)
            archive.writestr("archive/version", "3\n")
    return ENCODE


def pickled_arrays(folder: Path, rng: Random) -> tuple[object, ...]:
    bomb = np.array([_Bomb()] * len(SENTENCES), dtype=object)
    name = rng.choice(("v.npy", "v.npz"))
    with (folder / name).open("wb") as stream:
        np.save(stream, bomb, allow_pickle=True) if name == "v.npy" else np.savez(
            stream, v=bomb, allow_pickle=True
        )
    (folder / "p.tsv").write_text(
        f"sentence1\tsentence2\tscore\n{SENTENCES[0]}\t{SENTENCES[1]}\t5\n"
    )
    return (
        "analyze",
        "density",
        "--embeddings",
        name,
        "--sentences",
        "in.txt",
        "--pair-file",
        "p.tsv",
    )


def pickled_word_encoder(folder: Path, rng: Random) -> tuple[object, ...]:
    name = rng.choice(("infersent.pkl", "infersent.pt", "infersent.bin"))
    (folder / name).write_bytes(pickle.dumps({"enc_lstm.weight_ih_l0": _Bomb()}))
    (folder / "glove.txt").write_text("rain 0.1 0.2\nsun 0.3 0.4\n")
    return ("eval", "sts", "--vectors", "glove.txt", "--bilstm", name)


def remote_code(folder: Path, rng: Random) -> tuple[object, ...]:
    model = folder / "model"
    for name in ("configuration_x", "modeling_x", "tokenization_x"):
        (model / f"{name}.py").write_text(f"{PAYLOAD}\nclass X: pass\n")
    remote = {
        "AutoConfig": "configuration_x.X",
        "AutoModel": "modeling_x.X",
        "AutoTokenizer": ["tokenization_x.X"] * 2,
    }
    change(model / "config.json", auto_map=remote, model_type=rng.choice(("bert", "x")))
    change(
        model / "tokenizer_config.json",
        auto_map=remote,
        tokenizer_class=rng.choice(("X", "BertTokenizer")),
    )
    return ENCODE


def own_modules(folder: Path, rng: Random) -> tuple[object, ...]:
    model = folder / "model"
    (model / "evil.py").write_text(f"{PAYLOAD}\nclass Pooling: pass\n")
    (folder / "evil.py").write_text(PAYLOAD)
    kind = rng.choice(
        ("evil.Pooling", "evil.Evil", "os.system", "sentence_transformers.models.Transformer")
    )
    path = rng.choice(("", "../evil", "/etc", "..\\x", "a" * 300, "\0"))
    (model / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": path, "type": kind}])
    )
    return ENCODE[:-2]


def outside_shards(folder: Path, rng: Random) -> tuple[object, ...]:
    model, name = folder / "model", "stolen.safetensors"
    (model / "model.safetensors").rename(folder / name)
    outside = rng.choice((f"../{name}", str(folder / name), f"x/../../{name}"))
    weights = dict.fromkeys(load_file(folder / name), outside)
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weights})
    )
    return ENCODE


def devices_as_files(folder: Path, rng: Random) -> tuple[object, ...]:
    target = (
        folder
        / "model"
        / rng.choice(("config.json", "model.safetensors", "tokenizer.json", "modules.json"))
    )
    target.unlink(missing_ok=True)
    match rng.randrange(3):
        case 0:
            os.mkfifo(target)
        case 1:
            target.symlink_to("/dev/zero")
        case _:
            target.symlink_to(target.name)
    return ENCODE


def absurd_sizes(folder: Path, rng: Random) -> tuple[object, ...]:
    keys = (
        "num_hidden_layers",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
    )
    change(
        folder / "model" / "config.json", **{rng.choice(keys): rng.choice((10**9, 10**12, 10**30))}
    )
    if rng.random() < 0.5:  # not the plain model that is opened without transformers
        change(
            folder / "model" / "config.json",
            model_type=rng.choice(("electra", "modernbert", "albert")),
        )
    return ENCODE


def absurd_tensors(folder: Path, rng: Random) -> tuple[object, ...]:
    header = {
        "x": {"dtype": "F32", "shape": [2**40, 2**10], "data_offsets": [0, rng.choice((8, 2**62))]}
    }
    text = json.dumps(header).encode()
    length = rng.choice((len(text), 2**60))
    (folder / "model" / "model.safetensors").write_bytes(
        length.to_bytes(8, "little") + text + b"\0" * 8
    )
    return ENCODE


def kernels_of_the_hub(folder: Path, rng: Random) -> tuple[object, ...]:
    kernel = rng.choice(
        ("somebody/kernel", "kernels-community/flash-attn", "flash_attention_2", "../evil")
    )
    change(
        folder / "model" / "config.json", attn_implementation=kernel, _attn_implementation=kernel
    )
    return ENCODE


def index_of_the_hub(folder: Path, rng: Random) -> tuple[object, ...]:
    info = {
        "format": "simcse-index-1",
        "model": rng.choice(("somebody/model", "bert-base", "hf://x")),
        "pooler": "avg",
    }
    texts = {
        "text": np.frombuffer(b"ab", dtype=np.uint8),
        "text_ends": np.array([1, 2], dtype=np.int64),
    }
    save_file(
        {"vectors": np.eye(2, 32, dtype=np.float32), **texts}, folder / "i.idx", metadata=info
    )
    return ("analyze", "retrieval", "--index", "i.idx", "--query", "rain")


def foreign_faiss(folder: Path, rng: Random) -> tuple[object, ...]:
    texts = {
        "text": np.frombuffer(b"ab", dtype=np.uint8),
        "text_ends": np.array([1, 2], dtype=np.int64),
    }
    tensors = {"faiss": np.frombuffer(b"IxF2" + rng.randbytes(200), dtype=np.uint8), **texts}
    save_file(tensors, folder / "i.idx", metadata={"format": "simcse-index-1", "model": "model"})
    return ("analyze", "retrieval", "--index", "i.idx", "--query", "rain", "--model", "model")


def yaml_tags(folder: Path, rng: Random) -> tuple[object, ...]:
    tag = rng.choice(
        ("!!python/object/apply:exec", "!!python/object/new:exec", "!!python/name:os.system")
    )
    lines = "\n".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(12))
    text = rng.choice(
        (
            f'model: {tag} ["{PAYLOAD}"]\n',
            f"a0: &a0 lol\n{lines}\nmodel: *a12\n",
            "model: &x [*x]\n",
        )
    )
    (folder / "s.yaml").write_text(text)
    return (*ENCODE[:4], "--config", "s.yaml")


def modules_beside(folder: Path, rng: Random) -> tuple[object, ...]:
    for name in ("yaml", "torch", "numpy", "simcse_cli", "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(PAYLOAD)
    steps = ("--max-steps", "1", "--batch-size", "4", "--device", "cpu")
    model = ("--model", "model", "--pooler", "avg")
    return ("train", "--train-file", "in.txt", *model, *steps, "-o", "run", "--num-processes", "2")


def escapes_in_names(folder: Path, rng: Random) -> tuple[object, ...]:
    name = f"in{ESCAPES}.{rng.choice(('txt', 'jsonl', 'csv', 'npy'))}"
    (folder / name).write_text(f"{ESCAPES}\x00")
    words = (
        ("encode", name, "-o", "out.npy"),
        ("eval", "sts", "--data-dir", name),
        ("compare", name),
    )
    return (*rng.choice(words[:2]), "--model", "model") if rng.random() < 0.7 else words[2]


def escapes_in_sentences(folder: Path, rng: Random) -> tuple[object, ...]:
    (folder / "in.txt").write_text("".join(f"{sentence} {ESCAPES}\n" for sentence in SENTENCES))
    search = (
        "analyze",
        "retrieval",
        "--model",
        "model",
        "--corpus",
        "in.txt",
        "--query",
        f"rain{ESCAPES}",
    )
    preview = ("augment", "in.txt", "--method", "delete", "--preview", "3")
    return search if rng.random() < 0.6 else preview


ATTACKS: tuple[Attack, ...] = (
    *(
        pickled_weights,
        pickled_arrays,
        pickled_word_encoder,
        remote_code,
        own_modules,
        outside_shards,
    ),
    *(
        devices_as_files,
        absurd_sizes,
        absurd_tensors,
        kernels_of_the_hub,
        index_of_the_hub,
        foreign_faiss,
    ),
    *(yaml_tags, escapes_in_names, escapes_in_sentences),
)
SLOW: tuple[Attack, ...] = (modules_beside,)
HARMLESS = {kernels_of_the_hub, modules_beside, escapes_in_sentences}
"""Those that the command may succeed on, since it passes over them."""
EITHER = {remote_code, own_modules, devices_as_files}


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each attack in turn, without end; slow ones every tenth time."""
    for turn in range(1 << 40):
        for attack in rng.sample(ATTACKS, len(ATTACKS)) + list(SLOW if turn % 10 == 0 else ()):
            seed = rng.randrange(1 << 32)
            yield f"{attack.__name__}, seed {seed}", partial(attacked, bench, attack, seed)


def attacked(bench: Workbench, attack: Attack, seed: int) -> None:
    """Run the command that falls into an attack, and report what it did besides refusing it."""
    folder = bench.new_folder()
    shutil.copytree(bench.model, folder / "model")
    shutil.copy(bench.folder / "in.txt", folder)
    command = attack(folder, Random(seed))
    result = bench.run(*command, cwd=folder)
    _judge(bench, attack, result)


def _judge(bench: Workbench, attack: Attack, result: Result) -> None:
    if result.code == 0 and attack not in HARMLESS | EITHER:
        bench.report("wrong successes", attack.__name__)
    is_refused = result.code in (1, 2) and "rror" in result.stderr and attack not in HARMLESS
    if result.code and not is_refused:
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    shown = result.stderr + result.stdout
    if any(sign in shown for sign in ("\x1b", "\x07", "\x9b", "\u202e")):
        bench.report("executions", f"a terminal would obey {shown[-300:]!r}")
