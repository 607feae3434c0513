"""The model card that lies in a run folder."""

from pathlib import Path

from simcse_cli.files import atomic_text
from simcse_cli.runs import RunRecord


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.2f}"


def dev_lines(record: RunRecord) -> list[str]:
    """Return the rows that say what the dev score is, if there is one."""
    if record.best_score is None:
        return []
    lines = [f"| dev score | {record.chosen_by} |"]
    if record.chosen_on_test:
        lines.append(
            f"| chosen on test data | {', '.join(record.chosen_on_test)}: report no scores on these |"
        )
    return lines


def write_model_card(run_dir: Path, record: RunRecord) -> None:
    """Write ``README.md``: what was trained, how it scores on the dev data, how to load it."""
    data = record.data
    lines = [
        "---",
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        "tags: [sentence-similarity, simcse]",
        "---",
        "",
        f"# {record.objective} on {record.model}",
        "",
        f"Trained with `simcse train --objective {record.objective}` (simcse-cli "
        f"{record.versions['simcse-cli']}), seed {record.seed}, {record.step:,} steps.",
        "",
        "| | |",
        "|---|---|",
        f"| training examples | {data['n_examples']:,} (SHA-256 {data['train_sha256'][:12]}) |",
        f"| pooler | {record.pooler} |",
        *dev_lines(record),
        f"| dev score before | {_percent(record.start_score)} |",
        f"| dev score of this model | {_percent(record.best_score)} (step {record.best_step or '–'}) |",
        "",
        "Vectors:",
        "",
        "```bash",
        "simcse encode input.txt -o vecs.npy --model PATH_OF_THIS_FOLDER",
        "```",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'vectors = SentenceTransformer("PATH_OF_THIS_FOLDER/model").encode(sentences)',
        "```",
        "",
        "`config.yaml` repeats the run: `simcse train --config config.yaml -o NEW_RUN`.",
    ]
    with atomic_text(run_dir / "README.md", force=True) as stream:
        stream.write("\n".join(lines) + "\n")
