import base64
import re
from html.parser import HTMLParser

from simcse_cli.analysis.plots import figure_svg, new_figure
from simcse_cli.analysis.views import View, html_page
from simcse_cli.report import Column, Report

VOID = {"meta", "img", "br", "link"}


class Checker(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def draw():
    figure, (axes,) = new_figure(2, 2)
    axes.set_title("x < y")
    return figure


def view(title: str, **details) -> View:
    return View(
        title,
        "text",
        'the "figure"',
        **{"tables": [], "payload": {}, "figure": None, "terminal_plot": str} | details,
    )


def page() -> str:
    columns = [Column("model"), Column("score", kind="score")]
    table = Report("Scores <b>", columns, [{"model": "a & b", "score": 0.015}], ["a note"])
    return html_page("A <title>", [view("One", tables=[table], figure=draw), view("Two")])


def test_page_is_well_formed_and_fetches_nothing():
    checker = Checker()
    checker.feed(page())
    assert checker.open == []
    assert all(link.startswith(("data:", "#")) for link in checker.links)
    assert "<script" not in page()


def test_page_shows_markup_literally():
    assert "A &lt;title&gt;" in page()
    assert "Scores &lt;b&gt;" in page()
    assert "a &amp; b" in page()


def test_page_holds_the_figure_and_describes_it():
    (data,) = re.findall(r"base64,([^\"]+)", page())
    assert base64.b64decode(data).decode() == figure_svg(draw())
    assert 'alt="the &quot;figure&quot;"' in page()


def test_page_aligns_numbers_right_and_links_its_parts():
    assert '<td class="number">1.50</td>' in page()
    assert '<a href="#part-2">Two</a>' in page()


def test_page_of_one_part_has_no_navigation():
    assert "<nav>" not in html_page("t", [view("One")])
