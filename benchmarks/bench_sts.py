"""`eval sts` against a loop that does what the original evaluation script does.

    python benchmarks/bench_sts.py [--tasks STS12,...] [--rounds 1] [--json FILE]

The original script (SentEval as SimCSE uses it) sorts each subset by length, takes 128 pairs a
batch, encodes the two sides apart with padding to the longest sentence, and shares nothing between
subsets and tasks. For STS-B and SICK-R it also encodes the training and dev pairs, which it does
not score; the second loop here leaves those out.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from measure import alternate, arguments, data_dir, machine, report
from simcse_cli.data.senteval import StsSubset, has_split, read_sts_task
from simcse_cli.evaluation.correlation import correlate
from simcse_cli.evaluation.sts import StsSuite, evaluate_sts
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.models.resolve import resolve_model
from simcse_cli.settings.choices import STS_TASKS, Metric

ORIGINAL = "original script's way"
TEST_ONLY = "original script's way, test pairs only"
PAIRS_PER_BATCH = 128


def subsets(tasks: Sequence[str], splits: Sequence[str]) -> Iterator[tuple[str, StsSubset]]:
    """Yield split and subset for every part of every task."""
    folder = data_dir() / "senteval"
    for task in tasks:
        for split in splits:
            if has_split(task, split):
                for subset in read_sts_task(folder, task, split=split).subsets.values():
                    yield split, subset


def original_loop(folder: str, tasks: Sequence[str], splits: Sequence[str]) -> Callable[[], float]:
    """Return a run of the original way; it gives the mean correlation over test subsets."""
    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )

    def encode(sentences: list[str]) -> Tensor:
        batch = tokenizer(
            sentences, padding=True, truncation=True, max_length=512, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True, return_dict=True).last_hidden_state
        weights = batch["attention_mask"].unsqueeze(-1)
        return (states * weights).sum(1) / weights.sum(1)

    def score(subset: StsSubset) -> float:
        rows = sorted(
            zip(subset.left, subset.right, subset.gold.tolist(), strict=True),
            key=lambda row: (len(row[0].split()), len(row[1].split()), row[2]),
        )
        similarities: list[float] = []
        for start in range(0, len(rows), PAIRS_PER_BATCH):
            left, right, _ = zip(*rows[start : start + PAIRS_PER_BATCH], strict=True)
            similarities += torch.cosine_similarity(
                encode(list(left)), encode(list(right))
            ).tolist()
        value = correlate(
            Metric.SPEARMAN,
            torch.tensor(similarities).numpy(),
            torch.tensor([r[2] for r in rows]).numpy(),
        )
        return value or 0.0

    def run() -> float:
        scores = [(split, score(subset)) for split, subset in subsets(tasks, splits)]
        test = [value for split, value in scores if split == "test"]
        return sum(test) / len(test)

    return run


def ours(model: str, tasks: Sequence[str], precision: str) -> Callable[[], float]:
    """Return a run of this toolkit; it gives the suite's average."""
    encoder = load_encoder(model, device="cpu", precision=precision)

    def run() -> float:
        suite = StsSuite(data_dir() / "senteval", tasks)
        average = evaluate_sts(ReadyEncoder(encoder).encode, suite).average
        return average if average is not None else 0.0

    return run


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--tasks", default=",".join(STS_TASKS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tasks = options.tasks.split(",")
    folder = str(resolve_model(options.model))
    runs = {
        ORIGINAL: original_loop(folder, tasks, ("train", "dev", "test")),
        TEST_ONLY: original_loop(folder, tasks, ("test",)),
        "simcse eval sts fp32": ours(options.model, tasks, "fp32"),
        "simcse eval sts bf16": ours(options.model, tasks, "bf16"),
    }
    if options.only:
        runs = {k: run for k, run in runs.items() if k == ORIGINAL or options.only in k}
    averages: dict[str, float] = {}

    def remembering(name: str, run: Callable[[], float]) -> Callable[[], None]:
        return lambda: averages.__setitem__(name, run())

    timings = alternate(
        {k: remembering(k, run) for k, run in runs.items()}, options.rounds, warm_up=False
    )
    rows = [
        {
            "setting": name,
            "seconds": timing.median(options.clock),
            "ratio to the original": timings[ORIGINAL].median(options.clock)
            / timing.median(options.clock),
            "ratio, test pairs only": timings[TEST_ONLY].median(options.clock)
            / timing.median(options.clock)
            if TEST_ONLY in timings
            else None,
            "runs, s": " ".join(f"{run:.1f}" for run in getattr(timing, options.clock)),
            "average x100": 100 * averages[name] if name.startswith("simcse") else None,
        }
        for name, timing in timings.items()
    ]
    report(
        "STS suite",
        rows,
        {"tasks": " ".join(tasks), "clock": options.clock, **machine()},
        options.json,
    )


if __name__ == "__main__":
    main()
