"""The figures of ``tools/density``, counted by hand."""

import runpy
from pathlib import Path

DENSITY = Path(__file__).parents[2] / "tools" / "density" / "__main__.py"
SOURCE = '''"""A module."""

# Twice.
x = [2 * y for y in z]
a, b = 1, 2  # beside code


def half(n):
    """Return n / 2, or 0."""
    return n / 2 if n else 0
'''


def test_code_is_counted_without_comments_and_docstrings():
    found = runpy.run_path(str(DENSITY))["count"](SOURCE + f"long = '{'x' * 100}'\n")
    assert found["lines"] == 11
    assert found["code lines"] == 5
    assert found["tokens"] == 11 + 7 + 6 + 8 + 3
    assert (found["comments"], found["long"]) == (1, 1)
    assert (found["comprehensions"], found["conditionals"], found["pairs"]) == (1, 1, 1)
