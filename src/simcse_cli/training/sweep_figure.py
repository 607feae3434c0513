"""The plot at the end of a sweep: dev score against one swept setting, over two, or trial by trial."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simcse_cli.analysis.plots import GRADED_COLOURS, colour, marker, new_figure
from simcse_cli.training.sweep import Trial, best_trial, deviation_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORE_LABEL = "STS-B dev, Spearman x100"


def draw_sweep(trials: Sequence[Trial], swept: Sequence[str]) -> "Figure":
    """Return the figure of a sweep's trials; scores are shown x100.

    One numeric setting gives a line, the deviation over seeds as bars; a full grid of two gives a table of
    coloured cells; anything else gives the trials in the order they ran. The best trial is marked.
    """
    scored = [trial for trial in trials if trial.score is not None]
    values = [sorted({trial.settings[name] for trial in scored}, key=_order) for name in swept]
    if len(swept) == 2 and len(scored) == len(values[0]) * len(values[1]):
        return _draw_grid(scored, swept, values)
    figure, (axes,) = new_figure(6.0, 3.6)
    if len(swept) == 1 and all(isinstance(value, int | float) for value in values[0]):
        scored.sort(key=lambda trial: trial.settings[swept[0]])
        _draw_line(axes, [trial.settings[swept[0]] for trial in scored], scored)
        if min(values[0]) > 0 and max(values[0]) / min(values[0]) >= 20:
            axes.set_xscale("log")
        axes.set_xlabel(swept[0])
    else:
        _draw_line(axes, list(range(1, len(scored) + 1)), scored, dash="")
        axes.set_xlabel("trial")
    axes.set_ylabel(SCORE_LABEL)
    return figure


def _order(value: Any) -> tuple[bool, Any]:
    is_number = isinstance(value, int | float)
    return (not is_number, value if is_number else str(value))


def _draw_line(axes: "Axes", positions: list[Any], trials: Sequence[Trial], dash: str = "-") -> None:
    scores = [100 * (trial.score or 0.0) for trial in trials]
    deviations = [100 * (deviation_of(trial.scores) or 0.0) for trial in trials]
    axes.errorbar(positions, scores, deviations, color=colour(0), marker=marker(0), linestyle=dash, capsize=3)
    best = best_trial(trials)
    if best is not None:
        place = positions[[trial is best for trial in trials].index(True)]
        axes.plot(
            [place], [100 * (best.score or 0.0)], marker="*", markersize=15, color=colour(1), linestyle=""
        )


def _draw_grid(trials: Sequence[Trial], swept: Sequence[str], values: list[list[Any]]) -> "Figure":
    rows, columns = values
    scores = {tuple(trial.settings[name] for name in swept): 100 * (trial.score or 0.0) for trial in trials}
    table = [[scores[row, column] for column in columns] for row in rows]
    figure, (axes,) = new_figure(1.8 + 1.1 * len(columns), 1.4 + 0.6 * len(rows))
    image = axes.imshow(table, cmap=GRADED_COLOURS, aspect="auto")
    middle = (min(map(min, table)) + max(map(max, table))) / 2
    best = max(scores, key=lambda key: scores[key])
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            text = f"{table[i][j]:.2f}" + (" *" if (row, column) == best else "")
            axes.text(
                j, i, text, ha="center", va="center", color="black" if table[i][j] > middle else "white"
            )
    axes.set_xticks(range(len(columns)), [str(value) for value in columns])
    axes.set_yticks(range(len(rows)), [str(value) for value in rows])
    axes.set_xlabel(swept[1])
    axes.set_ylabel(swept[0])
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label=SCORE_LABEL)
    return figure
