"""Write parts: shards beside an output, or parquet files in a local folder or at an address."""

import shutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.parts import PART, Part, side_file
from simcse_cli.encoding.vector_writer import VectorWriter, require_same, vector_output
from simcse_cli.errors import OutputError
from simcse_cli.files.atomic import make_folder_of, output_error
from simcse_cli.files.inputs import Inputs, file_system, is_remote, open_input, remote_file
from simcse_cli.files.schema import foreign_format, parse_json
from simcse_cli.progress import Progress

PARTS_KEPT = "the encoded parts are kept; add --resume to the same command to continue"


def claim_folder(
    folder: str,
    own_names: Collection[str],
    n_parts: int,
    inputs: Inputs,
    options: EncodeOptions,
) -> None:
    """Create a folder of parts, or check one that exists.

    A part whose name gives another number of parts than ``n_parts`` is of another input. Such a
    part is an error, or with ``--force`` it is removed. ``own_names`` are the parts that this job
    will write. If one of them exists, that is an error without ``--resume`` or ``--force``. No part
    may be one of the inputs.
    """
    removers = _removers_by_name(folder)
    for name in filter(PART.fullmatch, removers):
        inputs.require_apart(f"{folder.rstrip('/')}/{name}")
    for name, remove in removers.items():
        match = PART.fullmatch(name)
        is_of_other_input = match is not None and int(match["of"]) != n_parts
        if is_of_other_input and not options.force:
            raise OutputError(
                f"{folder} holds {name}, a part of another input: this one is cut into {n_parts} "
                "parts",
                hint="choose another folder, or give --force, which removes those parts",
            )
        if name in own_names and not (options.resume or options.force):
            raise OutputError(
                f"{folder} holds {name} already",
                hint="continue with --resume, or overwrite it with --force",
            )
        if is_of_other_input:
            with suppress(FileNotFoundError):  # another process with this folder was faster
                remove()


def _removers_by_name(folder: str) -> dict[str, Callable[[], None]]:
    """Create the folder if it is missing, and return what it holds.

    Each name in the folder is mapped to a function that removes the file.
    """
    if not is_remote(folder):
        try:
            if not Path(folder).is_dir():
                make_folder_of(Path(folder))
                Path(folder).mkdir(exist_ok=True)
            return {file.name: file.unlink for file in sorted(Path(folder).iterdir())}
        except OSError as error:
            raise output_error(Path(folder), error) from error
    system, path = file_system(folder)
    from pyarrow import fs  # imported here, since only addresses need it

    with foreign_format(folder, "a folder that can be written", error=OutputError):
        system.create_dir(path, recursive=True)
        entries = system.get_file_info(fs.FileSelector(path))
    return {entry.base_name: partial(system.delete_file, entry.path) for entry in entries}


def encode_part(writer: VectorWriter, output: str, part: Part, progress: Progress) -> int:
    """Write a part or shard, locally or at an address, and return its number of rows."""
    if is_remote(output):
        return _encode_remote_part(writer, output, part, progress)
    with vector_output(Path(output), writer.inputs, writer.options) as target:
        return writer.write(target, writer.files.sentences(*part.span), progress, part=part)


def _encode_remote_part(writer: VectorWriter, output: str, part: Part, progress: Progress) -> int:
    """Write a part into a temporary folder and upload it, unless the address holds it already."""
    # The side file is written last, so a part is complete once its side file exists.
    folder, _, name = output.rpartition("/")
    side_address = f"{folder}/{side_file(Path(name)).name}"
    if not writer.options.force and remote_file(side_address).is_file:
        with open_input(side_address) as stream:
            side = parse_json(stream.read().decode(), side_address)
        require_same(output, side, writer.facts())
        return part.n_rows
    with TemporaryDirectory(prefix="simcse-") as temporary:
        local = Path(temporary) / name
        # Nobody else writes into this folder, so the output needs no lock.
        target = vector_output(local, writer.inputs, writer.options)
        sentences = writer.files.sentences(*part.span)
        n_rows = writer.write(target, sentences, progress, part=part)
        # The side file of an earlier upload would say that the part is complete, so it goes first.
        if remote_file(side_address).is_file:
            system, path = file_system(side_address)
            with _writing_to(side_address):
                system.delete_file(path)
        _upload(local, output)
        _upload(side_file(local), side_address)
    return n_rows


def _writing_to(address: str) -> AbstractContextManager[None]:
    """Turn an error of a cloud store into one that names the address."""
    return foreign_format(address, "a place that can be written", error=OutputError)


def _upload(local: Path, address: str) -> None:
    system, path = file_system(address)
    with _writing_to(address):
        try:
            with local.open("rb") as source, system.open_output_stream(path) as target:
                shutil.copyfileobj(source, target, 8 << 20)
        except BaseException:
            with suppress(Exception):  # an error of the removal would hide the first one
                system.delete_file(path)
            raise
