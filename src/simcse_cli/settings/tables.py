"""The options by which a user describes a table if its content does not say enough.

This module imports nothing heavy, to keep ``--help`` fast.
"""

from dataclasses import dataclass
from functools import partial

from simcse_cli.errors import UsageError
from simcse_cli.settings.declare import setting

TEMPLATE_HELP = (
    "Make each text of several columns, as in '{subject} {body}'; an empty cell is left out."
)
TEXT_PER_HELP = "Whether each line or each file is one text; required if a file has blank lines."

_table = partial(setting, group="Tables", recorded=True, unsaid=(None,))


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of every command that reads tables."""

    header: bool | None = _table(
        None,
        "Take row 1 of a table as its header, or as data; default: as it looks.",
        "--header/--no-header",
    )
    separator: str | None = _table(
        None,
        "What separates the cells, such as ';', '||' or tab; default: what fits the rows.",
        metavar="SEP",
    )
    sheet: str | None = _table(
        None, "Sheet of a workbook; default: the first one that is visible.", metavar="NAME"
    )
    encoding: str = _table("utf-8", "Encoding of text inputs.", metavar="NAME", unsaid=("utf-8",))
    keep_label: list[str] | None = _table(
        None,
        "Of labelled pairs, keep the rows with this label as pairs; repeat for more.",
        metavar="VALUE",
    )

    def __post_init__(self) -> None:
        try:
            "a".encode(self.encoding)
        except (LookupError, ValueError):  # an unknown encoding, or one for bytes instead of text
            what = (
                f"unknown encoding {self.encoding!r}; for example utf-8, latin-1, cp1252, gb18030"
            )
            raise UsageError(what, option="--encoding") from None
        if self.separator is not None and not self.separator.strip("\r\n"):
            raise UsageError(
                "need at least one character, which is no line end", option="--separator"
            )


@dataclass(frozen=True, kw_only=True)
class TextOptions(TableOptions):
    """The options of commands that read single texts."""

    column: str | None = setting(
        None, "Column of a table that holds the text.", "--column", "--columns"
    )
    text: str | None = _table(
        None,
        TEMPLATE_HELP,
        metavar="TEMPLATE",
        excludes=("column",),
        because="which names the columns itself",
    )
