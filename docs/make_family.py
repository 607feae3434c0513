"""Write the measured part of ``docs/family.md`` from the results of ``recipes/family.sh``.

``python docs/make_family.py FOLDER`` reads the folder of the recipe into ``docs/family.json`` and
writes the page and its figure; without a folder it writes the page from the file. The rows and the
claims are in ``docs/family.yaml``. A test fails when the page is stale.

``python docs/make_family.py negations SENTEVAL FILE`` writes the pairs that the recipe scores for the
accuracy on negations.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from scipy import stats

from simcse_cli.augment.negation import negate
from simcse_cli.comparison.significance import shared_pairs
from simcse_cli.data.senteval import read_sts_task
from simcse_cli.evaluation.bootstrap import (
    adjust,
    mean_interval,
    paired_bootstrap,
    t_test,
)
from simcse_cli.results.examples import PairScores, SubsetPairs, read_pair_scores
from simcse_cli.results.plots import place_labels
from simcse_cli.results.runs import read_run_record, seed_runs
from simcse_cli.settings.choices import Correction

HERE = Path(__file__).parent
ROWS, RESULTS, PAGE = (HERE / f"family.{ending}" for ending in ("yaml", "json", "md"))
FIGURE = HERE / "figures" / "family-gain.png"
BEGIN, END = "<!-- measured: written by make_family.py -->\n", "<!-- end of measured -->\n"
ALPHA = 0.05
NEGATIONS = "negations"
GOOD = 4.0
"""The least rating of a pair of STS-B that counts as a paraphrase."""

Values = dict[str, dict[str, list[float]]]  # row, measure: one value a seed


@dataclass(frozen=True)
class Test:
    """The difference of two rows, with its 95% interval and its p-value."""

    difference: float
    low: float
    high: float
    p: float


# Measures of a seed


def length_bias(pairs: SubsetPairs) -> float:
    """Return how far cosines depend on the difference of lengths in another way than ratings.

    It is the distance of the Spearman correlations of the cosine and of the rating with the
    difference in words.
    """
    lengths = [
        abs(len(left.split()) - len(right.split()))
        for left, right in zip(pairs.left, pairs.right, strict=True)
    ]
    return abs(_correlation(pairs.cosine, lengths) - _correlation(pairs.gold, lengths))


def overlap_bias(pairs: SubsetPairs) -> float:
    """Return by how much shared words raise the cosine more than the rating.

    It is the Spearman correlation of the cosine with the Jaccard index of the words, less that of
    the rating.
    """
    shared = []
    for left, right in zip(pairs.left, pairs.right, strict=True):
        both = [set(re.findall(r"\w+", text.lower())) for text in (left, right)]
        shared.append(len(both[0] & both[1]) / max(len(both[0] | both[1]), 1))
    return _correlation(pairs.cosine, shared) - _correlation(pairs.gold, shared)


def negation_accuracy(pairs: SubsetPairs) -> float:
    """Return the share of sentences that are closer to their paraphrase than to their negation.

    Pairs alternate: a sentence with its paraphrase, and the same sentence with its negation.

    >>> negation_accuracy(SubsetPairs(np.array([1, 0, 1, 0]), np.array([0.9, 0.8, 0.5, 0.6])))
    0.5
    """
    return float(np.mean(pairs.cosine[::2] > pairs.cosine[1::2]))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    return float(stats.spearmanr(first, second).statistic)


def over_subsets(measure: Callable[[SubsetPairs], float], scores: PairScores) -> float:
    """Return the mean of a measure over tasks, each the mean over its subsets."""
    means = [np.mean([measure(each) for each in subsets.values()]) for subsets in scores.values()]
    return float(np.mean(means))


# Reading the folder of the recipe


def negation_pairs(data: Path) -> Iterator[tuple[str, str, float]]:
    """Yield paraphrases of STS-B test with score 1, each before the sentence's negation with 0.

    Sentences that the rules of ``augment --method negate`` do not change inside are left out.
    """
    for subset in read_sts_task(data, "STSBenchmark", split="test").subsets.values():
        for left, right, score in zip(subset.left, subset.right, subset.gold, strict=True):
            negated = negate(left)
            if score >= GOOD and left != right and not negated.startswith("Not "):
                yield left, right, 1.0
                yield left, negated, 0.0


def pair_scores(folder: Path, name: str) -> list[PairScores]:
    """Return the saved pairs of a row, one result a seed."""
    files = sorted(folder.glob(f"{name}.pairs.seed-*.jsonl"), key=_seed_of)
    return [read_pair_scores(path) for path in files or folder.glob(f"{name}.pairs.jsonl")]


def _seed_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def values_of(folder: Path, name: str) -> dict[str, list[float]]:
    """Return the measures of a row, one value a seed."""
    scores = pair_scores(folder, name)
    values: dict[str, list[float]] = {}
    for task in scores[0]:
        values[task] = [task_score(each[task]) for each in scores]
    values["sts"] = [float(np.mean(list(map(task_score, each.values())))) for each in scores]
    values["length_bias"] = [over_subsets(length_bias, each) for each in scores]
    values["overlap_bias"] = [over_subsets(overlap_bias, each) for each in scores]
    if negated := pair_scores(folder, f"{name}-{NEGATIONS}"):
        values["negation_accuracy"] = [over_subsets(negation_accuracy, each) for each in negated]
    geometry = folder / "geometry.json"
    models = json.loads(geometry.read_text())["models"] if geometry.is_file() else []
    own = [model for model in models if model["label"].split("/")[0] == name]
    for measure in ("alignment", "uniformity", "effective_rank") if own else ():
        values[measure] = [model[measure] for model in own]
    if (folder / name).is_dir():
        records = [read_run_record(run) for run in seed_runs(folder / name).values()]
        values["dev"] = [record.trained_score or 0.0 for record in records]
    transfer = folder / f"{name}-transfer.json"
    if transfer.is_file():
        values["transfer"] = transfer_averages(transfer)
    times = folder / f"{name}.time"
    if times.is_file():
        values["seconds"] = list(map(float, re.findall(r"step +([\d.]+) s", times.read_text())))
    return values


def transfer_averages(path: Path) -> list[float]:
    """Return the average over the transfer tasks in a result, one value a seed."""
    result = json.loads(path.read_text())
    return [run["average"] for run in result.get("runs", [result])]


def task_score(subsets: Mapping[str, SubsetPairs]) -> float:
    """Return the score of a task over the pairs of all its subsets together, as `eval sts` does.

    >>> a = SubsetPairs(np.array([1.0, 2.0]), np.array([0.1, 0.2]))
    >>> b = SubsetPairs(np.array([3.0, 4.0]), np.array([0.0, 0.3]))
    >>> round(task_score({"a": a, "b": b}), 12)
    0.4
    """
    gold = np.concatenate([pairs.gold for pairs in subsets.values()])
    cosine = np.concatenate([pairs.cosine for pairs in subsets.values()])
    return _correlation(gold, cosine)


def collect(folder: Path, rows: dict[str, Any]) -> dict[str, Any]:
    """Return all values, the tests over seeds and pairs, and the facts of the runs."""
    names = [rows["baseline"], *rows["starts"], *rows["methods"], *rows["parts"]]
    there = [name for name in names if (folder / f"{name}.json").is_file()]
    tests = {}
    for greater, less in dict.fromkeys(pairs_of(rows)):
        if greater in there and less in there:
            tests[f"{greater} > {less}"] = over_seeds_and_pairs(folder, greater, less)
    record = read_run_record(next(iter(seed_runs(folder / rows["baseline"]).values())))
    raw = read_run_record(folder.with_name("raw-encoder-small") / "raw")
    return {
        "values": {name: values_of(folder, name) for name in there},
        "tests": tests,
        "steps": record.step,
        "batch": record.config["batch_size"],
        "seeds": sorted(seed_runs(folder / rows["baseline"])),
        "precision": record.precision,
        "versions": record.versions,
        "raw_steps": raw.step,
        "raw_perplexity": 1 / (raw.trained_score or 1.0),
        "raw_digest": raw.model_digest,
    }


def pairs_of(rows: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the two rows of each test of STS scores."""
    for name in rows["methods"]:
        yield name, rows["baseline"]
    for claim in rows["claims"]:
        if claim["measure"] == "sts":
            yield claim["rows"][0], claim["rows"][1]


def over_seeds_and_pairs(folder: Path, greater: str, less: str) -> dict[str, float]:
    """Return the test of ``simcse compare`` of two rows, whose seeds are paired, over all tasks."""
    samples = shared_pairs(pair_scores(folder, greater), pair_scores(folder, less))
    _, mean = paired_bootstrap(samples, by_seed=True)
    return {
        "difference": mean.difference,
        "low": mean.low,
        "high": mean.high,
        "p": mean.p_value,
    }


# Writing the page


def test_of(results: dict[str, Any], measure: str, greater: str, less: str) -> Test | None:
    """Return the test of two rows: over seeds and pairs for STS scores, else over seeds."""
    if measure == "sts":
        found = results["tests"].get(f"{greater} > {less}")
        return found and Test(**found)
    sides = [results["values"].get(name, {}).get(measure) for name in (greater, less)]
    if sides[0] is None or sides[1] is None:
        return None
    first, second = map(np.asarray, sides)
    low, high = mean_interval(first - second)
    return Test(float(np.mean(first - second)), low, high, t_test(first, second, by_seed=True))


def tests_of(rows: dict[str, Any], results: dict[str, Any]) -> list[Test | None]:
    """Return the tests of all methods and then of all claims, corrected for their number."""
    found = [test_of(results, "sts", name, rows["baseline"]) for name in rows["methods"]]
    found += [test_of(results, claim["measure"], *claim["rows"]) for claim in rows["claims"]]
    corrected = iter(adjust([test.p for test in found if test], Correction.HOLM))
    return [test and replace(test, p=next(corrected)) for test in found]


def shown(values: Sequence[float] | None, digits: int = 2, scale: float = 1.0) -> str:
    if values is None:
        return "–"
    mean = f"{scale * float(np.mean(values)):z.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {scale * float(np.std(values, ddof=1)):z.{digits}f}"


def interval(test: Test, digits: int, scale: float) -> str:
    ends = [f"{scale * each:+z.{digits}f}" for each in (test.difference, test.low, test.high)]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]"


def row_of(name: str, title: str, results: dict[str, Any], test: Test | None) -> str:
    """Return the table row of a method."""
    values = results["values"][name]
    cells = [title, shown(values["STSBenchmark"], scale=100), shown(values["STS16"], scale=100)]
    cells += [interval(test, 2, 100), f"{test.p:.2g}"] if test else ["–", "–"]
    for measure, digits in (("alignment", 3), ("uniformity", 2), ("effective_rank", 0)):
        cells.append(shown(values.get(measure), digits))
    for measure in ("length_bias", "overlap_bias"):
        cells.append(shown(values.get(measure), 3))
    cells.append(shown(values.get("negation_accuracy"), 1, 100))
    cells.append(shown(values.get("transfer"), 1, 100))
    cells.append(f"{time_of(name, results):.2f}" if "seconds" in values else "–")
    return f"| {' | '.join(cells)} |"


def time_of(name: str, results: dict[str, Any]) -> float:
    """Return the median time of a step as a share of that of SimCSE."""
    values = results["values"]
    return median(values[name]["seconds"]) / median(values["simcse"]["seconds"])


def claim_row(claim: dict[str, Any], results: dict[str, Any], test: Test | None) -> str:
    """Return the table row of a claim, with its verdict."""
    measure = claim["measure"]
    digits, scale = {"sts": (2, 100), "negation_accuracy": (1, 100), "effective_rank": (0, 1)}.get(
        measure, (3, 1)
    )
    if test is None:
        cells = ["–", "–", "–", "not run"]
    else:
        sides = [shown(results["values"][name][measure], digits, scale) for name in claim["rows"]]
        verdict = "not decided"
        if test.p < ALPHA:
            verdict = "**seen**" if test.difference > 0 else "**not seen**"
        cells = [", ".join(sides), interval(test, digits, scale), f"{test.p:.2g}", verdict]
    name = measure.replace("_", " ").replace("sts", "STS")
    return f"| {' | '.join([claim['claim'], claim['where'], name, *cells])} |"


def measured(rows: dict[str, Any], results: dict[str, Any]) -> str:
    """Return the measured part of the page as Markdown."""
    tests = tests_of(rows, results)
    by_name = dict(zip(rows["methods"], tests, strict=False))
    titles = {rows["baseline"]: "SimCSE"}
    for part in ("starts", "methods", "parts"):
        titles |= rows[part]
    order = [*rows["starts"], rows["baseline"], *rows["methods"], *rows["parts"]]
    table = [
        row_of(name, titles[name], results, by_name.get(name))
        for name in order
        if name in results["values"]
    ]
    of_claims = tests[len(rows["methods"]) :]
    claims = [
        claim_row(claim, results, test)
        for claim, test in zip(rows["claims"], of_claims, strict=True)
    ]
    n_tests = sum(test is not None for test in tests)
    return TEXT.format(
        **results, n_seeds=len(results["seeds"]), n_tests=n_tests, table="\n".join(table),
        claims="\n".join(claims), digest=results["raw_digest"][:16],
    )  # fmt: skip


TEXT = """
The start is a raw language model of the recipe (`LAYERS=4-6 STEPS={raw_steps}`): MiniLM's upper three layers after
{raw_steps} steps on masked words (perplexity {raw_perplexity:,.0f}, digest `{digest}`). Each row is {n_seeds} trainings of
{steps} steps of {batch} sentences ({precision}), with the same seeds. STS-B (test) and STS16 chose nothing. Mean and deviation
over seeds, Spearman x100. The gain over SimCSE is of the mean of both, with the 95% interval over seeds and pairs together,
and p is Holm's for the {n_tests} tests of this section.

| method | STS-B | STS16 | gain | p | alignment | uniformity | eff. rank | length bias | overlap bias | negations | transfer | time |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{table}

- *Length bias*: how far the correlation (Spearman) of the cosine with the difference in words is from that of the rating.
  *Overlap bias*: how much more the cosine correlates with the share of common words than the rating does. *Negations*: sentences of
  STS-B test, in %, that are closer to a paraphrase (rated 4 or more) than to their own negation.
- *Transfer*: accuracy of a linear classifier on CR and TREC (fast protocol), mean of both, in %.
- *Alignment*, *uniformity*, *effective rank*: of the vectors of a third of STS-B dev.
- *Time*: of a step, SimCSE = 1 (median of three dry runs on two quiet cores), measured with an earlier version, whose
  DiffCSE took longer; a teacher's vectors are made before.
- p is at least 0.001 before Holm's correction, as there are 2,000 resamples. Not decided is what p does not tell from 0.

![gain against time](figures/family-gain.png)

| claim | of | measure | here | difference | p | |
|---|---|---|---:|---:|---:|---|
{claims}
"""


def draw(rows: dict[str, Any], results: dict[str, Any], path: Path) -> None:
    """Draw the gain over SimCSE with its interval against the time of a step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    points, names = [(1.0, 0.0)], ["SimCSE"]
    for name, title in rows["methods"].items():
        test = test_of(results, "sts", name, rows["baseline"])
        if test is None or "seconds" not in results["values"][name]:
            continue
        times = time_of(name, results)
        axes.plot([times, times], [100 * test.low, 100 * test.high], color="#777777", linewidth=1.5)
        axes.plot(times, 100 * test.difference, "o", color="#2166ac", markersize=5)
        points.append((times, 100 * test.difference))
        names.append(title.split(",")[0].strip("`"))
    axes.axhline(0, color="black", linewidth=0.8)
    axes.plot(1, 0, "s", color="black", markersize=5)
    axes.margins(x=0.15)
    axes.set_xlabel("time of a step, SimCSE = 1")
    axes.set_ylabel("gain over SimCSE in points, with its 95% interval")
    place_labels(figure, axes, points, names)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def with_measured(page: str, text: str) -> str:
    """Return the page with this text between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{PAGE}: the marks {BEGIN.strip()} and {END.strip()} are missing")
    return before + BEGIN + text + END + after


def write_pairs(pairs: Iterable[tuple[str, str, float]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("left", "right", "score"))
        writer.writerows(pairs)


def main(arguments: Sequence[str]) -> None:
    rows = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    if arguments[:1] == [NEGATIONS]:
        data, target = map(Path, arguments[1:])
        write_pairs(negation_pairs(data), target)
        return
    for folder in map(Path, arguments):
        text = json.dumps(collect(folder, rows), indent=1, sort_keys=True)
        RESULTS.write_text(text + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    draw(rows, results, FIGURE)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_measured(page, measured(rows, results)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
