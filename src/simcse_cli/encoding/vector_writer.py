"""Write the vectors of an input, whole or in parts, with side files that record their origin."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from simcse_cli.data.file_sets import FileSet
from simcse_cli.encoding.formats import WITH_TEXT, RowDigest, VectorType, vector_file
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.partial_file import is_unfinished
from simcse_cli.encoding.search_index import SearchIndex, index_files
from simcse_cli.encoding.stream import ALONE, EncodeWithProgress, Part, ProcessGroup, encode_stream
from simcse_cli.errors import ConfigError, OutputError
from simcse_cli.files.atomic import EXISTS_HINT
from simcse_cli.files.digests import OLDER_DIGEST, is_older_digest, sha256_file
from simcse_cli.files.inputs import Inputs, read_json, require_file
from simcse_cli.files.output import Output
from simcse_cli.machine.precision import resolve_precision
from simcse_cli.machine.processor import capability
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import ReadyEncoder, check_vectors
from simcse_cli.postprocess.registry import check_encoder, load
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Precision, TextPer
from simcse_cli.settings.tables import table_facts
from simcse_cli.version import __version__


def side_file(output: Path) -> Path:
    """Return the path of the file that records the origin of an output; readers of data sets skip that of a part."""
    return output.with_name(f"{'_' * output.name.startswith('part-')}{output.name}.json")


def check_dtype(options: EncodeOptions) -> VectorType:
    try:
        return VectorType(options.dtype)
    except ValueError:
        raise ConfigError(f"--dtype {options.dtype}: need one of {', '.join(VectorType)}") from None


def may_replace(output: Path, options: EncodeOptions) -> bool:
    """Tell whether an existing output may be replaced or continued."""
    return options.force or (options.resume and (is_unfinished(output) or output.exists()))


def vector_output(path: Path, inputs: Inputs, options: EncodeOptions, rank: int = 0) -> Output:
    part = path.with_name(f"{path.name}.part-{rank}")
    unfinished = [Path(f"{path}.part.json"), Path(f"{part}.json")]
    return Output(
        path,
        record=side_file(path),
        key="model_digest",
        inputs=inputs,
        companions=[*unfinished, *(index_files(options.index) if options.index else [])],
        lock=part if rank else None,
        force=options.force,
        resume=may_replace(path, options),
    )


def encode_function(
    encoder: ReadyEncoder, options: EncodeOptions
) -> tuple[EncodeWithProgress, int]:
    """Return a function from sentences to vectors as the options want them, and the dimension of the vectors."""
    fitted = None
    how: dict[str, Any] = {"batch_tokens": options.batch_tokens, "max_length": options.max_length}
    if options.postprocess is not None:
        fitted = load(options.postprocess)
        check_encoder(
            fitted, dim=encoder.dim, digest=encoder.digest, place=str(options.postprocess)
        )

    def encode(sentences: Sequence[str], *, progress: Progress = SILENT) -> NDArray[Any]:
        is_unit = options.normalize and fitted is None
        vectors = encoder.encode(sentences, normalize=is_unit, progress=progress, **how)
        if fitted is not None:
            vectors = fitted.apply(vectors, normalize=options.normalize)
            check_vectors(vectors, sentences, str(options.postprocess))
        return vectors

    return encode, encoder.dim if fitted is None else fitted.processor.n_features_out


class VectorWriter:
    """Load a model and write the vectors of one input; ``inputs`` is the state of its files before they were read."""

    def __init__(
        self, files: FileSet, inputs: Inputs, options: EncodeOptions, progress: Progress
    ) -> None:
        self.files, self.inputs, self.options = files, inputs, options
        self.kind = check_dtype(options)
        self.encoder = load_for_encoding(options.model, options, progress)
        self._encode, self.dim = encode_function(self.encoder, options)
        device = self.encoder.device
        precision = resolve_precision(options.precision, device)
        self._record: dict[str, Any] = {
            "model_digest": self.encoder.digest,
            "pooler": self.encoder.pooler.value,
            "normalize": options.normalize,
            "max_length": options.max_length,
            "precision": precision.value,
            **self.encoder.variations,
        }
        if device.type == "cpu" and precision is not Precision.FP32:
            self._record["capability"] = capability()  # which other processors round differently
        if options.postprocess is not None:
            self._record["postprocess_sha256"] = sha256_file(options.postprocess)
        if options.text_per is TextPer.FILE:
            self._record["text_per"] = options.text_per.value
        if options.id_column is not None:
            self._record["id_column"] = options.id_column
        self._record |= table_facts(options)

    def write(
        self,
        output: Output,
        sentences: Iterable[str],
        progress: Progress,
        *,
        part: Part | None = None,
        group: ProcessGroup = ALONE,
    ) -> int:
        """Write the vectors of these sentences and return their number, 0 on all but the first process.

        The caller must have entered the output. ``part`` gives the rows of the input if they are
        not all of it; ``group`` gives the processes that write the output together.
        """
        options, path = self.options, output.path
        if may_replace(path, options) and not options.force and not is_unfinished(path):
            side = side_file(path)
            found: Any = read_json(side) if side.is_file() else None
            require_same(path, found, self.facts())
            if options.index is not None:
                for file in index_files(options.index):
                    require_file(file, hint="write all again with --force")
            progress.info(f"{path} is already finished")
            return int(found["n_rows"])

        def write_companions(folder: Path, rows: NDArray[Any], texts: Iterable[str]) -> None:
            digest, texts = RowDigest(), list(texts) if options.index else texts
            digest.add(rows, texts if vector_file(path) in WITH_TEXT else None)
            hint = "add --resume, which keeps the vectors of unchanged sentences"
            output.write_record(folder, self._side(len(rows), part) | digest.facts(), hint=hint)
            if options.index is not None:
                info = self.encoder.facts(self.encoder.prompt)
                index = SearchIndex.build(rows, list(texts), info=info)
                index.save(options.index, force=may_replace(path, options))

        n_rows = encode_stream(
            self._encode,
            sentences,
            path,
            dim=self.dim,
            kind=self.kind,
            settings=self._record,
            resume=options.resume,
            force=options.force,
            group=group,
            total=part.n_rows if part else self.files.total,
            keep_texts=options.index is not None,
            ids=self._ids(path, part),
            companions=write_companions,
            progress=progress if group.rank == 0 else SILENT,
        )
        if group.rank == 0:
            progress.info(f"wrote {path}: {n_rows:,} x {self.dim} {self.kind}")
            if options.index is not None:
                progress.info(f"wrote {options.index}")
        return n_rows

    def facts(self) -> dict[str, Any]:
        """Return the model, settings and input that a finished output must have in its side file."""
        return self._record | {"dtype": self.kind.value, "input_sha256": self.files.digest}

    def _ids(self, output: Path, part: Part | None) -> Iterable[Any] | None:
        """Return the values of the column ``id``; by default row numbers in a folder of parts, else nothing."""
        if self.options.id_column is not None:
            return self.files.cells(self.options.id_column, *(part.span if part else ()))
        return range(part.start, part.stop) if part and output.name.startswith("part-") else None

    def _side(self, n_rows: int, part: Part | None) -> dict[str, Any]:
        side = {"format": 1, "version": __version__, "model": self.encoder.name, **self._record}
        side |= {"input": self.files.source, "input_sha256": self.files.digest}
        if len(self.files.files) > 1:
            side["files"] = self.files.within(*(part.span if part else (0, n_rows)))
        side |= {"dtype": self.kind.value, "n_rows": n_rows, "dim": self.dim}
        if part is not None:
            side |= {"rows": list(part.span), "input_rows": part.total}
        return side


def require_same(output: object, side: Any, facts: dict[str, Any]) -> None:
    """Raise OutputError unless a finished output has the same model, settings and input in its side file."""
    if not isinstance(side, dict):
        what = f"{output} exists already, without a side file that tells what it holds"
        raise OutputError(what, hint=EXISTS_HINT)
    # Version 1.0.0 recorded no capability, and "auto" for the precision that it chose.
    untold = {"precision"} if side.get("precision") == Precision.AUTO else set()
    untold |= {"capability"} - side.keys()
    for key, value in facts.items():
        if key == "model_digest" and is_older_digest(side.get(key), str(value)):
            raise OutputError(f"{output} exists already and {OLDER_DIGEST}", hint=EXISTS_HINT)
        if key not in untold and side.get(key) != value:
            raise OutputError(f"{output} exists already and has another {key}", hint=EXISTS_HINT)
