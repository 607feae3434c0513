"""Small plots made of characters, for a look at the numbers without leaving the terminal."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

BARS = " ▁▂▃▄▅▆▇█"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CLASH = "*"

Values = NDArray[np.floating[Any]]


def bar_line(values: Values, width: int = 48, *, high: float | None = None) -> str:
    """Return the values as a line of bars from 0 (a blank) to ``high`` (default: the largest value).

    Longer series are shown by the mean of each of ``width`` stretches; NaN is a blank.
    """
    means = np.array([_mean(stretch) for stretch in np.array_split(values, min(width, len(values)))])
    top = float(np.nanmax(means)) if high is None and np.isfinite(means).any() else (high or 1.0)
    levels = np.clip(means / (top or 1.0), 0, 1) * (len(BARS) - 1)
    return "".join(BARS[0] if np.isnan(level) else BARS[round(float(level))] for level in levels)


def _mean(values: Values) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def bar_lines(series: Mapping[str, Values], width: int = 48, *, high: float | None = None) -> str:
    """Return one line of bars a series, named on the left, all on one scale."""
    if high is None:
        high = max((float(np.nanmax(values)) for values in series.values() if len(values)), default=1.0)
    left = max(len(name) for name in series)
    return "".join(
        f"{name.ljust(left)}  {bar_line(values, width, high=high)}\n" for name, values in series.items()
    )


def scatter(
    series: Mapping[str, Values],
    *,
    x_label: str,
    y_label: str,
    width: int = 56,
    height: int = 14,
) -> str:
    """Return a scatter of ``(N, 2)`` points a series: x to the right, y upwards, one letter a series.

    Where two series meet stands an asterisk. The legend gives each letter's name.
    """
    points = np.concatenate(list(series.values()))
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    grid = [[" "] * width for _ in range(height)]
    for letter, own in zip(_letters(len(series)), series.values(), strict=True):
        cells = np.rint((own - low) / span * (width - 1, height - 1)).astype(int)
        for column, row in cells.tolist():
            shown = grid[height - 1 - row][column]
            grid[height - 1 - row][column] = letter if shown in (" ", letter) else CLASH
    labels = [f"{high[1]:.3f}", *[""] * (height - 2), f"{low[1]:.3f}"]
    margin = max(len(label) for label in labels)
    lines = [f"{y_label} (up), {x_label} (right)"]
    lines += [f"{label.rjust(margin)} |{''.join(row)}" for label, row in zip(labels, grid, strict=True)]
    lines.append(" " * margin + " +" + "-" * width)
    ends = f"{low[0]:.3f}", f"{high[0]:.3f}"
    lines.append(" " * (margin + 2) + ends[0] + ends[1].rjust(width - len(ends[0])))
    lines += [f"  {letter}  {name}" for letter, name in zip(_letters(len(series)), series, strict=True)]
    return "\n".join(lines) + "\n"


def _letters(count: int) -> str:
    return (LETTERS * (count // len(LETTERS) + 1))[:count]
