"""The settings of a training run, and the settings by which commands load and run a model."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from simcse_cli.settings.choices import (
    Attention,
    Batches,
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
from simcse_cli.settings.declare import (
    SEED_RANGE,
    check_rules,
    check_values,
    setting,
    settings_of,
)
from simcse_cli.settings.tables import TEMPLATE_HELP, TableOptions

DATA_VARIABLE = "SIMCSE_DATA"
MODEL_HELP = (
    "Run folder, Hugging Face or sentence-transformers folder, Hub name, or alias "
    "(minilm, bert-base, roberta-base, unsup-simcse, sup-simcse, ...)."
)
REVISION_HELP = "Branch, tag or commit of a Hub model; for one of several, use NAME@REVISION."
COLUMNS_HELP = "Names of the columns of --pair-file, if they are not recognised."
COLUMNS_METAVAR = "left=A,right=B,score=C"
_model = partial(setting, group="Model")
_data = partial(setting, group="Data and model")
_method = partial(setting, group="Method")
_optimisation = partial(setting, group="Optimisation")
_run = partial(setting, group="Run")
# The conditions of the settings that name something in a tracker, with the reasons.
_NAMING_TRACKER = {"track": "", "track!=tensorboard": "which shows folders: name them by -o"}
DEVICE_FORM = (
    r"auto|cpu|cuda(:\d+)?|mps",
    "auto, cpu, cuda, cuda:N (the GPU of this number) or mps",
)
DEVICE_HELP = "Where to compute: auto, cpu, cuda, cuda:N or mps."


def pinned(model: str, revision: str | None) -> str:
    """Return the name of a model with its revision, ``NAME@REVISION``, if there is one."""
    if revision is None:
        return model
    return f"{model}@{revision}"


@dataclass(frozen=True)
class LoadOptions:
    pooler: Pooler | None = _model(
        None, "How token states become a vector; default: the model's recorded pooler."
    )
    template: str | None = _model(
        None,
        "Words around each sentence for --pooler mask, with {} and {mask}.",
        metavar="TEXT",
        needs="pooler=mask",
    )
    force_pooler: bool = _model(
        False, "Use --pooler even if the model records another or lacks its weights."
    )
    device: str = _model(
        "auto", DEVICE_HELP, env="SIMCSE_DEVICE", metavar="DEVICE", form=DEVICE_FORM
    )
    precision: Precision = _model(
        Precision.FP32, "Arithmetic of the encoder; auto picks the fastest.", env="SIMCSE_PRECISION"
    )
    batch_tokens: int | None = _model(
        None, "Tokens per forward pass; default: tuned to the machine.", min=16
    )
    prompt: str | None = setting(
        None,
        "Text to put before every sentence, or the name of one of the model's prompts.",
        metavar="TEXT|NAME",
    )
    truncate_dim: int | None = setting(None, "Keep only the first components of vectors.", min=1)
    long: LongTexts = setting(
        LongTexts.CUT,
        "Texts longer than the model reads: cut them, or average their windows.",
    )
    revision: str | None = _model(None, REVISION_HELP)


@dataclass(frozen=True)
class _OneModel:
    model: str = _model(
        "minilm", MODEL_HELP, "--model", "-m", env="SIMCSE_MODEL", completes="model"
    )


@dataclass(frozen=True)
class ModelOptions(LoadOptions, _OneModel):  # the last base's fields come first
    """Options for one model and for loading and running it."""


@dataclass(frozen=True)
class TrainConfig(TableOptions):
    # What is trained, and on which data.
    objective: str = _method(
        ObjectiveName.SIMCSE_UNSUP,
        "Any training objective by name, that of an installed package, or your own class in a "
        "file, FILE.py:CLASS.",
        metavar="|".join(ObjectiveName),
        completes="objective",
        main=True,
    )
    train_file: list[str] | None = _data(
        None,
        "Training file, hf://OWNER/NAME or - for stdin; repeat it for several files, with "
        "passes per epoch if wanted (a.csv:2). Default: the generated corpus.",
        metavar="FILE[:WEIGHT]",
        main=True,
        is_input=True,
    )
    columns: str | None = _data(
        None,
        "Names of columns that are not recognised: anchor, positive, hard_negative (label) of "
        "--train-file; left, right, score of --dev-file.",
        "--columns",
        "--column",
        metavar="anchor=A,positive=B",
    )
    text: str | None = _data(
        None,
        TEMPLATE_HELP,
        metavar="TEMPLATE",
        excludes=("columns",),
        because="which names the columns itself",
    )

    # What chooses the best model.
    dev_file: str | None = _data(
        None,
        "Scored pairs that choose the best model; with another --dev-suite, for alignment and "
        "uniformity only.",
        main=True,
        is_input=True,
    )
    dev_suite: DevSuite = _data(
        DevSuite.FILE,
        "Evaluation that chooses the best model: the pairs of --dev-file, STS tasks, transfer "
        "tasks, or finding the relevant texts of --corpus.",
    )
    corpus: str | None = _data(
        None,
        "Texts that --dev-suite retrieval searches, with ids (BEIR).",
        needs="dev_suite=retrieval",
    )
    queries: str | None = _data(
        None, "Queries of --dev-suite retrieval, with ids.", needs="dev_suite=retrieval"
    )
    qrels: str | None = _data(
        None,
        "Relevance of the texts to the queries: BEIR or TREC file.",
        needs="dev_suite=retrieval",
    )
    dev_split: float | None = _data(
        None,
        "Hold out this share of the rows and choose the best model on it: find the positives "
        "of the anchors, for scored pairs correlate, for --objective mlm predict masked "
        "tokens.",
        above=0,
        max=0.5,
        needs={"dev_suite=file": "since another suite chooses the model"},
        excludes=("dev_file",),
        because="which chooses the model",
    )
    dev_tasks: str | None = _data(
        None,
        "Tasks of --dev-suite, such as STSBenchmark or MR,CR; default: all with dev data.",
        completes="tasks",
        needs="dev_suite=sts|dev_suite=transfer",
    )
    data_dir: str | None = _data(
        None,
        "SentEval folder of --dev-suite; default: SIMCSE_DATA.",
        needs="dev_suite=sts|dev_suite=transfer",
    )

    # The encoder and its loss.
    model: str = _data("minilm", MODEL_HELP, "--model", "-m", main=True, completes="model")
    revision: str | None = _data(None, REVISION_HELP)
    max_length: int = _data(
        32, "Sub-words per sentence in training, including special ones.", min=3
    )
    hard_negative_alpha: float = _method(
        1.0, "Weight of an anchor's own hard negative.", "--hard-neg-alpha", above=0
    )
    temperature: float | None = _method(
        None, "Divisor of similarities; default: 0.05 (cosine), 1 (dot).", above=0, main=True
    )
    similarity: Similarity = _method(Similarity.COSINE, "Similarity in the loss.")
    pooler: Pooler | None = _method(
        None,
        "Pooler to train; default: the model's recorded one, else cls, which adds a new head.",
        main=True,
    )
    template: list[str] | None = _method(
        None,
        'Words around each sentence for --pooler mask, such as \'In one word, "{}" means '
        "{mask}.'; repeat it for the second view (promptbert, sncse).",
        metavar="TEXT",
    )
    head: HeadUse | None = _method(
        None,
        "Head after training: dropped (train-only, the default of unsup), kept, or never added.",
    )
    dropout: float | None = _method(
        None,
        "Every dropout probability of the encoder; default: the model's own.",
        min=0,
        below=1,
        needs="dropout_mode!=none",
    )
    dropout_mode: DropoutMode = _method(DropoutMode.INDEPENDENT, "Dropout masks of the two views.")
    whole_words: bool = _method(False, "Mask whole words, not sub-words (--objective mlm).")
    augment: str | None = _method(
        None,
        "Augment positives on the fly: METHOD[:RATE[:MODEL or WORDNET_DIR]], such as "
        "crop:0.1+mlm:0.15:bert-base.",
    )
    teacher: list[str] | None = _method(
        None,
        "Frozen model, or the vectors that `encode` wrote of the training file: for rankcse, "
        "distill, false negatives and guided training. Repeatable.",
        "--teacher",
        "--guide",
        metavar="MODEL[:WEIGHT]|FILE.npy",
    )
    generator: str | None = _method(
        None,
        "Frozen masked language model that edits sentences (--objective diffcse).",
        completes="model",
    )
    gather: Gather = _method(
        Gather.TRUE, "Gradient of gathered negatives: true, or original (1/W)."
    )
    lora: int | None = _method(
        None,
        "Train LoRA adapters of this rank in all linear layers and freeze the rest; wants "
        "about ten times the --lr.",
        metavar="RANK",
        min=1,
    )
    lora_alpha: float = _method(16.0, "Scale of the adapters: alpha / rank.", above=0, needs="lora")
    lora_save: LoraSave = _method(
        LoraSave.MERGED,
        "Save the whole model, or the adapter and the name of its base model.",
        needs="lora",
    )
    options: dict[str, Any] = setting(dict, "Options of the objective.", "--set", hidden=True)

    # The optimisation.
    batch_size: int = _optimisation(64, "Examples per process and step.", min=1, main=True)
    batches: Batches | None = _optimisation(
        None,
        "Rows of a batch: as shuffled; the same with equal texts masked in the loss, so that "
        "none is its own negative; or no text twice. Default: masked where more than 1% of "
        "the rows share a text.",
    )
    micro_batch_size: int | None = _optimisation(
        None, "Encode this many rows at a time and cache gradients (same gradient).", min=1
    )
    lr: float = _optimisation(3e-5, "Peak learning rate.", above=0, main=True)
    epochs: float = _optimisation(1.0, "Passes over the data.", above=0, main=True)
    max_steps: int | None = _optimisation(
        None, "Optimizer steps, instead of epochs.", min=1, main=True
    )
    warmup: float = _optimisation(
        0.0, "Share of the steps in which the rate rises.", min=0, below=1
    )
    weight_decay: float = _optimisation(0.0, "Weight decay; decoupled with adamw.", min=0)
    max_grad_norm: float = _optimisation(1.0, "Maximum gradient norm; 0: no clipping.", min=0)
    optimizer: OptimizerName = _optimisation(OptimizerName.ADAMW, "Update rule.")
    schedule: Schedule = _optimisation(Schedule.LINEAR, "Learning rate after the warm-up.")
    adam_eps: float = setting(1e-8, "Adam's epsilon.", hidden=True)
    bucket_batches: int = _optimisation(1, "Sort by length within this many batches.", min=1)

    # What a run writes, and where it computes.
    eval_every: int = _run(125, "Steps between dev evaluations.", min=1, main=True)
    save_every: int | None = _run(
        None, "Steps between resume states; default: as --eval-every.", min=1
    )
    keep_checkpoints: int = _run(
        1, "Resume states to keep for `simcse eval --checkpoints`; 0: all.", min=0
    )
    log_every: int = _run(10, "Steps between lines of metrics.jsonl.", min=1)
    dev_metric: Metric = _run(
        Metric.SPEARMAN,
        "Correlation that chooses the best model; transfer uses accuracy.",
        needs={
            "dev_suite!=transfer": "whose score is the accuracy",
            "dev_suite!=retrieval": "whose score is nDCG@10",
        },
    )
    patience: int | None = _run(
        None, "Stop after this many evaluations without improvement.", min=1
    )
    track: Tracker | None = _run(
        None,
        "Also log to a tracker; nothing leaves this machine unless the tracker's own variable "
        "allows it.",
    )
    track_project: str | None = _run(
        None, "Project of the tracker [simcse].", needs=_NAMING_TRACKER
    )
    track_name: str | None = _run(
        None,
        "Name of the run in the tracker, or of a group of runs; default: the folder's.",
        needs=_NAMING_TRACKER,
    )
    seed: int = _run(42, "Seed of everything random.", main=True, **SEED_RANGE)
    device: str = _run("auto", DEVICE_HELP, metavar="DEVICE", form=DEVICE_FORM)
    precision: Precision = _run(
        Precision.FP32,
        "Arithmetic of the encoder.",
        # INT8 is for inference.
        metavar="|".join(name for name in Precision if name is not Precision.INT8),
    )
    gradient_checkpointing: bool = _run(
        False,
        "Keep only layer inputs and recompute the rest: less memory, slower.",
        needs="attention!=packed",
    )
    compile: bool = _run(
        False,
        "Compile the transformer with torch.compile (takes minutes, once per run).",
        needs="attention!=packed",
    )
    attention: Attention | None = _run(
        None,
        "How attention is computed (packed: without padding, on a GPU too); default: as "
        "transformers does.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()

        if isinstance(self.train_file, str):  # a single file becomes a list
            object.__setattr__(self, "train_file", [self.train_file])
        check_values(settings_of(TrainConfig), vars(self))
        check_rules(settings_of(TrainConfig), vars(self))

    @property
    def pinned_model(self) -> str:
        return pinned(self.model, self.revision)

    @property
    def has_dev_score(self) -> bool:
        """Whether dev data scores the model during training; if not, the last model is kept."""
        return bool(self.dev_file or self.dev_split) or self.dev_suite is not DevSuite.FILE

    @property
    def effective_temperature(self) -> float:
        """The temperature of the loss; by default 0.05 for cosine, 1 for the dot product."""
        if self.temperature is not None:
            return self.temperature
        if self.similarity is Similarity.COSINE:
            return 0.05
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as YAML has them.

        A choice is its text, and a single training file is a path instead of a list of one.
        """
        values = asdict(self)
        for name, value in values.items():
            if isinstance(value, StrEnum):
                values[name] = value.value
        if self.train_file is not None and len(self.train_file) == 1:
            values["train_file"] = self.train_file[0]
        return values
