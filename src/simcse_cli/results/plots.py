"""Drawing: the look of figures, their files, labels without overlap, and plots of characters.

Only this module imports Matplotlib, and only when something is drawn, since the import takes half a
second. Matplotlib's global state is not changed, so no window opens. People with the common
colour-vision deficiencies can tell the colours apart (they are those of Okabe and Ito), and curves
also differ in dashes or markers.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import numpy as np

from simcse_cli.arrays import AnyFloats
from simcse_cli.errors import OutputError, require_extra
from simcse_cli.files.output import output_path
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.report import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis as Axis
    from matplotlib.figure import Figure as Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox
else:
    Annotation = Axes = Axis = Bbox = Figure = Any

INK = "#1c2330"
SOFT = "#5b6472"
LINE = "#d9dee6"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
# Ten curves differ even without colour.
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1.2)),
    (0, (6, 1.5, 1.5, 1.5)),
    (0, (10, 3)),
    (0, (3, 3)),
    (0, (1.2, 3)),
    (0, (6, 1.5, 1.5, 1.5, 1.5, 1.5)),
    (0, (4, 1.5, 4, 1.5, 1.5, 1.5)),
    (0, (1.2, 1.2, 1.2, 3.5)),
)
MARKER_SHAPES = ("o", "s", "^", "D", "v", "P", "X")
COLOUR_MAP = "cividis"
FORMATS = ("png", "svg", "pdf")
PNG_DPI = 120
NAME_WIDTH = 24  # characters in a line of a name
RANK_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

_STYLE = files("simcse_cli") / "resources" / "figures.mplstyle"


# Figures


def colour(position: int) -> str:
    return COLOURS[position % len(COLOURS)]


def curve_style(position: int) -> dict[str, Any]:
    return {"color": colour(position), "linestyle": DASHES[position % len(DASHES)]}


def marker(position: int) -> str:
    return MARKER_SHAPES[position % len(MARKER_SHAPES)]


def point_style(position: int) -> dict[str, Any]:
    return {"marker": marker(position), **curve_style(position)}


def shades(count: int) -> Any:
    import matplotlib

    return matplotlib.colormaps[COLOUR_MAP](np.linspace(0.05, 0.95, count))


# Fonts of Linux, macOS and Windows for the characters that the font of the style lacks.
_EAST_ASIAN = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "WenQuanYi Zen Hei"),
    *("Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo"),
    *("Yu Gothic", "Microsoft YaHei", "Malgun Gothic"),
)


_SHOWN_MISSING = 10  # characters that no font has, in a warning


@contextmanager
def house_style() -> Iterator[None]:
    """Give figures the style of the project, inside a block or a decorated function."""
    require_extra("matplotlib", "a figure")
    import matplotlib
    from matplotlib.font_manager import fontManager

    style = matplotlib.rc_params_from_file(str(_STYLE), use_default_template=False)
    installed = fontManager.get_font_names()
    style["font.family"] += [font for font in _EAST_ASIAN if font in installed]
    with matplotlib.rc_context(style):
        yield


def new_figure(
    width: float, height: float, n_columns: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes_by_row = figure.subplots(1, n_columns, squeeze=False, **options)
    return figure, list(axes_by_row[0])


def shown(name: str) -> str:
    """Return a name as text of a figure: in short lines, with control characters escaped.

    Matplotlib leaves a name that starts with ``_`` out of legends, so a space comes before it.
    """
    text = textwrap.fill(printable(name), NAME_WIDTH)
    return f" {text}" if text.startswith("_") else text


def legend_below(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], **options: Any
) -> None:
    """Put a legend under the axes, in as many columns as fit, but at most five.

    The figure becomes higher by the height of the legend.
    """
    for n_columns in range(min(5, len(labels)), 0, -1):
        legend = figure.legend(
            handles, labels, loc="outside lower center", ncols=n_columns, **options
        )
        box = legend.get_window_extent()
        if n_columns == 1 or box.width < figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)


def rank_axis(axes: Axes, last: int) -> None:
    """Make the horizontal axis logarithmic, with ticks at round ranks up to ``last``."""
    axes.set_xscale("log")
    axes.set_xticks([tick for tick in RANK_TICKS if tick <= last])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()


def few_ticks(axis: Axis) -> None:
    """Give an axis at most six ticks, so that long labels do not run into each other."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5))  # five intervals have six ends


def geometry_axes(axes: Axes) -> None:
    few_ticks(axes.xaxis)
    few_ticks(axes.yaxis)
    axes.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")


def at_least(low: float, high: float, span: float) -> tuple[float, float]:
    """Widen an interval on both sides to a length of ``span``; return a longer one as it is."""
    margin = max(0.0, span - (high - low)) / 2
    return low - margin, high + margin


def show_noise(axes: Axes, scores: Sequence[float], n_pairs: int) -> None:
    """Widen the vertical axis, so that differences that are mere noise look small.

    The axis reaches at least two standard errors above and below the middle of the scores.
    ``scores`` are correlations x100 over ``n_pairs`` pairs. The standard error of a correlation r
    over n pairs is (1 - r^2) / sqrt(n - 1) (Fisher 1915).
    """
    low, high = axes.get_ylim()
    middle = (min(scores) + max(scores)) / 2
    # Two standard errors, x100 like the scores.
    noise = 200 * (1 - (middle / 100) ** 2) / max(n_pairs - 1, 1) ** 0.5
    axes.set_ylim(min(low, middle - noise), max(high, middle + noise))


def save_figure(
    figure: Figure, path: Path, *, force: bool = False, progress: Progress = SILENT
) -> None:
    """Write a figure in the format that the ending names; the same figure gives the same bytes."""
    ending = path.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise OutputError(f"{path}: a figure ends in .png, .svg or .pdf")
    with output_path(path, force=force) as temporary:
        _render(figure, temporary, ending, progress)


# The variables of the page for the main colours, so that a figure follows the style of the page.
_PAGE_COLOURS = {
    INK: "--ink",
    SOFT: "--soft",
    LINE: "--line",
    "#ffffff": "--paper",
    COLOURS[0]: "--accent",
}


def inline_svg(figure: Figure, prefix: str, progress: Progress = SILENT) -> str:
    """Return a figure as an SVG element for a page; all ids start with ``prefix``.

    The main colours become variables of the page. Letters are drawn as outlines, so that the figure
    looks the same everywhere. The same figure gives the same text.
    """
    stream = io.StringIO()
    _render(figure, stream, "svg", progress, transparent=True)
    # Figures on one page need different ids: put the prefix before each id and each reference.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", stream.getvalue())
    for colour_code, variable in _PAGE_COLOURS.items():
        svg = re.sub(colour_code, f"var({variable})", svg, flags=re.IGNORECASE)
    element = svg[svg.index("<svg") :]  # without the head of an XML file
    return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)


@house_style()
def _render(
    figure: Figure, target: Any, fmt: str, progress: Progress, *, transparent: bool = False
) -> None:
    """Save a figure to a file or a stream in the format ``fmt``; warn of letters without a font."""
    # Without a date, the same figure gives the same bytes.
    undated: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(
            target,
            format=fmt,
            dpi=PNG_DPI,
            metadata=undated.get(fmt),
            facecolor="none" if transparent else "white",
            transparent=transparent,
        )

    # Matplotlib warns of each character that no font has, by its number and name.
    missing = set()
    for warning in caught:
        found = re.match(r"Glyph (\d+) .* missing from", str(warning.message))
        if found is None:
            warnings.warn(warning.message, stacklevel=2)
        else:
            missing.add(chr(int(found[1])))
    if missing:
        characters = " ".join(sorted(missing)[:_SHOWN_MISSING])
        more = " …" if len(missing) > _SHOWN_MISSING else ""
        progress.warn(
            f"{len(missing)} characters of the figure are boxes: {characters}{more}; figures have "
            "letters of DejaVu Sans and of installed East Asian fonts such as Noto Sans CJK"
        )


# Labels of points

_GAP = 8
# The offsets (x, y) of a label from its point in units of ``_GAP``, the preferred ones first. The
# sign of an offset decides which side of the text is next to the point.
_PLACES = (
    (1, 0),
    (-1, 0),
    (0, 1),
    (0, -1),
    (1, 1),
    (1, -1),
    (-1, 1),
    (-1, -1),
    *((side, height) for height in (2.5, -2.5, 4, -4) for side in (1, -1)),
)
_HORIZONTAL = {1: "left", 0: "center", -1: "right"}
_VERTICAL = {1: "bottom", 0: "center", -1: "top"}


def place_labels(
    figure: Figure, axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]
) -> None:
    """Write each name beside its point, in the first free place of ``_PLACES``.

    Points at the same place share a label. If a label finds no free place, all labels become
    numbers, and a key under the axes has the names.
    """
    # The positions of points in pixels are only known after drawing.
    figure.draw_without_rendering()
    indices_by_pixel: dict[tuple[int, int], list[int]] = {}
    for index, (x, y) in enumerate(axes.transData.transform(point) for point in points):
        indices_by_pixel.setdefault((round(x), round(y)), []).append(index)
    labels = []
    for indices in indices_by_pixel.values():
        # The axes must not shrink to make room for a label.
        label = axes.annotate(
            shown(", ".join(names[index] for index in indices)),
            points[indices[0]],
            (_GAP, 0),
            textcoords="offset points",
            fontsize=9,
            zorder=4,
            in_layout=False,
        )
        labels.append(label)
    if _settle_all(axes, labels):
        return

    for label, indices in zip(labels, indices_by_pixel.values(), strict=True):
        label.set_text(", ".join(str(index + 1) for index in indices))
    key = [shown(f"{number}: {name}") for number, name in enumerate(names, start=1)]
    blank = axes.plot([], [], linestyle="")
    legend_below(figure, blank * len(key), key, handlelength=0, handletextpad=0)
    figure.draw_without_rendering()  # the axes may have moved
    _settle_all(axes, labels)


def _settle_all(axes: Axes, labels: Sequence[Annotation]) -> bool:
    """Move each label to its first free place; tell whether every label found one."""
    from matplotlib.transforms import Bbox

    centres = [axes.transData.transform(label.xy) for label in labels]
    spots = [Bbox.from_extents(x - _GAP, y - _GAP, x + _GAP, y + _GAP) for x, y in centres]
    taken: list[Bbox] = []
    frame = axes.get_window_extent()
    n_free = 0
    for position, label in enumerate(labels):
        # A label must not cover an earlier label or another point.
        obstacles = [*taken, *spots[:position], *spots[position + 1 :]]
        n_free += _settle(label, obstacles, frame)
        taken.append(label.get_window_extent())
    return n_free == len(labels)


def _settle(label: Annotation, obstacles: Sequence[Bbox], frame: Bbox) -> bool:
    """Move a label to the first free place, or else to the last place; tell whether it is free.

    A place is free if the label lies inside the frame there and overlaps none of the obstacles.
    """
    for x, y in _PLACES:
        label.set(
            position=(x * _GAP, y * _GAP),
            horizontalalignment=_HORIZONTAL[np.sign(x)],
            verticalalignment=_VERTICAL[np.sign(y)],
        )
        box = label.get_window_extent()
        is_within_x = frame.x0 <= box.x0 and box.x1 <= frame.x1
        is_within_y = frame.y0 <= box.y0 and box.y1 <= frame.y1
        if is_within_x and is_within_y and not any(map(box.overlaps, obstacles)):
            return True
    return False


# Plots made of characters

BARS = " ▁▂▃▄▅▆▇█"


def bar_line(values: AnyFloats, width: int = 48, *, high: float | None = None) -> str:
    """Return a line with a bar for each value: a blank for 0, a full bar for ``high`` and above.

    ``high`` is by default the value of the largest bar. If there are more than ``width`` values,
    they are cut into ``width`` stretches, and each bar shows the mean of one. NaN is a blank.
    """
    if len(values) == 0:
        return ""
    stretches = np.array_split(values, min(width, len(values)))
    means = np.array([_finite_mean(stretch) for stretch in stretches])
    if high is None and np.isfinite(means).any():
        high = float(np.nanmax(means))
    top = high or 1.0  # if all values are 0 or NaN, all bars are blank, whatever the top
    levels = np.nan_to_num(np.clip(means / top, 0, 1) * (len(BARS) - 1))
    return "".join(BARS[round(level)] for level in levels.tolist())


def _finite_mean(values: AnyFloats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def bar_lines(series: Mapping[str, AnyFloats], *, high: float | None = None) -> str:
    """Return a named line of bars for each series; ``high`` is the same for all of them.

    By default it is the largest of all values.
    """
    if high is None:
        highs = [float(np.nanmax(values)) for values in series.values() if len(values)]
        high = max(highs, default=1.0)
    name_width = max(map(len, series))
    lines = ""
    for name, values in series.items():
        lines += f"{name.ljust(name_width)}  {bar_line(values, high=high)}\n"
    return lines


def geometry_scatter(series: Mapping[str, AnyFloats], *, width: int = 56, height: int = 14) -> str:
    """Return a scatter plot made of characters: uniformity to the right, and alignment upwards.

    Each series is an array ``(N, 2)`` of uniformity and alignment. The points of a series are
    marked by a letter, which the legend explains; an asterisk stands where several series meet.
    """
    points = np.concatenate(list(series.values()))
    low = points.min(axis=0)
    high = points.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    letters = "".join(islice(cycle(ascii_uppercase), len(series)))

    # Row 0 of the grid is printed on top, where alignment is highest.
    grid = [[" "] * width for _ in range(height)]
    for letter, values in zip(letters, series.values(), strict=True):
        cells = np.rint((values - low) / span * (width - 1, height - 1)).astype(int)
        for column, row in cells.tolist():
            line = grid[height - 1 - row]
            line[column] = letter if line[column] in (" ", letter) else "*"

    # The vertical axis has a label at its upper and at its lower end.
    labels = [f"{high[1]:.3f}", *[""] * (height - 2), f"{low[1]:.3f}"]
    margin = max(map(len, labels))
    lines = ["alignment (up), uniformity (right)"]
    for label, line in zip(labels, grid, strict=True):
        lines.append(f"{label.rjust(margin)} |{''.join(line)}")
    lines.append(" " * margin + " +" + "-" * width)
    left_end = f"{low[0]:.3f}"
    lines.append(" " * (margin + 2) + left_end + f"{high[0]:.3f}".rjust(width - len(left_end)))
    lines += [f"  {letter}  {name}" for letter, name in zip(letters, series, strict=True)]
    return "\n".join(lines) + "\n"
