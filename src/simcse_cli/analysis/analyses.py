"""The analyses of embedding spaces, one a row, and the HTML page that shows them all.

A new one is a module with a function from spaces to a `View`, a row here and a command in ``commands/analyze.py``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from simcse_cli.analysis.density import density_view
from simcse_cli.analysis.geometry import geometry_view
from simcse_cli.analysis.options import SpaceOptions
from simcse_cli.analysis.spaces import Space, encode_pairs
from simcse_cli.analysis.spectrum import spectrum_view
from simcse_cli.analysis.trace import trace_models
from simcse_cli.analysis.views import Page, View
from simcse_cli.progress import Progress

SPACE_ANALYSES: dict[str, Callable[[Sequence[Space]], View]] = {
    "geometry": geometry_view,
    "spectrum": spectrum_view,
    "density": density_view,
}


def space_view(name: str, spaces: Sequence[Space]) -> View:
    """Return one analysis, with means over the spaces that are seeds of one setting."""
    return SPACE_ANALYSES[name](spaces).with_means({space.label: space.encoder.group for space in spaces})


def analyze_spaces(
    name: str, options: SpaceOptions, labels: Sequence[str] | None, progress: Progress
) -> View:
    """Return one analysis of the spaces asked for; its page has all of them, and the paths of models that are runs."""
    spaces = encode_pairs(options, labels, progress)
    view = space_view(name, spaces)

    def page_views() -> list[View]:
        views = [view if each == name else space_view(each, spaces) for each in SPACE_ANALYSES]
        return views + trace_models([(space.encoder.source, space.label) for space in spaces])

    return replace(view, page=Page(f"Embedding spaces on {spaces[0].data.name}", page_views))
