"""Teachers: frozen models whose vectors of the training texts are made once, then read by row."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed

from simcse_cli.arrays import Array, Integers
from simcse_cli.data.file_sets import FileSet
from simcse_cli.encoding.job import EncodeJob
from simcse_cli.encoding.parts import ALONE, ProcessGroup, side_file
from simcse_cli.encoding.sinks import VectorSink
from simcse_cli.errors import ConfigError
from simcse_cli.files.atomic import write_json
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.inputs import read_json, require_file
from simcse_cli.losses.similarity import l2_normalize
from simcse_cli.machine.processes import process_count, process_rank
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.models.precomputed import read_matrix
from simcse_cli.models.resolve import naming_option
from simcse_cli.progress import Progress
from simcse_cli.results.runs import TEACHERS
from simcse_cli.settings.config import LoadOptions


class Teacher:
    """One teacher: a model, or a file with a model's vectors of the training texts."""

    def __init__(self, name: str, weight: float, device: str, progress: Progress) -> None:
        self.name = name
        self.weight = weight
        self.model: ReadyEncoder | None = None
        self.vectors: Array | None = None
        if name.endswith(".npy"):
            self.vectors = read_matrix(require_file(name))
            self.dim = int(self.vectors.shape[1])
            self.digest = sha256_file(Path(name))
            return
        with naming_option("--teacher", name):
            self.model = load_for_encoding(name, LoadOptions(device=device), progress)
        self.dim = self.model.dim
        self.digest = self.model.digest


class Teachers:
    """The vectors of all teachers for the rows of the training data, text by text.

    A row with C texts has vectors ``(C, D)``. The vector of a text joins those of all teachers,
    each scaled to the length ``sqrt(w)``, where w is the teacher's share of all weights. A dot
    product of two joined vectors is thus the weighted mean of the teachers' cosines.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, float]],
        rows: Sequence[tuple[str, ...]],
        device: str,
        progress: Progress,
        *,
        texts_digest: str = "",
    ) -> None:
        self.rows = rows
        self.texts_digest = texts_digest
        self.n_columns = len(rows[0])
        self.teachers = [Teacher(name, weight, device, progress) for name, weight in named]
        self.dim = sum(teacher.dim for teacher in self.teachers)
        self.digests = {teacher.name: teacher.digest for teacher in self.teachers}
        self.n_texts = len(rows) * self.n_columns
        for teacher in self.teachers:
            if teacher.vectors is not None and len(teacher.vectors) != self.n_texts:
                raise ConfigError(
                    f"--teacher {teacher.name}: {len(teacher.vectors):,} vectors for "
                    f"{self.n_texts:,} training texts, {self.n_columns} in each row that is used",
                    hint="name the model in place of the file; it reads these texts",
                )

    def tell_origin(self, source: str, progress: Progress) -> None:
        """Warn of vectors whose side file names another input than the training file ``source``.

        This is no error, since two files may hold the same texts, one as a table for instance.
        """
        for teacher in self.teachers:
            path = side_file(Path(teacher.name))
            if teacher.vectors is None or not path.is_file():
                continue
            side = read_json(path)
            input_digest = side.get("input_sha256") if isinstance(side, dict) else None
            if input_digest is None:
                continue
            digest = FileSet.find(source).digest  # None for a stream or a data set of the Hub
            if digest not in (None, input_digest):
                progress.warn(
                    f"--teacher {teacher.name} was written from {side.get('input')}, and "
                    f"{source} is another file or has changed; vector i is taken for text i of "
                    f"{source}, so encode this file itself unless the texts are the same"
                )

    def prepare(self, folder: Path, progress: Progress) -> None:
        """Encode all texts by each model into a file of the run, unless the run has this file.

        A record beside the file holds the digests of the model and of the texts. If one of these
        has changed, the file is written anew. Afterwards the models are dropped.
        """
        n_processes = process_count()
        group = ALONE
        if n_processes > 1:
            group = ProcessGroup(process_rank(), n_processes, distributed.barrier)
        for number, teacher in enumerate(self.teachers, 1):
            if teacher.model is None:
                continue
            output = folder / TEACHERS / f"{number}.npy"
            output.parent.mkdir(parents=True, exist_ok=True)
            record = output.with_suffix(".json")
            made_of = {"teacher": teacher.digest, "texts": self.texts_digest}
            is_there = output.exists() and record.is_file() and read_json(record) == made_of
            group.wait()  # for all processes to have looked, before one writes
            if not is_there:
                progress.info(f"encoding the training texts by teacher {teacher.name}, once")
                texts = (text for row in self.rows for text in row)
                encode = partial(teacher.model.encode, normalize=True)
                # The sink calls ``companions`` to write the record beside the vectors.
                write_record = partial(_write_record, record.name, made_of)
                sink = VectorSink(
                    output,
                    teacher.dim,
                    resume=True,  # an unfinished file is continued
                    force=True,  # a file of another teacher or other texts is replaced
                    group=group,
                    companions=write_record,
                )
                EncodeJob(texts, encode, made_of, self.n_texts).run(sink, progress)
            teacher.vectors = read_matrix(output)
            teacher.model = None

    def of_rows(self, rows: Integers) -> Tensor:
        """Return the vectors of some rows, ``(N, C, D)``.

        If the vectors are not made yet, as in a dry run, the result is zeros ``(N, C, 1)``.
        """
        # A teacher has a vector for each text; row i has the texts from i * n_columns on.
        text_numbers = (rows[:, None] * self.n_columns + np.arange(self.n_columns)).ravel()
        # With roots of the weights, dot products of joined vectors are weighted means of cosines.
        total = sum(teacher.weight for teacher in self.teachers)
        parts = []
        for teacher in self.teachers:
            if teacher.vectors is None:
                return torch.zeros(len(rows), self.n_columns, 1)
            vectors = torch.from_numpy(np.asarray(teacher.vectors[text_numbers], np.float32))
            parts.append(l2_normalize(vectors) * (teacher.weight / total) ** 0.5)
        return torch.cat(parts, dim=1).view(len(rows), self.n_columns, -1)


def _write_record(
    name: str, made_of: Mapping[str, str], folder: Path, rows: Array, texts: Iterable[str]
) -> None:
    """Write the record of a file of vectors into the folder where the sink completes the file.

    The sink also passes the vectors and texts; the record does not need them.
    """
    write_json(folder / name, made_of)
