"""Alignment, uniformity and STS-B before and after post-processing, on the first-last average of a model.

    python benchmarks/bench_postprocess.py --data-dir DIR [--model minilm] [--split test]

The maps are fitted on both sides of the pairs of the split that is measured. Prints a Markdown table; the numbers
of docs/postprocess.md come from it (--split test; --split all takes the whole of STS-B).
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.geometry import alignment, uniformity
from simcse_cli.console import Console
from simcse_cli.data.senteval import StsSubset, read_sts_task
from simcse_cli.evaluation.correlation import correlate, cosine_rows
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.names import Metric, Pooler, Postprocess
from simcse_cli.postprocess.registry import create

METHODS: list[tuple[str, Postprocess, dict[str, int]]] = [
    ("whitening", Postprocess.WHITENING, {}),
    ("whitening:256", Postprocess.WHITENING, {"k": 256}),
    ("flow", Postprocess.FLOW, {}),
    ("flow:6", Postprocess.FLOW, {"epochs": 6}),
    ("all-but-the-top", Postprocess.ALL_BUT_THE_TOP, {}),
    ("sif", Postprocess.SIF, {}),
]


def row(name: str, left: NDArray[Any], right: NDArray[Any], pairs: StsSubset) -> str:
    """Return one Markdown row: alignment of pairs rated above 4, uniformity of all sentences, Spearman."""
    similar = pairs.gold > 4
    align = alignment(left[similar], right[similar])
    uniform = uniformity(np.concatenate([left, right]))
    score = correlate(Metric.SPEARMAN, cosine_rows(left, right), pairs.gold)
    return f"| {name} | {align:.3f} | {uniform:.3f} | {100 * (score or 0):.2f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--split", choices=["train", "dev", "test", "all"], default="test")
    arguments = parser.parse_args()
    (pairs,) = read_sts_task(arguments.data_dir, "STSBenchmark", split=arguments.split).subsets.values()
    encoder = load_encoder(arguments.model, pooler=Pooler.AVG_FIRST_LAST, force_pooler=True)
    vectors = encoder.encode([*pairs.left, *pairs.right], progress=Console())
    left, right = np.split(vectors, 2)
    print("| method | alignment | uniformity | STS-B |\n|---|---:|---:|---:|")
    print(row("none", left, right, pairs), flush=True)
    for name, kind, settings in METHODS:
        processor = create(kind, **settings).fit(np.stack([left, right], axis=1))
        print(row(name, processor.transform(left), processor.transform(right), pairs), flush=True)


if __name__ == "__main__":
    main()
