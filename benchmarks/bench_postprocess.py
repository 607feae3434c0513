"""Alignment, uniformity and STS-B before and after post-processing, on the first-last average of a model.

    python benchmarks/bench_postprocess.py --data-dir DIR [--model minilm] [--nli-sample 3000]

DIR holds a SentEval folder and NLI files (docs/postprocess.md). Prints a Markdown table; the numbers of
docs/postprocess.md come from it. Vectors are cached, so that an interrupted run goes on where it stopped.
"""

import argparse
import functools
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.geometry import alignment, uniformity
from simcse_cli.analysis.rated_pairs import read_whole_stsb
from simcse_cli.console import Console
from simcse_cli.evaluation.embedding_cache import EvaluationCache, default_cache_dir
from simcse_cli.evaluation.fitting import (
    Example,
    fit_postprocessor,
    nli_examples,
    remembering,
    sample_examples,
    target_examples,
)
from simcse_cli.evaluation.sts import evaluate_sts
from simcse_cli.evaluation.types import Encode
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.names import Pooler, Postprocess
from simcse_cli.postprocess.registry import create

PART = 2048
METHODS: list[tuple[str, Postprocess, dict[str, int]]] = [
    ("whitening", Postprocess.WHITENING, {}),
    ("whitening, k = 256", Postprocess.WHITENING, {"k": 256}),
    ("flow", Postprocess.FLOW, {}),
    ("all-but-the-top", Postprocess.ALL_BUT_THE_TOP, {}),
    ("sif component removal", Postprocess.SIF, {}),
]


def cached_in_parts(encode: Encode, digest: str) -> Encode:
    """Return an encode function that keeps its vectors on disk, 2,048 sentences a file."""
    cache = EvaluationCache(default_cache_dir(), digest)

    def in_parts(sentences: Sequence[str]) -> NDArray[np.float32]:
        starts = range(0, len(sentences), PART)
        return np.concatenate([cache.embed("bench", sentences[i : i + PART], encode) for i in starts])

    return in_parts


def measure(encode: Encode, data_dir: Path) -> tuple[float, float, float]:
    """Return alignment of pairs rated above 4, uniformity of all sentences, Spearman on STS-B test."""
    pairs = read_whole_stsb(data_dir)
    left, right = encode(pairs.left), encode(pairs.right)
    similar = pairs.gold > 4
    score = evaluate_sts(encode, data_dir, tasks=["STSBenchmark"]).average
    assert score is not None
    return (
        alignment(left[similar], right[similar]),
        uniformity(np.concatenate([left, right])),
        score,
    )


def row(name: str, fit: str, values: tuple[float, float, float], seconds: float | None) -> str:
    """Return one Markdown row."""
    align, uniform, score = values
    time_cell = "–" if seconds is None else f"{seconds:.1f}"
    return f"| {name} | {fit} | {align:.3f} | {uniform:.3f} | {100 * score:.2f} | {time_cell} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--nli-sample", type=int, default=None)
    arguments = parser.parse_args()
    console = Console()
    encoder = load_encoder(arguments.model, pooler=Pooler.AVG_FIRST_LAST, force_pooler=True)
    encode = remembering(cached_in_parts(functools.partial(encoder.encode, progress=console), encoder.digest))
    sources: dict[str, list[Example]] = {
        "target": target_examples(arguments.data_dir, "STSBenchmark"),
        "nli": sample_examples(nli_examples(arguments.data_dir, console), arguments.nli_sample, seed=42),
    }
    print("| method | fitted on | alignment | uniformity | STS-B | fit, s |\n|---|---|---:|---:|---:|---:|")
    print(row("none", "–", measure(encode, arguments.data_dir), None), flush=True)
    for source, examples in sources.items():
        encode([sentence for example in examples for sentence in example])
        for name, kind, settings in METHODS:
            started = time.perf_counter()
            fitted = fit_postprocessor(
                create(kind, **settings),
                encode,
                examples,
                encoder=encoder.name,
                encoder_digest="",
                source=source,
            )
            seconds = time.perf_counter() - started

            def processed(sentences, fitted=fitted):  # type: ignore[no-untyped-def]
                return fitted.apply(encode(sentences))

            print(row(name, source, measure(processed, arguments.data_dir), seconds), flush=True)


if __name__ == "__main__":
    main()
