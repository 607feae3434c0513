import re
from html.parser import HTMLParser

import pytest

from comparison.cases import write_run
from simcse_cli.analysis import presentation
from simcse_cli.analysis.options import ViewOptions
from simcse_cli.analysis.presentation import (
    Analysis,
    NamedSource,
    Page,
    check_outputs,
    html_page,
    label_sources,
    name_sources,
    write_pictures,
)
from simcse_cli.errors import MissingExtraError, OutputError, UsageError
from simcse_cli.progress import SilentProgress
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
    analyses = [
        analysis("One", tables=[table], figure=draw),
        analysis("Two", figure=draw, folded="more"),
    ]
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
    assert page().endswith("</html>\n")
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


def test_outputs_are_checked_before_anything_is_computed(tmp_path, monkeypatch):
    (tmp_path / "there.png").touch()
    (tmp_path / "there.html").touch()
    for wrong in (
        {"plot": tmp_path / "there.png"},
        {"html": tmp_path / "there.html"},
    ):
        with pytest.raises(OutputError):
            check_outputs(ViewOptions(**wrong), force=False)
    check_outputs(
        ViewOptions(plot=tmp_path / "there.png", html=tmp_path / "there.html"), force=True
    )

    def require_extra(module, purpose):
        raise MissingExtraError(module, "plot", purpose)

    monkeypatch.setattr(presentation, "require_extra", require_extra)
    check_outputs(ViewOptions(), force=False)
    for flag, name in (("plot", "figure.png"), ("html", "page.html")):
        with pytest.raises(MissingExtraError, match=f"--{flag}"):
            check_outputs(ViewOptions(**{flag: tmp_path / name}), force=False)


@pytest.mark.parametrize(
    ("shown", "figure", "text", "written"),
    [
        ({}, draw, "page", []),
        ({"plot": "f.png"}, draw, "page", ["f.png"]),
        ({"plot": "f.png"}, None, None, []),
        ({"html": "p.html"}, None, "page", ["p.html"]),
        ({"html": "p.html"}, draw, None, []),
        ({"plot": "f.png", "html": "p.html"}, draw, "page", ["f.png", "p.html"]),
    ],
)
def test_pictures_are_written_where_they_are_asked_for(tmp_path, shown, figure, text, written):
    said = SilentProgress()
    said.info = said.warn
    options = ViewOptions(**{name: tmp_path / path for name, path in shown.items()})
    write_pictures(analysis("One", figure=figure), text, options, said, force=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written)
    assert said.warnings == [f"wrote {tmp_path / name}" for name in written]
    if "p.html" in written:
        assert (tmp_path / "p.html").read_text() == "page"


@pytest.mark.parametrize(
    ("sources", "given", "expected"),
    [
        (["a/m", "b/n"], None, ["m", "n"]),
        (["a/m", "b/m", "c/n"], [], ["a/m", "b/m", "n"]),
        (["/", "m"], None, ["/", "m"]),
        (["a/m", "a/m"], ["x", "y"], ["x", "y"]),
    ],
)
def test_sources_are_named_after_their_last_part_unless_it_repeats(sources, given, expected):
    assert label_sources(sources, given) == expected


@pytest.mark.parametrize(
    ("sources", "given", "message"),
    [
        (["m"], ["x", "y"], "2 labels for 1 sources, need a different one for each"),
        (["m", "n"], ["x", "x"], "2 labels for 2 sources, need a different one for each"),
        (["a/m", "n", "./a/m/"], None, "m is there 2 times, need a different name for each"),
    ],
)
def test_each_source_needs_a_label_of_its_own(sources, given, message):
    with pytest.raises(UsageError) as raised:
        label_sources(sources, given)
    assert str(raised.value) == f"--label: {message}"


def test_a_folder_of_seeds_stands_for_its_runs(tmp_path):
    for seed in (2, 1):
        write_run(tmp_path / f"all/seed-{seed}", seed=seed)
    folder = tmp_path / "all"
    assert name_sources([str(folder), "m"], None) == [
        NamedSource(str(folder / "seed-1"), "all/seed-1", "all"),
        NamedSource(str(folder / "seed-2"), "all/seed-2", "all"),
        NamedSource("m", "m"),
    ]


def test_cells_of_right_to_left_text_find_their_own_direction():
    table = Report("T", [Column("text")], [{"text": "plain"}, {"text": "הילד הלך לבית"}])
    shown = html_page(Page("t", lambda: [analysis("One", tables=[table])]))
    assert "<td>plain</td>" in shown
    assert '<td dir="auto">הילד הלך לבית</td>' in shown
