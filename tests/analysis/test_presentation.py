import re
from html.parser import HTMLParser

from simcse_cli.analysis.presentation import Analysis, Page, html_page
from simcse_cli.results.plots import house_style, new_figure
from simcse_cli.results.report import Column, Report

VOID = {"meta", "img", "br", "link"}


class Checker(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@house_style()
def draw():
    figure, (axes,) = new_figure(2, 2)
    axes.set_title("x < y")
    return figure


def analysis(title: str, **details) -> Analysis:
    return Analysis(
        title,
        "text",
        'the "figure"',
        **{"tables": [], "payload": {}, "figure": None, "terminal_plot": str} | details,
    )


def page() -> str:
    columns = [Column("model"), Column("score", kind="score")]
    rows = [{"model": "a & b", "score": 0.015}, {"model": "own", "score": 0.5}]
    table = Report("Scores <b>", columns, rows, ["a note"])
    analyses = [analysis("One", tables=[table], figure=draw), analysis("Two", figure=draw, folded="more")]
    facts = [("steps", "<40>")]
    return html_page(Page("A <title>", lambda: analyses, facts=facts, own=frozenset({"own"})))


def test_page_is_well_formed_and_fetches_nothing():
    checker = Checker()
    checker.feed(page())
    assert checker.open == []
    assert all(link.startswith("#") for link in checker.links)
    assert "<script" not in page()
    assert "@import" not in page()
    assert not re.search(r"url\((?!#)", page())


def test_two_figures_of_a_page_share_no_id():
    checker = Checker()
    checker.feed(page())
    assert len(set(checker.ids)) == len(checker.ids)
    references = {link[1:] for link in checker.links} | set(re.findall(r"url\(#([^)]+)\)", page()))
    assert references <= set(checker.ids)


def test_page_shows_markup_literally():
    assert "A &lt;title&gt;" in page()
    assert "Scores &lt;b&gt;" in page()
    assert "a &amp; b" in page()
    assert "<dd>&lt;40&gt;</dd>" in page()


def test_figure_is_described_and_takes_the_ink_of_the_page():
    assert 'aria-label="the &#34;figure&#34;"' in page()
    figures = re.findall(r"<svg.*?</svg>", page(), re.DOTALL)
    assert len(figures) == 2
    assert all("var(--ink)" in figure and "#1c2330" not in figure for figure in figures)


def test_page_aligns_numbers_right_marks_own_rows_and_links_its_parts():
    assert '<td class="number">1.50</td>' in page()
    assert '<tr class="own"><td>own</td>' in page()
    assert '<a href="#part-2">Two</a>' in page()


def test_page_of_one_part_has_no_navigation():
    assert "<nav>" not in html_page(Page("t", lambda: [analysis("One")]))
