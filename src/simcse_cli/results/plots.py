"""Drawing: the look of every figure, figures as files, and labels without overlap.

There are also plots made of characters.

The only module that imports Matplotlib, and only once something is drawn: it takes half a second.
Its global state is unchanged, so no window opens. Colours are those of Okabe and Ito, safe for
common colour-vision deficiencies; curves differ in dash or marker as well.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.errors import OutputError, require_extra
from simcse_cli.files.output import output_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis as Axis
    from matplotlib.figure import Figure as Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox
else:
    Annotation = Axes = Axis = Bbox = Figure = Any

INK, SOFT, LINE = "#1c2330", "#5b6472", "#d9dee6"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKER_SHAPES = ("o", "s", "^", "D", "v", "P", "X")
COLOUR_MAP = "cividis"
FORMATS = ("png", "svg", "pdf")
PNG_DPI = 120
RANK_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
UNIFORMITY_AXIS, ALIGNMENT_AXIS = "uniformity (lower is better)", "alignment (lower is better)"

_STYLE = files("simcse_cli") / "resources" / "figures.mplstyle"

Values = NDArray[np.floating[Any]]


# Figures


def colour(position: int) -> str:
    return COLOURS[position % len(COLOURS)]


def curve_style(position: int) -> dict[str, Any]:
    return {"color": colour(position), "linestyle": DASHES[position % len(DASHES)]}


def marker(position: int) -> str:
    return MARKER_SHAPES[position % len(MARKER_SHAPES)]


def shades(count: int) -> Any:
    import matplotlib

    return matplotlib.colormaps[COLOUR_MAP](np.linspace(0.05, 0.95, count))


@contextmanager
def house_style() -> Iterator[None]:
    """Style figures made and saved inside the block, or in the function that this decorates."""
    require_extra("matplotlib", "a figure")
    import matplotlib

    with matplotlib.rc_context(
        matplotlib.rc_params_from_file(str(_STYLE), use_default_template=False)
    ):
        yield


def new_figure(
    width: float, height: float, n_columns: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.subplots(1, n_columns, squeeze=False, **options)
    return figure, list(axes[0])


def rank_axis(axes: Axes, last: int) -> None:
    axes.set_xscale("log")
    axes.set_xticks([tick for tick in RANK_TICKS if tick <= last])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()


def few_ticks(axis: Axis) -> None:
    """Give an axis at most six ticks, so that long labels do not run into each other."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5))


def at_least(low: float, high: float, span: float) -> tuple[float, float]:
    """Widen an interval around its middle to at least ``span``: 1 to 2 and 3 give 0 to 3."""
    missing = max(0.0, span - (high - low)) / 2
    return low - missing, high + missing


def show_noise(axes: Axes, scores: Sequence[float], n_pairs: int) -> None:
    """Widen the vertical axis of correlations x100 to show their noise.

    It covers two standard errors on both sides of their middle.

    The standard error of a correlation r over n pairs is (1 - r^2) / sqrt(n - 1) (Fisher 1915).
    """
    low, high = axes.get_ylim()
    middle = (min(scores) + max(scores)) / 2
    noise = 200 * (1 - (middle / 100) ** 2) / max(n_pairs - 1, 1) ** 0.5
    axes.set_ylim(min(low, middle - noise), max(high, middle + noise))


def check_figure_path(path: Path) -> None:
    if path.suffix.lower().lstrip(".") not in FORMATS:
        what = f"{path}: a figure ends in .png, .svg or .pdf"
        raise OutputError(what, hint=f"use for example --plot {path.stem or 'figure'}.png")


def save_figure(figure: Figure, path: Path, *, force: bool = False) -> None:
    """Write a figure in the format of the file's ending; the same figure gives the same bytes."""
    check_figure_path(path)
    with output_path(path, force=force) as temporary:
        _render(figure, temporary, path.suffix.lower().lstrip("."))


_PAGE_COLOURS = {
    INK: "--ink",
    SOFT: "--soft",
    LINE: "--line",
    "#ffffff": "--paper",
    COLOURS[0]: "--accent",
}


def inline_svg(figure: Figure, prefix: str) -> str:
    """Return a figure as an SVG element for a page.

    Its ids start with ``prefix``, and its colours are the page's.

    Letters are outlines, so that it looks the same everywhere; the same figure gives the same text.
    """
    stream = io.StringIO()
    _render(figure, stream, "svg", transparent=True)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", stream.getvalue())
    for colour_code, variable in _PAGE_COLOURS.items():
        svg = re.sub(colour_code, f"var({variable})", svg, flags=re.IGNORECASE)
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


@house_style()
def _render(figure: Figure, target: Any, fmt: str, *, transparent: bool = False) -> None:
    dates: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    look: dict[str, Any] = {
        "facecolor": "none" if transparent else "white",
        "transparent": transparent,
    }
    figure.savefig(target, format=fmt, dpi=PNG_DPI, metadata=dates.get(fmt), **look)


# Labels of points

_GAP = 8
# Offsets in gaps, in order of preference; the text's side towards the point follows from their
# signs.
_PLACES = (
    (1, 0),
    (-1, 0),
    (0, 1),
    (0, -1),
    (1, 1),
    (1, -1),
    (-1, 1),
    (-1, -1),
    (1, 2.5),
    (1, -2.5),
)
_HORIZONTAL, _VERTICAL = (
    {1: "left", 0: "center", -1: "right"},
    {1: "bottom", 0: "center", -1: "top"},
)


def place_labels(
    figure: Figure, axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]
) -> None:
    """Write each name beside its point.

    It takes the first of ten places that is free, or the last place if none is.
    """
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    centres = [axes.transData.transform(point) for point in points]
    spots = [Bbox.from_extents(x - _GAP, y - _GAP, x + _GAP, y + _GAP) for x, y in centres]
    taken: list[Bbox] = []
    frame = axes.get_window_extent()
    for number, (point, name) in enumerate(zip(points, names, strict=True)):
        others = taken + [spot for i, spot in enumerate(spots) if i != number]
        label = axes.annotate(
            name, point, (_GAP, 0), textcoords="offset points", fontsize=9, zorder=4
        )
        taken.append(_settle(label, others, frame))


def _settle(label: Annotation, taken: Sequence[Bbox], frame: Bbox) -> Bbox:
    """Move a label to its first free place inside the frame and return the box it covers."""
    for x, y in _PLACES:
        sides = {
            "horizontalalignment": _HORIZONTAL[np.sign(x)],
            "verticalalignment": _VERTICAL[np.sign(y)],
        }
        label.set(position=(x * _GAP, y * _GAP), **sides)
        box = label.get_window_extent()
        inside = (
            frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        )
        if inside and not any(box.overlaps(other) for other in taken):
            break
    return box


# Plots made of characters

BARS = " ▁▂▃▄▅▆▇█"


def bar_line(values: Values, width: int = 48, *, high: float | None = None) -> str:
    """Return the values as a line of bars from 0 (a blank) to ``high``.

    The default of ``high`` is the largest value.

    Longer series are shown by the mean of each of ``width`` stretches; NaN is a blank.
    """
    means = np.array(
        [_mean(stretch) for stretch in np.array_split(values, min(width, len(values)))]
    )
    if high is None and np.isfinite(means).any():
        high = float(np.nanmax(means))
    top = high or 1.0  # where all values are 0 or NaN, any top will do
    levels = np.clip(means / top, 0, 1) * (len(BARS) - 1)
    return "".join(BARS[0] if np.isnan(level) else BARS[round(float(level))] for level in levels)


def _mean(values: Values) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def bar_lines(series: Mapping[str, Values], *, high: float | None = None) -> str:
    if high is None:
        high = max(
            (float(np.nanmax(values)) for values in series.values() if len(values)), default=1.0
        )
    left = max(len(name) for name in series)
    return "".join(
        f"{name.ljust(left)}  {bar_line(values, high=high)}\n" for name, values in series.items()
    )


def geometry_scatter(series: Mapping[str, Values], *, width: int = 56, height: int = 14) -> str:
    """Return a scatter plot of ``(N, 2)`` points per series.

    Uniformity is to the right and alignment upwards.

    Each series is a letter, named in the legend; an asterisk marks a cell that two series share.
    """
    points = np.concatenate(list(series.values()))
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    grid = [[" "] * width for _ in range(height)]
    letters = "".join(islice(cycle(ascii_uppercase), len(series)))
    for letter, own in zip(letters, series.values(), strict=True):
        cells = np.rint((own - low) / span * (width - 1, height - 1)).astype(int)
        for column, row in cells.tolist():
            shown = grid[height - 1 - row][column]
            grid[height - 1 - row][column] = letter if shown in (" ", letter) else "*"
    labels = [f"{high[1]:.3f}", *[""] * (height - 2), f"{low[1]:.3f}"]
    margin = max(len(label) for label in labels)
    lines = ["alignment (up), uniformity (right)"]
    lines += [
        f"{label.rjust(margin)} |{''.join(row)}" for label, row in zip(labels, grid, strict=True)
    ]
    lines.append(" " * margin + " +" + "-" * width)
    ends = f"{low[0]:.3f}", f"{high[0]:.3f}"
    lines.append(" " * (margin + 2) + ends[0] + ends[1].rjust(width - len(ends[0])))
    lines += [f"  {letter}  {name}" for letter, name in zip(letters, series, strict=True)]
    return "\n".join(lines) + "\n"
