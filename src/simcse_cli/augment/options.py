from dataclasses import dataclass
from pathlib import Path

from simcse_cli.settings.choices import Sides, TextUnit
from simcse_cli.settings.config import DEVICE_FORM, DEVICE_HELP, REVISION_HELP, pinned
from simcse_cli.settings.declare import setting
from simcse_cli.settings.tables import TableOptions


@dataclass(frozen=True)
class AugmentOptions(TableOptions):
    method: str = setting(
        ...,
        "Change of each sentence: crop, delete, delete-one, synonym, mlm, shuffle, eda, "
        "repeat-words, mask-span, crop-prefix-chars, negate or FILE.py:FUNCTION; several in turn "
        "as crop:0.1+mlm:0.15.",
        metavar="METHOD[:RATE][+...]",
    )
    output: Path | None = setting(
        None,
        "Pairs, or triplets of negate: .csv, .tsv or .jsonl (.gz); - is stdout.",
        "--output",
        "-o",
    )
    rate: float | None = setting(
        None,
        "Fraction of the words, above 0; default 0.1, mlm 0.15, repeat-words 0.32, synonym "
        "one word. mask-span: number of characters, 5.",
    )
    sides: Sides = setting(Sides.ONE, "Augment the positive, or the anchor too.")
    copies: int = setting(1, "Rows per sentence.", min=1)
    unit: TextUnit = setting(TextUnit.WORD, "Unit to drop or move; char for text without spaces.")
    column: str | None = setting(
        None, "Column of a table that holds the sentences.", "--column", "--columns"
    )
    wordnet_dir: Path | None = setting(
        None,
        "WordNet files for synonym and eda.",
        env="SIMCSE_WORDNET",
        needs="method~synonym|method~eda",
    )
    model: str | None = setting(
        None,
        "mlm: masked-LM to fill with. shuffle: move its sub-words, not words.",
        "--model",
        "-m",
    )
    revision: str | None = setting(None, REVISION_HELP)
    device: str = setting(
        "auto",
        DEVICE_HELP,
        env="SIMCSE_DEVICE",
        metavar="DEVICE",
        form=DEVICE_FORM,
        needs={"method~mlm": "the only one that runs a model"},
    )
    workers: int | None = setting(
        None,
        "Processes; default: all cores.",
        min=1,
        needs={"method!~mlm": "which computes on all cores in one process"},
    )
    preview: int = setting(0, "Show what changes in the first N sentences.", min=0)
    seed: int = setting(42, "Seed of everything random.", env="SIMCSE_SEED")
    force: bool = setting(False, "Overwrite existing outputs.")

    @property
    def pinned_model(self) -> str | None:
        return None if self.model is None else pinned(self.model, self.revision)
