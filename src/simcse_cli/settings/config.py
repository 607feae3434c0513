"""The settings of training and models, with their defaults."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from simcse_cli.errors import ConfigError
from simcse_cli.settings.choices import (
    Attention,
    Batches,
    Device,
    DevSuite,
    DropoutMode,
    Gather,
    HeadUse,
    LongTexts,
    LoraSave,
    Metric,
    ObjectiveName,
    OptimizerName,
    Pooler,
    Precision,
    Schedule,
    Similarity,
    Tracker,
)
from simcse_cli.settings.declare import SEED_RANGE, check_ranges, flag, setting

DATA_VARIABLE = "SIMCSE_DATA"
MODEL_HELP = (
    "Run folder, Hugging Face or sentence-transformers folder, Hub name, or alias "
    "(minilm, bert-base, roberta-base, unsup-simcse, sup-simcse, ...)."
)
REVISION_HELP = "Branch, tag or commit of a Hub model; for one of several, use NAME@REVISION."
COLUMNS_HELP = "Names of the columns of --pair-file, if they are not recognised."
COLUMNS_METAVAR = "left=A,right=B,score=C"
_MODEL, _DATA, _METHOD, _OPTIMISER, _RUN = "Model", "Data and model", "Method", "Optimisation", "Run"


def pinned(model: str, revision: str | None) -> str:
    """Return ``MODEL@REVISION``, the name under which a model is opened and recorded."""
    return model if revision is None else f"{model}@{revision}"


@dataclass(frozen=True)
class LoadOptions:
    pooler: Pooler | None = setting(
        None, "How token states become a vector; default: the model's recorded pooler.", group=_MODEL
    )
    force_pooler: bool = setting(
        False, "Use --pooler even if the model records another or lacks its weights.", group=_MODEL
    )
    device: Device = setting(Device.AUTO, "Where to compute.", env="SIMCSE_DEVICE", group=_MODEL)
    precision: Precision = setting(
        Precision.FP32,
        "Arithmetic of the encoder; auto picks the fastest.",
        env="SIMCSE_PRECISION",
        group=_MODEL,
    )
    batch_tokens: int | None = setting(
        None, "Tokens per forward pass; default: tuned to the machine.", min=16, group=_MODEL
    )
    prompt: str | None = setting(
        None,
        "Text to put before every sentence, or the name of one of the model's prompts.",
        metavar="TEXT|NAME",
    )
    truncate_dim: int | None = setting(None, "Keep only the first components of vectors.", min=1)
    long: LongTexts = setting(
        LongTexts.CUT, "Texts longer than the model reads: cut them, or average their windows."
    )
    revision: str | None = setting(None, REVISION_HELP, group=_MODEL)


@dataclass(frozen=True)
class _OneModel:
    model: str = setting(
        "minilm", MODEL_HELP, "--model", "-m", env="SIMCSE_MODEL", group=_MODEL, completes="model"
    )


@dataclass(frozen=True)
class ModelOptions(LoadOptions, _OneModel):  # the last base's fields come first
    """Options for one model and for loading and running it."""


@dataclass(frozen=True)
class TrainConfig:
    objective: ObjectiveName = setting(
        ObjectiveName.SIMCSE_UNSUP, "Any training objective by name.", group=_METHOD, main=True
    )
    train_file: list[str] | None = setting(
        None,
        "Training file, hf://OWNER/NAME or - for stdin; repeat it for several files, with passes per epoch if "
        "wanted (a.csv:2). Default: the generated corpus.",
        metavar="FILE[:WEIGHT]",
        group=_DATA,
        main=True,
    )
    columns: str | None = setting(
        None,
        "Names of columns that are not recognised: anchor, positive, hard_negative (label) of "
        "--train-file; left, right, score of --dev-file.",
        "--columns",
        "--column",
        metavar="anchor=A,positive=B",
        group=_DATA,
    )
    dev_file: str | None = setting(
        None,
        "Scored pairs that choose the best model; with another --dev-suite, for alignment and uniformity only.",
        group=_DATA,
        main=True,
    )
    dev_suite: DevSuite = setting(
        DevSuite.FILE,
        "Evaluation that chooses the best model: the pairs of --dev-file, STS tasks, transfer tasks, or finding the "
        "relevant texts of --corpus.",
        group=_DATA,
    )
    corpus: str | None = setting(
        None, "Texts that --dev-suite retrieval searches, with ids (BEIR).", group=_DATA
    )
    queries: str | None = setting(None, "Queries of --dev-suite retrieval, with ids.", group=_DATA)
    qrels: str | None = setting(
        None, "Relevance of the texts to the queries: BEIR or TREC file.", group=_DATA
    )
    dev_split: float | None = setting(
        None,
        "Hold out this share of the rows and choose the best model on it: find the positives of the anchors, for "
        "scored pairs correlate, for --objective mlm predict masked tokens.",
        group=_DATA,
        above=0,
        max=0.5,
    )
    dev_tasks: str | None = setting(
        None,
        "Tasks of --dev-suite, such as STSBenchmark or MR,CR; default: all with dev data.",
        group=_DATA,
        completes="tasks",
    )
    data_dir: str | None = setting(None, "SentEval folder of --dev-suite; default: SIMCSE_DATA.", group=_DATA)
    model: str = setting("minilm", MODEL_HELP, "--model", "-m", group=_DATA, main=True, completes="model")
    revision: str | None = setting(None, REVISION_HELP, group=_DATA)
    max_length: int = setting(
        32, "Sub-words per sentence in training, including special ones.", group=_DATA, min=1
    )
    hard_negative_alpha: float = setting(
        1.0, "Weight of an anchor's own hard negative.", "--hard-neg-alpha", group=_METHOD, above=0
    )
    temperature: float | None = setting(
        None, "Divisor of similarities; default: 0.05 (cosine), 1 (dot).", group=_METHOD, above=0, main=True
    )
    similarity: Similarity = setting(Similarity.COSINE, "Similarity in the loss.", group=_METHOD)
    pooler: Pooler | None = setting(
        None,
        "Pooler to train; default: the model's recorded one, else cls, which adds a new head.",
        group=_METHOD,
        main=True,
    )
    head: HeadUse | None = setting(
        None,
        "Head after training: dropped (train-only, the default of unsup), kept, or never added.",
        group=_METHOD,
    )
    dropout: float | None = setting(
        None, "Every dropout probability of the encoder; default: the model's own.", group=_METHOD
    )
    dropout_mode: DropoutMode = setting(
        DropoutMode.INDEPENDENT, "Dropout masks of the two views.", group=_METHOD
    )
    whole_words: bool = setting(False, "Mask whole words, not sub-words (--objective mlm).", group=_METHOD)
    augment: str | None = setting(
        None,
        "Augment positives on the fly: METHOD[:RATE[:MODEL or WORDNET_DIR]], such as crop:0.1+mlm:0.15:bert-base.",
        group=_METHOD,
    )
    gather: Gather = setting(
        Gather.TRUE, "Gradient of gathered negatives: true, or original (1/W).", group=_METHOD
    )
    lora: int | None = setting(
        None,
        "Train LoRA adapters of this rank in all linear layers and freeze the rest; wants about ten times the --lr.",
        metavar="RANK",
        group=_METHOD,
        min=1,
    )
    lora_alpha: float = setting(16.0, "Scale of the adapters: alpha / rank.", group=_METHOD, above=0)
    lora_save: LoraSave = setting(
        LoraSave.MERGED, "Save the whole model, or the adapter and the name of its base model.", group=_METHOD
    )
    options: dict[str, Any] = setting(dict, "Options of the objective.", "--set", hidden=True)
    batch_size: int = setting(64, "Examples per process and step.", group=_OPTIMISER, min=1, main=True)
    batches: Batches | None = setting(
        None,
        "Rows of a batch: as shuffled, or without any text twice, which would be its own negative; default: the "
        "latter where more than 1% of the rows share a text.",
        group=_OPTIMISER,
    )
    micro_batch_size: int | None = setting(
        None, "Encode this many rows at a time and cache gradients (same gradient).", group=_OPTIMISER, min=1
    )
    lr: float = setting(3e-5, "Peak learning rate.", group=_OPTIMISER, above=0, main=True)
    epochs: float = setting(1.0, "Passes over the data.", group=_OPTIMISER, above=0, main=True)
    max_steps: int | None = setting(
        None, "Optimizer steps, instead of epochs.", group=_OPTIMISER, min=1, main=True
    )
    warmup: float = setting(0.0, "Share of the steps in which the rate rises.", group=_OPTIMISER)
    weight_decay: float = setting(0.0, "Decoupled weight decay.", group=_OPTIMISER)
    max_grad_norm: float = setting(1.0, "Maximum gradient norm; 0: no clipping.", group=_OPTIMISER, min=0)
    optimizer: OptimizerName = setting(OptimizerName.ADAMW, "Update rule.", group=_OPTIMISER)
    schedule: Schedule = setting(Schedule.LINEAR, "Learning rate after the warm-up.", group=_OPTIMISER)
    adam_eps: float = setting(1e-8, "Adam's epsilon.", hidden=True)
    bucket_batches: int = setting(1, "Sort by length within this many batches.", group=_OPTIMISER, min=1)
    eval_every: int = setting(125, "Steps between dev evaluations.", group=_RUN, min=1, main=True)
    save_every: int | None = setting(
        None, "Steps between resume states; default: as --eval-every.", group=_RUN, min=1
    )
    keep_checkpoints: int = setting(
        1, "Resume states to keep for `simcse eval --checkpoints`; 0: all.", group=_RUN
    )
    log_every: int = setting(10, "Steps between lines of metrics.jsonl.", group=_RUN, min=1)
    dev_metric: Metric = setting(
        Metric.SPEARMAN, "Correlation that chooses the best model; transfer uses accuracy.", group=_RUN
    )
    patience: int | None = setting(
        None, "Stop after this many evaluations without improvement.", group=_RUN, min=1
    )
    track: Tracker | None = setting(
        None,
        "Also log to a tracker; nothing leaves this machine unless the tracker's own variable allows it.",
        group=_RUN,
    )
    track_project: str | None = setting(None, "Project of the tracker [simcse].", group=_RUN)
    track_name: str | None = setting(
        None, "Name of the run in the tracker, or of a group of runs; default: the folder's.", group=_RUN
    )
    seed: int = setting(42, "Seed of everything random.", group=_RUN, main=True, **SEED_RANGE)
    device: Device = setting(Device.AUTO, "Where to compute.", group=_RUN)
    precision: Precision = setting(
        Precision.FP32,
        "Arithmetic of the encoder.",
        group=_RUN,
        metavar="|".join(each for each in Precision if each is not Precision.INT8),  # which is for inference
    )
    gradient_checkpointing: bool = setting(
        False,
        "Keep only layer inputs and recompute the rest: less memory, slower.",
        group=_RUN,
    )
    compile: bool = setting(
        False, "Compile the transformer with torch.compile (takes minutes, once per run).", group=_RUN
    )
    attention: Attention | None = setting(
        None,
        "How attention is computed (packed: without padding, on a GPU too); default: as transformers does.",
        group=_RUN,
    )

    def __post_init__(self) -> None:
        if isinstance(self.train_file, str):
            object.__setattr__(self, "train_file", [self.train_file])
        check_ranges(self)
        if self.max_length < 3:
            raise ConfigError(
                f"--max-length {self.max_length}: need at least 3 (two special tokens and a word)"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"--dropout {self.dropout}: need a probability in [0, 1)")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"--warmup {self.warmup}: need a share of the steps in [0, 1)")
        if self.keep_checkpoints < 0:
            raise ConfigError(f"--keep-checkpoints {self.keep_checkpoints}: need a number, or 0 for all")
        self._check_dev_settings()
        self._check_companions()

    def _check_dev_settings(self) -> None:
        is_retrieval, of_retrieval = self.dev_suite is DevSuite.RETRIEVAL, ("corpus", "queries", "qrels")
        senteval = ("sts", "transfer")
        for name in ("dev_tasks", "data_dir", *of_retrieval):
            suites = ("retrieval",) if name in of_retrieval else senteval
            if self.dev_suite not in suites and getattr(self, name) is not None:
                raise ConfigError(
                    f"{flag(TrainConfig, name)} {getattr(self, name)}: has no effect, the dev score comes from "
                    f"{'--dev-file' if self.dev_suite is DevSuite.FILE else f'--dev-suite {self.dev_suite}'}",
                    hint=f"add --dev-suite {' or --dev-suite '.join(suites)}, or leave it out",
                )
        missing = [flag(TrainConfig, name) for name in of_retrieval if getattr(self, name) is None]
        if is_retrieval and missing:
            raise ConfigError(
                f"--dev-suite retrieval: no {', '.join(missing)}",
                hint="give --corpus FILE --queries FILE --qrels FILE, or hold out own pairs: --dev-split 0.05",
            )
        scored_by = {DevSuite.TRANSFER: "accuracy", DevSuite.RETRIEVAL: "nDCG@10"}.get(self.dev_suite)
        if scored_by is not None and self.dev_metric is not Metric.SPEARMAN:
            raise ConfigError(
                f"--dev-metric {self.dev_metric}: --dev-suite {self.dev_suite} is scored by {scored_by}",
                hint="leave --dev-metric out, or use --dev-suite sts",
            )
        if self.dev_split is not None and (self.dev_file or self.dev_suite is not DevSuite.FILE):
            other = "--dev-file" if self.dev_file else f"--dev-suite {self.dev_suite}"
            raise ConfigError(
                f"--dev-split {self.dev_split:g}: {other} chooses the model", hint="leave one out"
            )

    def _check_companions(self) -> None:
        companions = {
            "lora": ("lora_alpha", "lora_save"),
            "track": ("track_project", "track_name"),
        }
        for main, others in companions.items():
            for name in others:
                value = getattr(self, name)
                if getattr(self, main) is None and value != getattr(TrainConfig, name):
                    needed = flag(TrainConfig, main)
                    raise ConfigError(
                        f"{flag(TrainConfig, name)} {value}: has no effect without {needed}",
                        hint=f"add {needed}, or leave it out",
                    )
        if self.track is Tracker.TENSORBOARD and (self.track_project or self.track_name):
            raise ConfigError(
                "--track tensorboard has no projects or names: it shows folders",
                hint="name a run by -o, and several runs by the folder that holds them",
            )

    @property
    def pinned_model(self) -> str:
        return pinned(self.model, self.revision)

    @property
    def has_dev_score(self) -> bool:
        """Whether anything scores the model during training; without it the last model is kept."""
        return bool(self.dev_file or self.dev_split) or self.dev_suite is not DevSuite.FILE

    @property
    def effective_temperature(self) -> float:
        """The temperature in use: 0.05 for cosine, 1 (none) for the dot product, unless given."""
        if self.temperature is not None:
            return self.temperature
        return 0.05 if self.similarity is Similarity.COSINE else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values for YAML and JSON."""
        values = {k: v.value if isinstance(v, StrEnum) else v for k, v in asdict(self).items()}
        if self.train_file is not None and len(self.train_file) == 1:
            values["train_file"] = self.train_file[0]
        return values
