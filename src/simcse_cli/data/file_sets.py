"""Inputs of several files, read in order: a folder, a glob, or a data set on S3 or Google Cloud Storage."""

import glob
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

from simcse_cli.data.formats import FileFormat, guess_format, is_saved_dataset
from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.streams import STDIO, digest, file_state, file_system, is_remote, iter_lines
from simcse_cli.settings.choices import TextPer

_WILD = re.compile(r"[*?\[]")
_TEXT_ENDINGS = (".txt", ".text", ".txt.gz", ".text.gz")
_LOOKED_AT, _LINES_LOOKED_AT = 20, 1000
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class FileSet:
    """One input of one or more files, in the order of their names; ``source`` is the input as the user gave it."""

    source: str
    files: tuple[str, ...]
    given: Given = field(default_factory=Given, compare=False)
    text_per: TextPer = TextPer.LINE
    blank: Counter[str] = field(
        default_factory=Counter, compare=False
    )  # texts of nothing that were read, by file

    @classmethod
    def find(
        cls,
        source: str,
        given: Given | None = None,
        *,
        text_per: TextPer | None = None,
        again: str | None = None,
        output: str | None = None,
    ) -> "FileSet":
        """Return the files of a path, folder, glob or address.

        For a folder these are the files at any depth whose ending is that of a known format, except
        for names that start with ``.`` or ``_``. ``text_per`` is what is one text in a folder or
        glob of text files, if that is known; ``again`` the option, if any, that reads the input
        more than once; ``output`` the file to be written, which may not be in a folder that is
        read.
        """
        files = _listed(source)
        names = (source,) if files is None else tuple(sorted(files))
        found = cls(source, names, given or Given(), text_per or TextPer.LINE)
        is_there = (
            source == STDIO or guess_format(source) is FileFormat.HUB or Path(source).exists()
        )
        if again is not None and files != [] and is_there and not found.is_stored:
            raise UsageError(
                "needs an input that can be read again: save it to a file first", option=again
            )
        folder = Path(source)
        target = Path(output or STDIO).resolve()
        if (
            output not in (None, STDIO)
            and folder.is_dir()
            and target.is_relative_to(folder.resolve())
        ):
            raise UsageError(
                f"{output} is in the input folder, where it would be read", option="--output"
            )
        if files == []:
            raise DataError(
                f"{source} holds no file with sentences",
                hint="names end in .txt, .jsonl, .csv, .tsv or .parquet, perhaps with .gz; put a glob in quotes",
            )
        if files is None:
            return found
        by_format = {guess_format(file): file for file in sorted(files, reverse=True)}
        if len(by_format) > 1:
            raise DataError(
                f"{source} holds files of several formats, such as {' and '.join(sorted(by_format.values())[:2])}",
                hint="choose some by a glob in quotes, as in 'FOLDER/*.txt'",
            )
        if (
            text_per is None
            and len(files) > 1
            and FileFormat.TEXT in by_format
            and not is_remote(source)
        ):
            found._refuse_paragraphs()
        return found

    @property
    def is_stored(self) -> bool:
        """Tell whether the input can be read again, which a stream or a Hub data set cannot."""
        return is_remote(self.source) or Path(self.files[0]).is_file()

    def _refuse_paragraphs(self) -> None:
        """Raise DataError if text files have blank lines between others, as documents have: what is one text?"""
        for file in self.files[:_LOOKED_AT]:
            lines = islice(iter_lines(file, encoding=self.given.encoding), _LINES_LOOKED_AT)
            if "\n\n" in "\n".join(line.strip() for line in lines).strip():
                raise DataError(
                    f"{self.source}: {len(self.files):,} text files with blank lines, such as {file}; "
                    "is a text a file, or a line?",
                    hint="say it with --text-per file or --text-per line",
                )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        return tuple(self._table(file).count() for file in self.files)

    @cached_property
    def total(self) -> int | None:
        """Number of rows if it is cheap to find out, else None."""
        cheap = (FileFormat.TEXT, FileFormat.PARQUET)
        is_cheap = self.is_stored and not any(file.endswith(".gz") for file in self.files)
        return sum(self.counts) if is_cheap and guess_format(self.files[0]) in cheap else None

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 of a file, or over the names and states of several files; None for streams and Hub data sets."""
        if not self.is_stored:
            return None
        if len(self.files) == 1 and not is_remote(self.source):
            return file_state(self.files[0]) if Path(self.files[0]).is_file() else None
        return digest(*(f"{PurePosixPath(file).name} {file_state(file)}\n" for file in self.files))

    def sentences(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        def read(file: str, skipped: int) -> Iterator[str]:
            for text in self._table(file).texts(skipped):
                self.blank[file] += not text.strip()
                yield text

        return self._rows(read, start, stop)

    def cells(self, column: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        def read(file: str, skipped: int) -> Iterator[Any]:
            return self._table(file).column(column, start=skipped)

        return self._rows(read, start, stop)

    def within(self, start: int, stop: int) -> dict[str, int]:
        found, first = {}, 0
        for file, n_rows in zip(self.files, self.counts, strict=True):
            n_inside = min(stop, first + n_rows) - max(start, first)
            if n_inside > 0:
                found[file] = n_inside
            first += n_rows
        return found

    def _table(self, file: str) -> Table:
        return Table(file, Job.TEXTS, self.given, is_whole=self.text_per is TextPer.FILE)

    def _rows(
        self, read: Callable[[str, int], Iterator[_Item]], start: int, stop: int | None
    ) -> Iterator[_Item]:
        def rows_of_files(skipped: int) -> Iterator[Iterator[_Item]]:
            for number, file in enumerate(self.files):
                if skipped and skipped >= self.counts[number]:
                    skipped -= self.counts[number]
                else:
                    yield read(file, skipped)
                    skipped = 0

        rows = chain.from_iterable(rows_of_files(start))
        return islice(rows, None if stop is None else stop - start)


def _listed(source: str) -> list[str] | None:
    """Return the files of a folder or glob that hold something; None for a single input."""
    if is_remote(source):
        return _listed_remotely(source)
    path = Path(source)
    if is_saved_dataset(path):
        return None
    if path.is_dir():
        found = [file for file in path.rglob("*") if _is_data(file.relative_to(path))]
    elif guess_format(source) is FileFormat.HUB or path.exists() or not _WILD.search(source):
        return None
    else:
        found = [Path(file) for file in glob.glob(source, recursive=True)]  # noqa: PTH207 - takes absolute ones too
    return [str(file) for file in found if file.is_file() and file.stat().st_size]


def _listed_remotely(source: str) -> list[str] | None:
    from pyarrow import fs  # see file_system

    parts = source.split("/")
    n_plain = next((number for number, part in enumerate(parts) if _WILD.search(part)), len(parts))
    folder, pattern = "/".join(parts[:n_plain]), "/".join(parts[n_plain:])
    system, path = file_system(folder)
    with foreign_format(source, "a file or folder that can be reached"):
        if not pattern and system.get_file_info(path).type is not fs.FileType.Directory:
            return None
        found = system.get_file_info(fs.FileSelector(path, recursive=True))
    names = [
        PurePosixPath(entry.path).relative_to(path)
        for entry in found
        if entry.is_file and entry.size
    ]
    chosen = [name for name in names if (name.match(pattern) if pattern else _is_data(name))]
    return [f"{folder.rstrip('/')}/{name}" for name in chosen]


def _is_data(name: PurePath) -> bool:
    is_hidden = any(part.startswith((".", "_")) for part in name.parts)
    is_table = guess_format(str(name)) is not FileFormat.TEXT
    return not is_hidden and (is_table or name.name.endswith(_TEXT_ENDINGS))
