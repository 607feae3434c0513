"""What a user says about a table, as the readers take it."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from simcse_cli.data.template import Template
from simcse_cli.errors import UsageError
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.tables import TableOptions

_SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}


class Told:
    """Shows the lines about what was read, each once; a copy in another process shows nothing."""

    def __init__(self, progress: Progress = SILENT) -> None:
        self._progress = progress
        self._lines = set[str]()

    def __reduce__(self) -> tuple[type["Told"], tuple[()]]:
        return Told, ()

    def info(self, line: str) -> None:
        self._once(line, self._progress.info)

    def detail(self, line: str) -> None:
        self._once(line, self._progress.detail)

    def _once(self, line: str, show: Callable[[str], None]) -> None:
        if line not in self._lines:
            self._lines.add(line)
            show(line)


@dataclass(frozen=True)
class Given:
    """What the user says about the tables of a command; the content decides the rest.

    Attributes:
        columns: names or numbers of columns by role; ``text``, ``anchor``, ``left``, ``label``, ...
        header: whether row 1 is a header; None if the user does not say.
        sheet: the sheet to read of a workbook; None if the user does not say.
        keep_labels: the labels whose rows are kept; empty to keep all rows that are pairs.
        roles: the roles that ``option`` takes in this command.
        option: the option that names the columns.
        template: how each text is made of several columns; None if it is the text of one column.
        beside: columns that are read for something else than texts, such as ids; None stands for
            one that the user did not name.
        joins_titles: whether each text begins with its title in a table with the columns of BEIR.
        never_asks: whether an open question is only reported, as in lint.
        told: shows what was read.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    header: bool | None = None
    separator: str | None = None
    sheet: str | None = None
    encoding: str = "utf-8"
    keep_labels: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    option: str = "--columns"
    template: Template | None = None
    beside: tuple[str | None, ...] = ()
    joins_titles: bool = False
    never_asks: bool = False
    told: Told = field(default_factory=Told, compare=False)

    @classmethod
    def of(
        cls,
        options: TableOptions,
        columns: Mapping[str, str] | None = None,
        *,
        roles: Sequence[str] = (),
        progress: Progress = SILENT,
    ) -> "Given":
        """Return what the options of a command and its parsed columns say about its tables.

        ``columns`` are those that the user named, by role; ``roles`` are those that may be named.
        """
        separator = options.separator
        if separator is not None:
            separator = _SEPARATORS.get(separator, separator)
        return cls(
            columns=columns or {},
            header=options.header,
            separator=separator,
            sheet=options.sheet,
            encoding=options.encoding,
            keep_labels=tuple(options.keep_label or ()),
            roles=tuple(roles),
            told=Told(progress),
        )

    def of_file(self, option: str) -> "Given":
        """Return the same choices without columns, for a file of texts that ``option`` takes."""
        return replace(self, columns={}, roles=(), option=option, template=None, keep_labels=())

    def of_texts(self, column: str | None, text: str | None = None, *beside: str | None) -> "Given":
        """Return a copy that takes the texts from one column, or makes them by a template.

        ``column`` is ``NAME``, ``text=NAME`` or ``anchor=NAME``. ``text`` is the template, which
        may name several columns. ``beside`` are columns that are read for something else, such as
        ids; None stands for one that the user did not name.
        """
        if self.keep_labels:
            raise UsageError("has no use for single texts, only for pairs", option="--keep-label")
        given = replace(self, roles=("text",), beside=beside)
        if text is not None:
            return replace(given, option="--text", template=Template.parse(text))
        columns = {}
        if column is not None:
            # The name of a column may itself hold an equals sign.
            role, sign, name = column.partition("=")
            columns["text"] = name if sign and role in ("text", "anchor") else column
        return replace(given, columns=columns, option="--column")

    @property
    def wants_table(self) -> bool:
        """Tell whether the user's options speak of cells: lines of plain text have none."""
        if self.columns or self.template is not None:
            return True
        return self.header is not None or self.separator is not None


NOTHING_GIVEN = Given()


def parse_columns(
    text: str | None, roles: Sequence[str], option: str = "--columns"
) -> dict[str, str]:
    """Parse ``anchor=Question,positive=Answer``, or ``Question,Answer`` in the order of the roles.

    None gives no columns.
    """
    if text is None:
        return {}

    # The text is a line of CSV, so that a quoted name may hold a comma.
    try:
        cells = next(csv.reader([text]), [])
    except csv.Error:  # a line end without quotes
        raise UsageError(f"{text!r} is no list of columns", option=option) from None
    parts = list(map(str.strip, cells))
    # Names without roles get the roles in their order; there may be fewer names than roles.
    if "=" not in "".join(parts) and len(parts) <= len(roles):
        parts = [f"{role}={name}" for role, name in zip(roles, parts, strict=False)]

    columns: dict[str, str] = {}
    for part in parts:
        role, _, name = (piece.strip() for piece in part.partition("="))
        if role in columns:
            raise UsageError(f"{role} is named twice in {text!r}", option=option)
        if role not in roles or not name:
            what = "need " + ",".join(f"{known_role}=NAME" for known_role in roles)
            if near := get_close_matches(role, roles, n=1):
                what = f"did you mean {near[0]}={name or 'NAME'}?"
            raise UsageError(f"{part!r}; {what}", option=option)
        columns[role] = name
    return columns
