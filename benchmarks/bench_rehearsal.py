"""Encode, merge and search a large input with a stand-in for the model: everything is real but the arithmetic.

    python benchmarks/bench_rehearsal.py [--rows 10000000] [--shards 16] [--files 20] [--factory
        IVF4096,Flat] [--folder FOLDER] [--json FILE]

The sentences are numbered lines in several files, and a vector is a few hashes of the CRC-32 of its
text, so that every row of the result can be computed again. Each row of the table is a process of
its own: ``simcse encode --shard`` or ``--merge``, and ``simcse analyze search``, which builds a
FAISS index of the merged vectors and then searches it on disk. Memory is the highest resident size,
of which pages of mapped files are a part: ``anonymous`` is the rest.
"""

import itertools
import json
import operator
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from measure import arguments, machine, report
from simcse_cli.analysis import retrieval
from simcse_cli.commands.app import main as simcse
from simcse_cli.encoding import text_encoder
from simcse_cli.settings.choices import Pooler

DIM = 8
FACTORS = np.arange(1, 2 * DIM, 2, dtype=np.uint32) * np.uint32(2654435761)
BLOCK = 1 << 20
N_QUERIES = 1000


def vectors(texts: Sequence[str], **_: Any) -> NDArray[np.float32]:
    """Return the vectors of texts, components from -1 to 1."""
    keys = np.fromiter((zlib.crc32(text.encode()) for text in texts), np.uint32, len(texts))
    mixed = keys[:, None] * FACTORS
    for _ in range(2):  # without it, the vectors would lie on a few lines
        mixed = (mixed ^ (mixed >> 15)) * np.uint32(0x2C1B3C6D)
    return (mixed / 2.0**31 - 1).astype(np.float32)


def run_with_stand_in(words: list[str]) -> None:
    """Run the command with a model that only hashes."""
    facts: dict[str, Any] = {
        "name": "stand-in",
        "digest": "0" * 64,
        "pooler": Pooler.AVG,
        "variations": {},
    }
    model = SimpleNamespace(
        **facts,
        dim=DIM,
        device=torch.device("cpu"),
        encode=vectors,
        warn_unread=lambda _: None,
        query_prompt="",
        document_prompt="",
        facts=lambda _: {"model": "stand-in", "digest": "0" * 64},
        digest_with=lambda _: "0" * 64,
    )
    for module in (text_encoder, retrieval):
        module.load_for_encoding = lambda *_: model  # type: ignore[assignment, return-value]
    sys.argv[1:] = words
    simcse()


def measured(name: str, n_rows: int, *words: object) -> dict[str, Any]:
    """Run the command in a process of its own and return one line of the table."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, "--as-simcse", *map(str, words), "-q"], stdout=subprocess.DEVNULL
    )
    seen, most = Path(f"/proc/{process.pid}"), 0
    peak_kib = {"VmHWM": 0, "RssAnon": 0}  # ru_maxrss counts the process before exec
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        most = max(most, len(list((seen / "fd").iterdir())))
        for line in (seen / "status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in peak_kib:
                peak_kib[key] = max(peak_kib[key], int(value.split()[0]))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{name}: exit code {process.returncode}")
    seconds = time.perf_counter() - started
    cpu = usage.ru_utime + usage.ru_stime
    found = {
        "run": name,
        "rows": n_rows,
        "seconds": seconds,
        "cpu s/million": 1e6 * cpu / max(1, n_rows),
    }
    peak = {"peak MiB": peak_kib["VmHWM"] / 1024, "anonymous MiB": peak_kib["RssAnon"] / 1024}
    return found | peak | {"descriptors": most}


def sentence(number: int) -> str:
    """Return the text of a row."""
    return f"sentence {number}"


def write_input(folder: Path, n_rows: int, n_files: int) -> None:
    """Write the lines of the input into files of about equal length."""
    folder.mkdir()
    ends = [n_rows * number // n_files for number in range(n_files + 1)]
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        with (folder / f"{number:04}.txt").open("w", encoding="utf-8") as stream:
            for first in range(start, stop, BLOCK):
                stream.writelines(
                    f"{sentence(row)}\n" for row in range(first, min(stop, first + BLOCK))
                )


def digest_of_digests(path: Path, n_rows: int) -> str:
    """Return SHA-256 over those of blocks of rows, each compared with the vectors computed again from the texts."""
    rows, whole = np.load(path, mmap_mode="r"), sha256()
    if rows.shape != (n_rows, DIM):
        raise SystemExit(f"{path} holds {rows.shape}")
    for start in range(0, n_rows, BLOCK):
        stop = min(n_rows, start + BLOCK)
        found = sha256(np.ascontiguousarray(rows[start:stop]).data).digest()
        wanted = vectors([sentence(row) for row in range(start, stop)]).astype(np.float16)
        if found != sha256(wanted.data).digest():
            raise SystemExit(f"rows {start:,} to {stop:,} are not those of their texts")
        whole.update(found)
    return whole.hexdigest()


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument(
        "--folder", type=Path, help="where to write input and vectors; default: a temporary one"
    )
    parser.add_argument("--factory", default="IVF4096,Flat", help="the FAISS index to build")
    options = parser.parse_args()
    facts: dict[str, Any] = dict(machine())
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        source, output = Path(name) / "input", Path(name) / "vectors.npy"
        write_input(source, options.rows, options.files)
        common = (source, "-o", output, "--dtype", "float16")
        lines = []
        for number in range(1, options.shards + 1):
            shard = Path(name) / f"vectors.shard-{number}-of-{options.shards}.npy"
            line = measured(
                shard.stem, 0, "encode", *common, "--shard", f"{number}/{options.shards}"
            )
            n_rows = len(np.load(shard, mmap_mode="r"))
            lines.append(line | {"rows": n_rows, "cpu s/million": line["cpu s/million"] / n_rows})
            print(lines[-1], file=sys.stderr, flush=True)
        lines.append(measured("merge", options.rows, "encode", "--merge", output))
        facts["input GB"] = sum(path.stat().st_size for path in source.iterdir()) / 1e9
        facts["vectors GB"] = output.stat().st_size / 1e9
        facts["digest of digests"] = digest_of_digests(output, options.rows)
        index, result = Path(name) / "vectors.faiss", Path(name) / "found.json"
        built = ("--embeddings", output, "--backend", "faiss", "--faiss-factory", options.factory)
        search = ("analyze", "search", "--model", "stand-in")
        lines.append(
            measured("index", options.rows, *search, source, *built, "--save-index", index)
        )
        shutil.rmtree(source)
        facts["index GB"] = (
            sum(path.stat().st_size for path in Path(name).glob("vectors.faiss*")) / 1e9
        )
        asked = [sentence(row) for row in range(0, options.rows, -(-options.rows // N_QUERIES))]
        (Path(name) / "queries.txt").write_text(
            "".join(f"{text}\n" for text in asked), encoding="utf-8"
        )
        asking = (
            "--queries",
            Path(name) / "queries.txt",
            "--keep-identical",
            "-k",
            "1",
            "-o",
            result,
        )
        lines.append(measured("search", options.rows, *search, "--index", index, *asking))
        found = [
            each["sentence"]
            for each in json.loads(result.read_text(encoding="utf-8"))["neighbours"]
        ]
        facts["queries"] = len(asked)
        facts["found themselves"] = sum(map(operator.eq, asked, found)) / len(asked)
    report("Shards and merge", lines, facts, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-simcse"]:
        run_with_stand_in(sys.argv[2:])
    else:
        main()
