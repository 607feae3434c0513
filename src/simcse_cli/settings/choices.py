"""The choices of options, in the field's standard terms.

Their values appear on the command line and in files.
"""

from enum import StrEnum

Pooler = StrEnum("Pooler", "CLS CLS_BEFORE_POOLER AVG AVG_TOP2 AVG_FIRST_LAST AVG_EMB_LAST MASK")
"""How token states become one sentence vector (``docs/evaluation.md``, poolers)."""
HeadUse = StrEnum("HeadUse", {"TRAIN_ONLY": "train-only", "KEPT": "kept", "NONE": "none"})
Similarity = StrEnum("Similarity", "COSINE DOT")
Backend = StrEnum("Backend", "ONNX OPENVINO")
Quantization = StrEnum("Quantization", "INT8")
Gather = StrEnum("Gather", "TRUE ORIGINAL")
"""The gradient of negatives that are gathered from W processes.

It is the true one, or 1/W of it as in the original code.
"""
OptimizerName = StrEnum(
    "OptimizerName",
    {
        "ADAMW": "adamw",
        "ADAMW_UNCORRECTED": "adamw-uncorrected",
        "ADAM": "adam",
        "RMSPROP": "rmsprop",
    },
)
"""Update rule: adamw-uncorrected omits the bias correction, rmsprop follows TensorFlow."""
Schedule = StrEnum(
    "Schedule",
    {
        "LINEAR": "linear",
        "CONSTANT": "constant",
        "TENSION": "tension",
        "SLANTED_TRIANGULAR": "slanted-triangular",
    },
)
"""The learning rate after the warm-up.

It is linear to zero, constant, or the falling steps of Contrastive Tension. The slanted triangle
rises from 1/32 of the rate and falls back to it.
"""
Batches = StrEnum(
    "Batches",
    {
        "SHUFFLED": "shuffled",
        "MASK_DUPLICATES": "mask-duplicates",
        "NO_DUPLICATES": "no-duplicates",
    },
)
"""Rows as they come; the same with equal texts masked in the loss; no text twice in a batch."""
ServedEncoder = StrEnum("ServedEncoder", "FIRST SECOND")
DropoutMode = StrEnum("DropoutMode", "INDEPENDENT FIXED NONE")
Negatives = StrEnum(
    "Negatives", {"DROPOUT": "dropout", "NO_DROPOUT": "no-dropout", "ALL_VIEWS": "all-views"}
)
"""Negatives of unsupervised SimCSE: other rows under dropout or without, or those of both views."""
MixMasked = StrEnum("MixMasked", "EXCLUDE ZERO")
MixSides = StrEnum("MixSides", "POSITIVES BOTH")
RankLoss = StrEnum("RankLoss", "LISTMLE LISTNET")
ContrastBlock = StrEnum("ContrastBlock", "AA PP")
"""Negatives beside positives in guided training: other anchors, and positives among themselves."""
Fill = StrEnum("Fill", "ARGMAX SAMPLE")
"""How a masked language model fills a place: its likeliest token, or one drawn from its softmax."""
TemplateBias = StrEnum("TemplateBias", "TRAIN TEST BOTH OFF")
"""When the state of a template without a sentence is subtracted (PromptBERT)."""
DistillTarget = StrEnum("DistillTarget", "SIMILARITIES COSINE MSE")
LoraSave = StrEnum("LoraSave", "MERGED ADAPTER")
Tracker = StrEnum("Tracker", "TENSORBOARD WANDB TRACKIO MLFLOW")
Aggregation = StrEnum("Aggregation", "ALL MEAN WMEAN")
Metric = StrEnum("Metric", "SPEARMAN PEARSON")
DevSuite = StrEnum("DevSuite", "FILE STS TRANSFER RETRIEVAL")
Precision = StrEnum("Precision", "FP32 TF32 BF16 FP16 INT8 AUTO")
"""The arithmetic of the encoder's matrix products.

tf32 is float32 with inputs rounded to 10 bits, on NVIDIA GPUs. int8 is for inference on x86
processors.
"""
LongTexts = StrEnum("LongTexts", "CUT MEAN")
SearchBackend = StrEnum("SearchBackend", "EXACT FAISS")
Engine = StrEnum("Engine", "LOCAL RAY")
Device = StrEnum("Device", "AUTO CPU CUDA MPS")
Attention = StrEnum(
    "Attention",
    {
        "PACKED": "packed",
        "EAGER": "eager",
        "SDPA": "sdpa",
        "FLASH_2": "flash_attention_2",
        "FLASH_3": "flash_attention_3",
        "FLEX": "flex_attention",
    },
)
"""The way in which attention is computed.

It works on packed batches, or on padded ones by an implementation of transformers.
"""
Correction = StrEnum("Correction", "HOLM BH NONE")
OutputFormat = StrEnum("OutputFormat", "TABLE JSON CSV MARKDOWN LATEX")
ObjectiveName = StrEnum(
    "ObjectiveName",
    {
        "SIMCSE_UNSUP": "simcse-unsup",
        "SIMCSE_SUP": "simcse-sup",
        "NEXT_SENTENCE": "next-sentence",
        "QUICK_THOUGHTS": "quick-thoughts",
        "SBERT": "sbert",
        "COSENT": "cosent",
        "CT": "ct",
        "IS_BERT": "is-bert",
        "DECLUTR": "declutr",
        "BARLOW_TWINS": "barlow-twins",
        "VICREG": "vicreg",
        "MLM": "mlm",
        "RANKCSE": "rankcse",
        "DISTILL": "distill",
        "TSDAE": "tsdae",
        "DIFFCSE": "diffcse",
        "PROMPTBERT": "promptbert",
        "SNCSE": "sncse",
    },
)
Augmentation = StrEnum(
    "Augmentation",
    {
        "CROP": "crop",
        "CROP_PREFIX_CHARS": "crop-prefix-chars",
        "DELETE": "delete",
        "DELETE_ONE": "delete-one",
        "SYNONYM": "synonym",
        "MLM": "mlm",
        "SHUFFLE": "shuffle",
        "EDA": "eda",
        "REPEAT": "repeat",
        "REPEAT_WORDS": "repeat-words",
        "MASK_SPAN": "mask-span",
        "NEGATE": "negate",
    },
)
TextUnit = StrEnum("TextUnit", "WORD CHAR")
"""Units of an augmentation: words between spaces, or characters as read (grapheme clusters)."""
Sides = StrEnum("Sides", "ONE BOTH")
Postprocess = StrEnum(
    "Postprocess",
    {"WHITENING": "whitening", "FLOW": "flow", "ALL_BUT_THE_TOP": "all-but-the-top", "SIF": "sif"},
)
TransferProtocol = StrEnum("TransferProtocol", "DEFAULT FAST")
Probe = StrEnum("Probe", "SENTEVAL SKLEARN")
StsProtocol = StrEnum(
    "StsProtocol",
    {
        "SIMCSE": "simcse",
        "HILL": "hill",
        "INFERSENT": "infersent",
        "SENTEVAL": "senteval",
        "SBERT": "sbert",
        "IS_BERT": "is-bert",
        "BERT_FLOW": "bert-flow",
        "BERT_WHITENING": "bert-whitening",
        "WIETING": "wieting",
        "DECLUTR": "declutr",
    },
)
"""Settings of STS evaluations in the literature.

Source: SimCSE Table B.1. The section on protocols in ``docs/evaluation.md`` describes them.
"""
TextPer = StrEnum("TextPer", "LINE FILE")
Dedup = StrEnum("Dedup", "EXACT NEAR")
DuplicateKind = StrEnum("DuplicateKind", "EXACT NEAR MEANING")
KeepDuplicate = StrEnum("KeepDuplicate", "FIRST LONGEST")
GroupMethod = StrEnum("GroupMethod", "KMEANS AGGLOMERATIVE HDBSCAN")
PositiveLabel = StrEnum("PositiveLabel", "ENTAILMENT NEUTRAL CONTRADICTION ALL")
HardNegativeLabel = StrEnum("HardNegativeLabel", "CONTRADICTION NEUTRAL BOTH NONE")
NegativePick = StrEnum("NegativePick", "TOP RANDOM")

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
