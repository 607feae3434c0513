"""Write ``docs/findings.md``: what the papers say, beside what the recipes measured from a raw language model.

``python docs/make_findings.py FOLDER`` reads the results of ``recipes/findings.sh`` into ``docs/findings.json`` and
writes the page; without a folder it writes the page from the file. The claims are in ``docs/findings.yaml``. The tests
fail when the page is stale.
"""

import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

from simcse_cli.comparison.published import load_table
from simcse_cli.results.columns import STSB_DEV
from simcse_cli.results.result import SuiteResult
from simcse_cli.results.runs import DONE, RunRecord, is_run, read_metrics, read_run_record, seed_runs

HERE = Path(__file__).parent
CLAIMS, RESULTS, PAGE = (HERE / f"findings.{ending}" for ending in ("yaml", "json", "md"))
RAW = "raw-encoder"
P = 0.05
LOWER_FIRST = {"alignment": 3, "uniformity": 3, "effective_rank": 1}
"""Measures that are no scores, and their digits."""
FIGURES = {
    "findings-figure2": "Alignment and uniformity every ten steps, batches of 16 (Figure 2; Figure 1 of the report):",
    "findings-figure3": "Alignment and uniformity of nine systems, coloured by STS-B (Figure 3):",
    "findings-figureF1": "Their singular values (Figure F.1):",
    "findings-figureG1": "Their cosines by gold rating, STS-B test pairs (Figure G.1):",
}
INTRO = """# Findings

The claims of the [papers](reproducing.md), asked at small scale of an encoder that was not trained for sentences. No
number on this page is typed: `docs/make_findings.py` writes it from the results of `recipes/findings.sh`.

```bash
SIMCSE_DATA=DATA recipes/findings.sh        # a night on two cores; stop and start it at any time
```

**The raw encoder** (`recipes/raw-encoder.sh`) has MiniLM's six layers and 22 million parameters, and was trained on
masked words of Wikipedia, Brown, captions and SNLI alone, until it forgot the sentence training. It is not BERT, which
is five times as large and has read far more; what it shares with BERT is the narrow cone of vectors and a [CLS] that
means little.
"""
RULES = """Each claim compares two trainings that differ in one setting, with the same seeds. **Seen**: the difference
has the sign of the claim, and a paired t-test over the seeds (over the seven tasks for post-processing) gives p < 0.05,
for each of the claim's comparisons. **Not seen**: one has the other sign with p < 0.05. **Not decided**: neither. **Not
run**: results are missing. The tests are not corrected for their number, and nothing was tuned until it agreed. Scores
are STS-B dev on a third of its pairs, Spearman x100, mean and deviation; p is the largest of the comparisons.
"""


def values_of(folder: Path, name: str, measure: str) -> list[float] | None:
    """Return the values of a measure, one a seed or task; None while there is no result."""
    recipe, _, rest = name.partition("/")
    path = folder / f"{recipe}-small" / rest
    if recipe == "geometry":
        return _of_geometry(folder / "geometry.json", rest, measure)
    if (path / "sweep.json").is_file():
        trials = json.loads((path / "sweep.json").read_text())["trials"]
        return max(trials, key=lambda trial: trial["score"] or 0)["scores"]  # type: ignore[no-any-return]
    if is_run(path) or (path / "seeds.json").is_file():  # which is written after the last seed
        runs = [path] if is_run(path) else list(seed_runs(path).values())
        found = [value for run in runs if (value := _of_run(run, measure)) is not None]
        return found or None
    result = path.with_name(f"{path.name}.json")
    if not result.is_file():
        return None
    content = json.loads(result.read_text())
    if "runs" in content:
        return [run["average"] for run in content["runs"]]
    suite = SuiteResult.from_json(content, str(result))
    return [score for score in suite.scores.values() if score is not None]


def _of_run(run: Path, measure: str) -> float | None:
    if measure == "dev":
        return read_run_record(run).trained_score
    lines = [getattr(line, measure) for line in read_metrics(run / "metrics.jsonl")]
    return next((value for value in reversed(lines) if value is not None), None)


def _of_geometry(path: Path, label: str, measure: str) -> list[float] | None:
    models = json.loads(path.read_text())["models"] if path.is_file() else []
    return [model[measure] for model in models if model["label"].split("/")[0] == label] or None


def collect(folder: Path, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values behind all claims, and the facts of the raw encoder and the campaign."""
    values: dict[str, list[float]] = {}
    for comparison in comparisons(groups):
        measure = comparison.get("measure", "dev")
        for name in comparison["runs"]:
            if (found := values_of(folder, name, measure)) is not None:
                values[f"{name}:{measure}"] = found
    runs: list[RunRecord] = []
    hours: defaultdict[str, float] = defaultdict(float)
    for path in folder.glob("*-small/**/run.json"):
        if (record := read_run_record(path.parent)).status in DONE:
            runs.append(record)
            hours[path.relative_to(folder).parts[0].removesuffix("-small")] += record.timings["hours"] or 0
    raw = read_run_record(folder / f"{RAW}-small" / "raw")
    scores = {
        f"{name}, {pooler}": values_of(folder, f"{RAW}/{name}-{pooler}", "average")
        for name in ("minilm", "raw")
        for pooler in ("cls", "avg")
    }
    return {
        "values": values,
        "scores": scores,
        "perplexity": [1 / score for score in (raw.start_score, raw.trained_score) if score],
        "raw_steps": raw.step,
        "raw_batch": raw.config["batch_size"],
        "raw_digest": raw.model_digest,
        "hours": dict(hours),
        "n_runs": len(runs),
        "steps": Counter(run.step for run in runs).most_common(1)[0][0],
        "seeds": sorted({run.seed for run in runs} - {raw.seed}),
        "precision": " and ".join(sorted({run.precision or "fp32" for run in runs})),
        "versions": raw.versions,
    }


def comparisons(groups: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for group in groups:
        for claim in group["claims"]:
            yield from claim["comparisons"]


def judge(greater: Sequence[float], less: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the paired differences and the two-sided p of their t-test; one value stands for all.

    >>> judge([0.3, 0.4, 0.5], [0.1, 0.1, 0.1])[1] < 0.1
    True
    """
    differences = np.subtract(*np.broadcast_arrays(greater, less))
    if len(differences) < 2 or np.ptp(differences) == 0:
        return float(differences.mean()), float(differences.mean() == 0)
    return float(differences.mean()), float(stats.ttest_1samp(differences, 0).pvalue)


def verdict(found: Sequence[tuple[float, float] | None]) -> str:
    """Return what a claim's comparisons say together."""
    if any(each is None for each in found):
        return "not run"
    decided = [difference > 0 for difference, p in filter(None, found) if p < P]
    if False in decided:
        return "**not seen**"
    return "**seen**" if len(decided) == len(found) else "not decided"


def shown(values: Sequence[float] | None, measure: str) -> str:
    if values is None:
        return "–"
    digits, scale = LOWER_FIRST.get(measure, 2), 1 if measure in LOWER_FIRST else 100
    mean = f"{scale * float(np.mean(values)):.{digits}f}"
    if len(values) == 1 or len(values) > 5:  # one value, or tasks, whose deviation says nothing
        return mean
    return f"{mean} ± {scale * float(np.std(values, ddof=1)):.{digits}f}"


def published(comparison: dict[str, Any]) -> str:
    """Return the paper's two figures, greater first; nothing where it has a picture alone."""
    if "paper" not in comparison:
        return "picture"
    table, *rows = comparison["paper"]
    scores = [load_table(table).system(row).scores for row in rows]
    keys = (STSB_DEV, "average", "mteb-STS")
    cells = [next(100 * score[key] for key in keys if key in score) for score in scores]
    return " > ".join(f"{cell:.4g}" for cell in cells)


def row_of(claim: dict[str, Any], values: dict[str, list[float]]) -> tuple[str, str]:
    """Return the table row of a claim, and its verdict."""
    found: list[tuple[float, float] | None] = []
    papers, ours = [], []
    for comparison in claim["comparisons"]:
        measure = comparison.get("measure", "dev")
        both = [values.get(f"{name}:{measure}") for name in comparison["runs"]]
        found.append(None if None in both else judge(*both))  # type: ignore[arg-type]
        papers.append(published(comparison))
        pair = ", ".join(map(partial(shown, measure=measure), both))
        ours.append(f"{pair} ({measure.replace('_', ' ')})" if measure in LOWER_FIRST else pair)
    result = verdict(found)
    p = "–" if result == "not run" else f"{max(p for _, p in filter(None, found)):.2g}"
    cells = (claim["claim"], claim["where"], "; ".join(papers), "; ".join(ours), p, result)
    return f"| {' | '.join(cells)} |", result


def page(results: dict[str, Any], groups: Sequence[dict[str, Any]]) -> str:
    """Return the page as Markdown."""
    sections, counts = [], Counter[str]()
    for group in groups:
        rows = [row_of(claim, results["values"]) for claim in group["claims"]]
        counts.update(result.strip("*") for _, result in rows)
        head = "| claim | where | paper | here | p | |\n|---|---|---|---|---:|---|"
        sections.append(f"## {group['group']}\n\n{head}\n" + "\n".join(row for row, _ in rows))
    order = ("seen", "not seen", "not decided", "not run")
    total = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
    before, after = results["perplexity"]
    scores = "\n".join(
        f"| {name} | {shown(values, 'average')} |" for name, values in results["scores"].items()
    )
    raw = (
        f"It took {results['raw_steps']:,} steps of {results['raw_batch']} texts; its perplexity on held-out "
        f"texts fell from {before:,.0f} to {after:,.1f}.\nThe digest of the model is `{results['raw_digest'][:16]}`. "
        "The average of the seven STS tasks, before and after:\n\n"
        f"| encoder, pooler | STS |\n|---|---:|\n{scores}\n"
    )
    hours, versions, seeds = results["hours"], results["versions"], ", ".join(map(str, results["seeds"]))
    facts = (
        f"**{sum(counts.values())} claims: {total}.** {results['n_runs']} trainings, most of {results['steps']} steps, "
        f"seeds {seeds}, {results['precision']}, took {sum(hours.values()):.1f} hours in all (simcse "
        f"{versions['simcse-cli']}, torch {versions['torch']}), beside other work:\n"
        + ", ".join(f"{recipe} {60 * spent:.0f} minutes" for recipe, spent in sorted(hours.items()))
        + ".\n"
    )
    return "\n".join((INTRO, raw, facts, RULES, "\n\n".join(sections))) + "\n" + pictures()


def pictures() -> str:
    """Return the section of the figures that are there."""
    shown = [
        f"{FIGURES[name]}\n\n![{name}](figures/{name}.png)\n" for name in FIGURES if _figure(name).is_file()
    ]
    return "\n".join(("\n## Figures\n", *shown)) if shown else ""


def _figure(name: str) -> Path:
    return HERE / "figures" / f"{name}.png"


def main(arguments: Sequence[str]) -> None:
    groups = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    if arguments:
        found = json.dumps(collect(Path(arguments[0]), groups), indent=1, sort_keys=True)
        RESULTS.write_text(found + "\n", encoding="utf-8")
        for name in FIGURES:
            for drawn in Path(arguments[0]).glob(f"figure*-small/{name.removeprefix('findings-')}.png"):
                shutil.copyfile(drawn, _figure(name))
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8")), groups), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
