"""The documentation agrees with the program."""

import importlib.util
import itertools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers import SENTENCES
from simcse_cli.models import resolve
from simcse_cli.results.result import NO_TEST

pytestmark = pytest.mark.upkeep

REPOSITORY = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("changelog", "contributing", "security")
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "SECURITY.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]


def load_reference_maker():
    spec = importlib.util.spec_from_file_location(
        "make_cli_reference", REPOSITORY / "docs" / "make_cli_reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_command_reference_is_fresh():
    maker = load_reference_maker()
    assert maker.TARGET.read_text(encoding="utf-8") == maker.reference(), "run `make docs`"
    assert maker.MANUAL.read_text(encoding="utf-8") == maker.manual(), "run `make docs`"


def test_manual_page_has_every_option_and_no_error(tmp_path):
    if shutil.which("groff") is None:
        pytest.skip("needs groff")
    page = REPOSITORY / "docs" / "simcse.1"
    shown = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-c", page],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    text = re.sub(".\b", "", shown.stdout)
    flags = re.findall(
        r"^\| `(--[\w-]+)`",
        (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(flags) > 300
    assert [flag for flag in flags if flag not in text] == []


def shell_commands(page):
    """Yield the `simcse` calls of a page's shell blocks, continuation lines joined."""
    for block in re.findall(
        r"```(?:bash|sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    ):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"\||&&|;", line.strip().removeprefix("$ ")):
                if part.strip().startswith("simcse "):
                    yield part.strip()


CALLS = [(page.name, call) for page in PAGES for call in shell_commands(page)]


@pytest.mark.parametrize(
    ("page", "call"), CALLS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(CALLS)]
)
def test_documented_call_is_one_that_the_program_takes(page, call):
    """Every call parses: its options exist, their values are of the right kind, and nothing required is missing."""
    from simcse_cli.commands.app import build

    words = [word for word in shlex.split(call, comments=True)[1:] if word != "..."]
    command, context = build(), None
    while words and hasattr(command, "commands") and words[0] in command.commands:
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
        command = command.commands[words.pop(0)]
    if words and words[0] in ("--version", "--help", "--install-completion"):
        return
    assert not hasattr(command, "commands") or "--help" in words, f"{page}: {call}"
    if "--help" not in words and "--help-all" not in words:
        command.make_context(command.name, words, parent=context)


def run_block(block, invoke, folder):
    """Run the lines of a shell block in this process: here documents, awk and calls of simcse."""
    lines, outcomes = iter(block.replace("\\\n", " ").splitlines()), []
    for line in lines:
        if match := re.fullmatch(r"cat > (\S+) <<'(\w+)'", line):
            text = itertools.takewhile(lambda each, end=match[2]: each != end, lines)
            (folder / match[1]).write_text("".join(f"{each}\n" for each in text), encoding="utf-8")
        elif line.strip() and not line.startswith("#"):
            words = shlex.split(line, comments=True)
            if words[0] == "awk":
                subprocess.run(line, shell=True, cwd=folder, check=True)
                continue
            assert words[0] == "simcse", line
            outcomes.append(invoke(*words[1:]))
            assert outcomes[-1].exit_code == 0, f"{line}\n{outcomes[-1].stderr}"
    return outcomes


@pytest.fixture
def model(monkeypatch, tiny_encoder, tmp_path):
    """Let the tiny model stand for the packaged one, in an empty folder."""
    from simcse_cli.models.export import save_encoder

    save_encoder(tiny_encoder, tmp_path / "tiny")
    monkeypatch.setattr(resolve, "bundled_minilm", lambda: tmp_path / "tiny")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "tiny"


def block_of(page, text):
    """Return the shell block of a page that holds a text."""
    blocks = re.findall(
        r"```bash\n(.*?)```", (REPOSITORY / page).read_text(encoding="utf-8"), re.DOTALL
    )
    (block,) = (each for each in blocks if text in each)
    return block


@pytest.mark.slow
def test_first_block_of_the_readme_works_as_printed(invoke, model, tmp_path):
    run_block(block_of("README.md", "analyze report runs/first"), invoke, tmp_path / "empty")
    assert "<html" in (tmp_path / "empty" / "first.html").read_text(encoding="utf-8")


def test_the_script_of_your_own_data_ends_in_a_searched_corpus(invoke, model, tmp_path):
    block = block_of("docs/your-own-data.md", "faq.csv")
    assert len(block.splitlines()) <= 70
    *_, compared, _, searched = run_block(block, invoke, tmp_path / "empty")
    assert "test" in compared.stdout  # what eval kept in the run
    assert NO_TEST not in compared.stderr
    assert searched.stdout.count("Query:") == 2
    assert "Refunds are paid" in (tmp_path / "empty" / "faq.csv").read_text()


def test_third_block_of_the_readme_works_as_printed(
    invoke, model, sts_folder, monkeypatch, tmp_path
):
    """Train, evaluate and compare: the run keeps its scores, and compare finds them."""
    (tmp_path / "empty" / "wiki1m.txt").write_text("".join(f"{text}\n" for text in SENTENCES * 3))
    dev = sts_folder / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    (tmp_path / "empty" / "sts-dev.csv").write_text(dev.read_text())
    monkeypatch.setenv("SIMCSE_MODEL", str(model))  # for the one of the Hub that the recipe names
    monkeypatch.setenv("SIMCSE_DATA", str(sts_folder))
    compared = run_block(block_of("README.md", "simcse.5"), invoke, tmp_path / "empty")[-1]
    run = tmp_path / "empty" / "runs" / "unsup"
    (kept,) = (run / "results").glob("sts-test-*.json")
    score = json.loads(kept.read_text())["tasks"]["STS12"]["score"]
    row = next(line for line in compared.stdout.splitlines() if line.startswith("unsup"))
    assert f"{100 * score:.2f}" in row
    assert (
        "NOT COMPARABLE: STS12, STS13, STS14, STS15, STS16, STS-B, SICK-R, Avg." in compared.stderr
    )  # the data of this test is not the published


def test_answers_run_as_printed(invoke, model, monkeypatch, tmp_path):
    """All blocks of the page in one folder, the tiny model in the place of those of the Hub too."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(resolve, "_download", lambda *name: model)
    text = (REPOSITORY / "docs" / "answers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    outcomes = run_block("\n".join(blocks), invoke, tmp_path / "empty")
    assert all(
        f"\n## {title}\n" in text for title in re.findall(r"^- \[(.*?)\]\(#", text, re.MULTILINE)
    )
    exact, _, indexed, approximate, flat, _, _ = (outcome.stdout for outcome in outcomes[-7:])
    assert all(text.count("Query:") == 1 for text in (exact, indexed, approximate, flat))
    assert flat == exact


def anchors_of(page):
    """Return what a link to a heading of a page may say after the #, as GitHub makes it."""
    text = re.sub(
        r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(
        r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")
    ):
        if "://" not in target and not target.startswith("mailto:"):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name} links to {target}"
            if anchor:
                assert anchor in anchors_of(path), f"{page.name} links to {target}#{anchor}"


def test_tests_that_pages_name_exist():
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py")
    )
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")):
            assert f"def {name}(" in sources, f"{page.name} names {name}"


def test_index_and_site_name_every_page():
    """The site finds all pages of docs/, and the index links to them."""
    pages = {page.name for page in PAGES if page.parent == REPOSITORY / "docs"}
    index = set(re.findall(r"\]\((\w[\w-]*\.md)\)", (REPOSITORY / "docs/index.md").read_text()))
    site = set(re.findall(r"([\w-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE))
    assert index == pages - {"index.md"}
    assert site == pages | {f"{name}.md" for name in ROOT_PAGES}


def test_readme_is_short_and_names_every_command():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for command in ("prepare", "augment", "train", "eval", "encode", "analyze", "compare"):
        assert f"simcse {command}" in text


def test_score_moving_changes_are_marked():
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (Unreleased|\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d)$", text, re.MULTILINE)
