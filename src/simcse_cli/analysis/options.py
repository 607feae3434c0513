"""The options of analyses; a module with few imports, so that ``--help`` is fast."""

from dataclasses import dataclass
from pathlib import Path

from simcse_cli.evaluation.options import POSTPROCESS_GROUP, POSTPROCESS_HELP, FitOptions
from simcse_cli.settings.choices import GroupMethod, SearchBackend
from simcse_cli.settings.config import (
    COLUMNS_HELP,
    COLUMNS_METAVAR,
    DATA_VARIABLE,
    MODEL_HELP,
    LoadOptions,
    ModelOptions,
)
from simcse_cli.settings.declare import columns_setting, setting
from simcse_cli.settings.tables import TableOptions, TextOptions

_MODELS_HELP = MODEL_HELP + " Repeat to compare."


@dataclass(frozen=True)
class SpaceOptions(LoadOptions, FitOptions, TableOptions):
    """The embedding spaces to measure, and the rated pairs to measure them on."""

    model: list[str] | None = setting(
        None, _MODELS_HELP, "--model", "-m", env="SIMCSE_MODEL", group="Model", completes="model"
    )
    data_dir: Path | None = setting(
        None, "SentEval folder with STS-B, and with NLI pairs for --fit nli.", env=DATA_VARIABLE
    )
    pair_file: Path | None = setting(
        None,
        "Your own scored pairs instead, a table or a file of SentEval such as sts-dev.csv.",
        is_input=True,
    )
    columns: str | None = columns_setting(COLUMNS_HELP, COLUMNS_METAVAR, needs="pair_file")
    embeddings: list[Path] | None = setting(
        None,
        "Vectors computed elsewhere (.npy, .npz, .safetensors); needs --sentences.",
        is_input=True,
    )
    sentences: Path | None = setting(
        None,
        "Text file whose line i is the sentence of row i of --embeddings.",
        needs="embeddings",
        is_input=True,
    )
    split: str = setting("all", "Part of STS-B: train, dev, test or all.")
    postprocess: list[str] | None = setting(
        None,
        POSTPROCESS_HELP
        + " One for all models, or one per model in the same order; none leaves the vectors as "
        "they are.",
        group=POSTPROCESS_GROUP,
        metavar="NAME[:N]|FILE|none",
    )
    # `encode_pairs` reads it for every analysis, but only `analyze geometry` makes it an option.
    scores: list[Path] | None = None


@dataclass(frozen=True)
class GeometryOptions(SpaceOptions):
    scores: list[Path] | None = setting(
        None,
        "Results of `simcse eval sts`: colour by the average of the seven tasks, if all "
        "models have one.",
    )


@dataclass(frozen=True)
class SpectrumOptions(SpaceOptions):
    """The options that are declared here are keyword arguments of ``spectrum_analysis``."""

    raw: bool = setting(False, "Leave the vectors' lengths as they are.")
    center: bool = setting(False, "Subtract the mean vector first.")


@dataclass(frozen=True)
class RetrievalOptions(LoadOptions, TextOptions):
    model: list[str] | None = setting(
        None, _MODELS_HELP, "--model", "-m", env="SIMCSE_MODEL", group="Model", completes="model"
    )
    corpus: str | None = setting(
        None, "Sentences to search: text, table, or - for stdin.", is_input=True
    )
    column: str | None = setting(
        None, "Column of sentences, in corpus and queries.", "--column", "--columns"
    )
    id_column: str | None = setting(
        None, "Column with the id of each row; default: `id` or `_id`.", metavar="COLUMN"
    )
    corpus_prompt: str | None = setting(
        None,
        "Prompt for the corpus (--prompt is for queries); default: the model's prompt for "
        "documents.",
        metavar="TEXT|NAME",
    )
    query: list[str] | None = setting(None, "A query; repeat for more.")
    queries: Path | None = setting(None, "File of queries, one per line or row.", is_input=True)
    sample: int = setting(0, "Draw this many queries from the corpus.", min=0)
    interactive: bool = setting(False, "Ask for queries, one by one.", "--interactive", "-i")
    top_k: int = setting(3, "Sentences shown for each query.", "--top-k", "-k", min=1)
    show_n: int | None = setting(
        None, "Queries to show; default: all, or none with --qrels.", "--show", min=0
    )
    qrels: Path | None = setting(
        None,
        "Relevance: group<TAB>sentence, BEIR or TREC file; adds recall@k and MRR.",
        is_input=True,
    )
    at: str = setting("1,5,10", "Ranks at which --qrels scores are shown.", needs="qrels")
    keep_identical: bool = setting(False, "Count sentences equal to the query as results.")
    embeddings: list[Path] | None = setting(
        None,
        "Vectors of the corpus, row by row, one file per model.",
        excludes=("corpus_prompt",),
        because="which are encoded already",
        is_input=True,
    )
    index: list[Path] | None = setting(
        None,
        "Search this saved index; its model encodes the queries.",
        excludes=(
            "backend",
            "faiss_factory",
            "corpus_prompt",
            "truncate_dim",
            "long",
            "embeddings",
        ),
        because="which was built already",
    )
    save_index: Path | None = setting(None, "Save the index, for --index.")
    backend: SearchBackend = setting(SearchBackend.EXACT, "How to search.")
    faiss_factory: str = setting("HNSW32", "Kind of FAISS index.", needs="backend=faiss")
    seed: int = setting(42, "Seed of everything random.", env="SIMCSE_SEED")


@dataclass(frozen=True)
class GroupOptions(ModelOptions, TextOptions):
    k: int | None = setting(
        None,
        "Number of groups.",
        min=2,
        excludes=("threshold",),
        because="which is the number of groups",
    )
    threshold: float | None = setting(
        None, "Join groups whose texts have this mean cosine.", min=-1.0, max=1.0
    )
    by: GroupMethod | None = setting(
        None, "How to group; default: kmeans with --k, agglomerative with --threshold."
    )
    id_column: str | None = setting(None, "Column with the id of each row.", metavar="COLUMN")
    labels: str | None = setting(
        None, "Column with known classes: adds V-measure and ARI.", metavar="COLUMN"
    )
    n_typical: int = setting(3, "Typical texts shown of each group.", "--typical", min=1)
    n_words: int = setting(5, "Telling words shown of each group.", "--words", min=1)
    seed: int = setting(42, "Seed of everything random.", env="SIMCSE_SEED")


@dataclass(frozen=True)
class OverlapOptions(TableOptions):
    columns: str | None = columns_setting(
        "The two columns to compare, if they are not recognised.", "left=A,right=B"
    )
    distinct: bool = setting(False, "Count each distinct word once.")


@dataclass(frozen=True)
class TraceOptions:
    model: list[str] | None = setting(
        None, "Run folder; the same as naming it as an argument.", "--model", "-m"
    )
    first: int = setting(100, "Last step of the panel that shows the beginning.", min=1)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(LoadOptions, TableOptions):
    output: Path = setting(..., "Page to write (.html).", "--output", "-o")
    baseline: str | None = setting(
        None,
        "Run or model to compare with; default: the model that training started from.",
        completes="run",
    )
    against: list[str] | None = setting(
        None,
        "Published table beside the scores; default: Table 5 of SimCSE if there are STS "
        "scores. Repeatable.",
        completes="table",
    )
    row: list[str] | None = setting(
        None, "Row of the table; default: those of the run's kind. Repeatable."
    )
    group: str | None = setting(None, "Group of the row, if its name occurs twice.")
    data_dir: Path | None = setting(
        None,
        "SentEval folder; its STS-B shows the space, which takes minutes on a CPU. Without it "
        "there are no vectors.",
        env=DATA_VARIABLE,
    )
    pair_file: Path | None = setting(
        None,
        "Your own rated pairs, used instead: a table with two texts and a score.",
        is_input=True,
    )
    columns: str | None = columns_setting(COLUMNS_HELP, COLUMNS_METAVAR, needs="pair_file")
    queries: int = setting(5, "Sentences whose neighbours are shown.", min=0)
    force: bool = setting(False, "Overwrite existing outputs.")


@dataclass(frozen=True)
class ViewOptions:
    label: list[str] | None = setting(
        None, "Name in tables and figures; repeat, in the order of the models or files."
    )
    plot: Path | None = setting(
        None,
        "Draw the figure to this file: .png, .svg or .pdf.",
        form=(r"(?is).*\.(png|svg|pdf)", "a name that ends in .png, .svg or .pdf"),
    )
    html: Path | None = setting(None, "Write one self-contained page with all figures and tables.")
    terminal_plot: bool | None = setting(
        None,
        "Small plot under the table; default: on a terminal.",
        "--terminal-plot/--no-terminal-plot",
    )
