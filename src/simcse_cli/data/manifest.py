"""The manifest beside a prepared file: what went in, what came out, what was dropped and why.

It holds no date and no machine name, so the same inputs, settings and seed give the same manifest.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from simcse_cli import __version__
from simcse_cli.files import STDIO, sha256_file


def describe_file(path: Path | str) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file; stdin, folders and Hub datasets have no size and no digest."""
    if str(path) == STDIO or not Path(path).is_file():
        return {"path": str(path), "bytes": None, "sha256": None}
    return {"path": str(path), "bytes": Path(path).stat().st_size, "sha256": sha256_file(path)}


def build_manifest(
    kind: str,
    *,
    inputs: Sequence[Path | str],
    folder: Path,
    outputs: Iterable[tuple[Path, int]],
    settings: dict[str, Any],
    seed: int | None,
    **results: Any,
) -> dict[str, Any]:
    """Return the manifest as JSON values.

    ``outputs`` are the written files with their numbers of rows, named relative to ``folder``, where the
    manifest will lie; ``seed`` is None where nothing is random; ``results`` are counts, findings and other
    results.
    """
    return {
        "kind": kind,
        "simcse_version": __version__,
        "seed": seed,
        "settings": settings,
        "inputs": [describe_file(path) for path in inputs],
        "outputs": [
            describe_file(path) | {"path": path.relative_to(folder).as_posix(), "rows": rows}
            for path, rows in outputs
        ],
        **results,
    }


def manifest_path(output: Path | str) -> Path:
    return Path(f"{output}.manifest.json")
