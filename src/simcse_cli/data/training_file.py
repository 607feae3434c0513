"""Read training files for objectives: rows of one to three texts, documents, labelled pairs, or scored pairs."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any, overload

from simcse_cli.data.formats import source_name
from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.judges import Roles
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.nli import iter_nli
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.data.pair_files import SCORED_PAIR, iter_scored_pairs
from simcse_cli.data.sides import SET
from simcse_cli.data.table import Table
from simcse_cli.data.writers import Row
from simcse_cli.errors import DataError
from simcse_cli.files.streams import STDIO, digest, sha256_file


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
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        first = range(len(self))[index] * self._width
        return tuple(self._texts[first : first + self._width])


@dataclass(frozen=True)
class TrainingRows:
    """Sentences, pairs (anchor, positive) or triplets (with a hard negative).

    ``files`` gives, for several files, the number of rows of each and its passes per epoch;
    ``remarks`` tell the user about rows left out for other reasons than a missing text.
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
    """Return the SHA-256 of a file, or over the lines of a source that is not a file (stdin, Hub)."""
    if str(source) != STDIO and Path(source).is_file():
        return sha256_file(source)
    state = hashlib.sha256()
    for line in lines:
        state.update(f"{line}\n".encode("utf-8", "surrogatepass"))
    return state.hexdigest()


def iter_training_rows(
    table: Table, *, left_out: Counter[str] | None = None
) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield ``(columns, row)`` for each training row of a table; the layouts are in ``docs/data.md``.

    A cell may hold a list: a row of the table with several positives or hard negatives becomes as
    many rows as its longer list has items, and the shorter list is repeated. ``left_out`` counts,
    by label, the rows that are not pairs.
    """
    reading = table.reading
    roles = reading.roles
    if SET in roles.columns:
        yield from _set_rows(table)
        return
    columns = tuple(role for role in (*POSITIONAL, "text") if role in roles.columns)
    names = tuple("anchor" if role == "text" else role for role in columns)
    chosen = [roles.columns[role] for role in columns]
    if (
        all(len(places) == 1 and not table.is_list(places[0]) for places in chosen)
        and "label" not in roles.columns
    ):
        for row in table.lines(*columns):
            yield names, row
        return
    for number, cells in table.rows(*columns, "label"):
        if "label" in roles.columns:
            label = cells[-1]
            cells = cells[:-1]
            if not _is_pair(table.text_of(label), roles, table.place(number)):
                if left_out is not None:
                    left_out[table.text_of(label)] += 1
                continue
        yield from _expanded(table, names, chosen, cells)


def _set_rows(table: Table) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield every two texts of each list of texts that all mean the same."""
    for _, (cell,) in table.rows(SET):
        for pair in combinations(table.cell_texts(cell, is_list=True), 2):
            yield POSITIONAL[:2], pair


def _expanded(
    table: Table, names: tuple[str, ...], chosen: Sequence[tuple[int, ...]], cells: Sequence[Any]
) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield the rows of one row of a table, combining the items of its lists in turn."""
    sides: list[list[str]] = []
    left = list(cells)
    for places in chosen:
        texts: list[str] = []
        for at in places:
            texts += table.cell_texts(left.pop(0), is_list=table.is_list(at))
        sides.append(texts or [""])
    for turn in range(max(map(len, sides))):
        yield names, tuple(side[turn % len(side)] for side in sides)


def list_left_out(left_out: Counter[str]) -> list[str]:
    labels = ", ".join(
        f"{n:,} with label {label or 'empty'}" for label, n in left_out.most_common()
    )
    return [f"left out rows that are not pairs: {labels}"] if labels else []


def _is_pair(label: str, roles: Roles, place: str) -> bool:
    found = roles.is_pair(label)
    if found is None:
        raise DataError(
            f"{place}: label {label!r}; need 1 for a pair and 0 for none, or the labels of an NLI corpus",
            hint="keep the rows with a label: --keep-label VALUE; to take every row, name the columns with "
            "--columns anchor=A,positive=B",
        )
    return found


def read_training_rows(
    source: str | Path, given: Given | None = None, limit: int | None = None, n_columns: int = 1
) -> TrainingRows:
    """Return at most ``limit`` rows of a training file, kept on disk; rows with an empty text are dropped and counted.

    Where a row may be a single text (``n_columns`` is 1), lines of text and tables give single
    texts, or pairs under the names anchor and positive; else tables give pairs or triplets.
    """
    given = given or Given()
    table = Table(source, Job.ROWS if n_columns > 1 else Job.VIEWS, given)
    left_out, n_dropped, name = Counter[str](), 0, table.name
    found_columns: tuple[str, ...] = ()
    found = iter_training_rows(table, left_out=left_out)

    def whole_rows() -> Iterator[Row]:
        nonlocal n_dropped, found_columns
        for columns, row in found:
            found_columns = columns
            if all(row):
                yield row
            else:
                n_dropped += 1

    rows = StoredRows(islice(whole_rows(), limit))
    remarks = tuple(f"{name}: {remark}" for remark in list_left_out(left_out))
    if not rows:
        what = "; ".join((f"{name} holds no training example", *remarks))
        raise DataError(what, hint="give a file with one sentence a line, or a table")
    sha256 = _digest(source, ("\t".join(row) for row in rows))
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


def read_training_documents(source: str | Path, given: Given | None = None) -> TrainingDocuments:
    """Return the documents of a file: text with a blank line between documents, or a table with one per row."""
    table = Table(source, Job.TEXTS, given)
    name, lines = table.name, list(table.texts())
    if not table.is_text:
        lines = [line for text in lines for line in (*text.splitlines(), "")]
    documents = split_documents(lines)
    if not documents:
        raise DataError(
            f"{name} holds no sentence", hint="give documents with a blank line between them"
        )
    if all(line.strip() for line in lines):
        raise DataError(
            f"{name}: {len(lines):,} lines and no blank line, need documents with a blank line between them",
            hint="lines in random order have no neighbours; end the file with a blank line if it is one text",
        )
    return TrainingDocuments(name, documents, _digest(source, iter(lines)))


def join_rows(parts: Sequence[tuple[TrainingRows, float]]) -> TrainingRows:
    (first, _), *_ = parts
    for part, _ in parts:
        if part.columns != first.columns:
            raise DataError(
                f"{part.name} has {', '.join(part.columns)}, but {first.name} has {', '.join(first.columns)}",
                hint="give files with the same columns, or leave others out: --columns anchor=anchor,positive=positive",
            )
    return TrainingRows(
        ", ".join(part.name for part, _ in parts),
        first.columns,
        StoredRows(chain.from_iterable(part.rows for part, _ in parts)),
        sum(part.n_dropped for part, _ in parts),
        digest(" ".join(part.digest for part, _ in parts)),
        tuple((len(part), weight) for part, weight in parts),
        tuple(remark for part, _ in parts for remark in part.remarks),
    )


def join_documents(parts: Sequence[TrainingDocuments]) -> TrainingDocuments:
    return TrainingDocuments(
        ", ".join(part.name for part in parts),
        [document for part in parts for document in part.documents],
        digest(" ".join(part.digest for part in parts)),
    )


def read_labelled_rows(source: str | Path, given: Given | None = None) -> TrainingRows:
    """Return premise, hypothesis and label of an NLI file; rows without a label or a text are dropped."""
    name = source_name(source)
    pairs = list(chain.from_iterable(iter_nli(source, given)))
    rows = [
        (each.premise, each.hypothesis, each.label.value)
        for each in pairs
        if each.label is not None
    ]
    rows = [row for row in rows if all(row)]
    if not rows:
        raise DataError(
            f"{name} holds no labelled pair", hint="give an SNLI or MNLI file with gold labels"
        )
    sha256 = _digest(source, ("\t".join(row) for row in rows))
    return TrainingRows(name, ("anchor", "positive", "label"), rows, len(pairs) - len(rows), sha256)


def read_scored_rows(source: str | Path, given: Given | None = None) -> TrainingRows:
    """Return left text, right text and score of a file of scored pairs, such as any dev set."""
    name = source_name(source)
    rows = [(left, right, str(score)) for left, right, score in iter_scored_pairs(source, given)]
    if len({score for *_, score in rows}) == 1:
        raise DataError(
            f"{name}: all {len(rows):,} scores are {rows[0][2]}, so no pair should be more similar than another",
            hint="check the column of scores: --columns left=A,right=B,score=C",
        )
    return TrainingRows(
        name, SCORED_PAIR, rows, 0, _digest(source, ("\t".join(row) for row in rows))
    )
