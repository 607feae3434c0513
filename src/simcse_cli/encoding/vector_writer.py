"""Write the vectors of an input, whole or in parts, with side files that record their origin."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simcse_cli.arrays import Array
from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.formats import FileFormat, guess_format
from simcse_cli.data.kinds import cell_text
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.encoding.formats import (
    WITH_TEXT,
    RowDigest,
    VectorFile,
    check_ids_of_parquet,
    vector_file,
)
from simcse_cli.encoding.job import EncodeJob
from simcse_cli.encoding.journal import is_unfinished
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.parts import ALONE, Part, ProcessGroup, side_file
from simcse_cli.encoding.row_names import names_file, text_digest, write_names
from simcse_cli.encoding.search_index import (
    SearchIndex,
    check_index_output,
    index_checksum,
    index_files,
    is_index,
)
from simcse_cli.encoding.sinks import VectorSink, finish_killed
from simcse_cli.encoding.text_encoder import TextEncoder
from simcse_cli.encoding.update import FACTS, NOT_RECORDED, Update, read_side
from simcse_cli.errors import DataError, OutputError, UsageError
from simcse_cli.files.atomic import EXISTS_HINT, check_output
from simcse_cli.files.digests import OLDER_DIGEST, is_older_digest
from simcse_cli.files.inputs import Inputs, read_json, require_file
from simcse_cli.files.output import Output, differences, other_value
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Precision
from simcse_cli.version import __version__


def may_replace(output: Path, options: EncodeOptions) -> bool:
    """Tell whether the options let this run replace or continue an existing output."""
    if options.force or options.update:
        return True
    return options.resume and (is_unfinished(output) or output.exists())


def may_replace_index(output: Path, options: EncodeOptions) -> bool:
    """Tell whether ``options.index`` may be replaced if it exists.

    With ``force``, any index may be replaced. So may any index of an unfinished output, since the
    interrupted run may have written it. Otherwise, the side file of the output must name this
    index. It must also be an index: any other file is the user's.
    """
    if options.force or is_unfinished(output):
        return True
    side: Any = None
    with suppress(DataError):  # a missing or damaged side file names no index
        side = read_json(side_file(output))
    index = options.index
    if index is None or not _is_index_of(side, output, index):
        return False
    return is_index(index) or not index.exists()


def _is_index_of(side: Any, output: Path, index: Path) -> bool:
    """Tell whether the side file of an output names this index."""
    recorded = side.get("index") if isinstance(side, dict) else None
    return recorded is not None and (output.parent / recorded).resolve() == index.resolve()


def _is_as_recorded(index: Path, side: Mapping[str, Any]) -> bool:
    """Tell whether an index still holds what was written with the output of this side file."""
    # Side files of simcse 1.0.0 do not record what an index holds.
    recorded = side.get("index_sha256")
    return recorded is not None and index_checksum(index) == recorded


def vector_output(path: Path, inputs: Inputs, options: EncodeOptions, rank: int = 0) -> Output:
    """Return the output of vectors with all its files; ``rank`` is the number of this process."""
    partial_file = path.with_name(f"{path.name}.part-{rank}")
    # One of these is the journal: its name has the rank only if there are several processes.
    companions = [Path(f"{path}.part.json"), Path(f"{partial_file}.json")]
    ids_file = None if options.id_column is None else names_file(path)
    if ids_file is not None:
        companions.append(ids_file)
    if options.index is not None:
        companions += index_files(options.index)
    # If there is neither a side file nor unfinished work, a file of ids is the user's: raise an
    # error.
    if ids_file is not None and not side_file(path).exists() and not is_unfinished(path):
        check_output(ids_file, force=options.force)
    return Output(
        path,
        record=side_file(path),
        key="model_digest",
        inputs=inputs,
        companions=companions,
        lock=partial_file if rank else None,  # None: the first process locks the output itself
        force=options.force,
        resume=may_replace(path, options),
    )


class VectorWriter:
    """Load a model and write the vectors of one input.

    ``inputs`` is the state of the input's files before they were read.
    """

    def __init__(
        self, files: FileSet, inputs: Inputs, options: EncodeOptions, progress: Progress
    ) -> None:
        self.files = files
        self.inputs = inputs
        self.options = options
        self.kind = options.dtype
        self.encode = TextEncoder(options, progress)
        self.earlier: Update | None = None  # the plan, if this is an update
        # Whether the index may be replaced. `_sink` decides this before any vectors are written,
        # since their journal would make any index replaceable.
        self._replaces_index = False

    def write(
        self,
        output: Output,
        sentences: Iterable[str],
        progress: Progress,
        *,
        part: Part | None = None,
        group: ProcessGroup = ALONE,
    ) -> int:
        """Write the vectors of these sentences, and return the number of rows of the output.

        The sentences are not read if the output exists and is only updated, or is finished and
        ``options.resume`` is on. ``part`` tells which rows of the input they are; None stands for
        all rows. ``group`` are the processes that write the output together; all but the first may
        return 0. The caller must have entered the context of ``output``, which locks it. Only an
        output where nobody else can write needs no lock.
        """
        options = self.options
        if group.rank > 0:  # the first process tells the progress of all
            progress = SILENT
        finish_killed(output.path, group)  # if a killed run left a complete output
        if options.update and output.path.exists():
            return self._update(output, progress)
        is_finished = output.path.exists() and not is_unfinished(output.path)
        if options.resume and not options.force and is_finished:
            return self._rows_of_finished(output.path, progress)
        total = part.n_rows if part else self.files.total
        return self._run(self._sink(output, part, group), sentences, total, progress)

    def _update(self, output: Output, progress: Progress) -> int:
        """Encode new and changed rows, keep the others, and return the number of all rows.

        If the earlier output has an index, the index is kept in step, even if the user leaves out
        ``--index``.
        """
        options = self.options
        settings = self.encode.settings | {"dtype": self.kind.value}
        side = read_side(output.path, settings)
        if "index" in side:
            index = output.path.parent / side["index"]
            if options.index and not _is_index_of(side, output.path, options.index):
                raise UsageError(
                    f"{output.path} has the index {index}, which an update keeps in step",
                    option="--index",
                )
            options = replace(options, index=index)
            self.options = options
            check_index_output(index, force=may_replace_index(output.path, options))
        id_column = options.id_column or ""  # never missing, since --update needs --id-column
        update = Update.plan(output.path, side, self.files, id_column, drops_gone=options.drop_gone)
        # The index may not fit the output: a killed update may have replaced it already, or the
        # user may have put an older copy in its place.
        is_index_in_step = options.index is None or (
            not is_unfinished(output.path) and _is_as_recorded(options.index, side)
        )
        # Another input may have equal rows. The side file records the input, so it changes then.
        is_same_input = side.get("input_sha256") == self.files.digest
        progress.info(update.summary())
        self.earlier = update
        if update.changes_nothing and is_same_input and is_index_in_step:
            return int(side["n_rows"])
        if vector_file(output.path) is VectorFile.PARQUET:
            check_ids_of_parquet(update.ids)
        texts = [update.texts[row] for row in update.fresh]
        return self._run(self._sink(output, part=None, group=ALONE), texts, len(texts), progress)

    def _sink(self, output: Output, part: Part | None, group: ProcessGroup) -> VectorSink:
        """Return the sink for the vectors; at the end, it writes the files beside them, too."""
        options = self.options
        self._replaces_index = may_replace_index(output.path, options)  # see ``__init__``
        return VectorSink(
            output.path,
            self.encode.dim,
            self.kind,
            resume=options.resume or options.update,  # an unfinished update is always continued
            force=options.force,
            group=group,
            keep_texts=options.index is not None or options.id_column is not None,
            ids=self._ids(output.path, part),
            companions=partial(self._write_beside, output, part),
            earlier=self.earlier,
        )

    def _run(
        self, sink: VectorSink, texts: Iterable[str], total: int | None, progress: Progress
    ) -> int:
        job = EncodeJob(texts, self.encode, self.encode.settings, total)
        n_rows = job.run(sink, progress)
        progress.info(f"wrote {sink.output}: {n_rows:,} x {self.encode.dim} {self.kind}")
        if self.options.index is not None:
            progress.info(f"wrote {self.options.index}")
        return n_rows

    def facts(self) -> dict[str, Any]:
        """Return the settings, the type of the vectors and the digest of the input.

        The side file of an output with these settings and this input records the same entries.
        """
        output_facts = {"dtype": self.kind.value, "input_sha256": self.files.digest}
        # A data set of the Hub has no digest, so its name is compared.
        if self.files.digest is None:
            output_facts["input"] = self.files.source
        return self.encode.settings | output_facts

    def _rows_of_finished(self, path: Path, progress: Progress) -> int:
        """Return the number of rows of a finished output.

        Raise OutputError if its input, settings or index are not those of this run.
        """
        side_path = side_file(path)
        side: Any = read_json(side_path) if side_path.is_file() else None
        source = self.files.source
        # Inputs are compared by their digest. A data set of the Hub has none, so its name is
        # compared (see ``facts``), and for a stream there is nothing to compare.
        if not self.files.is_stored and guess_format(source) is not FileFormat.HUB:
            raise OutputError(
                f"{path} exists already, and what comes from {source} may differ from its input",
                hint=EXISTS_HINT,
            )
        require_same(path, side, self.facts())
        index = self.options.index
        if index is not None:
            if not _is_index_of(side, path, index):
                raise OutputError(
                    f"{path} exists already and was not written with --index {index}",
                    hint=EXISTS_HINT,
                )
            hint = "write all again with --force"
            for file in index_files(index):
                require_file(file, hint=hint)
            # Side files of simcse 1.0.0 have no checksum of the index.
            if "index_sha256" in side and not _is_as_recorded(index, side):
                raise OutputError(
                    f"{index} is not the index that {path} was written with", hint=hint
                )
        progress.info(f"{path} is already finished")
        return int(side["n_rows"])

    def _write_beside(
        self,
        output: Output,
        part: Part | None,
        folder: Path,
        rows: Array,
        texts: Iterable[str],
    ) -> None:
        """Write the search index, the side file, and the ids that the output has no room for.

        ``rows`` and ``texts`` are those of the whole output. The side file and the ids go to
        ``folder``, the index to its own place.
        """
        index = self.options.index
        ids_file = None if self.options.id_column is None else names_file(output.path)
        if index is not None or ids_file is not None:
            # The texts are read more than once below. ``of`` returns packed texts as they are.
            texts = PackedTexts.of(texts)
        digest = RowDigest()
        digest.add(rows, texts if vector_file(output.path) in WITH_TEXT else None)
        side = self._side(len(rows), part) | digest.facts()
        hint = "add --resume, which keeps the vectors of unchanged sentences"
        if index is not None:
            self.inputs.require_unchanged(hint=hint)  # before an earlier index is replaced
            side["index"] = os.path.relpath(index, output.path.parent)
            side["index_sha256"] = self._write_index(
                index, output.path, rows, PackedTexts.of(texts)
            )
        output.write_record(folder, side, hint=hint)
        if ids_file is not None:
            text_digests = self.earlier.digests if self.earlier else map(text_digest, texts)
            names = zip(self._ids(output.path, part) or (), text_digests, strict=True)
            write_names(folder / ids_file.name, names)

    def _write_index(self, index: Path, output: Path, rows: Array, texts: PackedTexts) -> str:
        """Write the index of the output, and return its checksum."""
        model = self.encode.model
        ids = None
        unused = self.files.unused
        if self.options.id_column is not None:
            ids = list(map(cell_text, self._ids(output, part=None) or ()))
            unused = []
        info = model.facts(model.prompt)
        search_index = SearchIndex.build(rows, texts, info=info, ids=ids, unused=unused)
        return search_index.save(index, force=self._replaces_index)

    def _ids(self, output: Path, part: Part | None) -> Iterable[Any] | None:
        """Return the ids of the rows of an output, or None if they have none.

        The ids of an update are in its plan, others in the id column. Without an id column, only
        the rows of a part in a folder have ids: their numbers in the input.
        """
        if self.earlier is not None:
            return self.earlier.ids
        if self.options.id_column is not None:
            span = part.span if part else ()  # without a part, all rows
            return self.files.cells(self.options.id_column, *span)
        if part is not None and output.name.startswith("part-"):
            return range(part.start, part.stop)
        return None

    def _side(self, n_rows: int, part: Part | None) -> dict[str, Any]:
        """Return the content of the side file, apart from digests and the index."""
        side = {"format": 1, "version": __version__, "model": self.encode.model.name}
        side |= self.encode.settings
        side |= {"input": self.files.source, "input_sha256": self.files.digest}
        if len(self.files.files) > 1:
            start, stop = part.span if part else (0, n_rows)
            side["files"] = self.files.within(start, stop)
        side |= {"dtype": self.kind.value, "n_rows": n_rows, "dim": self.encode.dim}
        if part is not None:
            side |= {"rows": list(part.span), "input_rows": part.total}
        return side


def require_same(output: object, side: Any, current: dict[str, Any]) -> None:
    """Raise OutputError unless a side file records the current model, settings and input.

    ``side`` is the content of the side file, and ``current`` what ``VectorWriter.facts`` returns.
    """
    if not isinstance(side, dict):
        raise OutputError(
            f"{output} exists already, without a side file that tells what it holds",
            hint=EXISTS_HINT,
        )
    not_comparable = NOT_RECORDED - side.keys()
    # Version 1.0.0 recorded the option "auto" instead of the precision that it stood for.
    if side.get("precision") == Precision.AUTO:
        not_comparable.add("precision")
    # Two kinds of entries of the side file are compared: those that ``current`` has, too, and all
    # settings. FACTS are no settings.
    recorded = {key: side[key] for key in side if key in current or key not in FACTS}
    for key, before, value in differences(recorded, current):
        if key == "model_digest" and is_older_digest(before, str(value)):
            raise OutputError(f"{output} exists already and {OLDER_DIGEST}", hint=EXISTS_HINT)
        if key in not_comparable:
            continue
        what = other_value(key, before, value)
        if key == "input_sha256":
            what = f"another input: {side.get('input')} has changed, or this is another file"
        raise OutputError(f"{output} exists already and has {what}", hint=EXISTS_HINT)
