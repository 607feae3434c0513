"""Write ``docs/findings.md``: what the papers say, beside what the recipes measured from a raw language model.

``python docs/make_findings.py FOLDER`` reads the results of ``recipes/findings.sh`` into ``docs/findings.json`` and
writes the page; without a folder it writes the page from the file. ``make_findings.py second FOLDER`` reads those of
another encoder into ``docs/findings-second.json``. ``make_findings.py length FOLDER`` writes the curves into the page,
before the tables are run, and prints the length that they choose. ``make_findings.py needed`` prints what the claims need
of the recipes, a regular expression for ``--only`` of ``side_by_side.py``. The claims are in ``docs/findings.yaml``. The
tests fail when the page is stale.
"""

import itertools
import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import optimize, stats

from simcse_cli.comparison.published import load_table
from simcse_cli.comparison.significance import shared_pairs
from simcse_cli.evaluation.bootstrap import adjust, paired_bootstrap, t_test
from simcse_cli.results import examples
from simcse_cli.results.columns import STSB_DEV
from simcse_cli.results.result import SuiteResult
from simcse_cli.results.runs import (
    DONE,
    RunRecord,
    is_run,
    read_metrics,
    read_run_record,
    seed_runs,
)
from simcse_cli.settings.choices import Correction

HERE = Path(__file__).parent
CLAIMS, RESULTS, PAGE = (HERE / f"findings.{ending}" for ending in ("yaml", "json", "md"))
SECOND = HERE / "findings-second.json"
"""Results of an encoder of another shape."""
RAW = "raw-encoder"
ALPHA = 0.05
POWER = 0.8
LOOKS = (3, 5, 10)
"""Numbers of seeds after which the differences are tested."""
CURVES = ("dropout", "no-dropout", "fixed-mask", "delete-one-word", "supervised")
"""Runs of ``recipes/findings-length.sh``."""
REACHED = 0.8
"""Share of the last difference of two settings that a run of the chosen length has to show."""
SHARE = 0.5
"""A difference below this share of the paper's contradicts a claim."""
LOWER_FIRST = {"alignment": 3, "uniformity": 3, "effective_rank": 1}
"""Measures that are no scores, and their digits."""
FIGURES = {
    "findings-claims": "Differences in points with their intervals, sorted; green: seen; red: the other sign; orange: too small:",
    "findings-figure2": "Alignment and uniformity every ten steps, batches of 16 (Figure 2; Figure 1 of the report):",
    "findings-figure3": "Alignment and uniformity of nine systems, coloured by STS-B (Figure 3):",
    "findings-figureF1": "Their singular values (Figure F.1):",
    "findings-figureG1": "Their cosines by gold rating, STS-B test pairs (Figure G.1):",
}
INTRO = """# Findings

The claims of the [papers](reproducing.md), asked at small scale of an encoder that was not trained for sentences. No
result on this page is typed: `docs/make_findings.py` writes it from the files of `recipes/findings.sh`.

```bash
SIMCSE_DATA=DATA recipes/findings.sh        # days on two cores; stop and start it at any time

export OUT=runs/findings                    # what the claims need alone, two commands at a time (on a GPU: 20)
python recipes/side_by_side.py 2 recipes/findings.sh --only "$(python docs/make_findings.py needed)"
```

**The raw encoder** (`recipes/raw-encoder.sh`) has MiniLM's six layers and 22 million parameters, and was trained on
masked words of Wikipedia, Brown, captions and SNLI alone, until it forgot the sentence training. It is not BERT, which
is five times as large and has read far more; what it shares with BERT is the narrow cone of vectors and a [CLS] that
means little.
"""
FRESH = """Its upper two layers were drawn anew before this training, and its texts were joined to blocks of 126
sub-words, without the texts of the STS sets.
"""
EARLIER = """**The results below are of an earlier encoder**: its layers were MiniLM's, and it read single sentences.
The recipe now draws the upper two layers anew and reads blocks of 126 sub-words ([below](#the-next-campaign)).
"""
NEXT = """## The next campaign

Its raw encoder and the length of its runs are settled; its tables have not been run. The upper two layers were drawn
anew, and texts were joined to blocks of 126 sub-words, without the texts of the STS sets.
"""
SET_ASIDE = """An earlier rule asked the curves for the order of the settings alone. It chose {steps} steps, and the tables
were run at that length ({n_runs} trainings with {n_seeds} seeds: {seen} claims seen, {not_seen} not seen, {not_decided}
not decided). They were set aside, since most differences were of hundredths of a point, and the rule now asks for the
size of the differences too.
"""
SECOND_ENCODER = """## A second encoder

It has another shape: MiniLM's upper three layers alone, over the word embeddings, with no fresh layer (`LAYERS=4-6`). A
finding of both encoders is worth more. The last column below has what this one shows, by the same rules and with a Holm
correction of its own.
"""
NEW_CAMPAIGN = "The raw encoder, the length of the runs and the number of seeds are others."
RULES = """Each claim compares two trainings that differ in one setting, with the same seeds. **Seen**: for each of the
claim's comparisons, the difference has the sign of the claim with p < 0.05. **Not seen**: one has the other sign with
p < 0.05, or one is *less than half* of the paper's with p < 0.05 and its interval does not lie above 0. **Not decided**:
neither; the difference that would have been seen in four of five campaigns stands beside it. **Not run**: results are
missing.

The test is Student's, paired by seeds (by the seven tasks for post-processing, whose results have no seeds), two-sided.
It is made after 3, 5 and 10 seeds, and a claim that is decided gets no more. The error of all looks together is 0.05,
spent by Pocock's function 0.05 ln(1 + (e - 1) n / 10) (Lan and DeMets 1983): with no other comparison, p has to be
below {levels} at the three looks. These levels are those of normal differences with a known
deviation, applied to the p of the t-test. The p below is the smallest error at which this rule rejects (Liu and
Anderson 2008), corrected by Holm's method for the {n_tests} comparisons of the page; where a claim has several, it is
the largest. At the last look and before Holm's correction, four of five campaigns see a difference of {power:.2f}
deviations of the paired differences; one of one deviation is seen in {share:.0%} of them.

Whether a difference is less than half of the paper's is asked by the same test, on one side, of the differences less
that half, with a Holm correction of its own. At most one of the two hypotheses of a comparison is true: that it has no
difference of the claim's sign, and that it has one of at least that half (Goeman, Solari and Stijnen 2010). A claim that a
paper shows by a picture has no such test, nor has a campaign whose runs are shorter than the curves ask for, as its
differences have not grown yet. This part of the rule was added after tables of ten steps had been seen and set aside.

Scores are STS-B dev on a third of its pairs, Spearman x100, mean and deviation. The interval of a difference is
Student's at the level of its look, before Holm's correction, and d is the difference over the deviation of the paired
differences. p over pairs is of a paired bootstrap over sentence pairs, with seeds averaged. Nothing was tuned until it
agreed.
"""


@dataclass(frozen=True)
class Test:
    """A paired test: mean difference, its interval and deviation, and the sequential p-value.

    ``n`` counts the seeds or tasks of the look. ``p_less`` is that of the one-sided test whether
    the difference is less than half of the paper's, 1 without one.
    """

    difference: float
    low: float
    high: float
    deviation: float
    n: int
    is_sequential: bool
    p: float
    p_less: float = 1.0

    @property
    def is_less(self) -> bool:
        """Tell whether the difference is less than half of the paper's, and may be none."""
        return self.p_less < ALPHA <= self.p and self.low <= 0


def pocock(fraction: float, alpha: float) -> float:
    """Return the error spent at a fraction of the seeds (Lan and DeMets 1983, after Pocock).

    >>> round(pocock(1.0, 0.05), 12)
    0.05
    """
    return alpha * float(np.log1p((np.e - 1) * fraction))


def boundaries(
    fractions: Sequence[float], alpha: float, spend: Callable[[float, float], float] = pocock
) -> list[float]:
    """Return the values |z| that reject at each look, for a two-sided error of ``alpha`` in all.

    Source: Armitage, McPherson and Rowe 1969. The sum of the differences is a Brownian motion; its
    density, over paths that no look has stopped, is integrated from look to look. Two equal looks
    at 0.05 give 2.157 and 2.201.
    """
    found: list[float] = []
    spent = 0.0
    sums = np.zeros(1)
    mass = np.ones(1)
    before = 0.0
    for fraction in fractions:
        step = (fraction - before) ** 0.5
        target = spend(fraction, alpha) - spent

        excess = partial(_excess, sums, mass, fraction, step, target)
        found.append(float(optimize.brentq(excess, 0.0, 12.0)))
        # Simpson's rule over what goes on
        edge = found[-1] * fraction**0.5
        points = np.linspace(-edge, edge, 801)
        weights = np.full(801, 2.0)
        weights[1::2] = 4.0
        weights[[0, -1]] = 1.0
        density = stats.norm.pdf((points[:, None] - sums) / step) / step @ mass
        mass = density * weights * (points[1] - points[0]) / 3
        sums = points
        before = fraction
        spent += target
    return found


def _excess(
    sums: np.ndarray, mass: np.ndarray, fraction: float, step: float, target: float, z: float
) -> float:
    """Return how much more than ``target`` is the probability that ``z`` rejects at this look."""
    edge = z * fraction**0.5
    tails = stats.norm.sf((edge - sums) / step) + stats.norm.cdf((-edge - sums) / step)
    return float(mass @ tails) - target


@cache
def levels(alpha: float) -> tuple[float, ...]:
    """Return the two-sided level of the test at each look, for an error of ``alpha`` in all."""
    fractions = [look / LOOKS[-1] for look in LOOKS]
    return tuple(float(2 * stats.norm.sf(z)) for z in boundaries(fractions, alpha))


def error_of(p: float, look: int) -> float:
    """Return the error in all at which the rule rejects with this p at this look.

    >>> error_of(levels(0.01)[2], 2) < 0.0101
    True
    """
    grid = np.geomspace(1e-8, 0.9, 60)
    at_look = [levels(float(alpha))[look] for alpha in grid]
    if p > at_look[-1]:
        return 1.0
    return float(np.exp(np.interp(np.log(max(p, at_look[0])), np.log(at_look), np.log(grid))))


def detectable(n: int, level: float) -> float:
    """Return the difference, in deviations, that a paired t-test of ``n`` sees with a power of 0.8.

    With n = 10 and a level of 0.05 it is 0.996.
    """
    most = 10 + 10 * float(stats.t.isf(level / 2, n - 1))
    return float(optimize.brentq(lambda effect: power(n, level, effect) - POWER, 0.0, most))


def power(n: int, level: float, effect: float) -> float:
    """Return the share of samples of ``n`` whose two-sided t-test rejects on the side of the effect.

    It is the mean of the normal distribution function over 4,000 quantiles of the sample variance,
    since SciPy's noncentral t-distribution ends early at the levels of few seeds.
    """
    edge = stats.t.isf(level / 2, n - 1)
    variances = stats.chi2.ppf((np.arange(4000) + 0.5) / 4000, n - 1) / (n - 1)
    return float(np.mean(stats.norm.cdf(effect * n**0.5 - edge * np.sqrt(variances))))


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
        found = [_of_run(run, measure) for run in runs]
        if None in found:  # seeds are paired in their order, so those after a missing one wait
            found = found[: found.index(None)]
        return found or None  # type: ignore[return-value]
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
            hours[path.relative_to(folder).parts[0].removesuffix("-small")] += (
                record.timings["hours"] or 0
            )
    seeds = {run.seed for run in runs if run.objective != "mlm"}
    return start_of(folder) | {
        "values": values,
        "pairs": over_pairs(folder, groups),
        "hours": dict(hours),
        "n_runs": len(runs),
        "steps": Counter(run.step for run in runs).most_common(1)[0][0],
        "seeds": sorted(seeds),
        "precision": " and ".join(sorted({run.precision or "fp32" for run in runs})),
        "hardware": ", ".join(sorted({_hardware(run) for run in runs} - {""})),
    }


def start_of(folder: Path) -> dict[str, Any]:
    """Return what is known of the raw encoder, and the curves that choose the length of the runs."""
    raw = read_run_record(folder / f"{RAW}-small" / "raw")
    scores = {
        f"{name}, {pooler}": values_of(folder, f"{RAW}/{name}-{pooler}", "average")
        for name in ("minilm", "raw")
        for pooler in ("cls", "avg")
    }
    return {
        "curves": curves_of(folder),
        "scores": scores,
        "perplexity": [1 / score for score in (raw.start_score, raw.trained_score) if score],
        "raw_is_fresh": (folder / f"{RAW}-small" / "start").is_dir(),
        "raw_steps": raw.step,
        "raw_batch": raw.config["batch_size"],
        "raw_digest": raw.model_digest,
        "versions": raw.versions,
    }


def _hardware(run: RunRecord) -> str:
    if gpu := run.hardware.get("gpu"):
        return str(gpu)
    return f"{run.hardware['cores']} cores" if "cores" in run.hardware else ""


def comparisons(groups: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for group in groups:
        for claim in group["claims"]:
            yield from claim["comparisons"]


def judge(greater: Sequence[float], less: Sequence[float], *, is_sequential: bool = True) -> Test:
    """Return the test of the paired differences; one value stands for all.

    A sequential test takes the seeds of the last look that is complete, and the smallest error of
    the looks so far; without three seeds p is 1.
    """
    n = min(len(side) for side in (greater, less) if len(side) > 1 or len(greater) == len(less))
    first, second = (np.resize(np.asarray(side, dtype=np.float64), n) for side in (greater, less))
    looks = [look for look in LOOKS if look <= n] if is_sequential else [n]
    if is_sequential and looks:
        n = looks[-1]
    p = 1.0
    for index, look in enumerate(looks):
        if look > 1:
            found = t_test(first[:look], second[:look], by_seed=True)
            p = min(p, error_of(found, index) if is_sequential else found)
    differences = (first - second)[:n]
    mean = float(differences.mean())
    deviation = float(differences.std(ddof=1)) if n > 1 else float("nan")
    level = levels(ALPHA)[len(looks) - 1] if is_sequential and looks else ALPHA
    half = float(stats.t.isf(level / 2, max(n - 1, 1))) * deviation / n**0.5
    return Test(mean, mean - half, mean + half, deviation, n, is_sequential and bool(looks), p)


def test_of(comparison: dict[str, Any], values: dict[str, list[float]]) -> Test | None:
    """Return the test of a comparison; None while results are missing."""
    measure = comparison.get("measure", "dev")
    both = [values.get(f"{name}:{measure}") for name in comparison["runs"]]
    if both[0] is None or both[1] is None:
        return None
    return judge(both[0], both[1], is_sequential=comparison.get("over") != "tasks")


def error_of_less(comparison: dict[str, Any], values: dict[str, list[float]]) -> float:
    """Return p of the one-sided test that the difference is less than half of the paper's."""
    greater, less = published_scores(comparison)
    half = SHARE * (greater - less) / 100
    first, second = (values[f"{name}:dev"] for name in comparison["runs"])
    is_sequential = comparison.get("over") != "tasks"
    beyond = judge([value - half for value in first], second, is_sequential=is_sequential)
    return beyond.p / 2 if beyond.difference < 0 else 1.0


def tests_of(
    groups: Sequence[dict[str, Any]], results: dict[str, Any]
) -> dict[tuple[str, str, str], Test | None]:
    """Return the tests of all comparisons, by runs and measure, corrected for their number."""
    values = results["values"]
    found = {key_of(each): test_of(each, values) for each in comparisons(groups)}
    there = {key: test for key, test in found.items() if test is not None}
    corrected = adjust([test.p for test in there.values()], Correction.HOLM)
    for key, p in zip(there, corrected, strict=True):
        found[key] = replace(there[key], p=p)
    if has_grown(results):
        errors = {
            key_of(each): error_of_less(each, values)
            for each in comparisons(groups)
            if "paper" in each and key_of(each) in there
        }
        corrected = adjust([*errors.values()], Correction.HOLM)
        for key, p in zip(errors, corrected, strict=True):
            found[key] = replace(found[key], p_less=p)
    return found


def has_grown(results: dict[str, Any]) -> bool:
    """Tell whether the runs have the length from which their differences are there."""
    length = length_of(results.get("curves", {}))
    return length is not None and results["steps"] >= length


def key_of(comparison: dict[str, Any]) -> tuple[str, str, str]:
    greater, less = comparison["runs"]
    return greater, less, comparison.get("measure", "dev")


def verdict(found: Sequence[Test | None]) -> str:
    """Return what a claim's comparisons say together."""
    if any(each is None for each in found):
        return "not run"
    decided = [each.difference > 0 for each in found if each and each.p < ALPHA]
    if False in decided or any(each.is_less for each in found if each):
        return "**not seen**"
    return "**seen**" if len(decided) == len(found) else "not decided"


def smallest(test: Test, n_open: int) -> float:
    """Return the difference that would have been seen with a power of 0.8 at Holm's next step."""
    level = ALPHA / n_open
    if test.is_sequential:
        level = levels(level)[LOOKS.index(test.n)]
    return detectable(test.n, level) * test.deviation


def shown(values: Sequence[float] | None, measure: str) -> str:
    if values is None:
        return "–"
    digits, scale = LOWER_FIRST.get(measure, 2), 1 if measure in LOWER_FIRST else 100
    mean = f"{scale * float(np.mean(values)):z.{digits}f}"
    if len(values) == 1 or len(values) > 5:  # one value, or tasks, whose deviation says nothing
        return mean
    return f"{mean} ± {scale * float(np.std(values, ddof=1)):.{digits}f}"


def published(comparison: dict[str, Any]) -> str:
    """Return the paper's two figures, greater first; nothing where it has a picture alone."""
    if "paper" not in comparison:
        return "picture"
    return " > ".join(f"{score:.4g}" for score in published_scores(comparison))


def published_scores(comparison: dict[str, Any]) -> list[float]:
    """Return the paper's two scores, x100, greater first."""
    table, *rows = comparison["paper"]
    scores = [load_table(table).system(row).scores for row in rows]
    keys = (STSB_DEV, "average", "mteb-STS")
    return [next(100 * score[key] for key in keys if key in score) for score in scores]


def units(measure: str) -> tuple[int, float]:
    """Return digits and factor of a measure on the page."""
    if measure in LOWER_FIRST:
        return LOWER_FIRST[measure], 1.0
    return 2, 100.0


def row_of(
    claim: dict[str, Any],
    results: dict[str, Any],
    tests: dict[tuple[str, str, str], Test | None],
) -> list[str]:
    """Return the cells of a claim's table row."""
    values, pairs = results["values"], results.get("pairs", {})
    found = [tests[key_of(each)] for each in claim["comparisons"]]
    n_open = sum(test is not None and test.p >= ALPHA for test in tests.values())
    columns: dict[str, list[str]] = defaultdict(list)
    for comparison, test in zip(claim["comparisons"], found, strict=True):
        measure = comparison.get("measure", "dev")
        digits, scale = units(measure)
        both = [values.get(f"{name}:{measure}") for name in comparison["runs"]]
        pair = ", ".join(map(partial(shown, measure=measure), both))
        unit = f" ({measure.replace('_', ' ')})" if measure in LOWER_FIRST else ""
        columns["paper"].append(published(comparison))
        columns["here"].append(pair + unit)
        over_pairs = pairs.get(" > ".join(comparison["runs"]))
        columns["pairs"].append(f"{over_pairs['p']:.2g}" if over_pairs else "–")
        columns["difference"].append(shown_difference(test, measure))
        if test is None or np.isnan(test.deviation):
            columns["d"].append("–")
            continue
        columns["d"].append(f"{test.difference / test.deviation:+z.1f}" if test.deviation else "–")
        if test.p >= ALPHA and test.n > 1:
            columns["open"].append(f"{scale * smallest(test, n_open):.{digits}f}")
    result = verdict(found)
    p = "–" if result == "not run" else f"{max(test.p for test in found if test):.2g}"
    said = result
    if result == "**not seen**" and all(test is None or test.p >= ALPHA or test.difference > 0 for test in found):
        said += " (less than half)"
    if result == "not decided" and columns["open"]:
        said += f" (could see {', '.join(columns['open'])})"
    names = ("paper", "here", "difference", "d", "pairs")
    return [claim["claim"], claim["where"], *("; ".join(columns[name]) for name in names), p, said]


def shown_difference(test: Test | None, measure: str) -> str:
    """Return a mean difference with its interval, or a dash where there is none."""
    if test is None or np.isnan(test.deviation):
        return "–"
    digits, scale = units(measure)
    ends = [f"{scale * each:+z.{digits}f}" for each in (test.difference, test.low, test.high)]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]"


def cell_of_second(claim: dict[str, Any], tests: dict[tuple[str, str, str], Test | None]) -> str:
    """Return what another encoder says of a claim: the verdict and the differences."""
    found = [tests[key_of(each)] for each in claim["comparisons"]]
    result = verdict(found)
    if result == "not run":
        return "–"
    measures = (each.get("measure", "dev") for each in claim["comparisons"])
    return f"{result}: {'; '.join(map(shown_difference, found, measures))}"


def verdicts(results: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the verdict of each claim."""
    tests = tests_of(groups, results)
    return {
        claim["claim"]: verdict([tests[key_of(each)] for each in claim["comparisons"]]).strip("*")
        for group in groups
        for claim in group["claims"]
    }


def changes(results: dict[str, Any], groups: Sequence[dict[str, Any]]) -> str:
    """Return the section of claims whose verdict is another than on the last version of the page."""
    before = results.get("previous", {})
    now = verdicts(results, groups)
    rows = [
        f"| {claim} | {before[claim]} | {found} |"
        for claim, found in now.items()
        if before.get(claim, found) != found
    ]
    if not rows:
        return ""
    head = f"## What changed since the last version\n\n{results['why']}\n\n| claim | before | now |\n|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def length_of(curves: dict[str, dict[str, list[float]]]) -> int | None:
    """Return the step at which the differences of the settings are there; None without curves.

    ``curves`` has the dev scores of each setting by step, one a seed. Pairs count whose order a
    paired t-test at the last step decides with p < 0.05. The length is the first step from which
    each of them always shows at least 0.8 of its last mean difference, hence also its order.
    """
    if not curves:
        return None
    names = sorted(curves)
    steps = sorted(map(int, set.intersection(*(set(curves[name]) for name in names))))
    last = str(steps[-1])
    length = steps[0]
    for first, second in itertools.combinations(names, 2):
        both = [np.array(curves[name][last]) for name in (first, second)]
        if len(both[0]) < 2 or t_test(*both, by_seed=True) >= ALPHA:
            continue
        gaps = [
            float(np.mean(curves[first][str(step)]) - np.mean(curves[second][str(step)]))
            for step in steps
        ]
        too_early = [i for i, gap in enumerate(gaps) if gap / gaps[-1] < REACHED]
        if too_early:
            length = max(length, steps[too_early[-1] + 1])
    return length


def curves_of(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the dev scores of ``findings-length.sh`` by setting and step; none until all have run."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in CURVES:
        path = folder / "findings-length-small" / name
        if not (path / "seeds.json").is_file():
            return {}
        scores: defaultdict[str, list[float]] = defaultdict(list)
        for run in seed_runs(path).values():
            for line in read_metrics(run / "metrics.jsonl"):
                if line.dev_score is not None and line.step > 0:
                    scores[str(line.step)].append(line.dev_score)
        found[name] = dict(scores)
    return found


def over_pairs(folder: Path, groups: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return paired bootstrap tests over sentence pairs, where both runs have saved scores.

    These are ``pairs/RECIPE/NAME.seed-N.jsonl``, or ``NAME.jsonl`` beside a result of a model.
    """
    found = {}
    for comparison in comparisons(groups):
        sides = [_pair_scores(folder, name) for name in comparison["runs"]]
        n_seeds = min(map(len, sides))
        if n_seeds == 0 or comparison.get("measure", "dev") in LOWER_FIRST:
            continue
        first, second = (side[:n_seeds] for side in sides)
        if samples := shared_pairs(first, second):
            _, mean = paired_bootstrap(samples, by_seed=True)
            found[" > ".join(comparison["runs"])] = {
                "difference": mean.difference,
                "low": mean.low,
                "high": mean.high,
                "p": mean.p_value,
                "n_pairs": mean.n_pairs,
            }
    return found


def _pair_scores(folder: Path, name: str) -> list[examples.PairScores]:
    recipe, _, rest = name.partition("/")
    single = folder / f"{recipe}-small" / f"{rest}.jsonl"
    if single.is_file():
        return [examples.read_pair_scores(single)]
    saved = (folder / "pairs" / recipe).glob(f"{rest}.seed-*.jsonl")
    in_order = sorted(saved, key=lambda path: int(path.stem.rpartition("-")[2]))
    return [examples.read_pair_scores(path) for path in in_order]


def page(
    results: dict[str, Any],
    groups: Sequence[dict[str, Any]],
    second: dict[str, Any] | None = None,
) -> str:
    """Return the page as Markdown; ``second`` are the results of another encoder."""
    sections = []
    tests = tests_of(groups, results)
    of_second = tests_of(groups, second) if second else None
    heads = ["claim", "where", "paper", "here", "difference", "d", "p over pairs", "p", ""]
    if of_second:
        heads.append("second encoder")
    for group in groups:
        lines = [heads, ["---"] * len(heads)]
        for claim in group["claims"]:
            cells = row_of(claim, results, tests)
            if of_second:
                cells.append(cell_of_second(claim, of_second))
            lines.append(cells)
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        sections.append(f"## {group['group']}\n\n{table}")
    rules = RULES.format(
        levels=", ".join(f"{level:.4f}" for level in levels(ALPHA)),
        n_tests=len(tests),
        power=detectable(LOOKS[-1], levels(ALPHA)[-1]),
        share=power(LOOKS[-1], levels(ALPHA)[-1], 1.0),
    )
    parts = [INTRO, _raw(results), _facts(results, groups), _length(results), rules]
    if second:
        parts += [SECOND_ENCODER, _start(second), _facts(second, groups), _length(second, "###")]
    parts += ["\n\n".join(sections) + "\n", changes(results, groups), _next(results)]
    return "\n".join(filter(None, parts)) + pictures()


def _raw(results: dict[str, Any]) -> str:
    return f"{FRESH if results.get('raw_is_fresh') else EARLIER}\n{_start(results)}"


def _start(results: dict[str, Any]) -> str:
    before, after = results["perplexity"]
    scores = "\n".join(
        f"| {name} | {shown(values, 'average')} |" for name, values in results["scores"].items()
    )
    return (
        f"It took {results['raw_steps']:,} steps of {results['raw_batch']} texts; its perplexity on held-out "
        f"texts fell from {before:,.0f} to {after:,.1f}.\nThe digest of the model is `{results['raw_digest'][:16]}`. "
        "The average of the seven STS tasks, before and after:\n\n"
        f"| encoder, pooler | STS |\n|---|---:|\n{scores}\n"
    )


def _next(results: dict[str, Any]) -> str:
    """Return the section of a campaign whose length is chosen and whose tables are not run yet."""
    if "next" not in results:
        return ""
    parts = [NEXT, _start(results["next"]), _length(results["next"], "###")]
    if "set_aside" in results:
        parts.insert(1, SET_ASIDE.format(**results["set_aside"]))
    return "\n".join(parts)


def _facts(results: dict[str, Any], groups: Sequence[dict[str, Any]]) -> str:
    counts = Counter(verdicts(results, groups).values())
    order = ("seen", "not seen", "not decided", "not run")
    total = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
    hours, versions = results["hours"], results["versions"]
    seeds = ", ".join(map(str, results["seeds"]))
    where = f", {results['hardware']}" if results.get("hardware") else ""
    return (
        f"**{sum(counts.values())} claims: {total}.** {results['n_runs']} trainings, most of {results['steps']} steps, "
        f"seeds {seeds}, {results['precision']}, took {sum(hours.values()):.1f} hours in all (simcse "
        f"{versions['simcse-cli']}, torch {versions['torch']}{where}), beside other work:\n"
        + ", ".join(f"{recipe} {60 * spent:.0f} minutes" for recipe, spent in sorted(hours.items()))
        + ".\n"
    )


def _length(results: dict[str, Any], level: str = "##") -> str:
    """Return the section of the curves, with the length that they choose."""
    curves = results.get("curves", {})
    length = length_of(curves)
    if length is None:
        return ""
    steps = sorted(map(int, curves[CURVES[0]]))
    shown_steps = [step for step in steps if step % 50 == 0 or step == length]
    rows = []
    for step in shown_steps:
        cells = [shown(curves[name][str(step)], "dev") for name in CURVES]
        rows.append(f"| {step} | {' | '.join(cells)} |")
    heads = " | ".join(CURVES)
    return (
        f"{level} Length of the runs\n\nThe dev score of five settings by step. The length is the first step from which all "
        f"pairs of settings that a t-test separates at the last step show {REACHED:.0%} of their last difference: "
        f"**{length} steps**.\n\n| step | {heads} |\n|---:|{'---:|' * len(CURVES)}\n"
        + "\n".join(rows)
        + "\n"
    )


def pictures() -> str:
    """Return the section of the figures that are there."""
    shown = [
        f"{FIGURES[name]}\n\n![{name}](figures/{name}.png)\n"
        for name in FIGURES
        if _figure(name).is_file()
    ]
    return "\n".join(("\n## Figures\n", *shown)) if shown else ""


def _figure(name: str) -> Path:
    return HERE / "figures" / f"{name}.png"


def draw_claims(results: dict[str, Any], groups: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the differences in points with their intervals, sorted, and the papers' beside them."""
    from matplotlib.figure import Figure

    tests = tests_of(groups, results)
    rows = []
    for group in groups:
        for claim in group["claims"]:
            for comparison in claim["comparisons"]:
                test = tests[key_of(comparison)]
                if test is None or comparison.get("measure", "dev") in LOWER_FIRST:
                    continue
                rows.append((100 * test.difference, test, comparison, claim["claim"]))
    rows.sort(key=lambda row: row[0])
    figure = Figure(figsize=(10, 0.24 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    colours = {True: "#1b7837", False: "#b2182b"}
    for place, (difference, test, comparison, _) in enumerate(rows):
        colour = colours[difference > 0] if test.p < ALPHA else "#777777"
        if test.is_less:
            colour = "#e08214"
        axes.plot([100 * test.low, 100 * test.high], [place, place], color=colour, linewidth=1.5)
        axes.plot(difference, place, "o", color=colour, markersize=4)
        if "paper" in comparison:
            greater, less = published_scores(comparison)
            axes.plot(greater - less, place, "d", color="#2166ac", markersize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-20, 40)
    axes.set_xticks([-10, -3, -1, 0, 1, 3, 10, 30], ["-10", "-3", "-1", "0", "1", "3", "10", "30"])
    axes.set_yticks(range(len(rows)), [row[3] for row in rows], fontsize=6)
    axes.set_xlabel("difference in points with its interval; diamonds: the paper's")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def choose_length(folder: Path) -> None:
    """Write the curves of a campaign into the results, and print the length that they choose."""
    start = start_of(folder)
    length = length_of(start["curves"])
    if length is None:
        raise SystemExit(f"{folder}: no curves, run recipes/findings-length.sh first")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if results["raw_digest"] != start["raw_digest"]:  # else its tables are on the page
        results["next"] = start
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(length)


def needed(groups: Sequence[dict[str, Any]]) -> str:
    """Return a regular expression that is found in the outputs, below a folder, that the claims need."""
    outputs = {"table6-pooling-small/unsup", "table6-pooling-small/unsup-bare"}
    for comparison in comparisons(groups):
        for name in comparison["runs"]:
            recipe, _, rest = name.partition("/")
            if recipe != "geometry":
                outputs.add(f"{recipe}-small/{rest.replace('.', '[.]')}")
    folders = "raw-encoder-small|findings-length-small|pairs"
    return f"/(({folders})/|({'|'.join(sorted(outputs))})([.]json)?$)"


def main(arguments: Sequence[str]) -> None:
    if arguments == ["needed"]:
        print(needed(yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))))
        return
    if arguments[:1] == ["length"]:
        choose_length(Path(arguments[1]))
        arguments = ()
    targets = (RESULTS, SECOND)
    if arguments[:1] == ["second"]:
        arguments = arguments[1:]
        targets = (SECOND,)
    groups = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    for folder, target in zip(map(Path, arguments), targets, strict=False):
        old = json.loads(target.read_text(encoding="utf-8")) if target.is_file() else {}
        found = collect(folder, groups)
        found["previous"] = old.get("previous", {})
        found["why"] = old.get("why", NEW_CAMPAIGN)
        if old and old["raw_digest"] != found["raw_digest"]:  # another campaign
            found["previous"] = verdicts(old, groups)
            found["why"] = NEW_CAMPAIGN
            for name in FIGURES if target is RESULTS else ():  # those of the earlier encoder
                _figure(name).unlink(missing_ok=True)
        text = json.dumps(found, indent=1, sort_keys=True)
        target.write_text(text + "\n", encoding="utf-8")
    for name in FIGURES if arguments and targets[0] is RESULTS else ():
        for drawn in Path(arguments[0]).glob(f"figure*-small/{name.removeprefix('findings-')}.png"):
            shutil.copyfile(drawn, _figure(name))
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    second = json.loads(SECOND.read_text(encoding="utf-8")) if SECOND.is_file() else None
    draw_claims(results, groups, _figure("findings-claims"))
    PAGE.write_text(page(results, groups, second), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
