"""The settings of ``simcse prepare``; the module imports nothing heavy, to keep ``--help`` fast."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simcse_cli.settings import choices
from simcse_cli.settings.config import DATA_VARIABLE, REVISION_HELP, ModelOptions
from simcse_cli.settings.declare import SEED_RANGE, columns_setting, setting, settings_of
from simcse_cli.settings.tables import TEXT_PER_HELP, TableOptions, TextOptions

_mining = partial(setting, group="Mining")
_near_threshold = partial(
    setting,
    0.7,
    "Share of words and word pairs that near duplicates have in common.",
    min=0.3,
    max=1.0,
)
_PAIR = "anchor=A,positive=B"


@dataclass(frozen=True, kw_only=True)
class LintOptions(TableOptions):
    tokenizer: str | None = setting(
        None, "Model whose sub-words are counted, to report texts that training cuts."
    )
    max_length: int = setting(
        32, "Sub-words of a text that training will keep.", min=3, needs="tokenizer"
    )
    strict: bool = setting(False, "Fail when lint finds anything but a text in several rows.")


@dataclass(frozen=True, kw_only=True)
class LintFileOptions(LintOptions):
    columns: str | None = columns_setting(
        "Columns to check, if they are not recognised; default of an unknown table: all.", _PAIR
    )


@dataclass(frozen=True, kw_only=True)
class RowOptions(LintOptions):
    output: Path = setting(
        ..., "File to write (.txt, .csv, .tsv, .jsonl, also .gz); - is stdout.", "--output", "-o"
    )
    sample: int | None = setting(None, "Draw this many rows at random after filtering.", min=1)
    keep_order: bool = setting(False, "Keep a sample in the order of the input.", needs="sample")
    min_words: int | None = setting(None, "Drop rows with a text of fewer words.", min=1)
    max_words: int | None = setting(None, "Drop rows with a text of more words.", min=1)
    dedup: choices.Dedup | None = setting(
        None, "Drop repeated rows: exact (up to case, spacing, punctuation) or near (MinHash)."
    )
    near_threshold: float = _near_threshold(needs="dedup=near|leak_near")
    check_leak: Path | None = setting(
        None, "SentEval folder: report which of its sentences occur in the rows.", metavar="FOLDER"
    )
    leak_near: bool = setting(False, "Also search near occurrences (MinHash).")
    drop_leaks: bool = setting(False, "Drop the rows that --check-leak finds.")
    seed: int = setting(42, "Seed of everything random.", env="SIMCSE_SEED")
    force: bool = setting(False, "Overwrite existing outputs.")
    overlap = False  # an option of some subclasses


@dataclass(frozen=True, kw_only=True)
class SentenceOptions(RowOptions, TextOptions):
    text_per: choices.TextPer | None = setting(None, TEXT_PER_HELP)
    split_sentences: bool = setting(False, "Split each text into sentences by rule.")


@dataclass(frozen=True, kw_only=True)
class NliOptions(RowOptions):
    positive: choices.PositiveLabel = setting(
        choices.PositiveLabel.ENTAILMENT, "Hypotheses that become positives."
    )
    hard_negative: choices.HardNegativeLabel = setting(
        choices.HardNegativeLabel.CONTRADICTION,
        "Hypotheses that become hard negatives; none makes pairs.",
    )
    anli: list[str] | None = setting(
        None, "ANLI file to add (uid, context, hypothesis, label); repeat for more.", metavar="FILE"
    )
    overlap: bool = setting(
        True, "Report the lexical overlap of anchors and positives.", "--overlap/--no-overlap"
    )


@dataclass(frozen=True, kw_only=True)
class MiningOptions(RowOptions, ModelOptions):
    resume: bool = _mining(False, "Continue an interrupted search.", "--resume")


# The options that only mining has.
_OF_MINING = tuple(
    name for name in settings_of(MiningOptions) if name not in settings_of(RowOptions)
)


@dataclass(frozen=True, kw_only=True)
class HardNegativeOptions(MiningOptions):
    columns: str | None = columns_setting("Columns to pair, if they are not recognised.", _PAIR)
    ranks: str = _mining(
        "10:100",
        "Of the MAX nearest texts, skip the first MIN allowed ones.",
        "--range",
        metavar="MIN:MAX",
    )
    margin: float | None = _mining(
        None,
        "Least difference of cosines, positive minus negative; default: 0.05, none with --ratio.",
    )
    ratio: float | None = _mining(
        None, "Largest negative cosine, as a share of the positive's.", min=0, max=1
    )
    min_score: float | None = _mining(None, "Least cosine of a negative.")
    max_score: float | None = _mining(None, "Largest cosine of a negative.")
    per_anchor: int = _mining(1, "Negatives per anchor; each makes a row.", min=1)
    pick: choices.NegativePick = _mining(
        choices.NegativePick.TOP, "Choice among the allowed texts: the nearest, or at random."
    )
    corpus_prompt: str | None = _mining(
        None,
        "Prompt of texts other than anchors (--prompt); default: the model's one for documents.",
        metavar="TEXT|NAME",
    )
    corpus: list[str] | None = _mining(
        None,
        "File of further texts to search besides the positives; repeat for more.",
        metavar="FILE",
    )
    index: Path | None = _mining(
        None,
        "Index to search instead (`simcse encode --index`, or FAISS).",
        excludes=("corpus",),
        because="which is searched instead",
    )


@dataclass(frozen=True, kw_only=True)
class PairOptions(MiningOptions):
    paraphrases: bool = _mining(
        False,
        "Mine pairs of near texts from one corpus with --model.",
        enables=(*_OF_MINING, "top_k", "max_pairs", "min_score", "max_score"),
        excludes=("flickr30k", "parallel"),
        because="which finds pairs with a model",
    )
    top_k: int = _mining(100, "Nearest texts to consider for each text.", "--top-k", min=1)
    max_pairs: int = _mining(500_000, "Keep this many of the nearest pairs.", min=1)
    min_score: float = _mining(0.8, "Least cosine of a mined pair.")
    max_score: float | None = _mining(None, "Largest cosine of a mined pair.")

    flickr30k: bool = setting(
        False,
        "The inputs are captions: pair every two of an image.",
        excludes=("parallel", "columns", "header", "separator", "keep_label"),
        because="which pairs captions",
    )
    parallel: bool = setting(
        False,
        "The inputs are two text files with matching lines.",
        excludes=("columns", "header", "separator", "keep_label"),
        because="which reads two text files",
    )
    columns: str | None = columns_setting(
        "Columns to pair, if they are not recognised; with --paraphrases the column of texts.",
        _PAIR,
    )
    overlap: bool = setting(False, "Report the lexical overlap of the pairs (F1 of words).")


@dataclass(frozen=True, kw_only=True)
class DuplicateOptions(TextOptions, ModelOptions):
    output: Path = setting(
        ..., "File to write (.csv, .tsv, .jsonl, also .gz); - is stdout.", "--output", "-o"
    )
    id_column: str | None = setting(None, "Column with the id of each row.", metavar="COLUMN")
    kind: str = setting(
        "exact,near,meaning",
        "What counts: exact (up to case, spacing, punctuation), near (MinHash), meaning (cosine).",
        metavar="KIND,...",
    )
    threshold: float = setting(
        0.9,
        "Least cosine of two texts that mean the same.",
        min=-1.0,
        max=1.0,
        needs="kind~meaning",
    )
    near_threshold: float = _near_threshold(needs="kind~near")
    against: str | None = setting(
        None, "Older file whose texts count as well, and are kept.", metavar="FILE", is_input=True
    )
    keep: choices.KeepDuplicate | None = setting(
        None, "Write the file without duplicates: of texts that repeat each other keep this one."
    )
    force: bool = setting(False, "Overwrite existing outputs.")


@dataclass(frozen=True, kw_only=True)
class NeighbourOptions(RowOptions):
    reach: int = setting(
        1, "Draw the positive from this many following sentences.", "--next", min=1
    )
    every: bool = setting(
        False, "Write a pair for each of them instead of drawing one.", needs="reach!=1"
    )
    column: str | None = setting(
        None, "Column of a table that holds the text.", "--column", "--columns"
    )
    split_sentences: bool = setting(False, "Split each line into sentences by rule.")
    overlap: bool = setting(False, "Report the lexical overlap of the pairs.")


@dataclass(frozen=True, kw_only=True)
class SentevalOptions:
    data_dir: Path = setting(..., "SentEval folder (it holds `downstream/`).", env=DATA_VARIABLE)
    tasks: str | None = setting(None, "Check only the files of these tasks, for example STS12,MR.")
    content: bool = setting(
        True, "Compare contents too, not only line counts.", "--content/--no-content"
    )


@dataclass(frozen=True, kw_only=True)
class ModelFolderOptions:
    output: Path = setting(..., "Folder to write.", "--output", "-o", metavar="FOLDER")
    backend: list[choices.Backend] | None = setting(
        None, "Also write a graph for this backend; repeat for both."
    )
    quantize: choices.Quantization | None = setting(
        None,
        "Also write a graph of 8-bit integers for each backend; its vectors are near, not equal.",
        needs="backend",
    )
    pooler: choices.Pooler | None = setting(
        None, "How token states become a vector; default: the model's recorded pooler."
    )
    template: str | None = setting(
        None,
        "Words around each sentence for --pooler mask, with {} and {mask}.",
        metavar="TEXT",
        needs="pooler=mask",
    )
    force_pooler: bool = setting(
        False, "Use --pooler even if the model records another or lacks its weights."
    )
    revision: str | None = setting(None, REVISION_HELP)
    force: bool = setting(False, "Overwrite an existing folder, even that of the model itself.")


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    output: Path = setting(
        ..., "Output folder; created when missing.", "--output", "-o", metavar="FOLDER"
    )
    seed: int = setting(42, "Seed of everything random.", env="SIMCSE_SEED", **SEED_RANGE)
    force: bool = setting(False, "Overwrite existing outputs.")
