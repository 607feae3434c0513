"""Files that come with the package."""

import csv
from collections.abc import Iterator
from importlib.resources import files


def resource(name: str) -> str:
    return (files("simcse_cli") / "resources" / name).read_text(encoding="utf-8")


def resource_rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a tab-separated resource file as mappings from column to text."""
    return csv.DictReader(resource(name).splitlines(), delimiter="\t")
