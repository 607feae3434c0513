"""The documentation agrees with the program."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


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


def shell_commands(page):
    """Yield the `simcse` calls of a page's shell blocks, continuation lines joined."""
    for block in re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"\||&&|;", line.strip().removeprefix("$ ")):
                if part.strip().startswith("simcse "):
                    yield part.strip()


CALLS = [(page.name, call) for page in PAGES for call in shell_commands(page)]


@pytest.mark.parametrize(("page", "call"), CALLS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(CALLS)])
def test_documented_call_uses_options_that_exist(page, call):
    from simcse_cli.cli import build

    words = shlex.split(call, comments=True)[1:]
    command = build()
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if words and words[0] in ("--version", "--help", "--install-completion"):
        return
    assert not hasattr(command, "commands") or "--help" in words, f"{page}: {call}"
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {
        "-h",
        "--help",
    }
    used = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert used <= known, f"{page}: {call}: {used - known}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tests_that_pages_name_exist():
    sources = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")):
            assert f"def {name}(" in sources, f"{page.name} names {name}"


def test_readme_is_short_and_names_every_command():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    for command in ("prepare", "augment", "train", "eval", "encode", "analyze", "compare"):
        assert f"simcse {command}" in text


def test_score_moving_changes_are_marked():
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## Unreleased" in text or "## [" in text
