"""The options of an evaluation; a module with few imports, so that ``--help`` is fast."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simcse_cli.settings.choices import Aggregation, Metric, Probe, StsProtocol, TransferProtocol
from simcse_cli.settings.config import (
    COLUMNS_HELP,
    COLUMNS_METAVAR,
    DATA_VARIABLE,
    LoadOptions,
    ModelOptions,
)
from simcse_cli.settings.declare import SEED_RANGE, columns_setting, setting, settings_of
from simcse_cli.settings.tables import TableOptions

POSTPROCESS_GROUP = "Post-processing"
_postprocess = partial(setting, group=POSTPROCESS_GROUP)
_words = partial(setting, group="Word vectors")
_vectors = partial(setting, group="Vectors from elsewhere")
POSTPROCESS_HELP = (
    "whitening[:DIMENSIONS], flow[:EPOCHS], all-but-the-top[:DIRECTIONS] or sif[:DIRECTIONS], "
    "each with --fit; or a saved file."
)
_CHECKPOINTS_HELP = "Score every checkpoint kept in the run folder --model, and mark the best."
_CACHE_VARIABLE = "SIMCSE_CACHE"
# Options that have no use with word vectors or vectors from elsewhere.
_OF_MODELS = tuple(name for name in settings_of(LoadOptions) if name != "device")
# Options that have no use with several checkpoints.
_OF_ONE_MODEL = (
    "vectors",
    "embeddings",
    "postprocess",
    "save_postprocess",
    "ci",
    "save_scores",
    "write_sentences",
)
_DATA_HELP = "SentEval folder (the one that holds `downstream/`)"


@dataclass(frozen=True)
class FitOptions:
    fit: str | None = _postprocess(
        None,
        "Texts to fit on, without their labels: NLI pairs below --data-dir, the scored STS "
        "task, or the sentences or pairs of a file.",
        metavar="nli|target|FILE",
        needs="postprocess",
    )
    fit_sample: int | None = _postprocess(
        None, "Fit on this many sentences or pairs, drawn at random.", min=2, needs="postprocess"
    )
    fit_seed: int = _postprocess(
        42, "Seed of the draw and of the flow.", needs="postprocess", **SEED_RANGE
    )


@dataclass(frozen=True)
class EncoderOptions(ModelOptions, FitOptions):
    vectors: Path | None = _words(
        None,
        "GloVe, word2vec or fastText text file: average its vectors instead of --model.",
        excludes=_OF_MODELS,
        because="which need no model",
        is_input=True,
    )
    sif_counts: Path | None = _words(
        None,
        "File of `word count` lines: weigh --vectors by SIF; see --postprocess sif.",
        needs="vectors",
        excludes=("bilstm",),
        is_input=True,
    )
    bilstm: Path | None = _words(
        None, "InferSent checkpoint to run over --vectors.", needs="vectors", is_input=True
    )
    embeddings: Path | None = _vectors(
        None,
        ".npy, .npz or .safetensors: row i is line i of --sentences.",
        needs="sentences",
        excludes=("vectors", *_OF_MODELS),
        because="which need no model",
        is_input=True,
    )
    sentences: Path | None = _vectors(
        None, "The sentences of --embeddings, one per line.", needs="embeddings", is_input=True
    )
    postprocess: str | None = _postprocess(None, POSTPROCESS_HELP, metavar="NAME[:N]|FILE")
    save_postprocess: Path | None = _postprocess(
        None,
        "Keep the fitted one (.safetensors) for `simcse encode --postprocess FILE`.",
        needs="postprocess",
    )

    @property
    def has_model(self) -> bool:
        """Whether the vectors are of ``model``, not word vectors or vectors from elsewhere."""
        return self.vectors is None and self.embeddings is None


@dataclass(frozen=True)
class SuiteOptions:
    tasks: str | None = setting(
        None, "Comma-separated task names, for example STS12,STSBenchmark.", completes="tasks"
    )
    ci: bool = setting(False, "Add 95% bootstrap confidence intervals.", "--ci")
    save_scores: Path | None = setting(
        None, "Write the prediction of every example here, as JSON lines."
    )
    checkpoints: bool = setting(False, _CHECKPOINTS_HELP, "--checkpoints", excludes=_OF_ONE_MODEL)


@dataclass(frozen=True)
class StsOptions(SuiteOptions, TableOptions):
    data_dir: Path | None = setting(
        None, f"{_DATA_HELP}; default: the generated demo corpus.", env=DATA_VARIABLE
    )
    protocol: StsProtocol = setting(
        StsProtocol.SIMCSE, "Setting of a paper (Table B.1); single flags below override it."
    )
    aggregation: Aggregation | None = setting(
        None, "How the subsets of a year become one score; default: the protocol's (all)."
    )
    metric: Metric | None = setting(
        None, "Correlation with the gold scores; default: the protocol's (spearman)."
    )
    regressor: bool | None = setting(
        None,
        "Train a regressor on STS-B and SICK-R, as SentEval does.",
        "--regressor/--no-regressor",
    )
    split: str = setting("test", "test, dev, train or all (the last three: STS-B and SICK-R only).")
    pair_file: list[Path] | None = setting(
        None,
        "Score your own scored pairs, a table or a file of SentEval; repeat for more. --tasks "
        "adds tasks.",
        is_input=True,
    )
    columns: str | None = columns_setting(COLUMNS_HELP, COLUMNS_METAVAR, needs="pair_file")
    cache_dir: Path | None = setting(
        None,
        "With --checkpoints: where finished ones are kept; default: simcse in the user's "
        "cache folder.",
        env=_CACHE_VARIABLE,
        needs="cache",
    )
    cache: bool = setting(
        True, "With --checkpoints: keep and reuse finished ones.", "--cache/--no-cache"
    )
    write_sentences: Path | None = setting(
        None,
        "Only write the sentences of the tasks, one per line, to encode them elsewhere.",
        excludes=(
            "ci",
            "save_scores",
            "protocol",
            "metric",
            "aggregation",
            "regressor",
            "output",
            "fmt",
        ),
        because="which scores nothing",
    )


@dataclass(frozen=True)
class TransferOptions(SuiteOptions, TableOptions):
    data_dir: Path | None = setting(
        None, f"{_DATA_HELP}; needed unless only --task-file is scored.", env=DATA_VARIABLE
    )
    protocol: TransferProtocol = setting(
        TransferProtocol.DEFAULT,
        "default: 10 folds, Adam; fast: 5 folds, RMSprop (the paper's dev mode).",
    )
    task_file: list[Path] | None = setting(
        None,
        "Classify your own labelled texts or pairs of texts, a table; repeat for more. "
        "--tasks adds tasks.",
        is_input=True,
    )
    columns: str | None = columns_setting(
        "Names of the columns of --task-file, if they are not recognised.",
        "text=A,label=B",
        needs="task_file",
    )
    probe: Probe = setting(
        Probe.SENTEVAL, "senteval: the original classifier; sklearn: LogisticRegressionCV."
    )
    cache_dir: Path | None = setting(
        None,
        "Where vectors and finished tasks are kept; default: simcse in the user's cache folder.",
        env=_CACHE_VARIABLE,
        needs="cache",
    )
    cache: bool = setting(True, "Keep and reuse vectors and finished tasks.", "--cache/--no-cache")


@dataclass(frozen=True)
class MtebOptions:
    tasks: str | None = setting(
        None, "Comma-separated mteb tasks, for example STS12,SICK-R; default: all of --benchmark."
    )
    benchmark: str | None = setting(
        None, 'Benchmark of mteb; default: "MTEB(eng, v1)", the 56 datasets of the papers.'
    )
    category: str | None = setting(
        None, "Only these categories, comma-separated, for example STS,Classification."
    )
    data_dir: Path | None = setting(
        None,
        "Look here first: folders of datasets as downloaded from the Hub, or a SentEval folder.",
        env=DATA_VARIABLE,
    )
    results_dir: Path | None = setting(
        None,
        "Folder of mteb results; finished tasks are taken from it. Default: in the user's cache.",
    )
    rerun: bool = setting(False, "Run finished tasks again.", "--rerun")
    checkpoints: bool = setting(False, _CHECKPOINTS_HELP, "--checkpoints", excludes=_OF_ONE_MODEL)
