"""Alignment, uniformity and STS-B before and after post-processing, on the first-last average of a model.

    python benchmarks/bench_postprocess.py [--split all] [--fit target|nli] [--model minilm] [--json
    FILE]

The maps are fitted on the pairs that are measured (``target``) or on NLI sentences, as ``eval sts
--fit`` does. The numbers of docs/postprocess.md come from it.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from measure import arguments, data_dir, machine, report
from simcse_cli.data.senteval import StsSubset, read_sts_task
from simcse_cli.evaluation.alignment import alignment, uniformity
from simcse_cli.evaluation.correlation import correlate, cosine_rows
from simcse_cli.evaluation.fit_postprocess import nli_examples
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.postprocess.registry import create
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Metric, Pooler, Postprocess

Vectors = NDArray[Any]

METHODS: list[tuple[str, Postprocess, dict[str, int]]] = [
    ("whitening", Postprocess.WHITENING, {}),
    ("whitening:256", Postprocess.WHITENING, {"k": 256}),
    ("flow", Postprocess.FLOW, {}),
    ("flow:6", Postprocess.FLOW, {"epochs": 6}),
    ("all-but-the-top", Postprocess.ALL_BUT_THE_TOP, {}),
    ("sif", Postprocess.SIF, {}),
]


def row(name: str, left: Vectors, right: Vectors, pairs: StsSubset) -> dict[str, Any]:
    """Return one line: alignment of pairs rated above 4, uniformity of all sentences, Spearman."""
    similar = pairs.gold > 4
    score = correlate(Metric.SPEARMAN, cosine_rows(left, right), pairs.gold)
    return {
        "method": name,
        "alignment": alignment(left[similar], right[similar]),
        "uniformity": uniformity(np.concatenate([left, right])),
        "STS-B": None if score is None else 100 * score,
    }


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--split", choices=["train", "dev", "test", "all"], default="all")
    parser.add_argument("--fit", choices=["target", "nli"], default="target")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = data_dir() / "senteval"
    (pairs,) = read_sts_task(folder, "STSBenchmark", split=options.split).subsets.values()
    encoder = load_encoder(options.model, pooler=Pooler.AVG_FIRST_LAST, force_pooler=True)
    left, right = np.split(encode(encoder, [*pairs.left, *pairs.right]), 2)
    fit = np.stack([left, right], axis=1)
    if options.fit == "nli":
        examples = nli_examples(folder, SilentProgress())
        sentences = [sentence for example in examples for sentence in example]
        fit = encode(encoder, sentences).reshape(len(examples), len(examples[0]), -1)
    rows = [row("none", left, right, pairs)]
    for name, kind, settings in METHODS:
        processor = create(kind, **settings).fit(fit)
        rows.append(row(name, processor.transform(left), processor.transform(right), pairs))
    facts = {
        "pairs": pairs.n_pairs,
        "split": options.split,
        "fit": options.fit,
        "examples": len(fit),
        **machine(),
    }
    report("Post-processing", rows, facts, options.json)


if __name__ == "__main__":
    main()
