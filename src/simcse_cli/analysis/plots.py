"""House style of every figure, and figures as files or as SVG text.

Colours are those of Okabe and Ito, which people with the common colour-vision deficiencies tell apart; curves
differ in dash or marker as well. Matplotlib is used without its global state, so that nothing opens a
window and importing this module costs nothing.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcse_cli.errors import OutputError
from simcse_cli.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GRADED_COLOURS = "cividis"
FORMATS = ("png", "svg", "pdf")
PNG_DPI = 120

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "simcse",
}


def colour(position: int) -> str:
    """Return the colour of the curve at ``position``; colours repeat after seven."""
    return COLOURS[position % len(COLOURS)]


def dash(position: int) -> Any:
    """Return the dash of the curve at ``position``; solid for the first."""
    return DASHES[position % len(DASHES)]


def marker(position: int) -> str:
    """Return the marker of the curve at ``position``."""
    return MARKERS[position % len(MARKERS)]


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the style to figures made and saved inside the block."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(
    width: float, height: float, n_columns: int = 1, **options: Any
) -> "tuple[Figure, list[Axes]]":
    """Return a figure of ``width`` x ``height`` inches with its panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.subplots(1, n_columns, squeeze=False, **options)
    return figure, list(axes[0])


def check_figure_path(path: Path) -> Path:
    """Return ``path`` if its ending is one that figures can have.

    Raises:
        OutputError: another ending; names the three.
    """
    if path.suffix.lower().lstrip(".") not in FORMATS:
        raise OutputError(
            f"{path}: a figure ends in .png, .svg or .pdf",
            hint=f"use for example --plot {path.stem or 'figure'}.png",
        )
    return path


def save_figure(figure: "Figure", path: Path, *, force: bool = False) -> None:
    """Write a figure in the format of the file's ending; the same figure gives the same bytes.

    Raises:
        OutputError: unknown ending, the file exists (without ``force``) or cannot be written.
    """
    check_figure_path(path)
    with house_style(), atomic_path(path, force=force) as temporary:
        _render(figure, temporary, path.suffix.lower().lstrip("."))


def figure_svg(figure: "Figure") -> str:
    """Return a figure as SVG text; letters are outlines, so that it looks the same everywhere."""
    stream = io.StringIO()
    with house_style():
        _render(figure, stream, "svg")
    return stream.getvalue()


def _render(figure: "Figure", target: Any, fmt: str) -> None:
    dates: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(target, format=fmt, dpi=PNG_DPI, facecolor="white", metadata=dates.get(fmt))
