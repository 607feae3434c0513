"""Start-up, growth and memory of ``simcse encode`` as a user runs it, up to a million sentences.

    python benchmarks/bench_scale.py [--largest 1000000] [--precision bf16] [--rounds 3] [--json
    FILE]

The sentences are the Flickr30k captions, repeated with one word of each changed from the second
time on. Every row is a process of its own; seconds include start-up and the time to load the model.
Rates of the largest run are those of its tenths, read from the growing partial file; memory is the
highest resident size.
"""

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measure import arguments, data_dir, machine, report

SIZES = (10, 1_000, 10_000, 100_000)
DIM, BYTES = 384, 2  # MiniLM in float16


class Run(NamedTuple):
    """What one process took."""

    seconds: float
    peak_mib: float
    progress: list[tuple[float, int]]
    """Seconds since the start and rows written by then."""


def sentences(n: int) -> Iterator[str]:
    """Yield ``n`` captions; from the second time on each has one word changed."""
    path = data_dir() / "flickr30k" / "captions.tsv"
    with path.open(encoding="utf-8", newline="") as stream:
        captions = [
            row["caption"] for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
    generator = random.Random(0)
    for i in range(n):
        words = captions[i % len(captions)].split()
        if i >= len(captions):
            words[generator.randrange(len(words))] = generator.choice(
                generator.choice(captions).split()
            )
        yield " ".join(words)


def encode(
    source: Path, options: argparse.Namespace, *, launcher: Sequence[str] = (), threads: int
) -> Run:
    """Encode a file in a process of its own and watch it."""
    output = source.with_suffix(".npy")
    command = [
        *(launcher or [sys.executable]),
        "-m",
        "simcse_cli",
        "encode",
        str(source),
        "-o",
        str(output),
    ]
    command += [
        "--model",
        options.model,
        "--precision",
        options.precision,
        "--dtype",
        "float16",
        "--force",
        "-q",
    ]
    partial = output.with_name(f"{output.name}.part")
    started = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    progress: list[tuple[float, int]] = []
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        elapsed = time.perf_counter() - started
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        if partial.exists():
            rows = partial.stat().st_size // (DIM * BYTES)
            if rows and (not progress or rows > progress[-1][1]):
                progress.append((elapsed, rows))
        time.sleep(0.02 if elapsed < 30 else 0.5)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return Run(elapsed, usage.ru_maxrss / 1024, progress)


def tenths(run: Run, n: int) -> list[float]:
    """Return the sentences per second of each tenth of a run after its first window."""
    points = run.progress
    rates = []
    for k in range(10):
        inside = [p for p in points if k * n / 10 <= p[1] <= (k + 1) * n / 10]
        (first, first_rows), (last, last_rows) = inside[0], inside[-1]
        rates.append((last_rows - first_rows) / (last - first))
    return rates


def row(name: str, n: int, runs: Sequence[Run]) -> dict[str, Any]:
    """Return one line of the table."""
    seconds = statistics.median(run.seconds for run in runs)
    return {
        "run": name,
        "sentences": n,
        "seconds": seconds,
        "sentences/s": n / seconds,
        "peak MiB": statistics.median(run.peak_mib for run in runs),
    }


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    options = parser.parse_args()
    rows, facts = [], {"precision": options.precision, **machine()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def file(n: int) -> Path:
            path = folder / f"{n}.txt"
            if not path.exists():
                path.write_text(
                    "".join(f"{sentence}\n" for sentence in sentences(n)), encoding="utf-8"
                )
            return path

        encode(file(10), options, threads=options.threads)
        for n in SIZES:
            rounds = options.rounds if n <= 10_000 else 1
            runs = [encode(file(n), options, threads=options.threads) for _ in range(rounds)]
            rows.append(row("one process", n, runs))
        if options.threads > 1:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            launcher += [
                "--nproc_per_node",
                str(options.threads),
            ]  # `accelerate launch --cpu` starts one
            many = encode(file(100_000), options, launcher=launcher, threads=1)
            rows.append(row(f"{options.threads} processes of one thread", 100_000, [many]))
        largest = encode(file(options.largest), options, threads=options.threads)
        rows.append(row("one process", options.largest, [largest]))
        rates = tenths(largest, options.largest)
        facts["sentences/s of each tenth"] = " ".join(f"{rate:.0f}" for rate in rates)
    report("Encoding at scale", rows, facts, options.json)


if __name__ == "__main__":
    main()
