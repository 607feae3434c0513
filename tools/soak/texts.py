"""Carries markup, control characters and very long texts through every command into every format that it writes."""

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import yaml

from soak.commands import OFFLINE, WORKING, options_of
from soak.options import CONTROL, MARKUP, SECONDS, judge, state_of, working_folder
from soak.workbench import Workbench

FORMATS = ("table", "json", "csv", "markdown", "latex")
FIGURES = {"plot": "figure.svg", "html": "page.html"}
LENGTH = 10_000_000


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each command with each of its formats and figures over hostile texts, then with one very long text."""
    names = [name for name in WORKING if name not in OFFLINE]
    rng.shuffle(names)
    for text in (MARKUP, CONTROL, "a" * LENGTH, "word " * (LENGTH // 5)):
        for name in names:
            given = {each.name for each in options_of(name)}
            ways = [["--format", each] for each in FORMATS if "fmt" in given]
            ways += [[f"--{each}", file] for each, file in FIGURES.items() if each in given]
            ways += [["--label", MARKUP, *way] for way in ways if "label" in given]
            for way in ways if len(text) < LENGTH and ways else [[]]:
                shown = f"{name} {' '.join(way)} over {text[:9]!r}... ({len(text):,} characters)"
                yield shown, partial(hostile, bench, name, way, text)


def hostile(bench: Workbench, name: str, way: list[str], text: str) -> None:
    folder = working_folder(bench)
    replace_texts(folder, text.replace("\x00", "").replace("\r", ""))
    words: list[str] = WORKING[name].split()
    if "--format" in way:  # with -o the text would go there
        at = words.index("-o")
        words[at : at + 2] = []
    before = state_of(folder)
    result = bench.run(*name.split(), *words, *way, cwd=folder, limit_s=2 * SECONDS)
    judge(bench, result, folder, before, is_data=way[-2:] == ["--format", "csv"])
    if result.code:
        return
    made = [folder / path for path in state_of(folder).keys() - before.keys()]
    outputs = [
        (path.suffix, path.read_text()) for path in made if path.suffix in CHECKS and path.is_file()
    ]
    if "--format" in way:
        outputs.append((f".{way[-1]}", result.stdout))
    for kind, content in outputs:
        try:
            CHECKS[kind](content)
        except (ValueError, ElementTree.ParseError, csv.Error, yaml.YAMLError) as error:
            bench.report("wrong successes", f"{kind[1:]}: {str(error)[:300]}")


def replace_texts(folder: Path, text: str) -> None:
    """Put a text beside the sentences of the inputs."""

    def put(path: Path, content: str) -> None:
        path.unlink()
        path.write_text(content)

    lines = (folder / "lines.txt").read_text().splitlines()
    put(
        folder / "lines.txt",
        "".join(f"{line} {text if i % 2 or i == 0 else ''}\n" for i, line in enumerate(lines[:6])),
    )
    for name in ("rows.jsonl", "nli.jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()][:6]
        first = next(iter(rows[0]))
        changed = [row | {first: f"{row[first]} {text}"} for row in rows]
        put(folder / name, "".join(json.dumps(row) + "\n" for row in changed))
    header, *pairs = (folder / "pairs.tsv").read_text().splitlines()
    put(folder / "pairs.tsv", "\n".join([header, *(f"{text} {pair}" for pair in pairs[:8])]) + "\n")
    with (folder / "rows.csv").open(newline="") as stream:
        cells = list(csv.reader(stream))[:6]
    path = folder / "rows.csv"
    path.unlink()
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(
            [cells[0], *([f"{row[0]} {text}", *row[1:]] for row in cells[1:])]
        )


class _Tags(HTMLParser):
    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "b":
            raise ValueError(f"a tag of the text is a tag of the page, line {self.getpos()[0]}")


def _plain(content: str) -> None:
    found = next((sign for sign in "\x1b\x07\u202e" if sign in content), None)
    if found is not None:
        raise ValueError(f"{found!r} before ...{content[content.index(found) :][:40]!r}")


def _html(content: str) -> None:
    _plain(content)
    _Tags().feed(content)


def _svg(content: str) -> None:
    _plain(content)
    ElementTree.fromstring(content)


def _latex(content: str) -> None:
    _plain(content)
    if "\\soak" in content:
        raise ValueError("a command of the text is a command of the table")


def _markdown(content: str) -> None:
    _plain(content)
    rows = [line.replace("\\|", "") for line in content.splitlines() if line.startswith("|")]
    if len({row.count("|") for row in rows}) > 1 and "\n\n" not in content:
        raise ValueError("rows of different numbers of cells")


def _csv(content: str) -> None:
    lines = content.splitlines(keepends=True)
    is_senteval = (
        "\t" in content.partition("\n")[0]
    )  # its .csv files are split by tabs, without quotes
    rows = (line.split("\t") for line in lines) if is_senteval else csv.reader(lines)
    widths = {len(row) for row in rows if row}
    if len(widths) > 1 and "\n\n" not in content:
        raise ValueError(f"rows of {sorted(widths)} cells")


CHECKS: dict[str, Callable[[str], object]] = {
    ".csv": _csv,
    ".html": _html,
    ".json": json.loads,
    ".latex": _latex,
    ".markdown": _markdown,
    ".svg": _svg,
    ".table": _plain,
    ".yaml": yaml.safe_load,
}
