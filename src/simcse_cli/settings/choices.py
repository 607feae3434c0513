"""String enums of the field's standard terms; their values appear on the command line and in files."""

from enum import StrEnum


class Pooler(StrEnum):
    """How token states become one sentence vector (``docs/evaluation.md``, poolers)."""

    CLS = "cls"
    CLS_BEFORE_POOLER = "cls_before_pooler"
    AVG = "avg"
    AVG_TOP2 = "avg_top2"
    AVG_FIRST_LAST = "avg_first_last"
    AVG_EMB_LAST = "avg_emb_last"


class HeadUse(StrEnum):
    TRAIN_ONLY = "train-only"
    KEPT = "kept"
    NONE = "none"


class Similarity(StrEnum):
    COSINE = "cosine"
    DOT = "dot"


class Backend(StrEnum):
    ONNX = "onnx"
    OPENVINO = "openvino"


class Quantization(StrEnum):
    INT8 = "int8"


class Gather(StrEnum):
    """Gradient of negatives gathered from W processes: the true one, or 1/W of it as in the original code."""

    TRUE = "true"
    ORIGINAL = "original"


class OptimizerName(StrEnum):
    """Update rule: adamw-uncorrected omits the bias correction, rmsprop follows TensorFlow."""

    ADAMW = "adamw"
    ADAMW_UNCORRECTED = "adamw-uncorrected"
    ADAM = "adam"
    RMSPROP = "rmsprop"


class Schedule(StrEnum):
    """Learning rate after the warm-up: linear to zero, constant, or the falling steps of Contrastive Tension.

    The slanted triangle rises from 1/32 of the rate and falls back to it.
    """

    LINEAR = "linear"
    CONSTANT = "constant"
    TENSION = "tension"
    SLANTED_TRIANGULAR = "slanted-triangular"


class Batches(StrEnum):
    SHUFFLED = "shuffled"
    NO_DUPLICATES = "no-duplicates"


class DropoutMode(StrEnum):
    INDEPENDENT = "independent"
    FIXED = "fixed"
    NONE = "none"


class LoraSave(StrEnum):
    MERGED = "merged"
    ADAPTER = "adapter"


class Tracker(StrEnum):
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    MLFLOW = "mlflow"


class Aggregation(StrEnum):
    ALL = "all"
    MEAN = "mean"
    WMEAN = "wmean"


class Metric(StrEnum):
    SPEARMAN = "spearman"
    PEARSON = "pearson"


class DevSuite(StrEnum):
    FILE = "file"
    STS = "sts"
    TRANSFER = "transfer"
    RETRIEVAL = "retrieval"


class Precision(StrEnum):
    """Arithmetic of the encoder's matrix products.

    tf32 is float32 with inputs rounded to 10 bits, on NVIDIA GPUs; int8 is for inference on x86 processors.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    AUTO = "auto"


class LongTexts(StrEnum):
    CUT = "cut"
    MEAN = "mean"


class SearchBackend(StrEnum):
    EXACT = "exact"
    FAISS = "faiss"


class Engine(StrEnum):
    LOCAL = "local"
    RAY = "ray"


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class Attention(StrEnum):
    """How attention is computed: on packed batches, or on padded ones by an implementation of transformers."""

    PACKED = "packed"
    EAGER = "eager"
    SDPA = "sdpa"
    FLASH_2 = "flash_attention_2"
    FLASH_3 = "flash_attention_3"
    FLEX = "flex_attention"


class Correction(StrEnum):
    HOLM = "holm"
    BH = "bh"
    NONE = "none"


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    LATEX = "latex"


class ObjectiveName(StrEnum):
    SIMCSE_UNSUP = "simcse-unsup"
    SIMCSE_SUP = "simcse-sup"
    NEXT_SENTENCE = "next-sentence"
    QUICK_THOUGHTS = "quick-thoughts"
    SBERT = "sbert"
    COSENT = "cosent"
    CT = "ct"
    IS_BERT = "is-bert"
    DECLUTR = "declutr"
    BARLOW_TWINS = "barlow-twins"
    VICREG = "vicreg"
    MLM = "mlm"


class Augmentation(StrEnum):
    CROP = "crop"
    CROP_PREFIX_CHARS = "crop-prefix-chars"
    DELETE = "delete"
    DELETE_ONE = "delete-one"
    SYNONYM = "synonym"
    MLM = "mlm"
    SHUFFLE = "shuffle"
    EDA = "eda"


class TextUnit(StrEnum):
    """Units of an augmentation: words between spaces, or characters as read (grapheme clusters)."""

    WORD = "word"
    CHAR = "char"


class Sides(StrEnum):
    ONE = "one"
    BOTH = "both"


class Postprocess(StrEnum):
    WHITENING = "whitening"
    FLOW = "flow"
    ALL_BUT_THE_TOP = "all-but-the-top"
    SIF = "sif"


class TransferProtocol(StrEnum):
    DEFAULT = "default"
    FAST = "fast"


class Probe(StrEnum):
    SENTEVAL = "senteval"
    SKLEARN = "sklearn"


class StsProtocol(StrEnum):
    """Settings of STS evaluations in the literature (SimCSE Table B.1; ``docs/evaluation.md``, protocols)."""

    SIMCSE = "simcse"
    HILL = "hill"
    INFERSENT = "infersent"
    SENTEVAL = "senteval"
    SBERT = "sbert"
    IS_BERT = "is-bert"
    BERT_FLOW = "bert-flow"
    BERT_WHITENING = "bert-whitening"
    WIETING = "wieting"
    DECLUTR = "declutr"


class TextPer(StrEnum):
    LINE = "line"
    FILE = "file"


class Dedup(StrEnum):
    EXACT = "exact"
    NEAR = "near"


class PositiveLabel(StrEnum):
    ENTAILMENT = "entailment"
    NEUTRAL = "neutral"
    CONTRADICTION = "contradiction"
    ALL = "all"


class HardNegativeLabel(StrEnum):
    CONTRADICTION = "contradiction"
    NEUTRAL = "neutral"
    BOTH = "both"
    NONE = "none"


class NegativePick(StrEnum):
    TOP = "top"
    RANDOM = "random"


STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
