"""The command line keeps its options: a change of the surface is a change of ``surface.txt``."""

from pathlib import Path

from surface import surface

SNAPSHOT = Path(__file__).parent / "surface.txt"


def test_options_are_those_of_the_snapshot():
    expected, found = SNAPSHOT.read_text(encoding="utf-8").splitlines(), list(surface())
    changed = [f"- {line}" for line in expected if line not in found]
    changed += [f"+ {line}" for line in found if line not in expected]
    assert found == expected, (
        f"if meant, run `python tests/surface.py > tests/surface.txt`: {changed}"
    )
