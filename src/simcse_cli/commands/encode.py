"""`simcse encode`: sentences to vectors."""

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.choices import Device, Precision
from simcse_cli.commands import options as opt
from simcse_cli.commands._postprocess import with_saved_postprocess
from simcse_cli.config import LoadOptions
from simcse_cli.console import Console, get_console
from simcse_cli.errors import ConfigError
from simcse_cli.files import STDIO, sha256_file

if TYPE_CHECKING:
    from simcse_cli.encoding.stream import Shard
    from simcse_cli.models.encoder import SentenceEncoder


def register(app: typer.Typer) -> None:
    """Add `encode` to the application."""
    app.command("encode")(encode_command)


def encode_command(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="One sentence a line, a table, or - for stdin.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Vectors: .npy, .npz, .safetensors, .parquet or .jsonl; - prints JSONL."
        ),
    ],
    model: opt.ModelOption = opt.DEFAULT_MODEL,
    pooler: opt.PoolerOption = None,
    force_pooler: opt.ForcePoolerOption = False,
    column: Annotated[str | None, typer.Option(help="Column of a table; default: its text column.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale vectors to length 1.")] = False,
    dtype: Annotated[
        str, typer.Option(help="float32, float16, int8 (cosine kept), binary (signs).")
    ] = "float32",
    postprocess: Annotated[
        Path | None,
        typer.Option(
            "--postprocess", help="Saved post-processor to apply (`simcse eval sts --save-postprocess`)."
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=3, help="Cut sentences after so many sub-words.")
    ] = None,
    device: opt.DeviceOption = Device.AUTO,
    precision: opt.PrecisionOption = Precision.FP32,
    batch_tokens: opt.BatchTokensOption = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", help="Also write a search index, for `simcse analyze retrieval`."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    force: opt.ForceOption = False,
) -> None:
    """Encode sentences: row i of the output is line i of the input.

    Memory does not grow with the input. A side file (OUTPUT.json) records model, pooler and digests.
    """
    console = get_console()
    if index is not None:
        if postprocess is not None:
            raise typer.BadParameter("queries would not be post-processed", param_hint="--index")
        check_index(index, source, output, dtype, force=force)
    from simcse_cli.models.checkpoint import load_for_encoding

    options = LoadOptions(pooler, force_pooler, device, precision, batch_tokens)
    encoder = load_for_encoding(model, options, console)
    dim = encoder.dim
    facts = {"normalize": normalize, "max_length": max_length, "precision": precision.value}
    encode: Callable[..., Any] = functools.partial(
        encoder.encode, batch_tokens=batch_tokens, max_length=max_length
    )
    if postprocess is None:
        encode = functools.partial(encode, normalize=normalize)
    else:
        encode, dim = with_saved_postprocess(encode, encoder, postprocess, normalize=normalize)
        facts["postprocess_sha256"] = sha256_file(postprocess)
    if str(output) == STDIO:
        print_vectors(encode, sentences_of(source, column), console)
        return
    encode_file(
        encode,
        encoder,
        source,
        output,
        console,
        dim=dim,
        column=column,
        dtype=dtype,
        facts=facts,
        resume=resume,
        force=force,
    )
    if index is not None and os.environ.get("RANK", "0") == "0":
        write_index(index, source, column, output, encoder, force=force)
        console.info(f"wrote {index}")


def check_index(index: Path, source: str, output: Path, dtype: str, *, force: bool = False) -> None:
    """Refuse an index that could not be written after encoding.

    Raises:
        typer.BadParameter: the input cannot be read a second time, or the vectors cannot be read back.
        OutputError: the index exists (without ``force``).
    """
    from simcse_cli.files import check_output

    if source == STDIO or output.suffix not in (".npy", ".npz", ".safetensors"):
        raise typer.BadParameter(
            "needs an input file and -o FILE.npy, .npz or .safetensors", param_hint="--index"
        )
    if dtype not in ("float32", "float16"):
        raise typer.BadParameter("needs --dtype float32 or float16", param_hint="--index")
    check_output(index, force=force)


def write_index(
    index: Path,
    source: str,
    column: str | None,
    output: Path,
    encoder: "SentenceEncoder",
    *,
    force: bool = False,
) -> None:
    """Write a search index over vectors that were just encoded; this holds them in memory."""
    from simcse_cli.encoding.search_index import SearchIndex
    from simcse_cli.models.precomputed import read_matrix

    info = {"model": encoder.name, "digest": encoder.digest, "pooler": encoder.pooler.value}
    sentences = list(sentences_of(source, column))
    SearchIndex.build(read_matrix(output), sentences, info=info).save(index, force=force)


def sentences_of(source: str, column: str | None) -> Iterable[str]:
    """Return the sentences of an input, one per line or row."""
    from simcse_cli.data.readers import iter_sentences

    return iter_sentences(source, column=column)


def count_lines(source: str) -> int | None:
    """Return the number of lines of a plain text file, for the time left; None for other formats."""
    from simcse_cli.data.readers import FileFormat, guess_format

    if guess_format(source) is not FileFormat.TEXT or source.endswith(".gz"):
        return None
    with Path(source).open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def print_vectors(encode: Callable[[list[str]], Any], sentences: Iterable[str], console: Console) -> None:
    """Print one JSON object a sentence to stdout, as the input comes."""
    from simcse_cli.encoding.formats import json_line
    from simcse_cli.encoding.stream import windows

    for texts in windows(sentences, 256):
        for text, row in zip(texts, encode(texts), strict=True):
            console.print_data(json_line(text, row))


def shard_of_process() -> "Shard":
    """Return the part of this process under ``torchrun`` or ``accelerate launch``; all of it otherwise."""
    from simcse_cli.encoding.stream import Shard

    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    if n_processes == 1:
        return Shard()
    from torch import distributed

    from simcse_cli.processes import leave_group_at_exit

    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
        leave_group_at_exit()
    return Shard(distributed.get_rank(), n_processes, distributed.barrier)


def encode_file(
    encode: Callable[..., Any],
    encoder: "SentenceEncoder",
    source: str,
    output: Path,
    console: Console,
    *,
    dim: int,
    column: str | None = None,
    dtype: str = "float32",
    facts: dict[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
) -> int:
    """Encode an input into a file with its side file, and return the number of rows.

    Raises:
        SimcseError: the input cannot be read, the output exists, or a resumed run differs.
    """
    import time

    from simcse_cli import __version__
    from simcse_cli.encoding.quantize import VectorType
    from simcse_cli.encoding.stream import encode_stream
    from simcse_cli.files import check_output, write_json

    try:
        kind = VectorType(dtype)
    except ValueError:
        raise ConfigError(f"--dtype {dtype}: need one of {', '.join(VectorType)}") from None
    check_output(output, force=force)
    is_file = source != STDIO and Path(source).is_file()
    record = {
        "model": encoder.name,
        "model_digest": encoder.digest,
        "pooler": encoder.pooler.value,
        **(facts or {}),
        "input": source,
        "input_sha256": sha256_file(source) if is_file else None,
    }
    shard = shard_of_process()
    started = time.perf_counter()
    n_rows = encode_stream(
        encode,
        sentences_of(source, column),
        output,
        dim=dim,
        kind=kind,
        settings=record,
        resume=resume,
        force=force,
        shard=shard,
        total=count_lines(source) if is_file else None,
        progress=console if shard.rank == 0 else None,
    )
    if shard.rank == 0:
        side = {"format": 1, "version": __version__, **record, "dtype": dtype, "n_rows": n_rows, "dim": dim}
        write_json(output.with_name(output.name + ".json"), side)
        elapsed = time.perf_counter() - started
        console.info(
            f"wrote {output}: {n_rows:,} x {dim} {dtype} in {elapsed:.1f} s ({n_rows / elapsed:.0f}/s)"
        )
    return n_rows
