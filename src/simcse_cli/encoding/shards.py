"""Outputs in several files: shards of a file or parts in a folder, and joining them into one file."""

import re
import shutil
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from simcse_cli.encoding import formats
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.stream import Part, count_windows
from simcse_cli.encoding.vector_writer import VectorWriter, require_same, side_file, vector_output
from simcse_cli.errors import DataError, OutputError, UsageError
from simcse_cli.files.atomic import atomic_path, output_error
from simcse_cli.files.inputs import (
    Inputs,
    file_system,
    is_remote,
    open_input,
    read_json,
    remote_file,
)
from simcse_cli.files.output import Output
from simcse_cli.files.schema import checked, foreign_format, parse_json
from simcse_cli.progress import Progress

_SHARD = re.compile(r"(?P<stem>.+)\.shard-(?P<number>\d+)-of-(?P<of>\d+)", re.DOTALL)
_PART = re.compile(r"_?part-(?P<number>\d+)-of-(?P<of>\d+)\.parquet.*", re.DOTALL)
PARTS_KEPT = "the encoded parts are kept; add --resume to the same command to continue"
_MOST_WINDOWS = 8
_LEAST_PARTS = 32


def parse_shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of:
        raise UsageError(f"{text!r}: need I/N with I from 1 to N, as in 3/16", option="--shard")
    return number, of


def shard_file(output: Path, part: Part) -> Path:
    """Return the path of a shard, as in ``vectors.shard-3-of-16.npy``."""
    return output.with_name(f"{output.stem}.shard-{part.number}-of-{part.of}{output.suffix}")


def is_folder(output: str) -> bool:
    """Tell whether an output is a folder of parts: an existing folder, an address, or a name without an ending."""
    return is_remote(output) or Path(output).is_dir() or not Path(output).suffix


def part_file(folder: str, part: Part) -> str:
    """Return the path of a part in a folder; names sort in the order of the rows."""
    return f"{folder.rstrip('/')}/part-{part.number:05}-of-{part.of:05}.parquet"


def count_parts(n_rows: int) -> int:
    """Return the number of parts of an input: up to 8 windows per part, but a window each if that gives under 32.

    Example:
        >>> count_parts(1_000_000), count_parts(20_000), count_parts(10**9)
        (41, 3, 15259)
    """
    n_windows = count_windows(n_rows)
    return max(1, -(-n_windows // max(1, min(n_windows // _LEAST_PARTS, _MOST_WINDOWS))))


def claim_folder(folder: str, own: Collection[str], n_parts: int, options: EncodeOptions) -> None:
    """Create a folder of parts; with ``--force``, remove parts of another input from it."""
    for name, remove in _names_in(folder).items():
        found = _PART.fullmatch(name)
        is_other = found is not None and int(found["of"]) != n_parts
        if is_other and not options.force:
            what = f"{folder} holds {name}, a part of another input: this one is cut into {n_parts} parts"
            raise OutputError(
                what, hint="choose another folder, or give --force, which removes those parts"
            )
        if name in own and not (options.resume or options.force):
            hint = "continue with --resume, or overwrite it with --force"
            raise OutputError(f"{folder} holds {name} already", hint=hint)
        if is_other:
            remove()


def _names_in(folder: str) -> dict[str, Callable[[], None]]:
    """Return the names in a folder, created if needed, each with a function that removes it."""
    if not is_remote(folder):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return {file.name: file.unlink for file in sorted(Path(folder).iterdir())}
        except OSError as error:
            raise output_error(Path(folder), error) from error
    system, path = file_system(folder)
    from pyarrow import fs  # see file_system

    with foreign_format(folder, "a folder that can be written", error=OutputError):
        system.create_dir(path, recursive=True)
        found = system.get_file_info(fs.FileSelector(path))
    return {entry.base_name: partial(system.delete_file, entry.path) for entry in found}


def encode_part(writer: VectorWriter, output: str, part: Part, progress: Progress) -> int:
    """Write a part or shard, locally or at an address, and return its number of rows."""
    sentences = writer.files.sentences(*part.span)
    if not is_remote(output):
        with vector_output(Path(output), writer.inputs, writer.options) as target:
            return writer.write(target, sentences, progress, part=part)
    side_address = f"{output.rpartition('/')[0]}/{side_file(Path(PurePosixPath(output).name)).name}"
    if not writer.options.force and remote_file(side_address).is_file:
        with open_input(side_address) as stream:
            side = parse_json(stream.read().decode(), side_address)
        require_same(output, side, writer.facts())
        return part.n_rows
    with TemporaryDirectory(prefix="simcse-") as folder:
        local = Path(folder) / PurePosixPath(output).name
        target = vector_output(local, writer.inputs, writer.options)
        n_rows = writer.write(target, sentences, progress, part=part)
        _upload(local, output)
        _upload(side_file(local), side_address)  # last, since it marks the part as complete
    return n_rows


def _upload(local: Path, address: str) -> None:
    system, path = file_system(address)
    with foreign_format(address, "a place that can be written", error=OutputError):
        try:
            with local.open("rb") as source, system.open_output_stream(path) as target:
                shutil.copyfileobj(source, target, 8 << 20)
        except BaseException:
            system.delete_file(path)
            raise


Pieces = dict[Path, dict[str, Any]]
"""Finished shards or parts in their order, each with its side file."""

_OWN_FACTS = ("version", "model", "input", "files", "n_rows", "rows", "rows_sha256", "texts_sha256")


def merge_shards(
    output: Path, source: str | None, *, force: bool, progress: Progress
) -> list[Path]:
    """Join the shards of an output, or the parts in a folder, into the file that one process would have written.

    Returns the shards, which are left unchanged.
    """
    paths = _find_pieces(output, source)
    read = Inputs([each for path in paths for each in (path, side_file(path))])
    pieces = {path: _read_side(side_file(path)) for path in paths}
    record = side_file(output)
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
    found: dict[int, dict[int, Path]] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        if source is None:
            named = _SHARD.fullmatch(file.stem)
            is_piece = named and named["stem"] == output.stem and file.suffix == output.suffix
        else:
            named = _PART.fullmatch(file.name)
            is_piece = named and file.suffix == ".parquet" and not file.name.startswith("_")
        if named and is_piece:
            if not file.is_file():
                hint = "remove it, or encode the shard again with --force"
                raise DataError(f"{file} is no file", hint=hint)
            found.setdefault(int(named["of"]), {})[int(named["number"])] = file
    if not found:
        what = f"shard of {output.name}" if source is None else "parts"
        raise DataError(
            f"{folder} holds no {what}", hint=f"write them first: {command} --shard 1/4"
        )
    if len(found) > 1:
        what = f"{folder} holds sets of {' and '.join(map(str, sorted(found)))} shards, need those of one run"
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
