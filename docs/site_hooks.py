"""What the site has beyond the pages: the files of the root, and the diagram of the rooms as a table, which needs no script."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("changelog", "contributing", "security")
"""Files in the root of the repository, called so in capitals."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages of the root."""
    for name in PAGES:
        text = (ROOT / f"{name.upper()}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, f"{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link to the pages of the site instead of files in the root, and show a diagram of arrows as a table."""
    for name in PAGES:
        markdown = re.sub(rf"\((?:\.\./)?{name.upper()}\.md", f"({name}.md", markdown)
    return re.sub(r"```mermaid\n(.*?)```", lambda found: _table(found[1]), markdown, flags=re.DOTALL)


def _table(diagram: str) -> str:
    arrows = re.findall(r"(\w+) --> (.+)", diagram)
    rows = [f"| `{source}` | {', '.join(targets.split(' & '))} |" for source, targets in arrows]
    nodes = [
        f"| `{name}` | {', '.join(text.split())} |" for name, text in re.findall(r"(\w+)\[(.*)\]", diagram)
    ]
    return "\n".join(["| room | imports |", "|---|---|", *rows, "", "| | holds |", "|---|---|", *nodes])
