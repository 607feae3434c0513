"""Mutation testing: which changes of a number, a default, a comparison or an operator does no test notice?

``make mutants`` changes one place of a module at a time, runs the tests that belong to the module,
and lists the changes that pass them all. ``mutants.yaml`` names these tests, and gives the reason
for every survivor that is accepted; any other makes the exit code 1. Modules as arguments restrict
the run, ``--survivors`` repeats what survived the latest one. build/mutants.md has the counts of the
latest run of each module.

All tests of a mutant run in a process forked from this one, which has imported torch and pytest but
neither computed anything nor seen the package, and find the package in a copy that has one file
changed; processes that they start find it there too.
"""

import ast
import compileall
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import accelerate  # noqa: F401 - loaded once, for all forked processes, as those below
import hypothesis  # noqa: F401
import numba  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401
import transformers.models.bert.modeling_bert  # noqa: F401
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from helpers import build_tiny_model

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "simcse_cli"
LIST = Path(__file__).with_name("mutants.yaml")
REPORT = REPOSITORY / "build" / "mutants.md"
AGAIN = "--survivors"

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
    ast.Invert: ast.UAdd,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "mean": "sum", "sum": "mean"}


@dataclass(frozen=True)
class Mutant:
    """A change of one place: where, the line before and after, and the whole module after."""

    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        return f"{self.before} -> {self.after}"


def mutants_of(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, in order."""
    lines = source.splitlines()
    n_places = len(list(_places(ast.parse(source))))
    for number in range(n_places):
        tree = ast.parse(source)
        node, change = list(_places(tree))[number]
        statement = _statement(tree, node)
        before = ast.unparse(statement)
        change()
        after = ast.unparse(statement)
        changed = ast.unparse(tree)
        short = _difference(before, after)
        yield Mutant(min(node.lineno, len(lines)), *short, changed)


def _difference(before: str, after: str) -> tuple[str, str]:
    """Return the words of the first line that differs, from three before the change to three after it."""
    pairs = zip(before.splitlines(), [*after.splitlines(), ""], strict=False)
    one, other = next((a.split(), b.split()) for a, b in pairs if a != b)
    alike = [a == b for a, b in zip(one, other, strict=False)]
    start = max(0, (alike.index(False) if False in alike else len(alike)) - 3)
    tail = [a == b for a, b in zip(reversed(one), reversed(other), strict=False)]
    stop = max(0, (tail.index(False) if False in tail else len(tail)) - 3)
    return " ".join(one[start : len(one) - stop]), " ".join(other[start : len(other) - stop])


def _statement(tree: ast.Module, node: ast.AST) -> ast.stmt:
    """Return the innermost statement around a node."""
    around = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and node in ast.walk(s)]
    return around[-1]


def _places(tree: ast.Module) -> Iterator[tuple[ast.expr, Callable[[], None]]]:
    """Yield the expressions that can be changed, each with the function that changes it in place."""
    skipped = set(_without_behaviour(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and node not in skipped:
            for change in _changes(node):
                yield node, change


def _without_behaviour(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the parts of annotations and decorators, and ``strict`` of ``zip``, which is only a safeguard."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = [
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
        ]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.keyword) and node.arg == "strict":
            parts.append(node.value)
        for part in parts:
            if part is not None:
                yield from ast.walk(part)


def _changes(node: ast.expr) -> Iterator[Callable[[], None]]:
    match node:
        case ast.Constant(value=bool(value)):
            yield lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield lambda: setattr(node, "value", value + 1)
        case ast.Constant(value=float(value)):
            yield lambda: setattr(node, "value", 2 * value or 1.0)
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield lambda i=i, op=op: ops.__setitem__(i, COMPARISONS[type(op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.BinOp() | ast.BoolOp() | ast.UnaryOp() if type(node.op) in OPERATORS:
            yield lambda: setattr(node, "op", OPERATORS[type(node.op)]())
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            yield lambda: setattr(node.func, "id", FUNCTIONS[name])
        case ast.Call(func=ast.Attribute(attr=name)) if name in FUNCTIONS:
            yield lambda: setattr(node.func, "attr", FUNCTIONS[name])
        case ast.Dict(keys=keys, values=values) if all(isinstance(k, ast.Constant) for k in keys):
            for i in range(len(keys)):
                yield lambda i=i: (keys.pop(i), values.pop(i))


class LeaveAtOnce:
    """Ends the process where pytest would collect garbage and tidy folders."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        os._exit(int(exitstatus))


def run_tests(package: Path, tests: list[str], limit_s: float) -> str:
    """Run tests against a copy of the package in a forked process: ``passed``, ``failed`` or ``timeout``."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ |= {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        sys.dont_write_bytecode = True  # two mutants of one second and size would share theirs
        sys.path.insert(0, str(package.parent))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--assert=plain",
            f"--basetemp={package.parent / 'tmp'}",
        ]
        os._exit(int(pytest.main([*options, *tests], plugins=[LeaveAtOnce()])))
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        if time.monotonic() - started > limit_s:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout"
        time.sleep(0.01)


def examine(
    module: str, entry: dict[str, Any], copy: Path, keys: Collection[str] | None
) -> tuple[int, list[Mutant]]:
    """Return how many mutants a module has, and those that its tests let pass; with ``keys``, only these are run."""
    target = copy / module
    source = target.read_text(encoding="utf-8")
    tests = [str(REPOSITORY / "tests" / test) for test in entry["tests"]]
    tests += ["-k", entry["only"]] if "only" in entry else []
    started = time.monotonic()
    if run_tests(copy, tests, 600) != "passed":
        sys.exit(f"{module}: its tests fail without any change")
    limit_s = 5 * (time.monotonic() - started) + 10
    survivors, n_tried = [], 0
    try:
        for mutant in mutants_of(source):
            n_tried += 1
            if keys is not None and mutant.key not in keys:
                continue
            target.write_text(mutant.source, encoding="utf-8")
            if run_tests(copy, tests, limit_s) == "passed":
                survivors.append(mutant)
                say(f"  {module}:{mutant.line}: {mutant.key}")
    finally:
        target.write_text(source, encoding="utf-8")
    return n_tried, survivors


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    chosen = [argument for argument in arguments if argument != AGAIN]
    listed = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    n_unexplained = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(PACKAGE, Path(folder) / "simcse_cli"))
        compileall.compile_dir(
            copy, quiet=1, force=True, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )
        build_tiny_model(
            Path(folder) / "model"
        )  # what transformers keeps from its first use is shared
        if "simcse_cli" in sys.modules:
            sys.exit(
                "the package is loaded before it is changed: tests/helpers.py must not import it"
            )
        gc.freeze()
        for module in chosen or listed:
            started = time.monotonic()
            keys = survivors_of(module) if AGAIN in arguments else None
            tried, survivors = examine(module, listed[module], copy, keys)
            accepted = listed[module].get("accepted", {})
            reasons = [(mutant.key, accepted.get(mutant.key, "**none**")) for mutant in survivors]
            unexplained = sum(mutant.key not in accepted for mutant in survivors)
            n_unexplained += unexplained
            counts = f"{tried} mutants, {tried - len(survivors)} killed, {len(survivors)} survived"
            say(
                f"{module}: {counts}, {unexplained} without a reason; "
                f"{time.monotonic() - started:.0f} s"
            )
            write_report(module, tried, reasons)
    return 1 if n_unexplained else 0


def survivors_of(module: str) -> set[str]:
    """Return the keys of a module's survivors in the report, if there is one."""
    if not REPORT.exists():
        return set()
    lines = REPORT.read_text(encoding="utf-8").replace("\\|", "|").splitlines()
    start = f"| `{module}` | `"
    return {line.removeprefix(start).split("` | ")[0] for line in lines if line.startswith(start)}


def write_report(module: str, tried: int, survivors: list[tuple[str, str]]) -> None:
    """Write the lines of a module into the report, in the place of those that are there."""
    REPORT.parent.mkdir(exist_ok=True)
    old = REPORT.read_text(encoding="utf-8").splitlines() if REPORT.exists() else []
    rows = [
        line for line in old if line.startswith("| `") and not line.startswith(f"| `{module}` |")
    ]
    rows.append(f"| `{module}` | {tried} | {tried - len(survivors)} | {len(survivors)} |")
    for key, reason in survivors:
        change = key.replace("|", "\\|")
        rows.append(f"| `{module}` | `{change}` | {reason} |")
    counts = sorted(row for row in rows if row.count(" | ") == 3)
    n_tried, n_killed, n_survived = (
        sum(int(row.split(" | ")[i].rstrip(" |")) for row in counts) for i in (1, 2, 3)
    )
    never = sorted(
        set(yaml.safe_load(LIST.read_text(encoding="utf-8"))) - {r.split("`")[1] for r in counts}
    )
    lines = [
        "# Mutants",
        "",
        f"Written by `make mutants`: {n_tried:,} changes tried, "
        f"{n_killed:,} noticed by a test, {n_survived:,} not.",
        "",
        "| module | tried | killed | survived |",
        "|---|---:|---:|---:|",
        *counts,
        "",
        *(
            [f"Listed and not run yet: {', '.join(f'`{name}`' for name in never)}.", ""]
            if never
            else []
        ),
        "| survivor | change | why no test notices |",
        "|---|---|---|",
        *sorted(row for row in rows if row not in counts),
    ]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
