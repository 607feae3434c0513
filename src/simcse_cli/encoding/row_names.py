"""The ids of rows and digests of their texts, beside a vector file that has no room for them."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from simcse_cli.encoding.formats import WITH_TEXT, vector_file
from simcse_cli.files.schema import foreign_format

NamedRow = tuple[Any, str]
"""The id of a row, and the digest of its text."""


def names_file(output: Path) -> Path | None:
    """Return the file for the ids beside an output, or None if the output itself holds the ids."""
    if vector_file(output) in WITH_TEXT:
        return None
    return output.with_name(f"{output.name}.ids.jsonl")


def text_digest(text: str) -> str:
    """Return a digest of a text, 128 bits in hexadecimal."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def write_names(path: Path, rows: Iterable[NamedRow]) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
        for row_id, digest in rows:
            stream.write(json.dumps({"id": row_id, "digest": digest}, default=str) + "\n")


def read_names(path: Path) -> Iterator[NamedRow]:
    with foreign_format(path, "a file of ids written by `simcse encode`"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield row["id"], str(row["digest"])
