"""Record the terminal of README: run its three commands, draw what they show as `docs/figures/terminal.svg`."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

TARGET = Path(__file__).parent / "figures" / "terminal.svg"
WIDTH = 88
COMMANDS = (
    "simcse train --mode sup --max-steps 40 -o runs/first",
    "simcse eval sts --model runs/first --tasks STSBenchmark",
    "simcse analyze report runs/first -o first.html",
)


def record(folder: str) -> Text:
    """Return what a terminal shows of the commands, one after the other, in a new folder."""
    environment = os.environ | {
        "COLUMNS": str(WIDTH),
        "FORCE_COLOR": "1",
        "TTY_INTERACTIVE": "0",  # no bars that move
        "XDG_CACHE_HOME": folder,
    }
    shown = Text()
    for command in COMMANDS:
        words = [sys.executable, "-m", "simcse_cli", *shlex.split(command)[1:]]
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            text=True,
        )
        shown.append("$ ", "bold green").append(f"{command}\n", "bold")
        lines = re.sub(r"\n{2,}", "\n", done.stdout.strip())  # a bar that does not move leaves an empty line
        shown.append_text(Text.from_ansi(lines)).append("\n\n")
    shown.rstrip()
    return shown


def main() -> None:
    """Write the figure; it names no font of the web."""
    console = Console(
        record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    with tempfile.TemporaryDirectory() as folder:
        console.print(record(folder), end="\n\n")  # an empty line: the last one is cut at its foot
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="simcse"), flags=re.DOTALL)
    TARGET.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
