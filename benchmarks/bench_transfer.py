"""Time the batched transfer probe against the plain per-fold loop, on the same vectors, in alternating runs.

Usage: python benchmarks/bench_transfer.py --data-dir DIR [--model minilm] [--tasks CR,TREC] [--repeats 3]

Sentences are encoded first and kept in the evaluation cache; only the classifier is timed. Both sides must
find the same accuracies and weight decays, or the benchmark stops. The ratio is that of the medians.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "evaluation"))
import plain_loop

from simcse_cli.data.transfer_files import TransferTask, read_transfer_task
from simcse_cli.evaluation.embedding_cache import EvaluationCache, default_cache_dir
from simcse_cli.evaluation.features import pair_features
from simcse_cli.evaluation.probe import PROBE_SETTINGS, run_probe
from simcse_cli.evaluation.transfer import outer_splits
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.names import TRANSFER_TASKS, Pooler, TransferProtocol
from simcse_cli.progress import SilentProgress

Found = tuple[float, float, tuple[float, ...]]


def batched(task: TransferTask, features: np.ndarray, protocol: str) -> Found:
    """Run the package's probe."""
    settings = PROBE_SETTINGS[TransferProtocol(protocol)]
    outer, dev_rows = outer_splits(task, settings)
    found = run_probe(features, task.labels, outer, settings, dev_rows=dev_rows, progress=SilentProgress())
    return found.dev_accuracy, found.accuracy, found.penalties


def plain(task: TransferTask, features: np.ndarray, protocol: str) -> Found:
    """Run the loop that trains one model after another."""
    sizes = {part: len(rows) for part, rows in task.parts.items()}
    if "all" in sizes:
        return plain_loop.plain_nested(features, task.labels, protocol)
    if "dev" in sizes:
        return plain_loop.plain_split(features, task.labels, sizes["train"], sizes["dev"], protocol)
    return plain_loop.plain_kfold(features, task.labels, sizes["train"], protocol)


def timed(run: Callable[[], Found], clock: str) -> tuple[float, Found]:
    """Return seconds and result of one run; the CPU clock counts all threads and not what other programs take."""
    now = time.perf_counter if clock == "wall" else time.process_time
    started = now()
    found = run()
    return now() - started, found


def same(a: Found, b: Found) -> bool:
    """Tell whether two runs found the same accuracies (to one in ten million) and weight decays."""
    return bool(np.allclose(a[:2], b[:2], atol=1e-7)) and a[2] == b[2]


def row(name: str, seconds: dict[str, float]) -> str:
    """Return the seconds of both sides and their ratio as one line."""
    plain_s, batched_s = seconds["plain"], seconds["batched"]
    return f"{name:<7}{plain_s:>10.2f}{batched_s:>11.2f}{plain_s / batched_s:>8.1f}"


def parse_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--pooler", type=Pooler, default=Pooler.AVG)
    parser.add_argument("--tasks", default=",".join(TRANSFER_TASKS))
    parser.add_argument("--protocol", choices=["fast", "default"], default="fast")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def main() -> None:
    """Print one line per task and one for the suite."""
    options = parse_arguments()
    encoder = load_encoder(options.model, pooler=options.pooler)
    cache = EvaluationCache(default_cache_dir(), f"{encoder.digest}/fp32")
    torch.set_num_threads(options.threads)
    totals = {"plain": 0.0, "batched": 0.0}
    setting = f"{options.repeats} alternating runs, {options.threads} threads, {options.clock} clock"
    print(f"{options.protocol} protocol, {setting}")
    print(f"{'task':<7}{'plain s':>10}{'batched s':>11}{'ratio':>8}{'accuracy':>10}")
    for name in options.tasks.split(","):
        task = read_transfer_task(options.data_dir, name)
        vectors = cache.embed(name, task.sentences, encoder.encode)
        n = len(task.left)
        features = pair_features(vectors[:n], vectors[n:]) if task.right else vectors
        seconds: dict[str, list[float]] = {"plain": [], "batched": []}
        for _ in range(options.repeats):
            plain_s, expected = timed(partial(plain, task, features, options.protocol), options.clock)
            batched_s, found = timed(partial(batched, task, features, options.protocol), options.clock)
            if not same(found, expected):
                sys.exit(f"{name}: batched found {found}, the plain loop {expected}")
            seconds["plain"].append(plain_s)
            seconds["batched"].append(batched_s)
        medians = {side: median(values) for side, values in seconds.items()}
        for side, value in medians.items():
            totals[side] += value
        print(f"{row(name, medians)}{100 * found[1]:>10.2f}", flush=True)
    print(row("all", totals))


if __name__ == "__main__":
    main()
