"""What a reader has to hold in mind: tokens of code and their density, by room.

``python tools/density [FOLDER]`` prints a line for each folder of ``src/simcse_cli`` and for the
whole. Comments and docstrings are no code. Of 1,000 lines of code, the goals are at most 8.5 tokens
a line, 35 comprehensions, 15 conditional expressions and 5 assignments of several values to several
names; of all lines, 2% comments, and none over 100 columns.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "simcse_cli"
MOST_COLUMNS = 100
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def count(source: str) -> Counter[str]:
    r"""Count the lines, tokens and expressions of a file.

    Example:
        >>> found = count("# Twice.\nx = [2 * y for y in z]\n")
        >>> found["tokens"], found["code lines"], found["comments"], found["comprehensions"]
        (11, 1, 1, 1)
    """
    lines, tree = source.splitlines(), ast.parse(source)
    docstrings = _docstring_lines(tree)
    found = Counter({"lines": len(lines)})
    found["long"] = sum(len(line) > MOST_COLUMNS for line in lines)

    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT and not lines[row - 1][:column].strip():
            found["comments"] += 1
        if token.type not in _LAYOUT and row not in docstrings:
            found["tokens"] += 1
            code_lines.update(range(row, token.end[0] + 1))
    found["code lines"] = len(code_lines)

    for node in ast.walk(tree):
        found["comprehensions"] += isinstance(node, _COMPREHENSIONS)
        found["conditionals"] += isinstance(node, ast.IfExp)
        found["pairs"] += _assigns_several(node)
    return found


def _docstring_lines(tree: ast.AST) -> set[int]:
    """Return the lines of the strings that stand alone, as docstrings and those below names do."""
    found: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _assigns_several(node: ast.AST) -> bool:
    """Tell whether a node is ``a, b = x, y``."""
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def line_of(room: str, found: Counter[str]) -> str:
    thousands = found["code lines"] / 1000 or 1.0
    rates = [found[name] / thousands for name in ("comprehensions", "conditionals", "pairs")]
    comments = 100 * found["comments"] / max(1, found["lines"])
    density = found["tokens"] / max(1, found["code lines"])
    shown = "".join(f"{rate:>8.0f}" for rate in rates)
    return (
        f"{room:<14}{found['tokens']:>9,}{density:>7.1f}{shown}{comments:>9.1f}%{found['long']:>6,}"
    )


def main(arguments: list[str]) -> None:
    root = Path(arguments[0]) if arguments else PACKAGE
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        room = inside.parts[0] if len(inside.parts) > 1 else "."
        rooms.setdefault(room, Counter()).update(count(path.read_text(encoding="utf-8")))
    print("room             tokens a line  compr.  condit.  pairs comments  long")
    for room, found in sorted(rooms.items()):
        print(line_of(room, found))
    print(line_of("all", sum(rooms.values(), Counter())))


if __name__ == "__main__":
    main(sys.argv[1:])
