"""Join shards of a file, or parts in a folder.

The result is the file that one process would have written.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.encoding import formats
from simcse_cli.encoding.parts import PART, side_file
from simcse_cli.errors import DataError
from simcse_cli.files.atomic import atomic_path
from simcse_cli.files.inputs import Inputs, read_json
from simcse_cli.files.output import Output
from simcse_cli.files.schema import checked
from simcse_cli.progress import Progress

_SHARD = re.compile(r"(?P<stem>.+)\.shard-(?P<number>\d+)-of-(?P<of>\d+)", re.DOTALL)

Pieces = dict[Path, dict[str, Any]]
"""Finished shards or parts in their order, each with its side file."""

_OWN_FACTS = ("version", "model", "input", "files", "n_rows", "rows", "rows_sha256", "texts_sha256")


def merge_shards(
    output: Path, source: str | None, *, force: bool, progress: Progress
) -> list[Path]:
    """Join the shards of an output, or the parts in a folder.

    The result is the file that one process would have written.

    Returns the shards, which are left unchanged.
    """
    # The shards, each with the side file that says what it holds.
    paths = _find_pieces(output, source)
    read = Inputs([each for path in paths for each in (path, side_file(path))])
    pieces = {path: _read_side(side_file(path)) for path in paths}
    record = side_file(output)

    # Rows are copied as they are, and checked against the side file on the way.
    with Output(output, record=record, key="model_digest", inputs=read, force=force) as target:
        side = _joined_side(pieces)
        kind = formats.VectorType(side["dtype"])
        dtype, width = formats.STORED[kind], formats.stored_width(kind, side["dim"])

        def column(of: int) -> Iterator[Any]:
            for path, own in pieces.items():
                for block in formats.read_blocks(path, dtype, (own["n_rows"], width)):
                    yield from block[of] or ()

        whole = formats.RowDigest()
        shape, has_ids = (side["n_rows"], width), False

        def write_side(complete: Path) -> None:
            target.write_record(complete.parent, side | whole.facts())

        with atomic_path(output, force=force, companions=write_side) as complete:
            raw = complete.with_name("rows")
            with raw.open("xb") as stream, progress.task("merging", shape[0]) as task:
                stream.write(b"\0" * formats.HEADER_BYTES)
                for path, own in pieces.items():
                    digest = formats.RowDigest()
                    for rows, texts, ids in formats.read_blocks(
                        path, dtype, (own["n_rows"], width)
                    ):
                        stream.write(np.ascontiguousarray(rows).data)
                        has_ids = has_ids or ids is not None
                        task.advance(len(rows))
                        digest.add(rows, texts)
                        whole.add(rows, texts)
                    if own | digest.facts() != own and "rows_sha256" in own:
                        raise DataError(
                            f"{path} is not what its side file describes", hint=formats.DAMAGED
                        )
            if (
                formats.finish_file(
                    raw, complete, dtype, shape, column(1), column(2) if has_ids else None
                )
                == raw
            ):
                raw.rename(complete)
            else:
                raw.unlink()
    progress.info(f"wrote {output}: {shape[0]:,} x {side['dim']} {kind} from {len(pieces)} shards")
    return paths


def _find_pieces(output: Path, source: str | None) -> list[Path]:
    """Return all shards of an output, or all parts in the folder ``source``, in order."""
    folder = output.parent if source is None else Path(source)
    command = f"simcse encode INPUT -o {output if source is None else folder}"

    # Shards of several runs may lie there, so they are sorted by their total.
    found: dict[int, dict[int, Path]] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        if source is None:
            named = _SHARD.fullmatch(file.stem)
            is_piece = named and named["stem"] == output.stem and file.suffix == output.suffix
        else:
            named = PART.fullmatch(file.name)
            is_piece = named and file.suffix == ".parquet" and not file.name.startswith("_")
        if named and is_piece:
            if not file.is_file():
                hint = "remove it, or encode the shard again with --force"
                raise DataError(f"{file} is no file", hint=hint)
            found.setdefault(int(named["of"]), {})[int(named["number"])] = file

    # One set must be there, and it must be complete.
    if not found:
        what = f"shard of {output.name}" if source is None else "parts"
        raise DataError(
            f"{folder} holds no {what}", hint=f"write them first: {command} --shard 1/4"
        )
    if len(found) > 1:
        what = (
            f"{folder} holds sets of {' and '.join(map(str, sorted(found)))} shards, need those "
            "of one run"
        )
        raise DataError(what, hint="remove the others")
    ((of, files),) = found.items()
    missing = [number for number in range(1, of + 1) if number not in files]
    if missing:
        some = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        again = f"{command} --shard {missing[0]}/{of}" if source is None else command
        what = f"{folder}: of {of} shards {len(missing)} are missing: {some}"
        raise DataError(what, hint=f"{again} --resume")
    return [files[number] for number in sorted(files)]


def _read_side(path: Path) -> dict[str, Any]:
    side: dict[str, Any] = read_json(
        path, dict[str, Any], place=f"{path} is no side file of a shard"
    )
    needed = {
        "dtype": formats.VectorType,
        "dim": int,
        "n_rows": int,
        "input_rows": int,
        "rows": list[int],
    }
    for key, kind in needed.items():
        if key not in side:
            raise DataError(
                f"{path} has no {key}, need the side file of a shard", hint=formats.DAMAGED
            )
        checked(side[key], kind, f"{path}: {key}", hint=formats.DAMAGED)
    if len(side["rows"]) != 2 or min(side["dim"], side["n_rows"] + 1) < 1:
        raise DataError(f"{path}: rows, n_rows or dim is out of range", hint=formats.DAMAGED)
    return side


def _joined_side(pieces: Pieces) -> dict[str, Any]:
    (first, shared), *_ = pieces.items()
    again = "encode it again with the command of the others and --force"
    joined = {key: value for key, value in shared.items() if key not in ("rows", "input_rows")}
    files: dict[str, int] = {}
    end = 0
    for path, side in pieces.items():
        for key in [*shared, *side]:
            if key not in _OWN_FACTS and side.get(key) != shared.get(key):
                found = f"{path} has {key} {side.get(key)!r}, {first} has {shared.get(key)!r}"
                raise DataError(found, hint=again)
        (start, stop), n_rows, n_all = side["rows"], side["n_rows"], side["input_rows"]
        of_piece = checked(side.get("files", {}), dict[str, int], f"{side_file(path)}: files")
        for file, n_of_file in of_piece.items():
            files[file] = files.get(file, 0) + n_of_file
        if start != end or n_rows != stop - start:
            what = f"{path} holds rows {start:,} to {stop:,}, need it to start at {end:,}"
            raise DataError(what, hint=again)
        end = stop
    if end != n_all:
        raise DataError(f"{path} ends at row {end:,} of {n_all:,}", hint=again)
    return joined | ({"files": files} if files else {}) | {"n_rows": end}
