"""Encode an input into a file, shards or a folder of parts, here or on a Ray cluster; or write cosines of pairs."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from torch import distributed

from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.formats import source_name
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.pair_files import PAIR, iter_pairs
from simcse_cli.data.table import first_read
from simcse_cli.data.text import clean_text
from simcse_cli.data.writers import open_rows, row_output
from simcse_cli.encoding import shards, stream, vector_writer
from simcse_cli.encoding.formats import WITH_TEXT, json_line, vector_file
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.partial_file import is_unfinished
from simcse_cli.encoding.ray_engine import encode_on_ray
from simcse_cli.encoding.search_index import check_index_output
from simcse_cli.encoding.stream import ALONE, InsideTask, Outputs, ProcessGroup, cut, windows
from simcse_cli.errors import DataError, UsageError, kept_on_interrupt, require_extra
from simcse_cli.files.inputs import STDIO, Inputs, is_remote
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.output import left_unfinished
from simcse_cli.machine import processes
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import Engine

_WINDOW_OF_STDOUT = 256
_PAIR_COLUMNS = ("sentence1", "sentence2")


@processes.in_contact()
def encode_file(
    source: str | None, options: EncodeOptions, *, write: Callable[[str], None], progress: Progress
) -> None:
    """Encode the sentences of an input into a file or folder; for ``-`` pass JSON Lines to ``write`` as they come.

    With ``options.pairs``, write a table of pairs with their cosines instead, by default to stdout.
    With ``options.merge``, join shards that were encoded earlier.
    """
    if options.merge is not None:
        shards.merge_shards(options.merge, source, force=options.force, progress=progress)
        return
    output = options.output
    if source is None:
        raise UsageError(
            "need an input: a file, a folder, a glob in quotes, or - for stdin", option="INPUT"
        )
    if options.pairs:
        _write_cosines(source, Path(output or STDIO), options, progress)
        return
    if output is None:
        raise UsageError("need a file for the vectors, or - to print them", option="--output")
    _check_output(output, options)
    cut_by = _cut_by(output, options)
    if output != STDIO and cut_by is None:
        processes.join_group()  # first of all: who fails later is missed by the others at once
    given = Given.of(options, progress=progress).of_texts(options.column)
    files = FileSet.find(source, given, text_per=options.text_per, again=cut_by, output=output)
    inputs = Inputs(files.files)
    sentences = first_read(files.sentences())
    if output == STDIO:
        encoder = load_for_encoding(options.model, options, progress)
        encode, _ = vector_writer.encode_function(encoder, options)
        for texts in windows(sentences, _WINDOW_OF_STDOUT):
            for text, row in zip(texts, encode(texts), strict=True):
                write(json_line(text, row))
        encoder.warn_truncated(progress)
        inputs.require_unchanged()
    elif shards.is_folder(output):
        _encode_folder(files, inputs, output, options, progress)
    elif options.engine is Engine.RAY:
        _encode_shards(files, inputs, Path(output), options, progress)
    else:
        _encode_one(files, inputs, sentences, Path(output), options, progress)
    if n_blank := files.blank.total():
        are = "text is" if n_blank == 1 else "texts are"
        progress.info(f"{source}: {n_blank:,} {are} empty, encoded as an empty text")


def _encode_one(
    files: FileSet,
    inputs: Inputs,
    sentences: Iterator[str],
    output: Path,
    options: EncodeOptions,
    progress: Progress,
) -> None:
    part, group = None, ALONE
    if options.shard is not None:
        number, of = shards.parse_shard(options.shard)
        part = cut(sum(files.counts), of)[number - 1]
        output, sentences = shards.shard_file(output, part), files.sentences(*part.span)
        if not part.n_rows:
            progress.info(
                f"shard {options.shard} is empty: a shard is of whole windows of {stream.WINDOW:,} rows, "
                f"and the input has {stream.count_windows(part.total):,}"
            )
    rank = 0 if part else processes.process_rank()
    with vector_writer.vector_output(output, inputs, options, rank) as target:
        writer = vector_writer.VectorWriter(files, inputs, options, progress)
        if part is None and processes.process_count() > 1:  # of `torchrun` or `accelerate launch`
            processes.require_shared(output)
            processes.require_alike(
                {"model_digest": writer.encoder.digest, "rows of the input": files.total}
            )
            group = ProcessGroup(
                processes.process_rank(), processes.process_count(), distributed.barrier
            )
        elif part is None:
            processes.tell_if_alone(progress)
        writer.write(target, sentences, progress, part=part, group=group)
        writer.encoder.warn_truncated(progress)


def _encode_folder(
    files: FileSet, inputs: Inputs, folder: str, options: EncodeOptions, progress: Progress
) -> None:
    """Encode the input, or this job's parts of it, into a folder of parquet files."""
    n_rows = sum(files.counts)
    parts = cut(n_rows, shards.count_parts(n_rows))
    number, of = processes.process_rank() + 1, processes.process_count()
    if options.shard is not None:
        number, of = shards.parse_shard(options.shard)
    own = parts[len(parts) * (number - 1) // of : len(parts) * number // of]
    outputs = [(shards.part_file(folder, part), part) for part in own]
    shards.claim_folder(
        folder, [output.rpartition("/")[2] for output, _ in outputs], len(parts), options
    )
    if options.engine is Engine.LOCAL:
        _encode_here(
            vector_writer.VectorWriter(files, inputs, options, progress), outputs, progress
        )
    elif is_remote(folder):
        encode_on_ray(files, outputs, None, options, progress)
    else:
        with sole_writer(Path(folder)):
            encode_on_ray(files, outputs, Path(folder) / ".lock", options, progress)
    inputs.require_unchanged()
    progress.info(f"wrote {len(own)} of {len(parts)} parts in {folder}, {n_rows:,} rows in all")


def _encode_here(writer: vector_writer.VectorWriter, outputs: Outputs, progress: Progress) -> None:
    n_rows = sum(part.n_rows for _, part in outputs)
    with progress.task("encoding", n_rows) as task, kept_on_interrupt(lambda: shards.PARTS_KEPT):
        for output, part in outputs:
            inner = InsideTask(task)
            task.advance(shards.encode_part(writer, output, part, inner) - inner.n_done)
            for text in inner.warnings:
                progress.warn(text)
    writer.encoder.warn_truncated(progress)


def _encode_shards(
    files: FileSet, inputs: Inputs, output: Path, options: EncodeOptions, progress: Progress
) -> None:
    """Encode shards of a file on Ray, join them, and remove them."""
    with vector_writer.vector_output(output, inputs, options):
        n_rows = sum(files.counts)
        parts = [
            (shards.shard_file(output, part), part)
            for part in cut(n_rows, shards.count_parts(n_rows))
        ]
        for shard, _ in parts:
            if not vector_writer.may_replace(shard, options) and (
                shard.exists() or is_unfinished(shard)
            ):
                raise left_unfinished(shard)
        marker = output.with_name(f".{output.name}.lock")
        encode_on_ray(
            files, [(str(shard), part) for shard, part in parts], marker, options, progress
        )
        inputs.require_unchanged()
    for shard in shards.merge_shards(output, None, force=options.force, progress=progress):
        shard.unlink()
        vector_writer.side_file(shard).unlink()


def _cut_by(output: str, options: EncodeOptions) -> str | None:
    """Return the option that cuts the input into parts to be read separately; None for one pass."""
    if options.engine is Engine.RAY:
        return "--engine ray"
    if options.shard is not None:
        return "--shard"
    return "--output" if output != STDIO and shards.is_folder(output) else None


def _check_output(output: str, options: EncodeOptions) -> None:
    """Refuse an output that does not fit the options, before anything is read or loaded."""
    vector_writer.check_dtype(options)
    cut_by = _cut_by(output, options)
    if options.engine is Engine.RAY:
        require_extra("ray", "--engine ray")
    if cut_by is not None and output == STDIO:
        raise UsageError("writes files: give -o FILE or -o FOLDER", option=cut_by)
    if options.index is not None:
        if cut_by is not None:
            raise UsageError("needs all vectors in one file of one process", option="--index")
        if Path(output).suffix not in (".npy", ".npz", ".safetensors"):
            raise UsageError("needs -o FILE.npy, .npz or .safetensors", option="--index")
        if options.dtype not in ("float32", "float16"):
            raise UsageError("needs --dtype float32 or float16", option="--index")
        check_index_output(options.index, force=vector_writer.may_replace(Path(output), options))
    has_texts = shards.is_folder(output) or vector_file(Path(output)) in WITH_TEXT
    if options.id_column is not None and (output == STDIO or not has_texts):
        raise UsageError(
            "needs an output with columns: a folder, .parquet or .jsonl", option="--id-column"
        )
    if options.shard is not None:
        shards.parse_shard(options.shard)


def _write_cosines(source: str, output: Path, options: EncodeOptions, progress: Progress) -> None:
    """Write every pair of a table with the cosine of its texts, in the order of the input."""
    names = parse_columns(options.column, PAIR, "--column")
    if options.column and len(names) != 2:
        raise UsageError(
            "need two names with --pairs, as in question1,question2", option="--column"
        )
    given = Given.of(options, names, roles=PAIR, progress=progress)
    empty = Counter[str]()
    columns = (*_PAIR_COLUMNS, "cosine")
    with row_output(output, columns, inputs=[source], force=options.force, manifest=False) as table:
        rows = iter_pairs(source, given, left_out=lambda: empty.update(rows=1))
        blocks = windows((clean_text(left), clean_text(right)) for left, right in rows)
        first = next(blocks, None)  # errors in the file show before the model is loaded
        if first is None:
            raise DataError(f"{source_name(source)} has no rows")
        encoder = load_for_encoding(options.model, options, progress)
        encode, _ = vector_writer.encode_function(encoder, options)
        with open_rows(table, columns) as write_row, progress.task("pairs") as task:
            for pairs in chain([first], blocks):
                vectors = unit_rows(encode([text for pair in pairs for text in pair]), np.float32)
                cosines = np.einsum("ij,ij->i", vectors[::2], vectors[1::2])
                for pair, cosine in zip(pairs, cosines, strict=True):
                    write_row((*pair, f"{cosine:.6f}"))
                task.advance(len(pairs))
    encoder.warn_truncated(progress)
    if n_empty := empty["rows"]:
        progress.info(
            f"left out {n_empty:,} {'row' if n_empty == 1 else 'rows'} of {source} with an empty text"
        )
