"""Analyses, shown as tables, JSON, CSV, a figure, a plot in the terminal or an HTML page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from simcse_cli.analysis.options import ViewOptions
from simcse_cli.errors import UsageError, require_extra
from simcse_cli.files.output import output_text, require_writable
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.plots import Figure, inline_svg, save_figure
from simcse_cli.results.report import Report, printable, with_seed_means
from simcse_cli.results.runs import seed_runs, short_names
from simcse_cli.version import __version__


@dataclass(frozen=True)
class Analysis:
    """One analysis, ready to be shown.

    Attributes:
        title, text: for the HTML page.
        caption: describes the figure on the page, also to screen readers.
        tables: for the terminal, for the page, and for CSV if there are no ``series``.
        payload: the JSON object.
        figure: draws the figure when it is called.
        terminal_plot: returns the lines of a plot for the terminal when it is called.
        series: tables for CSV that hold every single number.
        page: the HTML page; None for one that shows this analysis alone.
        folded: if it is not empty, the page hides the tables behind these words, until a click on
            them.
    """

    title: str
    text: str
    caption: str = ""
    tables: Sequence[Report] = ()
    payload: dict[str, Any] = field(default_factory=dict)
    figure: Callable[[], Figure] | None = None
    terminal_plot: Callable[[], str] = str  # str() is "", which is no plot
    series: Sequence[Report] = ()
    page: "Page | None" = None
    folded: str = ""

    def with_means(self, groups: Mapping[str, str | None]) -> "Analysis":
        """Return the analysis with means over seeds in its tables.

        ``groups`` maps the label of a seed to its group, and the label of a model alone to None.
        """
        return replace(self, tables=[with_seed_means(table, groups) for table in self.tables])


@dataclass(frozen=True)
class Page:
    """An HTML page of several analyses, which are computed when the page is written.

    At the top of the page are the ``facts``, each a name and a value, and the ``verdict``, a
    sentence. Table rows are marked if their first cell is one of ``own``, the names of the runs
    that the page is about.
    """

    title: str
    analyses: Callable[[], list[Analysis]]
    subtitle: str = ""
    facts: Sequence[tuple[str, str]] = ()
    own: frozenset[str] = frozenset()
    verdict: str = ""


def check_outputs(options: ViewOptions, *, force: bool) -> None:
    """Raise an error if the figure or the HTML page that the options name cannot be written."""
    for flag, path in (("--plot", options.plot), ("--html", options.html)):
        if path is not None:
            require_extra("matplotlib", flag)
            require_writable(path, force=force)


def write_pictures(
    analysis: Analysis, page: str | None, options: ViewOptions, progress: Progress, *, force: bool
) -> None:
    """Write the figure and the HTML text ``page`` to the files that the options name, if any."""
    if options.plot is not None and analysis.figure is not None:
        save_figure(analysis.figure(), options.plot, force=force, progress=progress)
        progress.info(f"wrote {options.plot}")
    if options.html is not None and page is not None:
        with output_text(options.html, force=force) as stream:
            stream.write(page)
        progress.info(f"wrote {options.html}")


def label_sources(sources: Sequence[str], given: Sequence[str] | None) -> list[str]:
    """Return a name for each source: its label if labels are ``given``, otherwise a short path.

    The short path of a source is the shortest end of its path that no other source shares. Raise
    UsageError if two names are equal, or if there is not one label for each source.
    """
    if given:
        if len(given) != len(sources) or len(set(given)) < len(given):
            raise UsageError(
                f"{len(given)} labels for {len(sources)} sources, need a different one for each",
                option="--label",
            )
        return list(given)
    names = short_names(sources)
    for name in names:
        count = names.count(name)
        if count > 1:
            raise UsageError(
                f"{name} is there {count} times, need a different name for each", option="--label"
            )
    return names


@dataclass(frozen=True)
class NamedSource:
    """A model, run or file with its name in tables; seeds of one system share a ``group``."""

    path: str
    label: str
    group: str | None = None


def name_sources(sources: Sequence[str], given: Sequence[str] | None) -> list[NamedSource]:
    """Return the sources, named by the labels ``given`` if there are any, otherwise by their paths.

    A folder of several seeds gives one source for each seed.
    """
    named: list[NamedSource] = []
    for source, label in zip(sources, label_sources(sources, given), strict=True):
        seed_folders = seed_runs(source).values()
        if not seed_folders:
            named.append(NamedSource(source, label))
        for folder in seed_folders:
            named.append(NamedSource(str(folder), f"{label}/{folder.name}", group=label))
    return named


_LOADER = FileSystemLoader(str(files("simcse_cli") / "resources"))
_TEMPLATES = Environment(
    loader=_LOADER, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
)


def html_page(page: Page, progress: Progress = SILENT) -> str:
    """Return one self-contained page as text.

    The page has no script and fetches nothing. Every string is shown literally.
    """
    analyses = page.analyses()
    figures = []
    for number, analysis in enumerate(analyses):
        # Ids must be unique on the page, so those of each figure have a prefix.
        svg = None
        if analysis.figure is not None:
            svg = inline_svg(analysis.figure(), f"f{number}-", progress)
        figures.append(svg)
    template = _TEMPLATES.get_template("page.html.j2")
    return printable(
        template.render(page=page, analyses=analyses, figures=figures, version=__version__)
    )
