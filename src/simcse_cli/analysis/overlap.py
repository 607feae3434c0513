"""`analyze overlap`: the lexical overlap of the pairs of a file, as ``data.text`` defines it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simcse_cli.analysis.options import OverlapOptions
from simcse_cli.analysis.presentation import Analysis, label_sources
from simcse_cli.arrays import Floats
from simcse_cli.data.formats import source_name
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.pair_files import PAIR, iter_pairs
from simcse_cli.data.text import overlap_f1
from simcse_cli.errors import DataError
from simcse_cli.progress import Progress
from simcse_cli.results import plots
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Report

BINS = np.linspace(0, 1, 21)


def read_overlaps(
    source: Path, name: str, given: Given, progress: Progress, *, multiset: bool = True
) -> Floats:
    """Return the F1 between the words of the two texts of each pair, ``(N,)`` in [0, 1].

    Two kinds of rows are left out, and the user is told how many of each: rows with an empty text,
    and pairs without any word, which have no F1. With ``multiset``, a word counts as often as it
    occurs, otherwise once. ``name`` stands beside the progress bar.
    """
    values: list[float] = []
    n_empty = 0
    n_wordless = 0

    def count_empty() -> None:
        nonlocal n_empty
        n_empty += 1

    with progress.task(f"overlap of {name}") as task:
        for left, right in iter_pairs(source, given, left_out=count_empty):
            f1 = overlap_f1(left, right, multiset=multiset)
            if f1 is None:
                n_wordless += 1
            else:
                values.append(f1)
            task.advance()
    if n_wordless and not values:
        raise DataError(f"{source_name(source)}: no pair has a word (letters or digits)")
    if not values:
        raise DataError(f"{source_name(source)} has no rows")
    if n_wordless:
        unit = "pair" if n_wordless == 1 else "pairs"
        progress.info(f"{source_name(source)}: left out {n_wordless:,} {unit} without any word")
    if n_empty:
        unit = "row" if n_empty == 1 else "rows"
        progress.info(f"{source_name(source)}: left out {n_empty:,} {unit} with an empty text")
    return np.array(values)


def summarize(values: Floats) -> dict[str, float]:
    """Return the mean and the quartiles."""
    q25, median, q75 = np.quantile(values, (0.25, 0.5, 0.75))
    return {
        "mean": float(values.mean()),
        "q25": float(q25),
        "median": float(median),
        "q75": float(q75),
    }


@plots.house_style()
def overlap_figure(overlaps: Mapping[str, Floats]) -> plots.Figure:
    """Draw the distribution of lexical overlap in each file of pairs, with a line at the mean."""
    figure, (axes,) = plots.new_figure(6.4, 4.0)
    for position, (name, values) in enumerate(overlaps.items()):
        shares = 100 * np.histogram(values, BINS)[0] / len(values)
        style = plots.curve_style(position)
        label = plots.shown(f"{name} (mean {values.mean():.0%})")
        axes.stairs(shares, BINS, linewidth=1.8, label=label, **style)
        axes.axvline(float(values.mean()), linewidth=1.0, **style)
    axes.set(xlim=(0, 1), xlabel="F1 between the words of the two sides", ylabel="% of pairs")
    plots.legend_below(figure, *axes.get_legend_handles_labels())
    return figure


def overlap_analysis(
    files: Sequence[Path], options: OverlapOptions, labels: Sequence[str] | None, progress: Progress
) -> Analysis:
    """Return the lexical overlap of the pairs of each file, as numbers and as histograms."""
    given = Given.of(options, parse_columns(options.columns, PAIR), roles=PAIR, progress=progress)
    multiset = not options.distinct
    names = label_sources([str(path) for path in files], labels)
    overlaps = {}
    for path, name in zip(files, names, strict=True):
        overlaps[name] = read_overlaps(path, name, given, progress, multiset=multiset)
    rows = [{"file": name, "n_pairs": len(f1), **summarize(f1)} for name, f1 in overlaps.items()]

    shown = columns("mean", "q25", "median", "q75", kind="score", mean="mean F1")
    title = "Lexical overlap of pairs (F1 between the words of the two sides)"
    note = "Gao et al. 2021 report 39 for NLI entailment pairs, 60 for QQP, 55 for ParaNMT."

    # The terminal shows shares of the pairs, so that files of any size compare.
    def histograms() -> str:
        shares = {name: np.histogram(f1, BINS)[0] / len(f1) for name, f1 in overlaps.items()}
        return plots.bar_lines(shares) + "F1 from 0 (left) to 1 (right)\n"

    return Analysis(
        title="Lexical overlap",
        text="2 |A and B| / (|A| + |B|) of the words of the two sides of each pair.",
        caption="Distribution of F1; vertical lines: means.",
        tables=[Report(title, [*columns("file", "n_pairs"), *shown], rows, [note])],
        payload={"analysis": "overlap", "multiset": multiset, "files": rows},
        figure=lambda: overlap_figure(overlaps),
        terminal_plot=histograms,
    )
