"""The table of analyses of embedding spaces, and the HTML page that shows them all.

To add an analysis, write a module with a function from spaces to an `Analysis`, and add a row to
``SPACE_ANALYSES`` and a command to ``commands/analyze.py``. The options of the new analysis are
keyword arguments of the function. They need defaults, because pages of other analyses show the new
one without its options.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from simcse_cli.analysis.density import density_analysis
from simcse_cli.analysis.geometry import geometry_analysis
from simcse_cli.analysis.options import SpaceOptions
from simcse_cli.analysis.presentation import Analysis, NamedSource, Page
from simcse_cli.analysis.spaces import EmbeddingSpace, encode_pairs
from simcse_cli.analysis.spectrum import spectrum_analysis
from simcse_cli.analysis.trace import trace_models
from simcse_cli.progress import Progress
from simcse_cli.settings.declare import settings_of

SPACE_ANALYSES: dict[str, Callable[..., Analysis]] = {
    "geometry": geometry_analysis,
    "spectrum": spectrum_analysis,
    "density": density_analysis,
}


def space_analysis(name: str, spaces: Sequence[EmbeddingSpace], **options: Any) -> Analysis:
    """Return the analysis ``name`` of the spaces, with means over seeds in its tables.

    ``options`` are keyword arguments that only this analysis takes.
    """
    groups = {space.label: space.encoder.group for space in spaces}
    return SPACE_ANALYSES[name](spaces, **options).with_means(groups)


def analyze_spaces(
    name: str, options: SpaceOptions, labels: Sequence[str] | None, progress: Progress
) -> Analysis:
    """Return the analysis ``name`` of the spaces that the options name.

    Its HTML page has all analyses, and the training paths of the models that are runs.
    """
    spaces = encode_pairs(options, labels, progress)
    # Options that only the command of this analysis has are arguments of its function.
    shared = {field.name for field in fields(SpaceOptions)}
    own_names = settings_of(type(options)).keys() - shared
    analysis = space_analysis(name, spaces, **{key: getattr(options, key) for key in own_names})

    # The other analyses are computed only if the page is written.
    def page_analyses() -> list[Analysis]:
        analyses = []
        for each in SPACE_ANALYSES:
            analyses.append(analysis if each == name else space_analysis(each, spaces))
        sources = []
        for space in spaces:
            encoder = space.encoder
            sources.append(NamedSource(encoder.source, encoder.label, encoder.group))
        return analyses + trace_models(sources)

    return replace(analysis, page=Page(f"Embedding spaces on {spaces[0].data.name}", page_analyses))
