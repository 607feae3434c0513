"""Takes cases of all parts in turn until the time is over, and prints how many runs went wrong in which way.

A part is a function ``cases(bench, rng)`` that yields pairs of a name and a function; the function
runs commands on the bench, looks at what they left, and reports what is wrong with
``bench.report``. A part may yield for ever; the same seed gives the same cases.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
}
for _name in [name for name in os.environ if name.startswith("SIMCSE_")]:
    del os.environ[_name]

from soak import faults, hostile, kills, malformed, options, texts, trainings  # noqa: E402 - the environment comes first
from soak.workbench import FAILURES, Workbench  # noqa: E402

Cases = Callable[[Workbench, Random], Iterator[tuple[str, Callable[[], None]]]]

PARTS: dict[str, Cases] = {
    "kills": kills.cases,
    "faults": faults.cases,
    "malformed": malformed.cases,
    "options": options.cases,
    "texts": texts.cases,
    "hostile": hostile.cases,
    "trainings": trainings.cases,
}


def soak(
    bench: Workbench,
    *,
    parts: list[str],
    seed: int,
    seconds: float,
    show: Callable[[str], object],
    n_cases: int | None = None,
) -> None:
    """Run cases of the parts in turn, at most ``n_cases`` of each; each part draws from a generator of its own."""
    started = time.monotonic()
    queues = {part: islice(PARTS[part](bench, Random(f"{part} {seed}")), n_cases) for part in parts}
    while queues:
        for part in list(queues):
            if time.monotonic() - started >= seconds:
                return
            case = next(queues[part], None)
            if case is None:
                del queues[part]
                continue
            name, run = case
            before = len(bench.findings)
            bench.n_cases[part] += 1
            run()
            bench.end_case()
            for failure, message in bench.findings[before:]:
                show(f"{part}: {name}: {failure}: {message}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        bench = Workbench(Path(folder))
        soak(
            bench,
            parts=options.parts.split(","),
            seed=options.seed,
            seconds=options.seconds,
            show=lambda line: sys.stdout.write(line + "\n") and sys.stdout.flush(),
        )
    cases = ", ".join(f"{part} {count:,}" for part, count in bench.n_cases.items())
    lines = [
        f"seed {options.seed}, {options.seconds:.0f} s",
        f"cases: {cases}",
        f"runs: {bench.n_runs:,}",
    ]
    lines += [f"runs of {name}: {count:,}" for name, count in sorted(bench.n_by_command.items())]
    lines += [f"{failure}: {bench.count(failure):,}" for failure in FAILURES]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if bench.findings else 0
