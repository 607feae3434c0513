"""What the site has beyond the pages: the changelog, and the diagram of the rooms as a table, which needs no script."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def on_files(files: Files, *, config: Any) -> Files:
    """Add the changelog, which stands in the root of the repository."""
    files.append(File.generated(config, "changelog.md", abs_src_path=str(CHANGELOG)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link to the changelog of the site, and show a diagram of arrows as a table."""
    markdown = markdown.replace("(../CHANGELOG.md)", "(changelog.md)")
    return re.sub(r"```mermaid\n(.*?)```", lambda found: _table(found[1]), markdown, flags=re.DOTALL)


def _table(diagram: str) -> str:
    arrows = re.findall(r"(\w+) --> (.+)", diagram)
    rows = [f"| `{source}` | {', '.join(targets.split(' & '))} |" for source, targets in arrows]
    nodes = [f"| `{name}` | {', '.join(text.split())} |" for name, text in re.findall(r"(\w+)\[(.*)\]", diagram)]
    return "\n".join(["| room | imports |", "|---|---|", *rows, "", "| | holds |", "|---|---|", *nodes])
