"""`simcse compare`: runs, result files and published rows side by side."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.choices import Aggregation, Correction, Metric, OutputFormat
from simcse_cli.commands import _published_reports as published_reports
from simcse_cli.commands import options as opt
from simcse_cli.commands._compare_reports import (
    change_json,
    changes_report,
    comparison_json,
    comparison_reports,
    prediction_json,
    predictions_report,
    settings_report,
)
from simcse_cli.commands._compare_request import Request, build_comparison
from simcse_cli.commands._compare_tests import BootstrapPlan, run_tests, tests_reports, with_saved
from simcse_cli.console import Console, get_console
from simcse_cli.errors import ConfigError, ToleranceError
from simcse_cli.files import check_output
from simcse_cli.metrics import label
from simcse_cli.report import Report

if TYPE_CHECKING:
    from simcse_cli.comparison.tables import Comparison

SHOWN_DEVIATIONS = 5


def register(app: typer.Typer) -> None:
    """Add `compare` to the application."""
    app.command("compare", no_args_is_help=True)(compare_command)


def compare_command(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_OR_RESULT]...",
            help="Run folders, folders of runs, result files of `eval` and `analyze geometry`, - for stdin. "
            "LABEL=PATH names one; parts under one label are joined, repetitions get a mean.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option("--against", help="Published table (see --list) or YAML file of your own. Repeatable."),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", help="Row of the table; without it all rows. Repeatable."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Group of the row where its name occurs twice.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", help="Label or path of the entry that differences are taken to; may be one more."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Exit with 3 if a score is further from the reference than --tolerance."
        ),
    ] = False,
    tolerance: Annotated[float, typer.Option("--tolerance", min=0.0, help="In points (x100).")] = 0.5,
    measures: Annotated[
        str | None, typer.Option("--measures", help="Only these columns, for example STS12,STS-B,Avg.")
    ] = None,
    aggregation: Annotated[
        Aggregation | None, typer.Option("--aggregation", help="Read STS results under this aggregation.")
    ] = None,
    metric: Annotated[
        Metric | None, typer.Option("--metric", help="Read STS results under this metric.")
    ] = None,
    pareto: Annotated[
        str | None,
        typer.Option("--pareto", help="Mark the Pareto front over these; default: averages and geometry."),
    ] = None,
    examples: Annotated[
        int,
        typer.Option("--examples", min=0, help="Examples to show that changed most (needs saved scores)."),
    ] = 6,
    resamples: Annotated[
        int, typer.Option("--resamples", min=1, help="Resamples of the paired bootstrap.")
    ] = 2000,
    correction: Annotated[
        Correction, typer.Option("--correction", help="Correction of the p-values for their number.")
    ] = Correction.HOLM,
    list_tables: Annotated[bool, typer.Option("--list", help="List the published tables.")] = False,
    show: Annotated[
        str | None, typer.Option("--show", metavar="TABLE", help="Show one published table.")
    ] = None,
    seed: opt.SeedOption = 0,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Compare runs, result files and published numbers: scores, differences, tests, what changed."""
    console = get_console()
    if output is not None:
        check_output(output, force=force)
    if list_tables or show is not None:
        report, payload = _published(show)
        console.emit(report, payload, fmt, output=output, force=force)
        return
    request = Request(
        items or (),
        against or (),
        row or (),
        group,
        baseline,
        _split(measures),
        _split(pareto),
        aggregation,
        metric,
    )
    comparison = build_comparison(request)
    for warning in comparison.warnings:
        console.warn(warning)
    plan = BootstrapPlan(resamples, seed, correction)
    reports, payload = describe(comparison, plan, n_examples=examples, console=console)
    if check:
        payload["check"] = judge(comparison, tolerance / 100)
    console.emit(reports, payload, fmt, output=output, force=force)
    if check:
        _finish_check(payload["check"], comparison, console)


def describe(
    comparison: "Comparison", plan: BootstrapPlan, *, n_examples: int, console: Console
) -> tuple[list[Report], dict[str, Any]]:
    """Return everything there is to say: scores, differences, tests, settings and examples that changed."""
    reports, payload = comparison_reports(comparison), comparison_json(comparison)
    tests = run_tests(comparison, plan, console.progress)
    reports += tests_reports(tests, plan)
    payload["tests"] = tests.to_json()
    for name, (report, values) in {
        "changed_settings": _changed_settings(comparison),
        "changed_pairs": _changed_pairs(comparison, n_examples),
        "changed_predictions": _changed_predictions(comparison, n_examples),
    }.items():
        payload[name] = values
        if values and report is not None:
            reports.append(report)
    return reports, payload


def judge(comparison: "Comparison", tolerance: float) -> dict[str, Any]:
    """Return the outcome of ``--check``: how many scores were held against the reference, which are too far.

    Raises:
        ConfigError: there is no reference.
    """
    if comparison.reference is None:
        raise ConfigError(
            "--check needs one reference to hold the scores against",
            hint="name it with --against TABLE --row NAME, or with --baseline RUN",
        )
    return {
        "tolerance": tolerance,
        "n_checked": sum(len(comparison.differences(entry)) for entry in comparison.checked()),
        "outside": [vars(deviation) for deviation in comparison.outside(tolerance)],
    }


def _published(show: str | None) -> tuple[Report, dict[str, Any]]:
    """Return the list of published tables, or one of them."""
    if show is None:
        return published_reports.list_report()
    from simcse_cli.comparison.published import load_table

    return published_reports.show_report(load_table(show))


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _changed_settings(comparison: "Comparison") -> tuple[Report | None, list[dict[str, Any]]]:
    """Return how the settings of two runs differ; nothing unless there are exactly two."""
    from simcse_cli.comparison.changes import changed_settings

    runs = [entry for entry in comparison.entries if entry.config]
    if len(runs) != 2:
        return None, []
    changes = changed_settings(runs[0].config, runs[1].config)
    return settings_report(changes, runs[0].label, runs[1].label), [vars(change) for change in changes]


def _changed_pairs(comparison: "Comparison", n: int) -> tuple[Report | None, list[dict[str, Any]]]:
    """Return the pairs that changed most, from the baseline of the tests to the last entry with pairs."""
    from simcse_cli.comparison.changes import changed_pairs
    from simcse_cli.predictions import read_pair_scores

    saved = with_saved(comparison, "pair_scores")
    if len(saved) < 2 or n == 0:
        return None, []
    (before, before_path), (after, after_path) = saved[0], saved[-1]
    changes = changed_pairs(read_pair_scores(before_path), read_pair_scores(after_path), n=n)
    return changes_report(changes, before.label, after.label), [change_json(change) for change in changes]


def _changed_predictions(comparison: "Comparison", n: int) -> tuple[Report | None, list[dict[str, Any]]]:
    """Return examples that the baseline of the tests or the last entry with predictions alone gets right."""
    from simcse_cli.comparison.changes import changed_predictions
    from simcse_cli.predictions import read_predictions

    saved = with_saved(comparison, "predictions")
    if len(saved) < 2 or n == 0:
        return None, []
    (before, before_path), (after, after_path) = saved[0], saved[-1]
    changes = changed_predictions(read_predictions(before_path), read_predictions(after_path), n=n)
    return predictions_report(changes, before.label, after.label), [prediction_json(each) for each in changes]


def _finish_check(outcome: dict[str, Any], comparison: "Comparison", console: Console) -> None:
    """Say that the check passed, or raise with the scores that are too far off."""
    reference = comparison.reference.label if comparison.reference else ""
    points = f"{100 * outcome['tolerance']:g} points"
    outside = outcome["outside"]
    if not outside:
        console.info(f"check passed: {outcome['n_checked']} scores within {points} of {reference}")
        return
    shown = "; ".join(
        f"{found['label']} {label(found['measure'])} {100 * found['score']:.2f}, "
        f"not {100 * found['expected']:.2f}"
        for found in outside[:SHOWN_DEVIATIONS]
    )
    more = f"; and {len(outside) - SHOWN_DEVIATIONS} more" if len(outside) > SHOWN_DEVIATIONS else ""
    raise ToleranceError(
        f"{len(outside)} of {outcome['n_checked']} scores are more than {points} off {reference}: "
        f"{shown}{more}",
        hint="see what differs in the warnings above, or allow more with --tolerance",
    )
