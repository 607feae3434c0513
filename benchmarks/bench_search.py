"""Exact search against FAISS: the nearest of many random vectors, in alternating runs.

    python benchmarks/bench_search.py [--rows 100000] [--queries 2048] [--k 10] [--threads 1 --clock
    cpu] [--json FILE]

Prints queries per second, the ratio to FAISS' exact index, the share of the matrix-multiply peak of
the same run, and the share of equal rows.
"""

import importlib.util
from collections.abc import Callable

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from measure import Peaks, alternate, arguments, machine, report
from simcse_cli.encoding.search_index import ExactSearcher
from simcse_cli.postprocess.unit_rows import unit_rows

WIDTH = 384


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=2048)
    parser.add_argument("--k", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    threadpool_limits(options.threads, "blas")
    generator = np.random.default_rng(0)
    # A common direction, as the vectors of an encoder have.
    units = unit_rows(
        1 + generator.standard_normal((options.rows, WIDTH), dtype=np.float32), np.float32
    )
    queries = units[generator.permutation(options.rows)[: options.queries]]
    searcher = ExactSearcher(units)
    runs: dict[str, Callable[[], np.ndarray]] = {
        "simcse": lambda: searcher.search(queries, options.k)[1]
    }
    if importlib.util.find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(options.threads)
        index = faiss.IndexFlatIP(WIDTH)
        index.add(units)
        runs["FAISS, IndexFlatIP"] = lambda: index.search(queries, options.k)[1]
    found = {name: run() for name, run in runs.items()}
    timings = alternate(runs, options.rounds, warm_up=False)
    peaks = Peaks.measured(options.clock)
    flops = 2.0 * options.rows * len(queries) * WIDTH
    medians = {name: timing.median(options.clock) for name, timing in timings.items()}
    rows = [
        {
            "setting": name,
            "queries/s": len(queries) / medians[name],
            "ratio": medians[list(runs)[-1]] / medians[name],
            "GFLOP/s": flops / medians[name] / 1e9,
            "share of a @ b": flops / medians[name] / 1e9 / peaks.plain["fp32"],
            "equal rows": float((found[name] == found["simcse"]).mean()),
            "runs, s": " ".join(f"{run:.2f}" for run in getattr(timings[name], options.clock)),
        }
        for name in runs
    ]
    facts = {"rows": options.rows, "queries": len(queries), "k": options.k, "clock": options.clock}
    report("Exact search", rows, {**facts, **peaks.facts(), **machine()}, options.json)


if __name__ == "__main__":
    main()
