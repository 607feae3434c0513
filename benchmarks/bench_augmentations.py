"""Table 1 of the SimCSE paper on a small model: one short training run per augmentation and seed.

    python benchmarks/bench_augmentations.py --out DIR [--steps 40] [--seeds 1,2,3] [--only ROW...]

Trains ``--model`` on the Wikipedia lines and the Brown sentences, augmenting on the fly, and scores
STS-B dev after the last step. Finished runs are kept in DIR, so an interrupted benchmark goes on.
Prints the table of ``docs/augmentation.md``: mean and sample deviation over seeds beside the
paper's and the report's figures.
"""

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import torch

from measure import data_dir
from simcse_cli.comparison.published import load_table
from simcse_cli.data.senteval import StsSubset, stsb_pairs
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import DropoutMode, Pooler, Precision
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.dev import DevPairs
from simcse_cli.training.run import train_run

# Row of the published tables, or the report's way to do it -> settings.
ROWS: dict[str, dict[str, Any]] = {
    "None (unsup. SimCSE)": {},
    "Crop 10%": {"augment": "crop:0.1"},
    "Crop 20%": {"augment": "crop:0.2"},
    "Crop 30%": {"augment": "crop:0.3"},
    "Word deletion 10%": {"augment": "delete:0.1"},
    "Word deletion 20%": {"augment": "delete:0.2"},
    "Word deletion 30%": {"augment": "delete:0.3"},
    "Delete one word": {"augment": "delete-one"},
    "Delete one word, w/o dropout": {"augment": "delete-one", "dropout_mode": DropoutMode.NONE},
    "Synonym replacement": {"augment": "synonym"},
    "Crop 30% (character prefix)": {"augment": "crop-prefix-chars:0.3"},
    "Synonym replacement (up to 30%)": {"augment": "synonym:0.3"},
}
# The report cropped a prefix of characters and replaced up to 30% of the words: its figures belong
# to these rows.
AS_IN_REPORT = {
    "Crop 30% (character prefix)": "Crop 30%",
    "Synonym replacement (up to 30%)": "Synonym replacement",
}


def write_corpus(path: Path) -> Path:
    """Write the sentences of both corpora, one per line, and return the file."""
    lines = [
        line
        for name in ("wiki/wiki1m_head.txt", "brown/brown.txt")
        for line in (data_dir() / name).read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def dev_score(model: Path | str, dev_file: Path) -> float | None:
    """Return the Spearman correlation on STS-B dev with the vector the run trained: [CLS] without the head."""
    encoder = load_encoder(str(model), pooler="cls_before_pooler", force_pooler=True, device="cpu")
    pairs = StsSubset.of(stsb_pairs(dev_file), dev_file)
    return DevPairs(pairs).score(ReadyEncoder(encoder).encode).score


def score_of(row: str, seed: int, options: argparse.Namespace, dev_file: Path) -> float | None:
    """Return the dev score of one run, from its folder where it is finished."""
    name = "".join(c if c.isalnum() else "-" for c in row.lower()).strip("-")
    run_dir = options.out / f"{name}-seed{seed}"
    kept = run_dir / "dev.json"
    if not kept.exists():
        settings = TrainConfig(
            pooler=Pooler.CLS,
            model=options.model,
            train_file=str(options.out / "corpus.txt"),
            batch_size=options.batch_size,
            max_length=options.max_length,
            max_steps=options.steps,
            precision=Precision(options.precision),
            seed=seed,
            **ROWS[row],
        )
        train_run(settings, run_dir, SilentProgress(), force=True)
        kept.write_text(
            json.dumps({"dev": dev_score(run_dir / "model", dev_file)}), encoding="utf-8"
        )
        for folder in ("model", "checkpoint"):
            shutil.rmtree(run_dir / folder, ignore_errors=True)
    score: float | None = json.loads(kept.read_text(encoding="utf-8"))["dev"]
    return score


def paper_and_report(row: str) -> tuple[str, str]:
    """Return the published STS-B dev figures of a row, a dash where there is none for this operator."""
    paper = {line.name: line.values[0] for line in load_table("simcse.1").rows}
    report = {line.name: line.values[0] for line in load_table("repro.4").rows}
    other_in_report = row.startswith("Crop") or row in AS_IN_REPORT.values()
    row_in_report = AS_IN_REPORT.get(row, "" if other_in_report else row)
    return shown(paper.get(row)), shown(report.get(row_in_report))


def shown(figure: float | None) -> str:
    """Return a published figure, or a dash."""
    return "–" if figure is None else f"{figure:.1f}"


def ours(scores: list[float]) -> str:
    """Return mean and sample deviation x100, or a dash."""
    if not scores:
        return "–"
    spread = f" ± {100 * statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{100 * statistics.fmean(scores):.2f}{spread}"


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--precision", default="fp32", choices=[p.value for p in Precision])
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument(
        "--only", nargs="+", choices=list(ROWS), help="run these rows only", metavar="ROW"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    write_corpus(options.out / "corpus.txt")
    dev_file = data_dir() / "senteval" / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    scores: dict[str, list[float]] = {row: [] for row in ROWS}
    for seed in map(int, options.seeds.split(",")):
        for row in options.only or ROWS:
            score = score_of(row, seed, options, dev_file)
            if score is not None:
                scores[row].append(score)
                print(f"{row}, seed {seed}: {100 * score:.2f}", flush=True)
    print("| augmentation | here | seeds | paper | report |\n|---|---:|---:|---:|---:|")
    for row, found in scores.items():
        paper, report = paper_and_report(row)
        print(f"| {row} | {ours(found)} | {len(found)} | {paper} | {report} |")


if __name__ == "__main__":
    main()
