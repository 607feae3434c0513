"""Encode a file: vectors with a side file that records what made them and, if asked for, a search index."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import distributed

from simcse_cli import __version__
from simcse_cli.data.pair_files import PAIR, iter_pairs
from simcse_cli.data.readers import (
    FileFormat,
    first_read,
    guess_format,
    iter_sentences,
    parse_columns,
    source_name,
)
from simcse_cli.data.text import clean_text
from simcse_cli.data.writers import open_rows
from simcse_cli.encoding.formats import VectorType, json_line
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.search_index import SearchIndex, unit_rows
from simcse_cli.encoding.stream import EncodeWithProgress, Shard, encode_stream, is_unfinished, windows
from simcse_cli.errors import ConfigError, DataError, OutputError, UsageError
from simcse_cli.files import (
    STDIO,
    Inputs,
    check_output,
    check_record,
    read_json,
    require_file,
    sha256_file,
    sole_writer,
    write_json,
)
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encoder import SentenceEncoder, check_vectors
from simcse_cli.postprocess.registry import check_encoder, load
from simcse_cli.processes import leave_group_at_exit, process_count, process_rank
from simcse_cli.progress import Progress

_WINDOW_OF_STDOUT = 256
_PAIR_COLUMNS = ("sentence1", "sentence2")


def encode_file(
    source: str,
    output: Path | None,
    options: EncodeOptions,
    *,
    write: Callable[[str], None],
    progress: Progress,
) -> None:
    """Encode the sentences of a file into another; ``-`` gives ``write`` JSON Lines as the input comes.

    With ``options.pairs`` the output is a table of pairs with their cosines instead, on stdout if it is None.

    Raises:
        SimcseError: whatever is wrong with options, input or model, before anything is written.
    """
    if options.pairs:
        output = output or Path(STDIO)
        with sole_writer(output):
            _write_cosines(source, output, options, progress)
        return
    if output is None:
        raise UsageError("need a file for the vectors, or - to print them", option="--output")
    inputs = Inputs([source])
    if options.index is not None:
        _check_index(options.index, source, output, options)
    sentences = first_read(iter_sentences(source, column=options.column))
    if str(output) == STDIO:
        encoder = load_for_encoding(options.model, options, progress)
        encode, _ = _encode_function(encoder, options)
        for texts in windows(sentences, _WINDOW_OF_STDOUT):
            for text, row in zip(texts, encode(texts), strict=True):
                write(json_line(text, row))
        encoder.tell_cut(progress)
        inputs.require_unchanged()
        return
    rank = process_rank()
    written = output if rank == 0 else output.with_name(f"{output.name}.part-{rank}")
    others = [Path(f"{output}{ending}") for ending in (".json", ".part.json", f".part-{rank}.json")]
    with sole_writer(written, *others, *([options.index] if options.index else [])):
        _write_vectors(source, sentences, inputs, output, options, progress)


def _write_cosines(source: str, output: Path, options: EncodeOptions, progress: Progress) -> None:
    """Write every pair of a table with the cosine of its texts, in the order of the input."""
    for flag, is_given in (("--index", options.index), ("--resume", options.resume)):
        if is_given:
            raise UsageError("has no use with --pairs, which writes no vectors", option=flag)
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
        encode, _ = _encode_function(encoder, options)
        with progress.task("pairs") as task:
            for pairs in chain([first], blocks):
                vectors = unit_rows(encode([text for pair in pairs for text in pair]), np.float32)
                cosines = np.einsum("ij,ij->i", vectors[::2], vectors[1::2])
                for pair, cosine in zip(pairs, cosines, strict=True):
                    write_row((*pair, f"{cosine:.6f}"))
                task.advance(len(pairs))
    encoder.tell_cut(progress)


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
    check_output(index, force=_may_replace(output, options))


def _may_replace(output: Path, options: EncodeOptions) -> bool:
    """Say whether an index that exists is left from the command that is given again, or is to be overwritten."""
    return options.force or (options.resume and (is_unfinished(output) or output.exists()))


def _encode_function(encoder: SentenceEncoder, options: EncodeOptions) -> tuple[EncodeWithProgress, int]:
    """Return what maps sentences to vectors in the form asked for, and their dimension."""
    fitted = None
    if options.postprocess is not None:
        fitted = load(options.postprocess)
        check_encoder(fitted, dim=encoder.dim, digest=encoder.digest, place=str(options.postprocess))

    def encode(sentences: Sequence[str], *, progress: Progress | None = None) -> NDArray[Any]:
        vectors = encoder.encode(
            sentences,
            batch_tokens=options.batch_tokens,
            max_length=options.max_length,
            normalize=options.normalize and fitted is None,
            progress=progress,
        )
        if fitted is not None:
            vectors = fitted.apply(vectors, normalize=options.normalize)
            check_vectors(vectors, sentences, str(options.postprocess))
        return vectors

    return encode, encoder.dim if fitted is None else fitted.processor.n_features_out


def _write_vectors(
    source: str,
    sentences: Iterable[str],
    inputs: Inputs,
    output: Path,
    options: EncodeOptions,
    progress: Progress,
) -> None:
    try:
        kind = VectorType(options.dtype)
    except ValueError:
        raise ConfigError(f"--dtype {options.dtype}: need one of {', '.join(VectorType)}") from None
    may_replace = _may_replace(output, options)
    is_finished = may_replace and not options.force and not is_unfinished(output)
    check_output(output, force=may_replace)
    check_record(Path(f"{output}.json"), "model_digest", force=options.force)
    encoder = load_for_encoding(options.model, options, progress)
    encode, dim = _encode_function(encoder, options)
    record: dict[str, Any] = {
        "model_digest": encoder.digest,
        "pooler": encoder.pooler.value,
        "normalize": options.normalize,
        "max_length": options.max_length,
        "precision": options.precision.value,
        **encoder.variations,
    }
    if options.postprocess is not None:
        record["postprocess_sha256"] = sha256_file(options.postprocess)
    is_file = source != STDIO and Path(source).is_file()
    facts = record | {"dtype": options.dtype, "dim": dim}
    if is_finished:
        _require_same(output, facts | {"input_sha256": sha256_file(source) if is_file else None})
        if options.index is not None:
            require_file(options.index, hint="write both again with --force")
        progress.info(f"{output} is finished already")
        return

    def write_beside(folder: Path, rows: NDArray[Any], texts: Iterable[str]) -> None:
        digest = sha256_file(source) if is_file else None
        inputs.require_unchanged(hint="give --resume: what is encoded already is kept where it is the same")
        if options.index is not None:
            info = encoder.facts(encoder.prompt_in_use)
            index = SearchIndex.build(rows, list(texts), info=info)  # in memory
            index.save(options.index, force=may_replace)
        side = {"format": 1, "version": __version__, "model": encoder.name, **record}
        side |= {"input": source, "input_sha256": digest}
        side |= {"dtype": options.dtype, "n_rows": len(rows), "dim": dim}
        write_json(folder / f"{output.name}.json", side)

    shard = _shard_of_process()
    n_rows = encode_stream(
        encode,
        sentences,
        output,
        dim=dim,
        kind=kind,
        settings=record | ({"index": str(options.index)} if options.index else {}),
        resume=options.resume,
        force=options.force,
        shard=shard,
        total=_count_lines(source) if is_file else None,
        keep_texts=options.index is not None,
        beside=write_beside,
        progress=progress if shard.rank == 0 else None,
    )
    encoder.tell_cut(progress)
    if shard.rank == 0:
        progress.info(f"wrote {output}: {n_rows:,} x {dim} {kind}")
        if options.index is not None:
            progress.info(f"wrote {options.index}")


def _require_same(output: Path, facts: dict[str, Any]) -> None:
    """Raise OutputError unless the side file of a finished output says that the same made it."""
    side = Path(f"{output}.json")
    found = read_json(side) if side.is_file() else None
    for key, value in facts.items():
        if not isinstance(found, dict) or found.get(key) != value:
            raise OutputError(
                f"{output} exists already, with another {key} than this command gives",
                hint="choose another name, or overwrite it with --force",
            )


def _count_lines(source: str) -> int | None:
    """Return the number of lines of a plain text file, for the time left; None for other formats."""
    if guess_format(source) is not FileFormat.TEXT or source.endswith(".gz"):
        return None
    with Path(source).open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def _shard_of_process() -> Shard:
    """Return the part of this process under ``torchrun`` or ``accelerate launch``; all of it otherwise."""
    if process_count() == 1:
        return Shard()
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
        leave_group_at_exit()
    return Shard(distributed.get_rank(), process_count(), distributed.barrier)
