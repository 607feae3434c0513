"""One self-contained HTML page: tables and figures inside the file, no script, nothing fetched."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

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


@dataclass(frozen=True)
class HtmlTable:
    """A table as text cells; ``is_number`` says which columns are right-aligned."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_number: Sequence[bool]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class HtmlFigure:
    """A figure as SVG text, with its caption, which also describes it to a screen reader."""

    svg: str
    caption: str


@dataclass(frozen=True)
class HtmlSection:
    """One part of the page: a sentence on what is shown, then figures, then tables."""

    title: str
    text: str
    figures: Sequence[HtmlFigure] = field(default_factory=list)
    tables: Sequence[HtmlTable] = field(default_factory=list)


def html_page(title: str, summary: str, sections: Sequence[HtmlSection]) -> str:
    """Return the page as text; every string given is shown literally."""
    anchors = [f"part-{number}" for number in range(1, len(sections) + 1)]
    links = "".join(
        f'<a href="#{anchor}">{escape(section.title)}</a>'
        for anchor, section in zip(anchors, sections, strict=True)
    )
    body = "\n".join(_section(anchor, part) for anchor, part in zip(anchors, sections, strict=True))
    navigation = f"<nav>{links}</nav>" if len(sections) > 1 else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(summary)}</p>\n{navigation}\n{body}\n'
        "</body>\n</html>\n"
    )


def _section(anchor: str, section: HtmlSection) -> str:
    parts = [
        f'<section id="{anchor}">',
        f"<h2>{escape(section.title)}</h2>",
        f"<p>{escape(section.text)}</p>",
    ]
    parts += [_figure(figure) for figure in section.figures]
    parts += [_table(table) for table in section.tables]
    return "\n".join([*parts, "</section>"])


def _figure(figure: HtmlFigure) -> str:
    # An image, not inline SVG: ids inside one figure cannot then clash with those of another.
    data = b64encode(figure.svg.encode()).decode()
    caption = escape(figure.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(table: HtmlTable) -> str:
    classes = [' class="number"' if number else "" for number in table.is_number]
    head = "".join(
        f'<th scope="col"{kind}>{escape(cell)}</th>'
        for kind, cell in zip(classes, table.headings, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(classes, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="wide"><table><caption>{escape(table.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>{notes}"
    )
