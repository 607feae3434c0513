"""``prepare duplicates``: find the texts of a file that repeat another text.

The output is a list of these texts, or the file without them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcse_cli.data.formats import FileFormat, source_name
from simcse_cli.data.given import Given
from simcse_cli.data.ids import USUAL_NAMES, require_unique, usual_column
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import cell_text
from simcse_cli.data.table import Table
from simcse_cli.data.text import clean_text
from simcse_cli.data.writers import build_manifest, open_rows, output_format, row_output
from simcse_cli.encoding.units import load_and_encode
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.atomic import check_output
from simcse_cli.files.inputs import STDIO, Inputs, is_stream
from simcse_cli.prepare.finders import (
    ExactFinder,
    Finder,
    FoundText,
    MeaningFinder,
    NearFinder,
    find_duplicates,
)
from simcse_cli.prepare.options import DuplicateOptions
from simcse_cli.prepare.rows import chosen
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import DuplicateKind, KeepDuplicate
from simcse_cli.settings.config import ModelOptions, pinned
from simcse_cli.settings.declare import refuse_unused, settings_of

_TEXT_COLUMN = ("text",)  # the heading for a file without columns
_FOUND_COLUMNS = ("row", "id", "text", "of_file", "of_row", "of_id", "of_text", "kind", "score")


@dataclass(frozen=True)
class _Texts:
    """The texts of a file with their ids; both lists have an entry for each row.

    The text of an empty row is "". If no column holds an id for each row, every id is "".
    """

    name: str
    texts: list[str]
    ids: list[str]

    @classmethod
    def read(
        cls, source: str, given: Given, options: DuplicateOptions, progress: Progress
    ) -> "_Texts":
        """Read the texts of a file, and the ids from the named column, or else from a usual one."""
        table = Table(source, Job.TEXTS, given)
        column = options.id_column
        # The ids of a usual column are read only for a list of duplicates, which shows them.
        if column is None and options.keep is None and not table.is_text:
            column = usual_column(table.reading.grid.names)
        texts, ids = [], []
        for text, cells in table.texts_with(*filter(None, [column])):
            texts.append(clean_text(text))
            ids.append(cell_text(cells[0]) if cells else "")
        if column is not None:
            try:
                require_unique(lambda: ids, source, column)
            except DataError as error:
                if options.id_column is not None:
                    raise
                progress.info(f"{error.message}: the rows are listed without ids")
                ids = [""] * len(texts)
        return cls(source, texts, ids)


def prepare_duplicates(source: str, options: DuplicateOptions, progress: Progress) -> None:
    """Write the duplicates of a file, each with the text that it repeats.

    With ``options.keep``, write the other rows instead.
    """
    kinds = parse_kinds(options.kind)
    if DuplicateKind.MEANING not in kinds:
        refuse_unused(options, settings_of(ModelOptions), "has no use without --kind meaning")
    if str(options.output) != STDIO:
        check_output(options.output, force=options.force)  # before hours of encoding
    for path in filter(None, (source, options.against)):
        if is_stream(path):
            hint = "write it into a file first: cat > texts.txt"
            raise DataError(f"{source_name(path)} cannot be read twice", hint=hint)
    if options.against is not None and options.against in Inputs([source]):
        raise UsageError(
            f"{options.against} is the input itself, of which every row would be a duplicate",
            option="--against",
            hint="leave it out to compare the rows of one file with each other",
        )

    given = Given.of(options, progress=progress)
    beside = USUAL_NAMES if options.id_column is None else (options.id_column,)
    given = given.of_texts(options.column, options.text, *beside)
    table = Table(source, Job.TEXTS, given)
    columns: tuple[str, ...] = _FOUND_COLUMNS
    if options.keep is not None:
        columns = _TEXT_COLUMN if table.reading.is_text else table.reading.grid.names
    form = output_format(options.output, columns)
    # Number the texts of both files, beginning with the older file, whose texts are always kept.
    new = _Texts.read(source, given, options, progress)
    older = _Texts(name="", texts=[], ids=[])
    if options.against is not None:
        older = _Texts.read(options.against, given, options, progress)
    texts = [*older.texts, *new.texts]
    n_older = len(older.texts)

    # If both files have a text with the same id, one of the two texts is passed over.
    passed_over: set[int] = set()
    if options.id_column is not None:
        passed_over = _passed_over(older, new)
        _tell_shared_ids(len(passed_over), older, new, progress)
    filled = [number for number, text in enumerate(texts) if text and number not in passed_over]
    n_known = sum(number < n_older for number in filled)  # the older texts among them
    order = _in_order(filled, n_known, texts, options.keep)
    finders = _finders(kinds, texts, options, progress)
    found = dict(find_duplicates(order, texts, finders, n_known))

    result = _Result(older, new, found)
    rows = result.pairs(form) if options.keep is None else result.kept(table, form)
    _write(source, options, columns, rows, result)
    progress.info(f"{source}: {result.summary()}")
    if str(options.output) != STDIO:
        progress.info(f"wrote {options.output}")


def _passed_over(older: _Texts, new: _Texts) -> set[int]:
    """Return the numbers of the texts to pass over: one for each id that both files have.

    If the row of the id is unchanged, the new text is passed over, since it is no duplicate. If the
    row has changed, the older text is passed over, since it is out of date.
    """
    new_row_by_id = {text_id: row for row, text_id in enumerate(new.ids)}
    passed_over = set()
    for number, text_id in enumerate(older.ids):
        row = new_row_by_id.get(text_id)
        if row is not None:
            is_unchanged = older.texts[number] == new.texts[row]
            # The texts of the new file are numbered after those of the older file.
            passed_over.add(len(older.ids) + row if is_unchanged else number)
    return passed_over


def _tell_shared_ids(n_shared: int, older: _Texts, new: _Texts, progress: Progress) -> None:
    """Report how many ids are in both files; if none is, show an id of each file."""
    if n_shared:
        progress.info(f"{n_shared:,} ids of {older.name} are in {new.name}")
    elif older.ids and new.ids:
        progress.info(
            f"no id of {older.name} (the first: {older.ids[0]!r}) is in {new.name} "
            f"(the first: {new.ids[0]!r})"
        )


def _in_order(
    numbers: Sequence[int], n_known: int, texts: Sequence[str], keep: KeepDuplicate | None
) -> list[int]:
    """Return the numbers of texts in the order of comparison: a text can only repeat earlier ones.

    The first ``n_known`` numbers, those of the older file, stay first. Of texts that repeat each
    other, the first is kept; so if ``keep`` is ``LONGEST``, the new texts come by their length.
    """
    new = list(numbers[n_known:])
    if keep is KeepDuplicate.LONGEST:
        new.sort(key=lambda number: -len(texts[number]))
    return [*numbers[:n_known], *new]


def parse_kinds(text: str) -> list[DuplicateKind]:
    """Return the kinds that a text such as ``near,exact`` names, in the order of the enum."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in list(DuplicateKind):
            need = f"need some of {', '.join(DuplicateKind)}"
            raise UsageError(f"{name!r}; {need}", option="--kind")
    return [kind for kind in DuplicateKind if kind in names]


def _finders(
    kinds: Sequence[DuplicateKind],
    texts: Sequence[str],
    options: DuplicateOptions,
    progress: Progress,
) -> dict[DuplicateKind, Finder]:
    """Return a finder for each kind; the texts are encoded only to compare their meaning."""
    finders: dict[DuplicateKind, Finder] = {}
    for kind in kinds:
        if kind is DuplicateKind.EXACT:
            finders[kind] = ExactFinder()
        elif kind is DuplicateKind.NEAR:
            finders[kind] = NearFinder(options.near_threshold)
        else:
            units, unknown = load_and_encode(texts, options, progress)
            finders[kind] = MeaningFinder(units, options.threshold, unknown)
            if unknown:
                what = "a text that is" if len(unknown) == 1 else f"{len(unknown):,} texts that are"
                progress.info(f"not compared by meaning: {what} unknown to {options.model}")
    return finders


@dataclass(frozen=True)
class _Result:
    """The duplicates that were found; ``found`` maps the number of a text to what it repeats.

    The texts of the older file have the first numbers. Those of the new file, the source, follow.
    """

    older: _Texts
    new: _Texts
    found: dict[int, FoundText]

    def pairs(self, form: FileFormat) -> Iterator[tuple[Any, ...]]:
        """Yield a row for each duplicate in the source, with the text that it repeats, in order.

        For JSON Lines, the numbers of a row stay numbers; for other formats, all cells are texts.
        """
        is_json_lines = form is FileFormat.JSONL
        for number in sorted(self.found):
            kind, match = self.found[number]
            _, *duplicate = self._place(number)  # always in the source, so its file is not written
            original = self._place(match.kept_number)
            score = f"{match.score:.4f}"
            row = (*duplicate, *original, kind.value, float(score) if is_json_lines else score)
            yield row if is_json_lines else tuple(map(str, row))

    def _place(self, number: int) -> tuple[str, int, str, str]:
        """Return the file, the row (from 1) and the id of a text, and the text itself."""
        file = self.older
        row = number
        if row >= len(file.texts):
            row -= len(file.texts)
            file = self.new
        return file.name, row + 1, file.ids[row], file.texts[row]

    def kept(self, table: Table, form: FileFormat) -> Iterator[Any]:
        """Yield the rows of the source that are not duplicates, with all of their columns.

        What a row is depends on the format of the output:

        - JSON Lines: the row as it is in a JSON source, else its cells with their types;
        - CSV: the cells as texts;
        - TSV and plain text: the cells as cleaned texts, since these formats cannot hold line ends.
          A source of plain text has none inside a row, so it is copied to plain text as it is.
        """
        is_json_lines = form is FileFormat.JSONL
        as_it_is = is_json_lines and table.is_json
        is_cleaned = form is FileFormat.TSV or (form is FileFormat.TEXT and not table.is_text)
        rows = table.json_values() if as_it_is else table.values()
        text_at = table.reading.places("text", "anchor")  # where a row has its text
        n_older = len(self.older.texts)
        for number, row in enumerate(rows, start=n_older):
            if number in self.found:
                continue
            if as_it_is:
                yield row
                continue
            # A row of JSON may have its text under another name, which the output lacks.
            if self.new.texts[number - n_older] and all(row[at] is None for at in text_at):
                columns = ", ".join(table.reading.grid.names)
                raise DataError(
                    f"{self.new.name}, row {number - n_older + 1}: the text is in another column "
                    f"than in row 1, and {form} holds only those of row 1: {columns}",
                    hint="write JSON Lines, which hold the columns of each row: -o FILE.jsonl",
                )
            if is_json_lines:
                yield tuple(None if cell != cell else cell for cell in row)  # JSON has no NaN
            else:
                texts = map(cell_text, row)
                yield tuple(map(clean_text, texts) if is_cleaned else texts)

    @property
    def counts(self) -> dict[str, int]:
        counted = Counter(kind.value for kind, _ in self.found.values())
        return {kind: counted[kind] for kind in DuplicateKind if counted[kind]}

    def summary(self) -> str:
        texts = self.new.texts
        n_empty = texts.count("")
        line = f"{len(self.found):,} of {len(texts):,} rows repeat another"
        if self.counts:
            line += f" ({', '.join(f'{kind} {n:,}' for kind, n in self.counts.items())})"
        if n_empty:
            line += f"; not compared, since without text: {n_empty:,}"
        return line


def _write(
    source: str,
    options: DuplicateOptions,
    columns: Sequence[str],
    rows: Iterator[Any],
    result: _Result,
) -> None:
    """Write the rows, and a manifest with the settings and the counts."""
    inputs = [source] if options.against is None else [source, options.against]
    names = ("column", "id_column", "kind", "threshold", "near_threshold", "keep")
    settings = chosen(options, *names)
    if options.text is not None:
        settings["text"] = options.text
    settings["model"] = pinned(options.model, options.revision)
    n_written = 0

    # This is called after the last row, when the counts are known.
    def manifest(complete: Path) -> dict[str, Any]:
        return build_manifest(
            "duplicates",
            inputs=inputs,
            folder=complete.parent,
            outputs=[(complete, n_written)],
            settings=settings,
            seed=None,  # nothing is drawn
            counts={"read": len(result.new.texts), "written": n_written} | result.counts,
        )

    with (
        row_output(options.output, columns, inputs=inputs, force=options.force) as output,
        open_rows(output, columns, manifest) as write,
    ):
        for row in rows:
            write(row)
            n_written += 1
