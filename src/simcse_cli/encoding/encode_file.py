"""Encode an input into a file, shards or a folder, here or on Ray, or write cosines of pairs."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath

import numpy as np
from torch import distributed

from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.formats import source_name
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.pair_files import PAIR, iter_pairs
from simcse_cli.data.text import clean_text
from simcse_cli.data.writers import open_rows, row_output
from simcse_cli.encoding import parts
from simcse_cli.encoding.formats import VectorFile, check_ids_of_parquet, vector_file
from simcse_cli.encoding.job import EncodeJob, InsideTask
from simcse_cli.encoding.journal import is_unfinished
from simcse_cli.encoding.merge import merge_shards
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.part_files import PARTS_KEPT, claim_folder, encode_part
from simcse_cli.encoding.parts import ALONE, Outputs, ProcessGroup
from simcse_cli.encoding.ray_engine import encode_on_ray
from simcse_cli.encoding.row_names import names_file
from simcse_cli.encoding.search_index import check_index_output, index_files
from simcse_cli.encoding.sinks import StdoutSink
from simcse_cli.encoding.text_encoder import TextEncoder
from simcse_cli.encoding.vector_writer import VectorWriter, may_replace_index, vector_output
from simcse_cli.errors import DataError, UsageError, kept_on_interrupt, require_extra
from simcse_cli.files.inputs import STDIO, Inputs, is_remote, is_stream
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.output import left_unfinished
from simcse_cli.machine import processes
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import Engine

_COSINE_COLUMNS = ("sentence1", "sentence2", "cosine")


@processes.in_contact()
def encode_file(
    source: str, options: EncodeOptions, *, write: Callable[[str], None], progress: Progress
) -> tuple[Path | None, bool, str | None]:
    """Encode the sentences of an input into a file or folder.

    For the output ``-``, ``write`` is called with a line of JSON for each text and its vector, once
    they are encoded. With ``options.pairs``, the output is a table of pairs with their cosines, by
    default on stdout.

    Three values are returned:

    - the path of the search index, or None if there is none;
    - whether row i of the output belongs to row i of the input: False only if an update keeps rows
      that are gone from the input;
    - the column that a search has to name to read the same texts, or None.
    """
    output = options.output
    if options.pairs:
        _write_cosines(source, Path(output or STDIO), options, progress)
        return None, False, None

    # Outputs are checked before any input is read.
    if output is None:
        raise UsageError("need a file for the vectors, or - to print them", option="--output")
    cut_by = _cut_by(output, options)
    _check_output(output, cut_by, options)
    if output != STDIO and cut_by is None:
        processes.join_group()  # before anything fails, so that others notice a failure at once
    given = Given.of(options, progress=progress)
    given = given.of_texts(options.column, options.text, options.id_column)

    # The first rows are read before the model is loaded, so that errors in them show at once.
    # A stream cannot be read again; the error for one names the option that needs it.
    read_again_by = cut_by
    if options.id_column is not None and is_stream(source):
        read_again_by = "--id-column"  # reads all ids first, to check that they differ
    files = FileSet.find(
        source, given, text_per=options.text_per, again=read_again_by, output=output
    )
    if options.id_column is not None:
        files.require_unique(options.id_column)
        if parts.is_folder(output) or vector_file(Path(output)) is VectorFile.PARQUET:
            check_ids_of_parquet(files.cells(options.id_column))
    inputs = Inputs(files.files)
    sentences = files.sentences()
    first = list(islice(sentences, 1))
    if not first:
        raise DataError(f"{source_name(source)} has no rows")
    sentences = chain(first, sentences)
    if cut_by is not None:
        files.blank.clear()  # the first row is read again with its part, and counted then

    # Each kind of output has its own way of writing.
    index = options.index
    is_like_input = True
    if output == STDIO:
        encode = TextEncoder(options, progress)
        EncodeJob(sentences, encode).run(StdoutSink(write))
        encode.model.warn_unread(progress)
        inputs.require_unchanged()
    elif parts.is_folder(output):
        _encode_folder(files, inputs, output, options, progress)
    elif options.engine is Engine.RAY:
        _encode_shards(files, inputs, Path(output), options, progress)
    elif options.shard is not None:
        _encode_shard(files, inputs, Path(output), options.shard, options, progress)
    else:
        writer = _encode_one(files, inputs, sentences, Path(output), options, progress)
        index = writer.options.index  # an update keeps the index of the earlier output in step
        is_like_input = writer.earlier is None or not writer.earlier.keeps_gone

    # Empty texts in an input are easily overlooked, so the user is told their number.
    if n_blank := files.blank.total():
        texts_are = "text is" if n_blank == 1 else "texts are"
        progress.info(f"{source}: {n_blank:,} {texts_are} empty, encoded as an empty text")
    # A search would read the titles, too, unless it names the column of texts.
    column = "text" if files.has_titles else options.column
    return index, is_like_input, column


def _encode_one(
    files: FileSet,
    inputs: Inputs,
    sentences: Iterator[str],
    output: Path,
    options: EncodeOptions,
    progress: Progress,
) -> VectorWriter:
    """Encode the input into a file, alone or with other processes, and return its writer."""
    rank = processes.process_rank()
    n_processes = processes.process_count()
    group = ALONE
    if options.update and n_processes > 1:
        raise UsageError("updates a file in one process", option="--update")
    with vector_output(output, inputs, options, rank) as target:
        writer = VectorWriter(files, inputs, options, progress)
        if n_processes > 1:  # started by `torchrun` or `accelerate launch`
            processes.require_shared(output)
            shared_facts = {
                "model_digest": writer.encode.model.digest,
                "rows of the input": files.total,
            }
            processes.require_alike(shared_facts)
            group = ProcessGroup(rank, n_processes, distributed.barrier)
        else:
            processes.tell_if_alone(progress)  # `accelerate launch` may have started only one
        writer.write(target, sentences, progress, group=group)
        writer.encode.model.warn_unread(progress)
        return writer


def _encode_shard(
    files: FileSet,
    inputs: Inputs,
    output: Path,
    shard: str,
    options: EncodeOptions,
    progress: Progress,
) -> None:
    """Encode one shard of the input into a file beside the output."""
    number, n_shards = parts.parse_shard(shard)
    part = parts.cut(sum(files.counts), n_shards)[number - 1]
    if not part.n_rows:
        progress.info(
            f"shard {shard} is empty: a shard is of whole windows of "
            f"{parts.WINDOW:,} rows, and the input has {parts.count_windows(part.total):,}"
        )
    with vector_output(parts.shard_file(output, part), inputs, options) as target:
        writer = VectorWriter(files, inputs, options, progress)
        writer.write(target, files.sentences(*part.span), progress, part=part)
        writer.encode.model.warn_unread(progress)


def _encode_folder(
    files: FileSet, inputs: Inputs, folder: str, options: EncodeOptions, progress: Progress
) -> None:
    """Encode the input, or this job's parts of it, into a folder of parquet files."""
    n_rows = sum(files.counts)
    all_parts = parts.cut(n_rows, parts.count_parts(n_rows))

    # This job is one of several shards or processes, and takes its share of the parts.
    number = processes.process_rank() + 1
    n_jobs = processes.process_count()
    if options.shard is not None:
        number, n_jobs = parts.parse_shard(options.shard)
    start = len(all_parts) * (number - 1) // n_jobs
    stop = len(all_parts) * number // n_jobs
    own_parts = all_parts[start:stop]
    outputs = [(parts.part_file(folder, part), part) for part in own_parts]
    own_names = [output.rpartition("/")[2] for output, _ in outputs]
    claim_folder(folder, own_names, len(all_parts), inputs, options)

    if options.engine is Engine.LOCAL:
        _encode_here(VectorWriter(files, inputs, options, progress), outputs, progress)
    elif is_remote(folder):
        encode_on_ray(files, outputs, marker=None, options=options, progress=progress)
    else:
        # A worker that finds the lock file sees the folder.
        with sole_writer(Path(folder)):
            encode_on_ray(files, outputs, Path(folder) / ".lock", options, progress)
    inputs.require_unchanged()
    progress.info(
        f"wrote {len(own_parts)} of {len(all_parts)} parts in {folder}, {n_rows:,} rows in all"
    )


def _encode_here(writer: VectorWriter, outputs: Outputs, progress: Progress) -> None:
    """Write parts one after the other in this process, with one progress bar for all."""
    n_rows = sum(part.n_rows for _, part in outputs)
    with progress.task("encoding", n_rows) as task, kept_on_interrupt(lambda: PARTS_KEPT):
        for output, part in outputs:
            inner = InsideTask(task)
            n_in_part = encode_part(writer, output, part, inner)
            # Rows that the part did not report, such as those of an interrupted run, count now.
            task.advance(n_in_part - inner.n_done)
            for text in inner.warnings:
                progress.warn(text)
    writer.encode.model.warn_unread(progress)


def _encode_shards(
    files: FileSet, inputs: Inputs, output: Path, options: EncodeOptions, progress: Progress
) -> None:
    """Encode the input on Ray into shards of the output, join the shards, and remove them."""
    # The output is locked while its shards are written; `merge_shards` locks it again to join them.
    with vector_output(output, inputs, options):
        n_rows = sum(files.counts)
        outputs = []
        for part in parts.cut(n_rows, parts.count_parts(n_rows)):
            shard = parts.shard_file(output, part)
            may_exist = options.force or options.resume
            if not may_exist and (shard.exists() or is_unfinished(shard)):
                raise left_unfinished(shard)
            outputs.append((str(shard), part))
        marker = output.with_name(f".{output.name}.lock")  # exists while the output is locked
        encode_on_ray(files, outputs, marker, options, progress)
        inputs.require_unchanged()
    for shard in merge_shards(output, source=None, force=options.force, progress=progress):
        shard.unlink()
        parts.side_file(shard).unlink()


def _cut_by(output: str, options: EncodeOptions) -> str | None:
    """Return the option by which the input is cut into parts; None if it is read in one pass."""
    if options.engine is Engine.RAY:
        return "--engine ray"
    if options.shard is not None:
        return "--shard"
    if output != STDIO and parts.is_folder(output):
        return "--output"
    return None


def _check_output(output: str, cut_by: str | None, options: EncodeOptions) -> None:
    """Refuse an output that does not fit the options, before anything is read or loaded.

    ``cut_by`` is the option by which the input is cut into parts, or None if it is not cut.
    """
    is_one_file = output != STDIO and not parts.is_folder(output)
    if options.engine is Engine.RAY:
        require_extra("ray", "--engine ray")
    ending = PurePosixPath(output).suffix.lower()
    # An address names a folder of parquet parts; the name of the folder may end in .parquet.
    if is_remote(output) and ending in set(VectorFile) and ending != VectorFile.PARQUET:
        raise UsageError(
            f"{output} is an address, which takes a folder of parquet parts",
            option="--output",
            hint=f"use -o {output.removesuffix(ending)}, or write a file here and copy it there",
        )
    if cut_by is not None and output == STDIO:
        raise UsageError("writes files: give -o FILE or -o FOLDER", option=cut_by)
    if options.index is not None:
        if cut_by is not None:
            raise UsageError("needs all vectors in one file of one process", option="--index")
        if options.dtype not in ("float32", "float16"):
            raise UsageError("needs --dtype float32 or float16", option="--index")
        own_files = [Path(output), parts.side_file(Path(output)), Path(f"{output}.ids.jsonl")]
        index_paths = map(Path.resolve, index_files(options.index))
        if set(index_paths).intersection(map(Path.resolve, own_files)):
            raise UsageError(f"{options.index} is the output, -o, or beside it", option="--index")
        check_index_output(options.index, force=may_replace_index(Path(output), options))
    if options.update and not is_one_file:
        raise UsageError("needs an output of one file, such as corpus.parquet", option="--update")
    if options.id_column is not None:
        if output == STDIO:
            raise UsageError("needs a file or a folder: -o FILE.parquet", option="--id-column")
        # A part must hold its ids itself: there is no file for ids beside a part.
        if cut_by is not None and is_one_file and names_file(Path(output)) is not None:
            raise UsageError(
                "needs parts with columns: a folder, .parquet or .jsonl", option="--id-column"
            )
    if options.shard is not None:
        parts.parse_shard(options.shard)  # raises an error unless it is I/N


def _write_cosines(source: str, output: Path, options: EncodeOptions, progress: Progress) -> None:
    """Write every pair of a table with the cosine of its texts, in the order of the input."""
    given = _given_pairs(options, progress)
    counts = Counter[str]()  # the number of rows left out; a lambda cannot assign to an integer
    id_column = options.id_column
    columns = _COSINE_COLUMNS if id_column is None else ("id", *_COSINE_COLUMNS)
    with row_output(output, columns, inputs=[source], force=options.force, manifest=False) as table:
        # The first rows are read before the model is loaded, so that errors in them show at once.
        pairs = iter_pairs(
            source, given, id_column=id_column, left_out=lambda: counts.update(left_out=1)
        )
        first_pairs = list(islice(pairs, parts.WINDOW))
        if not first_pairs:
            raise DataError(f"{source_name(source)} has no rows")
        encode = TextEncoder(options, progress)
        with open_rows(table, columns) as write, progress.task("encoding") as task:
            for window in parts.windows(chain(first_pairs, pairs), parts.WINDOW):
                # A row has two texts and, if there is a column of ids, an id.
                rows = [tuple(map(clean_text, row)) for row in window]
                texts = list(chain.from_iterable(row[:2] for row in rows))
                inner = InsideTask(task)
                units = unit_rows(encode(texts, progress=inner), np.float32)
                cosines = np.einsum("ij,ij->i", units[::2], units[1::2])
                for (left, right, *row_id), cosine in zip(rows, cosines, strict=True):
                    write((*row_id, left, right, round(float(cosine), 6)))
                # Texts that the encoder has not reported itself count now.
                task.advance(len(texts) - inner.n_done)
    encode.model.warn_unread(progress)
    if str(output) != STDIO:
        progress.info(f"wrote {output}")
    if n_empty := counts["left_out"]:
        noun = "row" if n_empty == 1 else "rows"
        progress.info(f"left out {n_empty:,} {noun} of {source} with an empty text")


def _given_pairs(options: EncodeOptions, progress: Progress) -> Given:
    """Return what the user says about the columns of a table of pairs."""
    names = parse_columns(options.column, PAIR, "--column")
    if options.column and len(names) != 2:
        raise UsageError(
            "need two names with --pairs, as in question1,question2", option="--column"
        )
    given = Given.of(options, names, roles=PAIR, progress=progress)
    return replace(given, beside=(options.id_column,))  # read for ids, not for texts
