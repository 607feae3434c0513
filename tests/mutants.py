"""Mutation testing: which changes of a number, a default, a comparison or an operator does no test notice?

``make mutants`` changes one place of a module at a time, runs the tests that belong to the module, and lists the
changes that pass them all. ``tests/mutants.yaml`` says which tests these are, and gives the reason for every survivor
that is accepted; any other makes the exit code 1. Modules as arguments restrict the run; without, docs/mutants.md is
written anew.

All tests of a mutant run in a process forked from this one, which has imported torch and pytest but neither computed
anything nor seen the package, and find the package in a copy that has one file changed; processes that they start
find it there too.
"""

import ast
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401 - loaded once, for all forked processes, as those below
import numba  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import torch  # noqa: F401
import transformers.models.bert.modeling_bert  # noqa: F401
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "simcse_cli"
LIST = REPOSITORY / "tests" / "mutants.yaml"
REPORT = REPOSITORY / "docs" / "mutants.md"

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
    """Yield what lies in annotations and decorators, and ``strict`` of ``zip``, which only guards."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
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


def run_tests(package: Path, tests: list[str], limit_s: float) -> str:
    """Run tests against a copy of the package in a forked process: ``passed``, ``failed`` or ``timeout``."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ |= {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        sys.path.insert(0, str(package.parent))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *tests])
        os._exit(int(code))
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        if time.monotonic() - started > limit_s:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout"
        time.sleep(0.01)


def examine(module: str, entry: dict[str, Any], copy: Path) -> tuple[int, list[Mutant]]:
    """Return how many mutants a module has, and those that its tests let pass."""
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


def main(chosen: list[str]) -> int:
    listed = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    rows, n_unexplained = [], 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(PACKAGE, Path(folder) / "simcse_cli"))
        for module in chosen or listed:
            started = time.monotonic()
            accepted = listed[module].get("accepted") or {}
            tried, survivors = examine(module, listed[module], copy)
            seconds = time.monotonic() - started
            unexplained = [mutant for mutant in survivors if mutant.key not in accepted]
            n_unexplained += len(unexplained)
            counts = f"{tried} mutants, {tried - len(survivors)} killed, {len(survivors)} survived"
            say(f"{module}: {counts}, {len(unexplained)} of them without a reason; {seconds:.0f} s")
            rows.append((module, tried, [(m, accepted.get(m.key, "**none**")) for m in survivors]))
    if not chosen:
        write_report(rows)
    return 1 if n_unexplained else 0


def write_report(rows: list[tuple[str, int, list[tuple[Mutant, str]]]]) -> None:
    """Write the page of docs: counts by module, and every survivor with its reason."""
    tried = sum(n for _, n, _ in rows)
    survived = sum(len(survivors) for _, _, survivors in rows)
    lines = [
        "# Mutants",
        "",
        "Written by `make mutants`; see [contributing](contributing.md#mutants).",
        f"Tried {tried:,}, killed {tried - survived:,}, survived {survived:,}.",
        "",
        "| module | mutants | killed | survived |",
        "|---|---:|---:|---:|",
        *(f"| `{module}` | {n} | {n - len(survivors)} | {len(survivors)} |" for module, n, survivors in rows),
        "",
        "| survivor | change | why no test can or should notice |",
        "|---|---|---|",
    ]
    for module, _, survivors in rows:
        for mutant, reason in survivors:
            change = mutant.key.replace("|", "\\|")
            lines.append(f"| `{module}` | `{change}` | {reason} |")
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
