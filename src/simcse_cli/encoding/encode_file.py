"""Encode an input into a file or a folder of parts, in shards, on one machine or a Ray cluster; cosines of pairs."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from torch import distributed

from simcse_cli.data.columns import parse_columns
from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.pair_files import PAIR, iter_pairs
from simcse_cli.data.readers import FileFormat, first_read, guess_format, source_name
from simcse_cli.data.text import clean_text
from simcse_cli.data.writers import open_rows
from simcse_cli.encoding import stream
from simcse_cli.encoding.formats import WITH_TEXT, json_line, vector_file
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.partial_file import is_unfinished, left_unfinished
from simcse_cli.encoding.ray_engine import encode_on_ray
from simcse_cli.encoding.shards import (
    claim_folder,
    count_parts,
    encode_part,
    is_folder,
    merge_shards,
    parse_shard,
    part_file,
    shard_file,
)
from simcse_cli.encoding.stream import ALONE, InsideTask, Part, ProcessGroup, cut, windows
from simcse_cli.encoding.vector_writer import (
    VectorWriter,
    check_dtype,
    encode_function,
    may_replace,
    side_file,
    writing,
)
from simcse_cli.errors import DataError, UsageError, kept_on_interrupt, require_extra
from simcse_cli.files.atomic import check_output
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.streams import STDIO, Inputs, is_remote, require_file
from simcse_cli.machine.processes import (
    in_contact,
    join_group,
    process_count,
    process_rank,
    require_alike,
    require_shared,
    tell_if_alone,
)
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import Engine
from simcse_cli.settings.declare import refuse_unused, settings_of

_WINDOW_OF_STDOUT = 256
_PAIR_COLUMNS = ("sentence1", "sentence2")


@in_contact()
def encode_file(
    source: str | None,
    output: str | None,
    options: EncodeOptions,
    *,
    write: Callable[[str], None],
    progress: Progress,
) -> None:
    """Encode the sentences of an input into a file or folder; ``-`` gives ``write`` JSON Lines as the input comes.

    With ``options.pairs`` the output is a table of pairs with their cosines instead, on stdout if it is None. With
    ``options.merge`` shards that were encoded before become one file.

    Raises:
        SimcseError: whatever is wrong with options, input or model, before anything is written.
    """
    if options.merge is not None:
        others = [name for name in settings_of(EncodeOptions) if name not in ("merge", "force")]
        refuse_unused(options, others, "has no use with --merge, which encodes nothing")
        if output is not None:
            raise UsageError("has no use with --merge, which names the output", option="--output")
        merge_shards(options.merge, source, force=options.force, progress=progress)
        return
    if source is None:
        raise UsageError("need an input: a file, a folder, a glob in quotes, or - for stdin", option="INPUT")
    if options.pairs:
        table = Path(output or STDIO)
        with sole_writer(table):
            _write_cosines(source, table, options, progress)
        return
    if output is None:
        raise UsageError("need a file for the vectors, or - to print them", option="--output")
    files = FileSet.find(source, options.column)
    inputs = files.inputs()
    _check_output(files, output, options)
    sentences = first_read(files.sentences())
    if output == STDIO:
        encoder = load_for_encoding(options.model, options, progress)
        encode, _ = encode_function(encoder, options)
        for texts in windows(sentences, _WINDOW_OF_STDOUT):
            for text, row in zip(texts, encode(texts), strict=True):
                write(json_line(text, row))
        encoder.warn_truncated(progress)
        inputs.require_unchanged()
    elif is_folder(output):
        _encode_folder(files, inputs, output, options, progress)
    elif options.engine is Engine.RAY:
        _encode_shards(files, inputs, Path(output), options, progress)
    else:
        _encode_one(files, inputs, sentences, Path(output), options, progress)


def _encode_one(
    files: FileSet,
    inputs: Inputs,
    sentences: Iterator[str],
    output: Path,
    options: EncodeOptions,
    progress: Progress,
) -> None:
    """Encode the input, or one shard of it, into one file."""
    part, group = None, ALONE
    if options.shard is not None:
        number, of = parse_shard(options.shard)
        part = cut(sum(files.counts), of)[number - 1]
        output, sentences = shard_file(output, part), files.sentences(part.start, part.stop)
        if part.start == part.stop:
            progress.info(
                f"shard {options.shard} is empty: a shard is of whole windows of {stream.WINDOW:,} rows, "
                f"and the input has {stream.count_windows(part.total):,}"
            )
    rank = 0 if part else process_rank()
    with writing(output, options, rank):
        writer = VectorWriter(files, inputs, options, progress)
        if part is None:
            group = _process_group(files, writer, output, progress)
        writer.write(output, sentences, progress, part=part, group=group)
        writer.encoder.warn_truncated(progress)


def _encode_folder(
    files: FileSet, inputs: Inputs, folder: str, options: EncodeOptions, progress: Progress
) -> None:
    """Encode the input, or the parts that are this job's, into a folder of parquet files."""
    n_rows = sum(files.counts)
    parts = cut(n_rows, count_parts(n_rows))
    number, of = process_rank() + 1, process_count()
    if options.shard is not None:
        number, of = parse_shard(options.shard)
    own = parts[len(parts) * (number - 1) // of : len(parts) * number // of]
    outputs = [(part_file(folder, part), part) for part in own]
    claim_folder(folder, [output.rpartition("/")[2] for output, _ in outputs], len(parts), options)
    if options.engine is Engine.LOCAL:
        _encode_here(files, inputs, outputs, options, progress)
    elif is_remote(folder):
        encode_on_ray(files, outputs, None, options, progress)
    else:
        with sole_writer(Path(folder)):
            encode_on_ray(files, outputs, Path(folder) / ".lock", options, progress)
    inputs.require_unchanged()
    progress.info(f"wrote {len(own)} of {len(parts)} parts in {folder}, {n_rows:,} rows in all")


def _encode_here(
    files: FileSet,
    inputs: Inputs,
    outputs: list[tuple[str, Part]],
    options: EncodeOptions,
    progress: Progress,
) -> None:
    writer = VectorWriter(files, inputs, options, progress)
    n_rows = sum(part.stop - part.start for _, part in outputs)
    with (
        progress.task("encoding", n_rows) as task,
        kept_on_interrupt(lambda: "what is encoded is kept; the same command with --resume goes on"),
    ):
        for output, part in outputs:
            inner = InsideTask(task)
            sentences = files.sentences(part.start, part.stop)
            task.advance(encode_part(writer, output, part, sentences, inner) - inner.n_done)
            for text in inner.warnings:
                progress.warn(text)
    writer.encoder.warn_truncated(progress)


def _encode_shards(
    files: FileSet, inputs: Inputs, output: Path, options: EncodeOptions, progress: Progress
) -> None:
    """Encode shards of a file on Ray, join them, and remove them."""
    with sole_writer(output, side_file(output)):
        check_output(output, force=options.force)
        n_rows = sum(files.counts)
        shards = [(shard_file(output, part), part) for part in cut(n_rows, count_parts(n_rows))]
        for shard, _ in shards:
            if not may_replace(shard, options) and (shard.exists() or is_unfinished(shard)):
                raise left_unfinished(shard)
        marker = output.with_name(f".{output.name}.lock")
        encode_on_ray(files, [(str(shard), part) for shard, part in shards], marker, options, progress)
        inputs.require_unchanged()
    for shard in merge_shards(output, None, force=options.force, progress=progress):
        shard.unlink()
        side_file(shard).unlink()


def _check_output(files: FileSet, output: str, options: EncodeOptions) -> None:
    """Refuse what cannot be done together, before anything is read or loaded."""
    check_dtype(options)
    given = {"--shard": options.shard is not None, "--engine ray": options.engine is Engine.RAY}
    several = [flag for flag, is_given in given.items() if is_given]
    in_folder = output != STDIO and is_folder(output)
    if options.workers is not None and options.engine is not Engine.RAY:
        raise UsageError("has no use without --engine ray", option="--workers")
    if len(several) > 1:
        raise UsageError("has no use with --engine ray, which cuts the input itself", option="--shard")
    if output == STDIO:
        refuse_unused(
            options, ["dtype", "resume"], "has no use with -o -, which prints plain numbers: give a file"
        )
    if options.engine is Engine.RAY:
        require_extra("ray", "--engine ray")
    if several and output == STDIO:
        raise UsageError("writes files: give -o FILE or -o FOLDER", option=several[0])
    if (several or in_folder) and not files.is_stored:
        if files.source != STDIO and guess_format(files.source) is not FileFormat.HUB:
            require_file(files.source)
        raise UsageError(
            "needs an input that can be read again: save it to a file first",
            option=several[0] if several else "--output",
        )
    if options.index is not None:
        if several or in_folder:
            raise UsageError("needs all vectors in one file of one process", option="--index")
        _check_index(options.index, files.source, Path(output), options)
    has_texts = in_folder or (output != STDIO and vector_file(Path(output)) in WITH_TEXT)
    if options.id_column is not None and not has_texts:
        raise UsageError(
            "needs an output that has columns: a folder, .parquet or .jsonl", option="--id-column"
        )
    if options.shard is not None:
        parse_shard(options.shard)
    source, target = Path(files.source), Path(output)
    if output != STDIO and source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{output} lies in the input folder, where it would be read", option="--output")


def _check_index(index: Path, source: str, output: Path, options: EncodeOptions) -> None:
    """Refuse an index that could not be written after encoding."""

    def refuse(reason: str) -> UsageError:
        return UsageError(reason, option="--index")

    if options.postprocess is not None:
        raise refuse("queries would not be post-processed")
    if source == STDIO or output.suffix not in (".npy", ".npz", ".safetensors"):
        raise refuse("needs an input file and -o FILE.npy, .npz or .safetensors")
    if options.dtype not in ("float32", "float16"):
        raise refuse("needs --dtype float32 or float16")
    check_output(index, force=may_replace(output, options))


def _process_group(files: FileSet, writer: VectorWriter, output: Path, progress: Progress) -> ProcessGroup:
    """Return the processes of this job under ``torchrun`` or ``accelerate launch``, else this one alone."""
    if process_count() == 1:
        tell_if_alone(progress)
        return ALONE
    join_group()
    require_shared(output)
    require_alike({"model_digest": writer.encoder.digest, "rows of the input": files.total})
    return ProcessGroup(process_rank(), process_count(), distributed.barrier)


def _write_cosines(source: str, output: Path, options: EncodeOptions, progress: Progress) -> None:
    """Write every pair of a table with the cosine of its texts, in the order of the input."""
    of_vectors = ("index", "resume", "shard", "engine", "workers", "dtype", "id_column", "normalize")
    refuse_unused(options, of_vectors, "has no use with --pairs, which writes no vectors")
    names = parse_columns(options.column, PAIR, "--column")
    if options.column and len(names) != 2:
        raise UsageError("need two names with --pairs, as in question1,question2", option="--column")
    with open_rows(output, (*_PAIR_COLUMNS, "cosine"), force=options.force) as write_row:
        rows = iter_pairs(source, names, option="--column")
        blocks = windows((clean_text(left), clean_text(right)) for left, right in rows)
        first = next(blocks, None)  # before the model is loaded, for what is wrong with the file
        if first is None:
            raise DataError(f"{source_name(source)} has no rows")
        encoder = load_for_encoding(options.model, options, progress)
        encode, _ = encode_function(encoder, options)
        with progress.task("pairs") as task:
            for pairs in chain([first], blocks):
                vectors = unit_rows(encode([text for pair in pairs for text in pair]), np.float32)
                cosines = np.einsum("ij,ij->i", vectors[::2], vectors[1::2])
                for pair, cosine in zip(pairs, cosines, strict=True):
                    write_row((*pair, f"{cosine:.6f}"))
                task.advance(len(pairs))
    encoder.warn_truncated(progress)
