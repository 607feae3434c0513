"""What the benchmarks share: data, alternating runs, the machine's matrix-multiply peak, tables and JSON."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from simcse_cli.machine import processor

REPOSITORY = Path(__file__).resolve().parent.parent


def arguments(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="minilm", help="also random:SHAPE, see shapes.py")
    parser.add_argument(
        "--device", default="cpu", help="where the benchmark can take one: cpu or cuda"
    )
    parser.add_argument(
        "--rounds", type=int, default=defaults.get("rounds", 5), help="alternating runs"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: processor seconds, with --threads 1 the fairer clock on a machine that others "
        "use too",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        help="run only the contenders whose names contain one of these, and the baseline",
    )
    parser.add_argument("--json", type=Path, help="also write the results here")
    return parser


def data_dir() -> Path:
    """Return the folder with real texts: ``$SIMCSE_DATA``, or ``shared/data`` beside the checkout."""
    folder = Path(os.environ.get("SIMCSE_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(
            f"{folder}: not there; set SIMCSE_DATA to the folder that holds wiki/ and senteval/"
        )
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
    peak_bytes: int | None = None  # of GPU memory that the last run took

    def median(self, clock: str) -> float:
        """Return the median of one clock."""
        return statistics.median(getattr(self, clock))


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds of a call; work that it left on a GPU counts."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    synchronize()
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


def types(device: str) -> dict[str, torch.dtype]:
    """Return the arithmetic that the device multiplies in, by name; ``--isa`` may have switched bfloat16 off."""
    has_bf16 = device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if has_bf16 else {})


def matrix_peaks(dtype: torch.dtype, clock: str, device: str = "cpu") -> tuple[float, float]:
    """Return the best rate of a square product in GFLOP/s: of ``a @ b``, and on a CPU of oneDNN on prepacked weights.

    On AMD processors the second is ahead in float32, where MKL answers the first without AVX-512.
    """
    size = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def rate(product: Callable[[], object]) -> float:
        product()
        synchronize()
        seconds = min(timed(product)[clock == "cpu"] for _ in range(8))
        return 2 * size**3 / seconds / 1e9

    with torch.inference_mode():
        plain = rate(lambda: a @ b)
        if device != "cpu":
            return plain, plain
        packed = torch.ops.mkldnn._reorder_linear_weight(b, size)
        return plain, rate(
            lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")
        )


@dataclass(frozen=True)
class Peaks:
    """The machine's limits in GFLOP/s, for each type of arithmetic."""

    plain: dict[str, float]
    best: dict[str, float]

    @classmethod
    def measured(cls, clock: str, device: str = "cpu") -> "Peaks":
        """Measure what the device multiplies in."""
        rates = {name: matrix_peaks(dtype, clock, device) for name, dtype in types(device).items()}
        return cls(
            {k: rate[0] for k, rate in rates.items()}, {k: max(rate) for k, rate in rates.items()}
        )

    def shares(self, setting: str, gflops: float) -> dict[str, float]:
        """Return a rate as shares of the limits of the arithmetic that the setting's name tells."""
        kind = "bf16" if "bf16" in setting else "fp32"
        return {
            "share of a @ b": gflops / self.plain[kind],
            "share of peak": gflops / self.best[kind],
        }

    def facts(self) -> dict[str, float]:
        """Return the limits by name."""
        facts = {f"{kind} a @ b GFLOP/s": rate for kind, rate in self.plain.items()}
        return facts | {f"{kind} peak GFLOP/s": rate for kind, rate in self.best.items()}


def useful_flops(config: Any, lengths: Sequence[int]) -> float:
    """Return the floating-point operations of a forward pass over real tokens, padding not counted."""
    hidden, inner = config.hidden_size, config.intermediate_size
    inner_products = 3 if config.model_type == "modernbert" else 2  # a gated layer has one more
    per_token = 2 * (4 * hidden * hidden + inner_products * hidden * inner)
    attention = sum(4 * hidden * length * length for length in lengths)
    return float(config.num_hidden_layers * (per_token * sum(lengths) + attention))


def capability(device: str) -> str:
    """Return what was measured on: the GPU in use, or the processor, each with the arithmetic that it has."""
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"{torch.cuda.get_device_name()}, compute {major}.{minor}"
    named = os.environ.get("SIMCSE_BENCH_ISA")
    has = f"switched down to {named}" if named else processor.capability()
    return f"{processor.hardware(torch.device('cpu'))['processor']}, {has}"


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return what the numbers depend on."""
    import sentence_transformers
    import transformers

    return {
        "capability": capability(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "load_average": os.getloadavg()[0],
    }


def report(
    title: str, rows: list[dict[str, Any]], facts: dict[str, Any], path: Path | None
) -> None:
    """Print a Markdown table of the rows and the facts below it; write both as JSON if asked."""
    columns = list(rows[0])
    print(f"\n## {title}: {facts['capability']}\n")
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
