"""Names beside the points of a scatter, placed so that they do not cover one another."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

_GAP = 8
# Offset in points and the side of the text that faces the point, in order of preference.
_PLACES = (
    ((_GAP, 0), "left", "center"),
    ((-_GAP, 0), "right", "center"),
    ((0, _GAP), "center", "bottom"),
    ((0, -_GAP), "center", "top"),
    ((_GAP, _GAP), "left", "bottom"),
    ((_GAP, -_GAP), "left", "top"),
    ((-_GAP, _GAP), "right", "bottom"),
    ((-_GAP, -_GAP), "right", "top"),
    ((_GAP, 2.5 * _GAP), "left", "bottom"),
    ((_GAP, -2.5 * _GAP), "left", "top"),
)


def place_labels(
    figure: "Figure", axes: "Axes", points: Sequence[tuple[float, float]], names: Sequence[str]
) -> None:
    """Write each name beside its point, at the first of ten places that is free; the last one if none is."""
    figure.draw_without_rendering()
    spots = [_spot(axes, point) for point in points]
    taken: list[Bbox] = []
    frame = axes.get_window_extent()
    for number, (point, name) in enumerate(zip(points, names, strict=True)):
        others = taken + [spot for i, spot in enumerate(spots) if i != number]
        label = axes.annotate(name, point, (_GAP, 0), textcoords="offset points", fontsize=9, zorder=4)
        taken.append(_settle(label, others, frame))


def _spot(axes: "Axes", point: tuple[float, float]) -> "Bbox":
    from matplotlib.transforms import Bbox

    x, y = axes.transData.transform(point)
    return Bbox.from_extents(x - _GAP, y - _GAP, x + _GAP, y + _GAP)


def _settle(label: "Annotation", taken: "Sequence[Bbox]", frame: "Bbox") -> "Bbox":
    """Move a label to its first free place inside the frame and return the box it covers."""
    for offset, horizontal, vertical in _PLACES:
        label.set(position=offset, horizontalalignment=horizontal, verticalalignment=vertical)
        box = label.get_window_extent()
        inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        if inside and not any(box.overlaps(other) for other in taken):
            break
    return box
