"""The site that ``make site`` builds: no warning, nothing from elsewhere, every page and figure, all of it searched."""

import json
import logging
import re
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.upkeep

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="needs the extra docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python-Markdown and its extensions
        config = load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(folder), strict=True)
        build(config)
    logging.getLogger("mkdocs").handlers.clear()
    return folder


def test_every_page_is_there_and_is_searched(site):
    pages = {path.stem for path in (REPOSITORY / "docs").glob("*.md")} | {
        "changelog",
        "contributing",
        "security",
    }
    assert {path.stem for path in site.glob("*.html")} - {"404"} == pages
    searched = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert {entry["location"].partition(".html")[0] or "index" for entry in searched} == pages


def test_pages_fetch_nothing_from_elsewhere(site):
    for path in site.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        for source in re.findall(
            r"<(?:script|link|img|iframe)[^>]*?\s(?:src|href)=\"?([^\" >]+)", text
        ):
            assert "://" not in source, (path.name, source)
            assert (site / source.partition("?")[0].lstrip("/")).exists(), (path.name, source)
        assert "mermaid" not in text, path.name
