"""The batched transfer probe against the plain per-fold loop, on the same vectors, in alternating runs.

    python benchmarks/bench_transfer.py [--tasks CR,TREC] [--protocol fast] [--rounds 3] [--json
    FILE]

Sentences are encoded first and kept in the evaluation cache; only the classifier is timed. Both
sides must find the same accuracies and weight decays, or the benchmark stops. The ratio is that of
the medians.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "evaluation"))
import plain_loop

from measure import Timing, alternate, arguments, data_dir, machine, report
from simcse_cli.data.transfer_files import TransferTask, read_transfer_task
from simcse_cli.evaluation.embedding_cache import EvaluationCache, default_cache_dir
from simcse_cli.evaluation.linear import difference_and_product
from simcse_cli.evaluation.probe import PROBE_SETTINGS, run_probe
from simcse_cli.evaluation.transfer import outer_splits
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import TRANSFER_TASKS, Pooler, TransferProtocol

Found = tuple[float, float, tuple[float, ...]]


def batched(task: TransferTask, features: np.ndarray, protocol: str) -> Found:
    """Run the package's probe."""
    settings = PROBE_SETTINGS[TransferProtocol(protocol)]
    outer, dev_rows = outer_splits(task, settings)
    found = run_probe(
        features, task.labels, outer, settings, dev_rows=dev_rows, progress=SilentProgress()
    )
    return found.dev_accuracy, found.accuracy, found.penalties


def plain(task: TransferTask, features: np.ndarray, protocol: str) -> Found:
    """Run the loop that trains one model after another."""
    sizes = {part: len(rows) for part, rows in task.parts.items()}
    if "all" in sizes:
        return plain_loop.plain_nested(features, task.labels, protocol)
    if "dev" in sizes:
        return plain_loop.plain_split(features, task.labels, sizes["train"], sizes["dev"], protocol)
    return plain_loop.plain_kfold(features, task.labels, sizes["train"], protocol)


def same(a: Found, b: Found) -> bool:
    """Tell whether two runs found the same accuracies (to one in ten million) and weight decays."""
    return bool(np.allclose(a[:2], b[:2], atol=1e-7)) and a[2] == b[2]


def compared(
    task: TransferTask, features: np.ndarray, protocol: str, rounds: int
) -> tuple[dict[str, Timing], Found]:
    """Return the times of both sides and what they found; stop if it differs."""
    results: dict[str, Found] = {}

    def run(side: str, probe: Callable[[TransferTask, np.ndarray, str], Found]) -> None:
        results[side] = probe(task, features, protocol)

    sides = {"plain": partial(run, "plain", plain), "batched": partial(run, "batched", batched)}
    timings = alternate(sides, rounds, warm_up=False)
    if not same(results["batched"], results["plain"]):
        sys.exit(
            f"{task.name}: batched found {results['batched']}, the plain loop {results['plain']}"
        )
    return timings, results["batched"]


def row(name: str, plain_s: float, batched_s: float, accuracy: float | None) -> dict[str, Any]:
    """Return one line of the table."""
    return {
        "task": name,
        "plain loop, s": plain_s,
        "side by side, s": batched_s,
        "ratio": plain_s / batched_s,
        "accuracy x100": None if accuracy is None else 100 * accuracy,
    }


def main() -> None:
    """Measure and print a row for each task and one for the suite."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--pooler", type=Pooler, default=Pooler.AVG)
    parser.add_argument("--tasks", default=",".join(TRANSFER_TASKS))
    parser.add_argument("--protocol", choices=["fast", "default"], default="fast")
    options = parser.parse_args()
    encoder = load_encoder(options.model, pooler=options.pooler)
    cache = EvaluationCache(default_cache_dir(), f"{ReadyEncoder(encoder).digest}/fp32")
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.tasks.split(","):
        task = read_transfer_task(data_dir() / "senteval", name)
        vectors = cache.embed(name, task.sentences, ReadyEncoder(encoder).encode)
        n = len(task.left)
        features = difference_and_product(vectors[:n], vectors[n:]) if task.right else vectors
        timings, (_, accuracy, _) = compared(task, features, options.protocol, options.rounds)
        medians = [timings[side].median(options.clock) for side in ("plain", "batched")]
        rows.append(row(name, *medians, accuracy))
        print(rows[-1], file=sys.stderr, flush=True)
    totals = [sum(r[side] for r in rows) for side in ("plain loop, s", "side by side, s")]
    rows.append(row("all", *totals, None))
    facts = {
        "protocol": options.protocol,
        "rounds": options.rounds,
        "clock": options.clock,
        **machine(),
    }
    report("Transfer suite, classifier alone", rows, facts, options.json)


if __name__ == "__main__":
    main()
