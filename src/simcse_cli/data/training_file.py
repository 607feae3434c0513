"""Read training files for objectives: rows of one to three texts, documents, or judged pairs."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any, overload

from simcse_cli.data.formats import source_name
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.judges import Roles
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.nli import NLI_ROLES, iter_nli
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.data.pair_files import SCORED_PAIR, iter_scored_pairs
from simcse_cli.data.sides import SET
from simcse_cli.data.table import RowPosition, Table, rows_of_lists
from simcse_cli.data.text import one_line
from simcse_cli.data.writers import Row
from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest, sha256_file
from simcse_cli.files.inputs import STDIO


class StoredRows(Sequence[Row]):
    """Rows of texts on disk, all with the same number of texts."""

    def __init__(self, rows: Iterable[Row]) -> None:
        rows = iter(rows)
        first = next(rows, ())
        self._width = max(1, len(first))
        self._texts = PackedTexts.stored(chain(first, chain.from_iterable(rows)))

    def __len__(self) -> int:
        return len(self._texts) // self._width

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        # The range resolves negative numbers and slices.
        row = range(len(self))[index]
        if isinstance(row, range):
            return list(map(self.__getitem__, row))
        first_text = row * self._width
        return tuple(self._texts[first_text : first_text + self._width])


@dataclass(frozen=True)
class TrainingRows:
    """Sentences, pairs (anchor, positive), triplets (with a hard negative) or judged pairs.

    If the rows come from several files, ``files`` holds for each file its number of rows, and how
    often an epoch passes over the file. ``n_dropped`` counts rows that lack a text or a label;
    ``remarks`` tell the user about rows that were left out for another reason.
    """

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    n_dropped: int
    digest: str
    files: tuple[tuple[int, float], ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


def _digest(source: str | Path, lines: Iterator[str]) -> str:
    """Return the SHA-256 of a file, or of ``lines`` if the source is not a local file."""
    if str(source) != STDIO and Path(source).is_file():
        return sha256_file(source)
    state = hashlib.sha256()
    for line in lines:
        state.update(f"{line}\n".encode("utf-8", "surrogatepass"))
    return state.hexdigest()


def iter_training_rows(
    table: Table, *, left_out: Counter[str] | None = None, position: RowPosition | None = None
) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield the training rows of a table: the names of the columns, and the texts in them.

    A cell may hold a list of texts, such as several positives. Such a row of the table becomes as
    many training rows as its longest list has items, and shorter lists are repeated. Rows whose
    labels mark no pairs are left out, and counted by label in ``left_out``. ``position`` always
    holds the row of the table that was read last.
    """
    position = position or RowPosition()
    position.open(table.name)
    roles = table.reading.roles
    # A set is a list of texts that all mean the same.
    if SET in roles.columns:
        yield from _set_rows(table, position)
        return
    # A template makes one text of several columns.
    if table.is_filled:
        for position.row, text in enumerate(table.texts(), start=1):
            yield ("anchor",), (one_line(text),)
        return
    text_roles = [role for role in (*POSITIONAL, "text") if role in roles.columns]
    names = tuple("anchor" if role == "text" else role for role in text_roles)
    places_of_roles = [roles.columns[role] for role in text_roles]
    has_label = "label" in roles.columns
    places = table.reading.places(*text_roles)

    # The usual table has one text for each role, and no labels. Its rows need no expansion.
    has_one_column_each = len(places) == len(text_roles)
    if not has_label and has_one_column_each and not any(map(table.is_list, places)):
        for position.row, row in table.lines(*text_roles):
            yield names, row
        return
    # The label, if the table has one, is the last cell.
    for number, cells in table.rows(*text_roles, "label"):
        position.row += 1
        if has_label:
            label = table.text_of(cells[-1])
            if not _is_pair(label, roles, table.place(number)):
                if left_out is not None:
                    left_out[label] += 1
                continue
        for row in _expanded(table, places_of_roles, cells):
            yield names, row


def _set_rows(table: Table, position: RowPosition) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield each pair of texts from a list of texts that all mean the same."""
    for _, (cell,) in table.rows(SET):
        position.row += 1
        for pair in combinations(table.cell_texts(cell, is_list=True), 2):
            yield ("anchor", "positive"), pair


def _expanded(
    table: Table, places_of_roles: Sequence[tuple[int, ...]], cells: Sequence[Any]
) -> Iterator[Row]:
    """Yield the training rows that one row of a table gives: the i-th has text i of each role.

    ``places_of_roles`` holds the places of the columns of each role. ``cells`` begins with the
    cells of these columns, in the same order.
    """
    # A role of several columns, such as hard negatives, has the texts of all of them.
    sides: list[list[str]] = []
    remaining = iter(cells)
    for places in places_of_roles:
        texts: list[str] = []
        for at in places:
            texts += table.cell_texts(next(remaining), is_list=table.is_list(at))
        sides.append(texts)
    yield from rows_of_lists(sides)


def list_left_out(left_out: Counter[str]) -> list[str]:
    """Return a list of one remark on rows that are no pairs, counted by label; [] without any."""
    if not left_out:
        return []
    counts = []
    for label, n_rows in left_out.most_common():
        counts.append(f"{n_rows:,} with label {label or 'empty'}")
    return [f"left out rows that are not pairs: {', '.join(counts)}"]


def _is_pair(label: str, roles: Roles, place: str) -> bool:
    """Tell whether a label marks a pair; raise DataError if the meaning of the label is unknown."""
    is_pair = roles.is_pair(label)
    if is_pair is None:
        raise DataError(
            f"{place}: label {label!r}; "
            "need 1 for a pair and 0 for none, or the labels of an NLI corpus",
            hint="keep the rows with a label: --keep-label VALUE; "
            "to take every row, name the columns with --columns anchor=A,positive=B",
        )
    return is_pair


def read_training_rows(
    source: str | Path, given: Given = NOTHING_GIVEN, limit: int | None = None, n_columns: int = 1
) -> TrainingRows:
    """Return at most ``limit`` rows of a training file, kept on disk.

    Rows with an empty text are dropped and counted. ``n_columns`` is the least number of texts in a
    row. If it is 1, rows are single texts, or pairs if columns are named anchor and positive. If it
    is more, rows are pairs or triplets.
    """
    table = Table(source, Job.ROWS if n_columns > 1 else Job.VIEWS, given)
    name = table.name
    left_out = Counter[str]()
    n_dropped = 0
    found_columns: tuple[str, ...] = ()

    def whole_rows() -> Iterator[Row]:
        nonlocal n_dropped, found_columns
        for columns, row in iter_training_rows(table, left_out=left_out):
            found_columns = columns
            if all(row):
                yield row
            else:
                n_dropped += 1

    # The counts are known once all rows are stored.
    rows = StoredRows(islice(whole_rows(), limit))
    remarks = tuple(f"{name}: {remark}" for remark in list_left_out(left_out))
    if not rows:
        what = "; ".join((f"{name} holds no training example", *remarks))
        raise DataError(what, hint="give a file with one sentence a line, or a table")
    sha256 = _digest(source, map("\t".join, rows))
    return TrainingRows(name, found_columns, rows, n_dropped, sha256, remarks=remarks)


@dataclass(frozen=True)
class TrainingDocuments:
    name: str
    documents: list[list[str]]
    digest: str

    def __len__(self) -> int:
        return sum(map(len, self.documents))


def split_documents(lines: Iterable[str]) -> list[list[str]]:
    """Return the sentences of each document; blank lines separate documents."""
    documents: list[list[str]] = [[]]
    for line in lines:
        if sentence := line.strip():
            documents[-1].append(sentence)
        elif documents[-1]:
            documents.append([])
    return documents if documents[-1] else documents[:-1]


def read_training_documents(source: str | Path, given: Given = NOTHING_GIVEN) -> TrainingDocuments:
    """Return the documents of a file: the texts between blank lines, or each row of a table."""
    table = Table(source, Job.TEXTS, given)
    name = table.name
    lines = list(table.texts())
    if not table.is_text:
        # Each row of a table is a document, so a blank line is put behind its lines.
        lines = list(chain.from_iterable((*text.splitlines(), "") for text in lines))
    documents = split_documents(lines)
    if not documents:
        needed = "give documents with a blank line between them"
        raise DataError(f"{name} holds no sentence", hint=needed)
    if all(map(str.strip, lines)):  # no line is blank
        raise DataError(
            f"{name}: {len(lines):,} lines and no blank line, "
            "need documents with a blank line between them",
            hint="lines in random order have no neighbours; "
            "end the file with a blank line if it is one text",
        )
    return TrainingDocuments(name, documents, _digest(source, iter(lines)))


def join_rows(parts: Sequence[tuple[TrainingRows, float]]) -> TrainingRows:
    """Return the rows of several files as one.

    Each part holds the rows of a file, and how often an epoch passes over the file.
    """
    files, weights = zip(*parts, strict=True)
    first = files[0]
    for file in files:
        if file.columns != first.columns:
            raise DataError(
                f"{file.name} has {', '.join(file.columns)}, "
                f"but {first.name} has {', '.join(first.columns)}",
                hint="give files with the same columns, or leave others out: "
                "--columns anchor=anchor,positive=positive",
            )
    return TrainingRows(
        name=", ".join(file.name for file in files),
        columns=first.columns,
        rows=StoredRows(chain.from_iterable(file.rows for file in files)),
        n_dropped=sum(file.n_dropped for file in files),
        digest=digest(" ".join(file.digest for file in files)),
        files=tuple(zip(map(len, files), weights, strict=True)),
        remarks=tuple(chain.from_iterable(file.remarks for file in files)),
    )


def join_documents(parts: Sequence[TrainingDocuments]) -> TrainingDocuments:
    return TrainingDocuments(
        ", ".join(part.name for part in parts),
        list(chain.from_iterable(part.documents for part in parts)),
        digest(" ".join(part.digest for part in parts)),
    )


def read_labelled_rows(source: str | Path, given: Given = NOTHING_GIVEN) -> TrainingRows:
    """Return premise, hypothesis and label of an NLI file.

    Rows without a label or a text are dropped and counted.
    """
    name = source_name(source)
    rows: list[Row] = []
    n_dropped = 0
    for pair in chain.from_iterable(iter_nli(source, given)):
        if pair.premise and pair.hypothesis and pair.label:
            rows.append((pair.premise, pair.hypothesis, pair.label.value))
        else:
            n_dropped += 1
    if not rows:
        hint = "give an SNLI or MNLI file with gold labels"
        raise DataError(f"{name} holds no labelled pair", hint=hint)
    sha256 = _digest(source, map("\t".join, rows))
    return TrainingRows(name, NLI_ROLES, rows, n_dropped, sha256)


def read_scored_rows(source: str | Path, given: Given = NOTHING_GIVEN) -> TrainingRows:
    """Return left text, right text and score of a file of scored pairs, such as any dev set."""
    name = source_name(source)
    rows = [(left, right, str(score)) for left, right, score in iter_scored_pairs(source, given)]
    scores = {score for *_, score in rows}
    if len(scores) == 1:
        raise DataError(
            f"{name}: all {len(rows):,} scores are {scores.pop()}, "
            "so no pair should be more similar than another",
            hint="check the column of scores: --columns left=A,right=B,score=C",
        )
    sha256 = _digest(source, map("\t".join, rows))
    return TrainingRows(name, SCORED_PAIR, rows, n_dropped=0, digest=sha256)
