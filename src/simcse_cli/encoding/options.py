"""What users choose about `encode`."""

from dataclasses import dataclass
from pathlib import Path

from simcse_cli.config import ModelOptions
from simcse_cli.settings import setting


@dataclass(frozen=True)
class EncodeOptions(ModelOptions):
    """The model, what is done to its vectors, and how they are written."""

    column: str | None = setting(
        None, "Column of a table (with --pairs two, as A,B); default: the usual names."
    )
    pairs: bool = setting(False, "Rows are pairs: write them with their cosines.", "--pairs")
    normalize: bool = setting(False, "Scale vectors to length 1.", "--normalize")
    dtype: str = setting("float32", "float32, float16, int8 (cosine kept), binary (signs).")
    postprocess: Path | None = setting(
        None, "Saved post-processor to apply (`simcse eval sts --save-postprocess`)."
    )
    max_length: int | None = setting(None, "Cut sentences after so many sub-words.", min=3)
    index: Path | None = setting(None, "Also write a search index, for `simcse analyze retrieval`.")
    resume: bool = setting(False, "Continue an interrupted run.", "--resume")
    force: bool = setting(False, "Overwrite existing outputs.", "--force")
