"""What an analysis found and how it is shown: tables, JSON, CSV, figure, plot in the terminal, HTML page."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from simcse_cli import __version__
from simcse_cli.analysis.options import ViewOptions
from simcse_cli.analysis.plots import Figure, check_figure_path, figure_svg, save_figure
from simcse_cli.choices import OutputFormat
from simcse_cli.errors import UsageError
from simcse_cli.files import atomic_text, check_output
from simcse_cli.progress import Progress
from simcse_cli.report import Report


@dataclass(frozen=True)
class View:
    """One analysis, ready to be shown; pictures are drawn where they are asked for.

    Title, text and the caption of the figure (for screen readers too) are for the HTML page. ``payload`` is the
    JSON object; CSV gets ``series``, with every single number, instead of ``tables``. ``page`` is by default a
    page of this view alone.
    """

    title: str
    text: str
    caption: str
    tables: Sequence[Report]
    payload: dict[str, Any]
    figure: Callable[[], Figure] | None
    terminal_plot: Callable[[], str]
    series: Sequence[Report] = ()
    page: "Page | None" = None

    def reports(self, fmt: OutputFormat) -> list[Report]:
        """Return the tables that a format gets."""
        return list(self.series if fmt is OutputFormat.CSV and self.series else self.tables)


@dataclass(frozen=True)
class Page:
    """An HTML page of several views, which are made when it is written."""

    title: str
    views: Callable[[], list[View]]


def check_outputs(options: ViewOptions, *, force: bool) -> None:
    """Refuse what cannot be written before anything is computed."""
    if options.plot is not None:
        check_figure_path(options.plot)
    for path in (options.plot, options.html):
        if path is not None:
            check_output(path, force=force)


def write_pictures(view: View, options: ViewOptions, progress: Progress, *, force: bool) -> None:
    """Write the figure and the HTML page that the options ask for."""
    if options.plot is not None and view.figure is not None:
        save_figure(view.figure(), options.plot, force=force)
        progress.info(f"wrote {options.plot}")
    if options.html is not None:
        page = view.page or Page(view.title, lambda: [view])
        with atomic_text(options.html, force=force) as stream:
            stream.write(html_page(page.title, page.views()))
        progress.info(f"wrote {options.html}")


def label_sources(sources: Sequence[str], given: Sequence[str] | None) -> list[str]:
    """Return a name for each source: its label, else its last part, or all of it where that repeats."""
    if given:
        if len(given) != len(sources) or len(set(given)) < len(given):
            raise UsageError(
                f"{len(given)} labels for {len(sources)} sources, need a different one for each",
                option="--label",
            )
        return list(given)
    short = [Path(source).name or source for source in sources]
    return [name if short.count(name) == 1 else source for name, source in zip(short, sources, strict=True)]


_CSS = """
:root { color-scheme: light; --ink: #1c2330; --soft: #5b6472; --line: #d9dee6; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.25rem 4rem; background: #fff; color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; padding-top: .5rem; border-top: 2px solid var(--accent); }
p { max-width: 46rem; }
.soft, figcaption, .note { color: var(--soft); font-size: .9rem; }
nav a { margin-right: 1rem; color: var(--accent); }
figure { margin: 1.25rem 0; }
figure img { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--ink); }
.number { text-align: right; white-space: nowrap; }
tbody tr:hover { background: #f4f7fa; }
@media print { body { max-width: none; } .wide { overflow: visible; } }
"""


def html_page(title: str, views: Sequence[View]) -> str:
    """Return one self-contained page as text: no script, nothing fetched, every string shown literally."""
    anchors = [f"part-{number}" for number in range(1, len(views) + 1)]
    links = "".join(
        f'<a href="#{anchor}">{escape(view.title)}</a>' for anchor, view in zip(anchors, views, strict=True)
    )
    navigation = f"<nav>{links}</nav>" if len(views) > 1 else ""
    body = "\n".join(_part(anchor, view) for anchor, view in zip(anchors, views, strict=True))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">Written by simcse {__version__}. Scores are shown x 100; '
        f"for full precision use --format json.</p>\n{navigation}\n{body}\n</body>\n</html>\n"
    )


def _part(anchor: str, view: View) -> str:
    parts = [f'<section id="{anchor}">', f"<h2>{escape(view.title)}</h2>", f"<p>{escape(view.text)}</p>"]
    if view.figure is not None:
        # An image, not inline SVG: ids inside one figure cannot then clash with those of another.
        data, caption = b64encode(figure_svg(view.figure()).encode()).decode(), escape(view.caption)
        image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    parts += [_table(report) for report in view.tables]
    return "\n".join([*parts, "</section>"])


def _table(report: Report) -> str:
    kinds = ["" if column.kind == "text" else ' class="number"' for column in report.columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(column.heading)}</th>'
        for kind, column in zip(kinds, report.columns, strict=True)
    )
    lines = [
        "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        for row in report.cells()
    ]
    rows = "\n".join(f"<tr>{line}</tr>" for line in lines)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    return (
        f'<div class="wide"><table><caption>{escape(report.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>{notes}"
    )
