"""Join the shards of a file, or the parts in a folder.

The result is the file that one process would have written.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.encoding import formats
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.parts import side_file
from simcse_cli.encoding.row_names import NamedRow, names_file, text_digest, write_names
from simcse_cli.errors import DataError
from simcse_cli.files.atomic import atomic_path, check_output, require_local
from simcse_cli.files.inputs import Inputs, read_json
from simcse_cli.files.output import Output
from simcse_cli.files.schema import checked
from simcse_cli.progress import Progress, ProgressTask
from simcse_cli.settings.choices import VectorType
from simcse_cli.settings.declare import settings_of, words_of

_NUMBERS = r"-(?P<number>\d+)-of-(?P<of>\d+)"

Pieces = dict[Path, dict[str, Any]]
"""Finished shards or parts in their order, each with the content of its side file."""

# Entries of a side file in which the pieces of one output may differ.
_MAY_DIFFER = {"version", "model", "input", "files", "n_rows", "rows"}
_MAY_DIFFER |= {"rows_sha256", "texts_sha256"}
# Entries that a side file must have, with their types.
_REQUIRED_ENTRIES = {
    "dtype": VectorType,
    "dim": int,
    "n_rows": int,
    "input_rows": int,
    "rows": list[int],
}
_AGAIN = "encode it again with the command of the others and --force"


def merge_shards(
    output: Path, source: str | None, *, force: bool, progress: Progress
) -> list[Path]:
    """Join the shards of an output, or the parts in the folder ``source``.

    The output is the file that one process would have written. The pieces stay unchanged, and their
    paths are returned.
    """
    require_local(output)
    # The shards, each with the side file that says what it holds.
    paths = _find_pieces(output, source)
    files: list[Path] = []
    for path in paths:
        files += [path, side_file(path)]
    inputs = Inputs(files)
    pieces = {path: _read_side(side_file(path)) for path in paths}

    # Rows are copied as they are stored, and are checked against the side files on the way.
    record = side_file(output)
    with Output(output, record=record, key="model_digest", inputs=inputs, force=force) as target:
        side = _joined_side(pieces)
        digest = formats.RowDigest()
        ids_file = None if side.get("id_column") is None else names_file(output)
        # If there is a record, an earlier output was written here, and a file of ids is part of it.
        # Without a record, a file of ids may be the user's.
        if ids_file is not None and not record.exists():
            check_output(ids_file, force=force)

        def write_beside(complete: Path) -> None:
            target.write_record(complete.parent, side | digest.facts())
            if ids_file is not None:
                write_names(complete.with_name(ids_file.name), _names(pieces))

        with atomic_path(output, force=force, companions=write_beside) as complete:
            raw = complete.with_name("rows")
            with progress.task("merging", side["n_rows"]) as task:
                has_ids = _copy_rows(pieces, raw, digest, task)
            texts = chain.from_iterable(block.texts or () for block in _blocks(pieces))
            ids = None
            if has_ids:
                ids = chain.from_iterable(block.ids or () for block in _blocks(pieces))
            finished = formats.finish_file(raw, complete, *formats.layout_of(side), texts, ids)
            if finished == raw:  # the raw file itself has become the output
                raw.rename(complete)
            else:
                raw.unlink()
    size = f"{side['n_rows']:,} x {side['dim']} {side['dtype']}"
    progress.info(f"wrote {output}: {size} from {len(pieces)} shards")
    return paths


def _copy_rows(pieces: Pieces, raw: Path, of_all: formats.RowDigest, task: ProgressTask) -> bool:
    """Write the rows of all pieces into a raw file, and tell whether the pieces hold ids.

    Rows and texts are added to the digest ``of_all``.
    """
    has_ids = False
    with raw.open("xb") as stream:
        stream.write(b"\0" * formats.HEADER_BYTES)
        for path, side in pieces.items():
            digest = formats.RowDigest()
            for rows, texts, ids in formats.read_blocks(path, side):
                stream.write(np.ascontiguousarray(rows).data)
                has_ids = has_ids or ids is not None
                task.advance(len(rows))
                digest.add(rows, texts)
                of_all.add(rows, texts)
            # A side file need not hold digests (see `_REQUIRED_ENTRIES`).
            is_as_described = digest.facts().items() <= side.items()
            if "rows_sha256" in side and not is_as_described:
                raise DataError(f"{path} is not what its side file describes", hint=formats.DAMAGED)
    return has_ids


def _names(pieces: Pieces) -> Iterator[NamedRow]:
    for _, texts, ids in _blocks(pieces):
        yield from zip(ids or (), map(text_digest, texts or ()), strict=True)


def _blocks(pieces: Pieces) -> Iterator[formats.Block]:
    for path, side in pieces.items():
        yield from formats.read_blocks(path, side)


def _find_pieces(output: Path, source: str | None) -> list[Path]:
    """Return all shards of an output, or all parts in the folder ``source``, in order."""
    folder = output.parent
    encoded_to = output  # what -o named when the pieces were encoded
    name_pattern = rf"{re.escape(output.stem)}\.shard{_NUMBERS}{re.escape(output.suffix)}"
    if source is not None:
        folder = encoded_to = Path(source)
        name_pattern = rf"part{_NUMBERS}\.parquet"

    # Pieces of several runs may lie there, so they are grouped by the total in their names.
    files_by_total: dict[int, dict[int, Path]] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        named = re.fullmatch(name_pattern, file.name)
        if named is None:
            continue
        if not file.is_file():
            raise DataError(
                f"{file} is no file", hint="remove it, or encode the shard again with --force"
            )
        files_by_total.setdefault(int(named["of"]), {})[int(named["number"])] = file

    # There must be one set of pieces, and it must be complete.
    if not files_by_total:
        what = f"shard of {output.name}" if source is None else "parts"
        raise DataError(
            f"{folder} holds no {what}",
            hint=f"write them first: simcse encode INPUT -o {encoded_to} --shard 1/4",
        )
    if len(files_by_total) > 1:
        totals = " and ".join(map(str, sorted(files_by_total)))
        raise DataError(
            f"{folder} holds sets of {totals} shards, need those of one run",
            hint="remove the others",
        )
    ((total, files),) = files_by_total.items()
    missing = [number for number in range(1, total + 1) if number not in files]
    if missing:
        shown = ", ".join(map(str, missing[:10]))
        if len(missing) > 10:
            shown += ", ..."
        again = _command_of(next(iter(files.values())), encoded_to)
        if source is None:
            again += f" --shard {missing[0]}/{total}"
        raise DataError(
            f"{source or output}: of {total} shards {len(missing)} are missing: {shown}",
            hint=f"{again} --resume",
        )
    return [files[number] for number in sorted(files)]


def _command_of(piece: Path, output: Path) -> str:
    """Return the command that encodes ``output`` from the input of a piece, with its settings."""
    side: dict[str, Any] = {}
    with suppress(DataError):  # without its side file, the command names no settings
        side = read_json(side_file(piece), dict[str, Any])
    words = ["simcse", "encode", str(side.get("input", "INPUT")), "-o", str(output)]
    settings = settings_of(EncodeOptions)
    words += words_of(EncodeOptions, side, [key for key in side if key in settings])
    if "postprocess_sha256" in side:  # the name of the file is not recorded
        words += ["--postprocess", "FILE"]
    return shlex.join(words)


def _read_side(path: Path) -> dict[str, Any]:
    """Return the content of a side file; raise DataError if an entry is missing or wrong."""
    place = f"{path} is no side file of a shard"
    side: dict[str, Any] = read_json(path, dict[str, Any], place=place)
    for key, kind in _REQUIRED_ENTRIES.items():
        if key not in side:
            raise DataError(
                f"{path} has no {key}, need the side file of a shard", hint=formats.DAMAGED
            )
        checked(side[key], kind, f"{path}: {key}", hint=formats.DAMAGED)
    if len(side["rows"]) != 2 or side["dim"] < 1 or side["n_rows"] < 0:
        raise DataError(f"{path}: rows, n_rows or dim is out of range", hint=formats.DAMAGED)
    return side


def _joined_side(pieces: Pieces) -> dict[str, Any]:
    """Return the content of the side file of the joined output.

    Raise DataError if the pieces do not fit together. Their side files must agree in all entries
    but ``_MAY_DIFFER``, and the pieces must hold all rows of one input in order.
    """
    (first_path, first_side), *_ = pieces.items()
    files = Counter[str]()  # the number of rows from each file of the input
    end = 0  # the number of rows in the pieces so far
    for path, side in pieces.items():
        for key in [*first_side, *side]:
            value = side.get(key)
            first_value = first_side.get(key)
            if key not in _MAY_DIFFER and value != first_value:
                raise DataError(
                    f"{path} has {key} {value!r}, {first_path} has {first_value!r}",
                    hint=_AGAIN,
                )
        # Rows of one input file may lie in several pieces, so the counts per file are added.
        rows_in_files = checked(side.get("files", {}), dict[str, int], f"{side_file(path)}: files")
        files.update(rows_in_files)
        start, stop = side["rows"]
        if start != end or side["n_rows"] != stop - start:
            raise DataError(
                f"{path} holds rows {start:,} to {stop:,}, need it to start at {end:,}", hint=_AGAIN
            )
        end = stop
    if end != side["input_rows"]:
        raise DataError(f"{path} ends at row {end:,} of {side['input_rows']:,}", hint=_AGAIN)

    entries_of_piece = ("rows", "input_rows")
    joined = {key: value for key, value in first_side.items() if key not in entries_of_piece}
    if files:
        joined["files"] = dict(files)
    return joined | {"n_rows": end}
