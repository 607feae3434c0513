"""The options of ``simcse encode``; a module with few imports, so that ``--help`` is fast."""

from dataclasses import dataclass
from pathlib import Path

from simcse_cli.settings.choices import Engine, TextPer, VectorType
from simcse_cli.settings.config import ModelOptions
from simcse_cli.settings.declare import ALL, setting
from simcse_cli.settings.tables import TEXT_PER_HELP, TextOptions

_VECTOR_OPTIONS = (
    "index",
    "resume",
    "shard",
    "engine",
    "workers",
    "dtype",
    "update",
    "normalize",
    "text_per",
    "text",
)
# The condition that vectors are written to a file, with what to say if they are not.
_TO_A_FILE = {"output!=-": "which prints plain numbers: give a file"}


@dataclass(frozen=True)
class EncodeOptions(ModelOptions, TextOptions):
    output: str | None = setting(
        None,
        "Vectors: .npy, .npz, .safetensors, .parquet or .jsonl; a folder of parquet parts; - "
        "prints JSONL.",
        "--output",
        "-o",
        metavar="FILE",
    )
    column: str | None = setting(
        None,
        "Column of a table (with --pairs two, as A,B); default: the usual names.",
        "--column",
        "--columns",
        recorded=True,
    )
    text_per: TextPer | None = setting(
        None,
        TEXT_PER_HELP,
        recorded=True,
        unsaid=(None, TextPer.LINE),
    )
    pairs: bool = setting(
        False,
        "Rows are pairs: write them with their cosines.",
        "--pairs",
        excludes=_VECTOR_OPTIONS,
        because="which writes no vectors",
    )
    normalize: bool = setting(False, "Scale vectors to length 1.", "--normalize", recorded=True)
    dtype: VectorType = setting(
        VectorType.FLOAT32,
        "float32, float16, int8 (cosine kept), binary (signs).",
        needs=_TO_A_FILE,
    )
    postprocess: Path | None = setting(
        None,
        "Saved post-processor to apply (`simcse eval sts --save-postprocess`).",
        recorded=True,
        unsaid=(None,),
        is_input=True,
    )
    max_length: int | None = setting(
        None, "Cut sentences after this many sub-words.", min=3, recorded=True
    )
    index: Path | None = setting(
        None,
        "Also write a search index, for `simcse analyze search`; FILE.faiss is one for FAISS too. "
        "--update keeps it in step.",
        needs=_TO_A_FILE,
        excludes=("postprocess",),
        because="whose queries would not be post-processed",
    )
    id_column: str | None = setting(
        None,
        "Input column of ids, which must differ: `id` in parquet and JSONL, else in "
        "OUTPUT.ids.jsonl; default in a folder: the row number. With --pairs, a first column `id`, "
        "whose ids may repeat.",
        recorded=True,
        unsaid=(None,),
    )
    update: bool = setting(
        False,
        "Encode only rows that are new in OUTPUT or have another text there, by id; keep the "
        "others.",
        "--update",
        needs="id_column",
        excludes=("shard", "engine", "workers"),
        because="which updates one file",
    )
    drop_gone: bool = setting(
        False, "Drop rows whose id the input has no more.", "--drop-gone", needs="update"
    )
    shard: str | None = setting(
        None,
        "Encode only part I of N (from 1) into OUTPUT.shard-I-of-N; --merge joins the parts.",
        metavar="I/N",
        needs={"engine!=ray": "which cuts the input itself"},
    )
    merge: Path | None = setting(
        None,
        "Join the shards of this output, or the parts in the folder INPUT, without encoding.",
        excludes=ALL,
        because="which encodes nothing",
    )
    engine: Engine = setting(
        Engine.LOCAL, "This process, or the workers of a Ray cluster (extra `ray`)."
    )
    workers: int | None = setting(
        None,
        "Workers on Ray; default: one per GPU, else as many as the cores allow.",
        min=1,
        needs="engine=ray",
    )
    resume: bool = setting(False, "Continue an interrupted run.", "--resume", needs=_TO_A_FILE)
    force: bool = setting(False, "Overwrite existing outputs.", "--force")
