import base64
import re
from html.parser import HTMLParser

from simcse_cli.analysis.html import HtmlFigure, HtmlSection, HtmlTable, html_page

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


def page() -> str:
    table = HtmlTable("Scores <b>", ["model", "score"], [["a & b", "1.5"]], [False, True], ["a note"])
    figure = HtmlFigure("<svg>\u2264</svg>", 'the "figure"')
    sections = [HtmlSection("One", "text", [figure], [table]), HtmlSection("Two", "more")]
    return html_page("A <title>", "made by tests", sections)


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
    assert base64.b64decode(data).decode() == "<svg>\u2264</svg>"
    assert 'alt="the &quot;figure&quot;"' in page()


def test_page_aligns_numbers_right_and_links_its_parts():
    assert '<td class="number">1.5</td>' in page()
    assert '<a href="#part-2">Two</a>' in page()


def test_page_of_one_part_has_no_navigation():
    assert "<nav>" not in html_page("t", "s", [HtmlSection("One", "text")])
