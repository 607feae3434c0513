"""Plot a sweep: the dev score over one swept setting, over two, or trial by trial."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simcse_cli.results.plots import (
    COLOUR_MAP,
    Axes,
    Figure,
    colour,
    house_style,
    marker,
    new_figure,
)

SCORE_LABEL = "dev score x100"
LOG_FROM = 20  # the axis is logarithmic if the largest value is this many times the smallest


@dataclass(frozen=True)
class SweepPoint:
    """One trial: its settings, its dev score as a fraction, and the deviation over its seeds."""

    settings: dict[str, Any]
    score: float
    deviation: float | None = None

    def value(self, setting: str) -> Any:
        """Return the value of a setting if it is a number, else its text."""
        value = self.settings[setting]
        return value if _is_number(value) else str(value)


@house_style()
def draw_sweep(points: Sequence[SweepPoint], swept: Sequence[str]) -> Figure:
    """Return the figure of a sweep; scores are shown x100 and the best trial is marked.

    - One swept setting: a line over its numbers, or points over its names.
    - A full grid of two settings: a table of coloured cells.
    - Otherwise: the trials in the order of ``points``.

    Unless it is a table, the figure has the deviations over seeds as error bars.
    """
    values = [sorted({point.value(name) for point in points}, key=_order) for name in swept]
    scores = {tuple(map(point.value, swept)): 100 * point.score for point in points}
    # In a full grid of two settings, every pair of values belongs to exactly one trial.
    if len(swept) == 2 and len(points) == len(scores) == len(values[0]) * len(values[1]):
        return _draw_grid(scores, swept, values)
    figure, (axes,) = new_figure(6.0, 3.6)
    axes.set_xlabel(swept[0] if len(swept) == 1 else "trial")
    if len(swept) > 1:
        _draw_scores(axes, list(range(1, len(points) + 1)), points)
        axes.locator_params(axis="x", integer=True)
    elif all(map(_is_number, values[0])):
        _draw_over_numbers(axes, points, swept[0], values[0])
    else:
        _draw_over_names(axes, points, swept[0])
    axes.set_ylabel(SCORE_LABEL)
    return figure


def _draw_over_numbers(
    axes: Axes, points: Sequence[SweepPoint], setting: str, numbers: list[Any]
) -> None:
    """Draw a line over the values of a setting, ``numbers``, with a log axis for a wide range."""
    ordered = sorted(points, key=lambda point: point.settings[setting])
    _draw_scores(axes, [point.settings[setting] for point in ordered], ordered, line_style="-")
    if min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_FROM:
        axes.set_xscale("log")
        axes.set_xticks(numbers)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()


def _draw_over_names(axes: Axes, points: Sequence[SweepPoint], setting: str) -> None:
    """Draw a point over the name of each value of a setting."""
    shown = [str(point.value(setting)) for point in points]
    names = list(dict.fromkeys(shown))
    _draw_scores(axes, list(map(names.index, shown)), points)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(value: Any) -> tuple[bool, Any]:
    """Return a sort key that puts numbers first, by value, and then texts."""
    return (isinstance(value, str), value)


def _draw_scores(
    axes: Axes, places: list[Any], points: Sequence[SweepPoint], line_style: str = ""
) -> None:
    """Draw the scores with error bars, and a star on the best; by default without a line."""
    scores = [100 * point.score for point in points]
    deviations = [100 * (point.deviation or 0.0) for point in points]
    axes.errorbar(
        places,
        scores,
        deviations,
        color=colour(0),
        marker=marker(0),
        linestyle=line_style,
        capsize=3,
    )
    best = scores.index(max(scores))
    star: Any = {"marker": "*", "markersize": 15, "color": colour(1), "linestyle": ""}
    axes.plot([places[best]], [scores[best]], **star, zorder=5)


def _draw_grid(
    scores: dict[tuple[Any, ...], float], swept: Sequence[str], values: list[list[Any]]
) -> Figure:
    """Draw a table of the scores, one for each pair of values of the two settings."""
    rows, columns = values
    table = [[scores[row, column] for column in columns] for row in rows]
    figure, (axes,) = new_figure(1.8 + 1.1 * len(columns), 1.4 + 0.6 * len(rows))
    image = axes.imshow(table, cmap=COLOUR_MAP, aspect="auto")
    middle = (min(map(min, table)) + max(map(max, table))) / 2
    best = max(scores, key=scores.__getitem__)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            text = f"{table[i][j]:.2f}"
            if (row, column) == best:
                text += " *"
            # The cells of low scores are dark.
            shade = "black" if table[i][j] > middle else "white"
            axes.text(j, i, text, ha="center", va="center", color=shade)
    axes.set_xticks(range(len(columns)), [str(value) for value in columns])
    axes.set_yticks(range(len(rows)), [str(value) for value in rows])
    axes.set_xlabel(swept[1])
    axes.set_ylabel(swept[0])
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label=SCORE_LABEL)
    return figure
