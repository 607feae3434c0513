"""`analyze report`: one page about a training run: scores, curves, geometry, neighbours and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.analysis.analyses import SPACE_ANALYSES, space_analysis
from simcse_cli.analysis.options import ReportOptions, RetrievalOptions, SpaceOptions
from simcse_cli.analysis.presentation import Analysis, NamedSource, Page, html_page
from simcse_cli.analysis.retrieval import CorpusSearch, retrieval_analysis
from simcse_cli.analysis.spaces import EmbeddingSpace, encode_pairs, read_pair_set
from simcse_cli.analysis.trace import STAR, trace_models
from simcse_cli.comparison.changes import changed_pairs, pairs_table
from simcse_cli.comparison.compare import compare
from simcse_cli.comparison.entries import load_entries
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import load_table
from simcse_cli.data.qrels import NumberedTexts, sample_texts
from simcse_cli.encoding.search_index import SearchIndex
from simcse_cli.errors import CheckpointError, require_extra
from simcse_cli.files.output import output_text, require_writable
from simcse_cli.files.streams import iter_json_lines
from simcse_cli.progress import Progress
from simcse_cli.results import plots
from simcse_cli.results.columns import AVERAGE, columns
from simcse_cli.results.examples import SubsetPairs
from simcse_cli.results.report import Report
from simcse_cli.results.result import DEMO
from simcse_cli.results.runs import RunRecord, is_run, read_run_record
from simcse_cli.settings.choices import STS_TASKS, ObjectiveName
from simcse_cli.settings.config import LoadOptions
from simcse_cli.settings.tables import TableOptions

STS_TABLE = "simcse.5"
SUPERVISED = (ObjectiveName.SIMCSE_SUP, ObjectiveName.SBERT)
CHANGES_SHOWN = 10
LOSS_SMOOTHING = 0.1  # weight of a new loss in the running mean


def write_run_report(run: Path, options: ReportOptions, progress: Progress) -> None:
    require_extra("matplotlib", "`simcse analyze report`")
    require_writable(options.output, force=options.force)
    record = read_run_record(run)
    name = run.resolve().name
    analyses = [
        *_scores(run, record, options, progress),
        *_training(run, record),
        *trace_models([NamedSource(str(run), name)], dev=False),
        *_spaces(run, record, options, progress),
        _record_analysis(record),
    ]
    page = Page(
        name,
        lambda: analyses,
        subtitle=f"{record.objective} on {record.model}, seed {record.seed}, {record.status}.",
        facts=list(_facts(record, analyses)),
        own=frozenset({name}),
    )
    with output_text(options.output, force=options.force) as stream:
        stream.write(html_page(page))
    progress.info(
        f"wrote {options.output}: {', '.join(analysis.title.lower() for analysis in analyses)}"
    )


def _facts(record: RunRecord, analyses: Sequence[Analysis]) -> Any:
    for analysis in analyses:
        if (average := analysis.payload.get("own_average")) is not None:
            yield "STS average", f"{100 * average:.2f}"
    if record.best_score is not None:
        yield f"{_dev_name(record)}, best", f"{100 * record.best_score:.2f}"
        if record.start_score is not None:
            gain = 100 * (record.best_score - record.start_score)
            yield "gain over the start", f"{gain:+.2f}"
    yield "steps", f"{record.step:,}"
    if (n_examples := record.data.get("n_examples")) is not None:
        yield "training examples", f"{n_examples:,}"
    if (seconds := record.timings.get("train_s")) is not None:
        yield "training time", f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _dev_name(record: RunRecord) -> str:
    return (
        "dev score"
        if "dev_suite" in record.data
        else Path(str(record.data.get("dev_file", "dev"))).stem
    )


def _scores(
    run: Path, record: RunRecord, options: ReportOptions, progress: Progress
) -> list[Analysis]:
    """Compare the scores of the run with those of the baseline and with published rows; none without scores."""
    entry, *_ = load_entries(str(run))  # the others are results of other settings
    if not entry.scores:
        return []
    wanted = CompareOptions(against=options.against, row=options.row, group=options.group)
    if options.baseline is not None and is_run(options.baseline):
        wanted = replace(wanted, baseline=options.baseline, details=True)
    comparable = [
        task for task in STS_TASKS if task in entry.scores and entry.data.get(task) != DEMO
    ]
    if options.against is None and comparable:
        kind = "supervised" if record.objective in SUPERVISED else "unsupervised"
        group = (options.group or kind).lower()
        rows = [
            system.name for system in load_table(STS_TABLE).all_systems() if system.group == group
        ]
        wanted = replace(
            wanted, against=[STS_TABLE], row=options.row or rows or [group], group=group
        )
    found = compare([str(run)], wanted, progress)
    found.reports[0].notes += found.payload["warnings"]
    text = (
        "Measured by simcse eval, or by the dev evaluation of the run; published rows as printed."
    )
    payload = {"own_average": entry.scores.get(AVERAGE)}
    return [Analysis("Scores", text, tables=found.reports, payload=payload)]


def _training(run: Path, record: RunRecord) -> list[Analysis]:
    """Return the training curves; none if the run logged no loss."""
    path = run / "metrics.jsonl"
    lines = (
        [line for _, line in iter_json_lines(path)]
        if path.is_file() and path.stat().st_size
        else []
    )
    if not any(line.get("loss") is not None for line in lines):
        return []
    text = "Loss of each logged step with its running mean"
    text += ", and the dev score at each evaluation." if record.best_score is not None else "."
    caption = "Left: loss against the step. Right: dev score; the star is the model that was kept."
    return [
        Analysis("Training", text, caption=caption, figure=lambda: training_figure(lines, record))
    ]


@plots.house_style()
def training_figure(lines: Sequence[Mapping[str, Any]], record: RunRecord) -> plots.Figure:
    scored = [
        (line["step"], 100 * line["dev_score"])
        for line in lines
        if line.get("dev_score") is not None
    ]
    figure, panels = plots.new_figure(4.6 * (1 + bool(scored)), 3.4, 1 + bool(scored))
    logged = [(line["step"], line["loss"]) for line in lines if line.get("loss") is not None]
    steps, losses = (np.array(values, dtype=float) for values in zip(*logged, strict=True))
    panels[0].plot(steps, losses, color=plots.SOFT, alpha=0.4, linewidth=0.8)
    running = accumulate(losses.tolist(), lambda mean, loss: mean + LOSS_SMOOTHING * (loss - mean))
    panels[0].plot(steps, list(running), **plots.curve_style(0))
    panels[0].set_ylabel("loss")
    if scored:
        panels[1].plot(*zip(*scored, strict=True), marker="o", markersize=4, **plots.curve_style(0))
        if record.best_score is not None and record.best_step is not None:
            best = (record.best_step, 100 * record.best_score)
            panels[1].scatter(*best, color=plots.colour(1), zorder=5, **STAR)
        panels[1].set_ylabel(f"{_dev_name(record)} x100")
        if (n_pairs := record.data.get("n_dev_pairs")) is not None:
            plots.show_noise(panels[1], [score for _, score in scored], n_pairs)
    for axes in panels:
        axes.set_xlabel("step")
    return figure


def _spaces(
    run: Path, record: RunRecord, options: ReportOptions, progress: Progress
) -> list[Analysis]:
    if options.data_dir is None and options.pair_file is None:
        progress.info(
            "no --data-dir or --pair-file: the page has no geometry, spectrum, densities or neighbours"
        )
        return []
    shared = (
        *LoadOptions.__dataclass_fields__,
        *TableOptions.__dataclass_fields__,
        "data_dir",
        "pair_file",
    )
    own = SpaceOptions(**{name: getattr(options, name) for name in shared} | {"model": [str(run)]})
    baseline = options.baseline or record.model
    label = Path(baseline).resolve().name if Path(baseline).exists() else baseline
    label += "" if options.baseline else " (start)"
    name, data = run.resolve().name, read_pair_set(own, progress)  # once, since it may be a pipe
    try:
        before = encode_pairs(replace(own, model=[baseline]), [label], progress, data)
    except CheckpointError:
        if options.baseline is not None:
            raise
        progress.warn(f"{baseline} cannot be opened any more: the page shows the run alone")
        before = []
    spaces = [*before, *encode_pairs(own, [name], progress, data)]
    analyses = [space_analysis(name, spaces) for name in SPACE_ANALYSES]
    if len(spaces) > 1:
        analyses += _changes(spaces)
    return analyses + ([_neighbours(spaces, options)] if options.queries else [])


def _changes(spaces: Sequence[EmbeddingSpace]) -> list[Analysis]:
    """Return the pairs whose rank differs most between the two spaces."""
    pairs = spaces[0].data.pairs
    before, after = (
        {"": {"all": SubsetPairs(pairs.gold, space.cosines, tuple(pairs.left), tuple(pairs.right))}}
        for space in spaces
    )
    changes = changed_pairs(before, after, n=CHANGES_SHOWN)
    table = pairs_table(changes, spaces[0].label, spaces[1].label)
    kept = [column for column in table.columns if column.key not in ("task", "pair")]
    text = "Rated pairs that moved most in the order by cosine, first those that came nearer to their rating."
    return [Analysis("What changed", text, tables=[replace(table, columns=kept)])]


def _neighbours(spaces: Sequence[EmbeddingSpace], options: ReportOptions) -> Analysis:
    pairs = spaces[0].data.pairs
    rows = {text: row for row, text in reversed(list(enumerate(pairs.sentences)))}
    corpus, chosen = NumberedTexts.numbered(list(rows)), list(rows.values())
    build = partial(SearchIndex.build, sentences=corpus.sentences)
    indexes = [(space.encoder, build(space.vectors[chosen])) for space in spaces]
    search = CorpusSearch(RetrievalOptions(top_k=3), corpus, indexes)
    return retrieval_analysis(search, sample_texts(corpus, options.queries, seed=42))


def _record_analysis(record: RunRecord) -> Analysis:
    """Return the settings, data and versions of a run, folded away on the page."""
    shown = columns("name", "value", name="", value="")
    parts = {"Settings": record.config, "Data": record.data, "Versions": record.versions}
    tables = [
        Report(title, shown, [{"name": name, "value": value} for name, value in facts.items()])
        for title, facts in parts.items()
    ]
    return Analysis(
        "Settings and data",
        f"Started {record.started}, finished {record.finished}; weights {str(record.model_digest)[:12]}. The same "
        "run again: simcse train --config RUN/config.yaml -o NEW_RUN",
        tables=tables,
        folded="all settings, digests of the data, versions",
    )
