"""The constants of this kind of processor: which product, batch and attention encode fastest?

    python benchmarks/bench_constants.py --threads 1 --clock cpu --rounds 3 [--sentences 500] [--json FILE]
    python benchmarks/run.py --isa avx2 --rounds 3      # as on a processor without AVX-512

Prints sentences per second of each product (oneDNN's on prepacked weights, ``F.linear``, NumPy's)
with batches of several sizes, and for texts of one length the ratio of PyTorch's fused attention to
batched products. What was chosen from such tables is ``CPU_CONSTANTS`` in machine/devices.py.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from measure import Peaks, alternate, arguments, machine, report, types, useful_flops, wikipedia
from shapes import model_folder
from simcse_cli.machine import processor
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.packed import operators
from simcse_cli.settings.choices import Pooler

PRODUCTS = {
    "fp32": ("prepacked", "linear", "numpy"),
    "bf16": ("prepacked", "linear"),
    "int8": ("qlinear",),
}
LENGTHS = (64, 128, 192, 256, 512)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--tokens", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    parser.add_argument("--precisions", nargs="*", default=[*types("cpu"), "int8"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as work:
        measure(options, model_folder(options.model, Path(work)))


def measure(options: argparse.Namespace, folder: str) -> None:
    """Time every product, batch and attention on one model and print the table."""
    sentences = wikipedia(options.sentences)
    runs: dict[str, Callable[[], object]] = {}
    texts: dict[str, list[str]] = {}
    for precision in options.precisions:
        for product in PRODUCTS[precision]:
            encoder = load_encoder(folder, pooler=Pooler.AVG, device="cpu", precision=precision)
            with patch.object(operators, "product_in", lambda *_, chosen=product: chosen):
                encoder.prepare()
            for tokens in options.tokens:
                name = f"{precision}, {product}, {tokens} tokens"
                texts[name] = sentences
                runs[name] = lambda model=encoder, size=tokens: encode(
                    model, sentences, batch_tokens=size
                )
        encoder = load_encoder(folder, pooler=Pooler.AVG, device="cpu", precision=precision)
        for length in LENGTHS if precision != "int8" else ():
            for kind, start in (("batched", 1 << 30), ("fused", 1)):
                name = f"{precision}, length {length}, {kind} attention"
                texts[name] = [f"{word} " * (length - 2) for word in "abcdefghijklmnop"]
                runs[name] = lambda model=encoder, start=start, own=texts[name]: attend_from(
                    start, model, own
                )
    timings = alternate(runs, options.rounds)
    encoder = load_encoder(folder, pooler=Pooler.AVG, device="cpu")
    peaks = Peaks.measured(options.clock)
    rows: list[dict[str, Any]] = []
    for name, timing in timings.items():
        seconds = timing.median(options.clock)
        flops = useful_flops(encoder.config, [len(row) for row in encoder.tokenize(texts[name])])
        rows.append(
            {
                "setting": name,
                "sentences/s": len(texts[name]) / seconds,
                "useful GFLOP/s": flops / seconds / 1e9,
                "runs, s": " ".join(f"{run:.2f}" for run in getattr(timing, options.clock)),
            }
        )
    facts = {"kind": processor.cpu_kind(), "clock": options.clock, **peaks.facts(), **machine()}
    report("Constants", rows, facts, options.json)


def attend_from(start: int, encoder: Any, texts: list[str]) -> object:
    """Encode with PyTorch's fused attention for texts of ``start`` tokens and more."""
    kind = processor.cpu_kind()
    with patch.dict(
        processor.CPU_CONSTANTS, {kind: processor.CPU_CONSTANTS[kind]._replace(fused_from=start)}
    ):
        return encode(encoder, texts)


if __name__ == "__main__":
    main()
