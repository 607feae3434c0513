"""Inputs of several files, read in order: a folder, a glob, or a data set in a cloud store."""

import glob
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, takewhile
from operator import itemgetter
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from simcse_cli.data.formats import FileFormat, guess_format
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.ids import require_unique
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.digests import digest
from simcse_cli.files.inputs import STDIO, file_state, file_system, is_remote
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.streams import iter_lines
from simcse_cli.settings.choices import TextPer

_WILD = re.compile(r"[*?\[]")
_TEXT_ENDINGS = (".txt", ".text", ".txt.gz", ".text.gz")
_LOOKED_AT = 20  # text files searched for blank lines
_LINES_LOOKED_AT = 1000  # of each file


@dataclass(frozen=True)
class FileSet:
    """One input of one or more files, in the order of their names.

    ``source`` is the input as the user named it. Reading fills the last two fields: ``blank``
    counts the empty texts by file, and ``unused`` holds the columns of the first file that are not
    read as texts.
    """

    source: str
    files: tuple[str, ...]
    given: Given = field(default_factory=Given, compare=False)
    text_per: TextPer = TextPer.LINE
    blank: Counter[str] = field(default_factory=Counter, compare=False)
    unused: list[str] = field(default_factory=list, compare=False)

    @classmethod
    def find(
        cls,
        source: str,
        given: Given = NOTHING_GIVEN,
        *,
        text_per: TextPer | None = None,
        again: str | None = None,
        output: str | None = None,
    ) -> "FileSet":
        """Return the files of a path, folder, glob or address.

        In a folder, files of a known format are found at any depth, except for files and folders
        with names that start with ``.`` or ``_``.

        Args:
            source: what the user named.
            given: what the user said about the tables.
            text_per: whether a line or a whole file is one text; None if the user does not say.
            again: the option, if any, that makes the command read the input more than once.
            output: the file to be written, which may not be in a folder that is read.
        """
        listed = _listed(source)
        files = [source] if listed is None else sorted(listed)
        file_set = cls(source, tuple(files), given, text_per or TextPer.LINE)
        if again is not None and files and file_set._is_stream:
            what = "needs an input that can be read again: save it to a file first"
            raise UsageError(what, option=again)

        # An output in a folder that is read would become an input.
        folder = Path(source).resolve()
        if output is not None and output != STDIO and folder.is_dir():
            is_inside = Path(output).resolve().is_relative_to(folder)
            if is_inside:
                what = f"{output} is in the input folder, where it would be read"
                raise UsageError(what, option="--output")
        if not files:
            raise DataError(
                f"{source} holds no file with sentences",
                hint="names end in .txt, .jsonl, .csv, .tsv or .parquet, perhaps with .gz; "
                "put a glob in quotes",
            )
        if listed is not None:
            file_set._check_formats(asks_text_per=text_per is None)
        return file_set

    @property
    def is_stored(self) -> bool:
        """Tell whether the input can be read again; a stream or a Hub data set cannot."""
        return is_remote(self.source) or Path(self.files[0]).is_file()

    @property
    def _is_stream(self) -> bool:
        """Tell whether the input exists and can be read once only."""
        is_hub = guess_format(self.source) is FileFormat.HUB
        exists = self.source == STDIO or is_hub or Path(self.source).exists()
        return exists and not self.is_stored

    def _check_formats(self, *, asks_text_per: bool) -> None:
        """Raise DataError if the files have several formats, or if text files may be documents.

        ``asks_text_per`` is true if the user has not said whether a text is a file or a line. Then
        several text files with blank lines are refused, because each may be one document.
        """
        # In reverse order, so that the first file of each format is kept.
        first_of_format = {guess_format(file): file for file in reversed(self.files)}
        if len(first_of_format) > 1:
            first, second = sorted(first_of_format.values())[:2]
            raise DataError(
                f"{self.source} holds files of several formats, such as {first} and {second}",
                hint="choose some by a glob in quotes, as in 'FOLDER/*.txt'",
            )
        is_text = FileFormat.TEXT in first_of_format and not is_remote(self.source)
        if asks_text_per and is_text and len(self.files) > 1:
            self._refuse_paragraphs()

    def _refuse_paragraphs(self) -> None:
        """Raise DataError if blank lines separate paragraphs in text files, as in documents."""
        for file in self.files[:_LOOKED_AT]:
            lines = islice(iter_lines(file, encoding=self.given.encoding), _LINES_LOOKED_AT)
            text = "\n".join(map(str.strip, lines))
            if "\n\n" in text.strip():  # blank lines at the ends separate nothing
                what = f"{len(self.files):,} text files with blank lines, such as {file}"
                raise DataError(
                    f"{self.source}: {what}; is a text a file, or a line?",
                    hint="say it with --text-per file or --text-per line",
                )

    @property
    def has_titles(self) -> bool:
        """Tell whether a search of this one local file would read the title of each text, too."""
        given = self.given
        if given.columns or given.template is not None or not Path(self.source).is_file():
            return False
        return self._table(self.files[0]).reading.grid.has_titles

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of rows of each file."""
        return tuple(self._table(file).count() for file in self.files)

    @cached_property
    def total(self) -> int | None:
        """Number of rows if it is cheap to find out, else None."""
        if not self.is_stored or any(file.endswith(".gz") for file in self.files):
            return None
        if guess_format(self.files[0]) not in (FileFormat.TEXT, FileFormat.PARQUET):
            return None
        return sum(self.counts)

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 of a single local file; otherwise over the names and states of the files.

        Streams and Hub data sets have None.
        """
        if not self.is_stored:
            return None
        if len(self.files) == 1 and not is_remote(self.source):
            return file_state(self.files[0])
        states = []
        for file in self.files:
            states.append(f"{PurePosixPath(file).name} {file_state(file)}\n")
        return digest(*states)

    def sentences(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the texts of rows ``start`` to ``stop``, and count empty ones in ``blank``."""
        texts = map(itemgetter(0), self._texts_with(start=start))
        return islice(texts, None if stop is None else stop - start)

    def texts_with(self, column: str) -> Iterator[tuple[str, Any]]:
        """Yield each text with the cell of a column in its row; count empty texts anew."""
        self.blank.clear()
        for text, (cell,) in self._texts_with(column):
            yield text, cell

    def _texts_with(self, *columns: str, start: int = 0) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield each text and its cells in some columns; fill ``unused`` and ``blank``."""
        for file, skipped in self._files_from(start):
            table = self._table(file)
            if file == self.files[0]:
                self.unused[:] = table.unused
            for text, cells in table.texts_with(*columns, start=skipped):
                self.blank[file] += not text.strip()
                yield text, cells

    def cells(self, column: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yield the cells of a column in the rows from ``start`` to ``stop``."""
        parts = (
            self._table(file).column(column, start=skipped)
            for file, skipped in self._files_from(start)
        )
        return islice(chain.from_iterable(parts), None if stop is None else stop - start)

    def require_unique(self, column: str) -> None:
        """Raise DataError, which names two rows, if two cells of a column are equal."""
        require_unique(lambda: self.cells(column), self.source, column)

    def within(self, start: int, stop: int) -> dict[str, int]:
        """Return the number of rows from ``start`` to ``stop`` in each file that has any."""
        rows_in_file = {}
        first_row = 0
        for file, n_rows in zip(self.files, self.counts, strict=True):
            n_inside = min(stop, first_row + n_rows) - max(start, first_row)
            if n_inside > 0:
                rows_in_file[file] = n_inside
            first_row += n_rows
        return rows_in_file

    def _table(self, file: str) -> Table:
        return Table(file, Job.TEXTS, self.given, is_whole=self.text_per is TextPer.FILE)

    def _files_from(self, start: int) -> Iterator[tuple[str, int]]:
        """Yield each file that has rows from ``start`` on, and how many rows of it to skip.

        ``start`` counts the rows of all files together. If it is 0, the rows of files are not
        counted, because counting may read them all.
        """
        for number, file in enumerate(self.files):
            if start and start >= self.counts[number]:
                start -= self.counts[number]
            else:
                yield file, start
                start = 0


def _listed(source: str) -> list[str] | None:
    """Return the files of a folder or glob, without empty ones; None for a single input."""
    if is_remote(source):
        return _listed_remotely(source)
    path = Path(source)
    if guess_format(source) is FileFormat.HUB:
        return None
    if path.is_dir():
        paths = [file for file in path.rglob("*") if _is_data(file.relative_to(path))]
    elif path.exists() or not _WILD.search(source):
        return None
    else:
        # `glob.glob` takes absolute patterns, which `Path.glob` refuses.
        paths = list(map(Path, glob.glob(source, recursive=True)))  # noqa: PTH207
    return [str(file) for file in paths if file.is_file() and file.stat().st_size]


def _listed_remotely(source: str) -> list[str] | None:
    """Return the files of a folder or glob in a cloud store, without empty ones.

    For a single file, return None.
    """
    from pyarrow import fs  # see file_system

    # The folder ends where the first wildcard begins.
    parts = source.split("/")
    folder_parts = list(takewhile(lambda part: not _WILD.search(part), parts))
    folder = "/".join(folder_parts)
    pattern = "/".join(parts[len(folder_parts) :])

    system, path = file_system(folder)
    with foreign_format(source, "a file or folder that can be reached"):
        if not pattern and system.get_file_info(path).type is not fs.FileType.Directory:
            return None
        entries = system.get_file_info(fs.FileSelector(path, recursive=True))
    files = []
    for entry in entries:
        name = PurePosixPath(entry.path).relative_to(path)
        is_wanted = name.match(pattern) if pattern else _is_data(name)
        if is_wanted and entry.is_file and entry.size:
            files.append(f"{folder.rstrip('/')}/{name}")
    return files


def _is_data(name: PurePath) -> bool:
    """Tell whether a file is an input, by its path in a folder: not hidden, with a known ending."""
    is_hidden = any(part.startswith((".", "_")) for part in name.parts)
    is_table = guess_format(str(name)) is not FileFormat.TEXT
    return not is_hidden and (is_table or name.name.endswith(_TEXT_ENDINGS))
