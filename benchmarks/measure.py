"""What the benchmarks share: data, alternating runs, the machine's matrix-multiply peak, tables and JSON."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parent.parent


def arguments(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rounds", type=int, default=defaults.get("rounds", 5), help="alternating runs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: processor seconds, with --threads 1 the fairer clock on a machine that others use too",
    )
    parser.add_argument("--only", help="run only the contenders whose name contains this, and the baseline")
    parser.add_argument("--json", type=Path, help="also write the results here")
    return parser


def data_dir() -> Path:
    """Return the folder with real texts: ``$SIMCSE_DATA``, or ``shared/data`` beside the checkout."""
    folder = Path(os.environ.get("SIMCSE_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(f"{folder}: not there; set SIMCSE_DATA to the folder that holds wiki/ and senteval/")
    return folder


def wikipedia(n_lines: int) -> list[str]:
    """Return the first lines of the Wikipedia sentences that SimCSE was trained on."""
    path = data_dir() / "wiki" / "wiki1m_head.txt"
    return path.read_text(encoding="utf-8").splitlines()[:n_lines]


@dataclass
class Timing:
    """Seconds of each run, by both clocks; the first run of a contender is not among them."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def median(self, clock: str) -> float:
        """Return the median of one clock."""
        return statistics.median(getattr(self, clock))


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def alternate(
    contenders: Mapping[str, Callable[[], Any]], rounds: int, *, warm_up: bool = True
) -> dict[str, Timing]:
    """Run every contender once a round, in an order that rotates, so that drift hits all alike."""
    names = list(contenders)
    if warm_up:
        for name in names:
            contenders[name]()
    timings = {name: Timing() for name in names}
    for round_number in range(rounds):
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            wall, cpu = timed(contenders[name])
            timings[name].wall.append(wall)
            timings[name].cpu.append(cpu)
    return timings


def matrix_peak(dtype: torch.dtype, clock: str, size: int = 2048) -> float:
    """Return the best rate of a square product in GFLOP/s, of PyTorch's own and oneDNN's on prepacked weights.

    On AMD processors the second is ahead in float32, where MKL answers the first without AVX-512; a share of
    the peak is of the higher of the two.
    """
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(b, size)

    def rate(product: Callable[[], object]) -> float:
        product()
        seconds = min(timed(product)[clock == "cpu"] for _ in range(8))
        return 2 * size**3 / seconds / 1e9

    with torch.inference_mode():
        return max(
            rate(lambda: a @ b),
            rate(lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")),
        )


def useful_flops(config: Any, lengths: Sequence[int]) -> float:
    """Return the floating-point operations of a forward pass over real tokens, padding not counted."""
    hidden, inner = config.hidden_size, config.intermediate_size
    per_token = 2 * (4 * hidden * hidden + 2 * hidden * inner)
    attention = sum(4 * hidden * length * length for length in lengths)
    return float(config.num_hidden_layers * (per_token * sum(lengths) + attention))


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    import sentence_transformers
    import transformers

    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "load_average": os.getloadavg()[0],
    }


def report(title: str, rows: list[dict[str, Any]], facts: dict[str, Any], path: Path | None) -> None:
    """Print a Markdown table of the rows and the facts below it; write both as JSON if asked."""
    columns = list(rows[0])
    print(f"\n## {title}\n")
    print("| " + " | ".join(columns) + " |")
    print("|" + "|".join("---" if isinstance(rows[0][c], str) else "---:" for c in columns) + "|")
    for row in rows:
        print("| " + " | ".join(_cell(row.get(column)) for column in columns) + " |")
    print("\n" + ", ".join(f"{key} {_cell(value)}" for key, value in facts.items()), flush=True)
    if path is not None:
        path.write_text(json.dumps({"title": title, "facts": facts, "rows": rows}, indent=2) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
