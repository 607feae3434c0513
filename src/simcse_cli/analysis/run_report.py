"""`analyze report`: one page about a run: scores, curves, geometry, neighbours and settings."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.analysis.analyses import SPACE_ANALYSES, space_analysis
from simcse_cli.analysis.options import ReportOptions, RetrievalOptions, SpaceOptions
from simcse_cli.analysis.presentation import Analysis, NamedSource, Page, html_page, name_sources
from simcse_cli.analysis.retrieval import CorpusSearch, retrieval_analysis
from simcse_cli.analysis.spaces import EmbeddingSpace, PairSet, encode_pairs, read_pair_set
from simcse_cli.analysis.trace import STAR, trace_models
from simcse_cli.arrays import Floats
from simcse_cli.comparison.changes import changed_pairs, pairs_table
from simcse_cli.comparison.compare import compare
from simcse_cli.comparison.entries import ScoredData, load_entries
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import load_table
from simcse_cli.data.qrels import NumberedTexts, sample_texts
from simcse_cli.data.senteval import digest_of_pairs
from simcse_cli.encoding.search_index import SearchIndex
from simcse_cli.errors import CheckpointError, require_extra
from simcse_cli.evaluation.bootstrap import PairedSample, mean_interval, paired_bootstrap
from simcse_cli.files.output import output_text, require_writable
from simcse_cli.progress import Progress
from simcse_cli.results import plots
from simcse_cli.results.columns import AVERAGE, columns
from simcse_cli.results.examples import PairScores, SubsetPairs
from simcse_cli.results.report import Report, mean_and_deviation
from simcse_cli.results.result import DEMO, NO_TEST
from simcse_cli.results.runs import (
    Measured,
    RunRecord,
    duration,
    is_run,
    pairs_that_chose,
    read_metrics,
    read_run_record,
    seed_runs,
    short_names,
)
from simcse_cli.settings.choices import STS_TASKS, ObjectiveName
from simcse_cli.settings.config import LoadOptions
from simcse_cli.settings.tables import TableOptions

STS_TABLE = "simcse.5"
SUPERVISED = (ObjectiveName.SIMCSE_SUP, ObjectiveName.SBERT)
CHANGES_SHOWN = 10
LOSS_WINDOW = 10  # losses in the running mean


def write_run_report(run: Path, options: ReportOptions, progress: Progress) -> None:
    """Write the HTML page of a run, or one page for all seeds in a folder."""
    require_extra("matplotlib", "`simcse analyze report`")
    require_writable(options.output, force=options.force)
    sources, baseline_name = _name_runs(run, options)
    records = [read_run_record(source.path) for source in sources]
    first = records[0]
    name = sources[0].group or sources[0].label  # seeds share the name of their group

    # The default baseline is the model that training started from.
    baseline = NamedSource(first.model, f"{without_folders(first.model)} (start)")
    if options.baseline:
        baseline = NamedSource(options.baseline, baseline_name)
    space_analyses, verdict_text = _spaces(NamedSource(str(run), name), baseline, options, progress)
    analyses = [
        *_scores(run, first, options, progress),
        *_training(sources, records),
        *trace_models(sources, dev=False),  # the training curves show the dev scores
        *space_analyses,
        _record_analysis(first),
    ]
    seeds = ", ".join(str(record.seed) for record in records)
    status = ", ".join(dict.fromkeys(record.status for record in records))

    # The page marks the rows of its own runs, which have these names in tables.
    own_names = {name, *(source.label for source in sources)}
    seed = f"seed {seeds}"
    if len(records) > 1:
        seed = f"seeds {seeds}"
        own_names.add(f"{name} (mean of {len(records)})")
    page = Page(
        name,
        lambda: analyses,
        subtitle=f"{first.objective} on {without_folders(first.model)}, {seed}, {status}.",
        facts=list(_facts(records, analyses)),
        own=frozenset(own_names),
        verdict=verdict_text,
    )
    with output_text(options.output, force=options.force) as stream:
        stream.write(html_page(page, progress))
    titles = ", ".join(analysis.title.lower() for analysis in analyses)
    progress.info(f"wrote {options.output}: {titles}")


def _name_runs(run: Path, options: ReportOptions) -> tuple[list[NamedSource], str]:
    """Return the runs of the page with their names, and the name of the baseline.

    Without a baseline, its name is "None", and has no use.
    """
    run_path = str(run.resolve())
    baseline = options.baseline
    # A model of the Hub keeps its whole name.
    if baseline is None or not Path(baseline).exists():
        return name_sources([run_path], [run.resolve().name]), str(baseline)
    run_name, baseline_name = short_names([run_path, str(Path(baseline).resolve())])
    return name_sources([run_path], [run_name]), baseline_name


def without_folders(value: Any) -> Any:
    """Return a value, such as a text or a dictionary, with every absolute path in it cut short.

    Only the last part of a path stays, because the page may be passed on, and folders are private:
    ``/home/me/data/wiki.txt`` gives ``wiki.txt``. Relative paths and URLs stay as they are.
    """
    if isinstance(value, Mapping):
        return {without_folders(key): without_folders(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(part) for part in value]
    if not isinstance(value, str):
        return value
    # The whole text may be a path; inside other texts, the folders of each path are removed.
    if Path(value).is_absolute() and " " not in value:
        return Path(value).name
    return re.sub(r"(?<![\w.:/~-])/(?:[^\s/:;,]+/)+(?=[^\s/])", "", value)


def _shared_report(table: Report) -> Report:
    """Return a table without absolute paths in its title, headings, cells and notes."""
    shown = [replace(column, label=without_folders(column.label)) for column in table.columns]
    title, rows, notes = without_folders([table.title, table.rows, table.notes])
    return Report(title, shown, rows, notes)


def _facts(records: Sequence[RunRecord], analyses: Sequence[Analysis]) -> Iterator[tuple[str, str]]:
    """Yield the facts at the top of the page, each a name and a value."""
    first = records[0]
    for analysis in analyses:  # only that of the scores has an average
        average = _mean_text([analysis.payload.get("own_average")])
        if average is not None:
            yield "STS average", average
    best = _mean_text([record.best_score for record in records])
    if best is not None:
        yield f"{_dev_name(first)}, best", best
    gain = _gain(records)
    if gain is not None:
        yield "gain over the start", gain

    yield "steps", f"{first.step:,}"
    n_examples = first.data.get("n_examples")
    if n_examples is not None:
        yield "training examples", f"{n_examples:,}"
    mean_hours, _ = mean_and_deviation([record.timings.get("hours") for record in records])
    elapsed = duration(mean_hours)
    if elapsed is not None:
        yield "duration a run" if len(records) > 1 else "duration", elapsed


def _mean_text(fractions: Sequence[float | None]) -> str | None:
    """Return the mean and the deviation x100 as a text, such as "76.25 ± 0.31".

    A single value has no deviation. Return None if a value is missing.
    """
    mean, deviation = mean_and_deviation(fractions)
    if mean is None:
        return None
    if deviation is None:
        return f"{100 * mean:.2f}"
    return f"{100 * mean:.2f} ± {100 * deviation:.2f}"


def _gain(records: Sequence[RunRecord]) -> str | None:
    """Return how much training raised the dev score x100, as a text.

    - A single run that has recorded its gain with an interval gives what it recorded.
    - Any other single run gives the difference of its scores.
    - Several seeds give their mean gain, with an interval over the seeds.

    Return None if a run lacks a score.
    """
    if len(records) == 1 and records[0].gain is not None:
        return f"{records[0].gain}, {records[0].gain.meaning}"
    gains = []
    for record in records:
        if record.best_score is None or record.start_score is None:
            return None
        gains.append(record.best_score - record.start_score)
    mean = sum(gains) / len(gains)
    if len(gains) == 1:
        return f"{100 * mean:+.2f}"
    low, high = mean_interval(np.array(gains))
    interval = f"({100 * low:+.2f} to {100 * high:+.2f})"
    return f"{100 * mean:+.2f} {interval}, 95% interval over {len(gains)} seeds"


def _dev_name(record: RunRecord) -> str:
    if "dev_suite" in record.data:
        return "dev score"
    return Path(str(record.data.get("dev_file", "dev"))).stem


def _scores(
    run: Path, record: RunRecord, options: ReportOptions, progress: Progress
) -> list[Analysis]:
    """Return, in a list, a comparison of the run with the baseline and with published rows.

    The list is empty if the run has no scores.
    """
    entries = load_entries(str(run))
    entry = entries[0]  # the rest are other seeds, or results under other evaluation settings
    if not entry.scores:
        return []

    # Only a trained baseline, a run or its seeds, has scores to compare with.
    compare_options = CompareOptions(against=options.against, row=options.row, group=options.group)
    if options.baseline is not None and (is_run(options.baseline) or seed_runs(options.baseline)):
        compare_options = replace(compare_options, baseline=options.baseline, details=True)

    # By default the published STS rows of the same kind stand beside the run, if it has STS scores;
    # scores on the demo corpus cannot be compared with them.
    comparable = [
        task
        for task in STS_TASKS
        if task in entry.scores and entry.data.get(task) != ScoredData(DEMO)
    ]
    if options.against is None and comparable:
        kind = "supervised" if record.objective in SUPERVISED else "unsupervised"
        group = (options.group or kind).lower()
        rows = options.row
        if not rows:
            systems = load_table(STS_TABLE).all_systems()
            # An unknown group has no rows. Its name is then taken for a row, which raises a helpful
            # error below.
            rows = [system.name for system in systems if system.group == group] or [group]
        compare_options = replace(compare_options, against=[STS_TABLE], row=rows, group=group)

    # A reader of the report sees no terminal, so warnings become notes.
    comparison = compare([str(run)], compare_options, progress)
    comparison.reports[0].notes += comparison.payload["warnings"]
    text = (
        "Measured by simcse eval, or by the dev evaluation of the run. Published scores are as "
        "printed, and averages are over the tasks of the run."
    )
    folders = {each.folder for each in entries}
    payload = {"own_average": own_average(comparison.payload["entries"], folders)}
    tables = [_shared_report(table) for table in comparison.reports]
    return [Analysis("Scores", text, tables=tables, payload=payload)]


def own_average(entries: Sequence[Mapping[str, Any]], folders: Collection[str]) -> float | None:
    """Return the average of a run, or the mean over its seeds, from the entries of a comparison.

    ``folders`` are those of the run, or of all its seeds.
    """
    runs = [entry for entry in entries if entry["source"] in folders]
    labels = {run["label"] for run in runs}
    # The rest are other seeds, or results under other evaluation settings.
    first = shown = runs[0]
    # Only means have members. The mean over the seeds has the first run, which a mean under other
    # settings lacks, and no other system, which a mean of the baseline has.
    for entry in entries:
        if first["label"] in entry["members"] and labels.issuperset(entry["members"]):
            shown = entry
            break
    average: float | None = shown["scores"].get(AVERAGE)
    return average


def _training(sources: Sequence[NamedSource], records: Sequence[RunRecord]) -> list[Analysis]:
    """Return the analysis of the training curves, in a list; no analysis if no loss was logged.

    Runs without a logged loss are left out.
    """
    logs = []
    records_of_logs = []
    for source, record in zip(sources, records, strict=True):
        lines = _log_lines(Path(source.path) / "metrics.jsonl")
        if _measured(lines, "loss"):
            logs.append(lines)
            records_of_logs.append(record)
    if not logs:
        return []
    text = f"Loss of each logged step, with the mean of the last {LOSS_WINDOW}"
    if any(_measured(lines, "dev_score") for lines in logs):
        text += ", and the dev score at each evaluation."
        caption = "Left: loss against the step. Right: dev score; the star is the model kept."
    else:
        text += "."
        caption = "Loss against the step."
    if len(logs) > 1:
        text += " One line a seed."
    figure = partial(training_figure, logs, records_of_logs)
    return [Analysis("Training", text, caption=caption, figure=figure)]


def _log_lines(path: Path) -> list[Measured]:
    return read_metrics(path) if path.is_file() else []


def _measured(lines: Sequence[Measured], name: str) -> list[tuple[int, float]]:
    """Return ``(step, value)`` of each line that has a value of the measure ``name``."""
    values = [(line.step, getattr(line, name)) for line in lines]
    return [(step, value) for step, value in values if value is not None]


@plots.house_style()
def training_figure(
    logs: Sequence[Sequence[Measured]], records: Sequence[RunRecord]
) -> plots.Figure:
    """Draw the losses of each run, with their running mean, and in a second panel its dev scores.

    Without any dev score there is one panel. ``logs`` are the lines of each run's log.
    """
    dev_points = [_measured(lines, "dev_score") for lines in logs]
    has_scores = any(dev_points)
    n_panels = 2 if has_scores else 1
    figure, panels = plots.new_figure(4.6 * n_panels, 3.4, n_panels)
    for lines in logs:
        steps, losses = np.array(_measured(lines, "loss"), dtype=float).T
        panels[0].plot(steps, losses, color=plots.SOFT, alpha=0.4 / len(logs), linewidth=0.8)
        panels[0].plot(steps, running_mean(losses, LOSS_WINDOW), **plots.curve_style(0))
    panels[0].set_ylabel("loss")
    if has_scores:
        _draw_dev_scores(panels[1], dev_points, records)
    for axes in panels:
        axes.set_xlabel("step")
    return figure


def running_mean(values: Floats, window: int) -> Floats:
    """Return for each of N values the mean of it and the ``window - 1`` values before it.

    The first values have fewer before them: 1, 3, 5 and a window of 2 give 1, 2, 4.
    """
    # The sum of a window is the difference of two running sums.
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts), dtype=np.float64)


def _draw_dev_scores(
    axes: plots.Axes,
    dev_points: Sequence[Sequence[tuple[int, float]]],
    records: Sequence[RunRecord],
) -> None:
    """Draw the ``(step, dev score)`` points of each run; a star marks the model that was kept."""
    all_scores: list[float] = []
    for points, record in zip(dev_points, records, strict=True):
        shown = [(step, 100 * score) for step, score in points]
        axes.plot(*zip(*shown, strict=True), marker="o", markersize=4, **plots.curve_style(0))
        all_scores += [score for _, score in shown]
        if record.best_score is not None and record.best_step is not None:
            best = (record.best_step, 100 * record.best_score)
            axes.scatter(*best, color=plots.colour(1), zorder=5, **STAR)
    axes.set_ylabel(f"{_dev_name(records[0])} x100")
    n_pairs = records[0].data.get("n_dev_pairs")
    if n_pairs is not None:  # widen the axis, so that mere noise looks small
        plots.show_noise(axes, all_scores, n_pairs)


def _spaces(
    run: NamedSource, baseline: NamedSource, options: ReportOptions, progress: Progress
) -> tuple[list[Analysis], str]:
    """Return the analyses of the vectors of rated pairs, and a sentence on what the run gained.

    If the options name no rated pairs, there are no analyses, and the sentence is empty. It is also
    empty if the baseline cannot be opened, or if a space has no score.
    """
    if options.data_dir is None and options.pair_file is None:
        progress.info(
            "no --data-dir or --pair-file: the page has no geometry, spectrum, densities or "
            "neighbours"
        )
        return [], ""

    # The pairs are read once, since they may be a pipe.
    shared = [*LoadOptions.__dataclass_fields__, *TableOptions.__dataclass_fields__]
    shared += ["data_dir", "pair_file", "columns"]
    values = {key: getattr(options, key) for key in shared}
    run_options = SpaceOptions(**values, model=[run.path])
    data = read_pair_set(run_options, progress)

    # ``before`` are the spaces of the baseline, none if it cannot be opened. ``after`` are those of
    # the run.
    is_start = options.baseline is None
    before = _encode_baseline(baseline, run_options, data, progress, is_start=is_start)
    after = encode_pairs(run_options, [run.label], progress, data)
    spaces = [*before, *after]
    analyses = [space_analysis(name, spaces) for name in SPACE_ANALYSES]
    verdict_text = ""
    if before:
        analyses += _changes(before[0], after[0])
        if all(space.score is not None for space in spaces):
            verdict_text = _verdict(baseline.label, before, after, progress)
    if options.queries:
        analyses.append(_neighbours([*before[:1], after[0]], options))
    return analyses, verdict_text


def _encode_baseline(
    baseline: NamedSource,
    options: SpaceOptions,
    data: PairSet,
    progress: Progress,
    *,
    is_start: bool,
) -> list[EmbeddingSpace]:
    """Return the spaces of the baseline on ``data``.

    ``is_start`` says that the baseline is the model that training started from. If this cannot be
    opened any more, warn and return no space. For any other baseline this is an error.
    """
    try:
        options = replace(options, model=[baseline.path])
        return encode_pairs(options, [baseline.label], progress, data)
    except CheckpointError:
        if not is_start:
            raise
    progress.warn(f"{baseline.path} cannot be opened any more: the page shows the run alone")
    return []


def _verdict(
    label: str,
    before: Sequence[EmbeddingSpace],
    after: Sequence[EmbeddingSpace],
    progress: Progress,
) -> str:
    """Return a sentence on whether the run (``after``) is better than the baseline (``before``).

    It reports the test of `compare` over the scored pairs. A single baseline is paired with each
    seed of the run. There is no test if the scored pairs chose one of the models. ``label`` is the
    name of the baseline.
    """
    data = before[0].data
    # The scored pairs come last; in the whole of STS-B they are the test set.
    scored = slice(-data.n_scored, None)
    digest = digest_of_pairs(data.pairs.pairs[scored])
    if any(digest in pairs_that_chose(space.encoder.source) for space in (*before, *after)):
        return f"On {data.name}: {NO_TEST}."
    candidate = np.stack([space.cosines[scored] for space in after])
    baseline = np.stack([space.cosines[scored] for space in before])
    if len(baseline) == 1:
        baseline = np.repeat(baseline, len(candidate), axis=0)
    sample = PairedSample(data.pairs.gold[scored], candidate, baseline)
    # Only a single baseline is paired by seed, since several may have other seeds than the run. The
    # name of the measure seeds the draws, so `compare` draws the same resamples.
    tests, _ = paired_bootstrap(
        {data.measure: [sample]}, by_seed=len(before) == 1, progress=progress
    )
    test = tests.get(data.measure)
    if test is None:
        return f"On {data.name}: not tested, as most resamples of the pairs have no correlation."
    words = test.verdict(test.p_decisive, label, "pairs")
    points = f"{100 * test.difference:+.2f} ({100 * test.low:+.2f} to {100 * test.high:+.2f})"
    points += f", 95% interval over {test.examples('pairs')}"
    return f"On {data.name}: {words}. Spearman x100: {points}."


def _changes(before: EmbeddingSpace, after: EmbeddingSpace) -> list[Analysis]:
    """Return, in a list, the analysis of the pairs whose rank differs most between two spaces."""

    # All pairs are one subset of one task, so that they are ranked together.
    def scores(space: EmbeddingSpace) -> PairScores:
        pairs = space.data.pairs
        all_pairs = SubsetPairs(pairs.gold, space.cosines, tuple(pairs.left), tuple(pairs.right))
        return {"": {"all": all_pairs}}

    changes = changed_pairs(scores(before), scores(after), n=CHANGES_SHOWN)
    table = pairs_table(changes, before.label, after.label)
    kept = [column for column in table.columns if column.key not in ("task", "pair")]
    text = (
        "Rated pairs that moved most in the order by cosine, first those that came nearer to "
        "their rating."
    )
    return [Analysis("What changed", text, tables=[replace(table, columns=kept)])]


def _neighbours(spaces: Sequence[EmbeddingSpace], options: ReportOptions) -> Analysis:
    """Return the nearest neighbours, in each space, of sentences drawn from the pairs."""
    # Map each distinct sentence to its first row: going backwards, the first row is stored last.
    sentences = spaces[0].data.pairs.sentences
    first_rows: dict[str, int] = {}
    for row in reversed(range(len(sentences))):
        first_rows[sentences[row]] = row
    corpus = NumberedTexts(list(first_rows))
    indexes = []
    for space in spaces:
        vectors = space.vectors[list(first_rows.values())]
        indexes.append((space.encoder, SearchIndex.build(vectors, corpus.sentences)))
    queries = sample_texts(corpus, options.queries, seed=42)
    return retrieval_analysis(CorpusSearch(RetrievalOptions(top_k=3), corpus, indexes, queries))


def _record_analysis(record: RunRecord) -> Analysis:
    """Return the settings, data and versions of a run, folded away on the page."""
    shown = columns("name", "value", name="", value="")
    facts_by_title = {"Settings": record.config, "Data": record.data, "Versions": record.versions}
    tables = []
    for title, facts in facts_by_title.items():
        rows = [{"name": name, "value": value} for name, value in without_folders(facts).items()]
        tables.append(Report(title, shown, rows))
    return Analysis(
        "Settings and data",
        f"Started {record.started}, finished {record.finished}; weights "
        f"{str(record.model_digest)[:12]}. The same run again: simcse train --config "
        "RUN/config.yaml -o NEW_RUN",
        tables=tables,
        folded="all settings, digests of the data, versions",
    )
