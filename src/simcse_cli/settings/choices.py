"""The choices of options, in the field's standard terms.

Their values are what users type and what files contain.
"""

from enum import StrEnum

Pooler = StrEnum("Pooler", "CLS CLS_BEFORE_POOLER AVG AVG_TOP2 AVG_FIRST_LAST AVG_EMB_LAST MASK")
"""Ways to make one sentence vector of token states (``docs/evaluation.md``, poolers)."""
HeadUse = StrEnum("HeadUse", {"TRAIN_ONLY": "train-only", "KEPT": "kept", "NONE": "none"})
Similarity = StrEnum("Similarity", "COSINE DOT")
Backend = StrEnum("Backend", "ONNX OPENVINO")
Quantization = StrEnum("Quantization", "INT8")
Gather = StrEnum("Gather", "TRUE ORIGINAL")
"""The gradient of negatives gathered from W processes: true, or 1/W of it as in SimCSE's code."""
OptimizerName = StrEnum(
    "OptimizerName",
    {
        "ADAMW": "adamw",
        "ADAMW_UNCORRECTED": "adamw-uncorrected",
        "ADAM": "adam",
        "RMSPROP": "rmsprop",
    },
)
"""Optimizers: adamw-uncorrected omits the bias correction, rmsprop has TensorFlow's constants."""
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

It falls linearly to zero, is constant, or falls in the steps of Contrastive Tension. The slanted
triangle rises from about 1/32 of the rate to the full rate, and falls back to 1/32.
"""
Batches = StrEnum(
    "Batches",
    {
        "SHUFFLED": "shuffled",
        "MASK_DUPLICATES": "mask-duplicates",
        "NO_DUPLICATES": "no-duplicates",
    },
)
"""Batches: shuffled rows; shuffled rows with equal texts masked in the loss; or no text twice."""
ServedEncoder = StrEnum("ServedEncoder", "FIRST SECOND")
DropoutMode = StrEnum("DropoutMode", "INDEPENDENT FIXED NONE")
Negatives = StrEnum(
    "Negatives", {"DROPOUT": "dropout", "NO_DROPOUT": "no-dropout", "ALL_VIEWS": "all-views"}
)
"""Negatives of unsupervised SimCSE: other rows with or without dropout, or rows of both views."""
MixMasked = StrEnum("MixMasked", "EXCLUDE ZERO")
MixSides = StrEnum("MixSides", "POSITIVES BOTH")
RankLoss = StrEnum("RankLoss", "LISTMLE LISTNET")
ContrastBlock = StrEnum("ContrastBlock", "AA PP")
"""Further negatives in guided training: anchors with anchors, positives with positives."""
Fill = StrEnum("Fill", "ARGMAX SAMPLE")
"""How a masked language model fills a mask: the likeliest token, or one drawn from its softmax."""
TemplateBias = StrEnum("TemplateBias", "TRAIN TEST BOTH OFF")
"""When to subtract the mask state of the template without a sentence (PromptBERT)."""
DistillTarget = StrEnum("DistillTarget", "SIMILARITIES COSINE MSE")
LoraSave = StrEnum("LoraSave", "MERGED ADAPTER")
Tracker = StrEnum("Tracker", "TENSORBOARD WANDB TRACKIO MLFLOW")
Aggregation = StrEnum("Aggregation", "ALL MEAN WMEAN")
Metric = StrEnum("Metric", "SPEARMAN PEARSON")
DevSuite = StrEnum("DevSuite", "FILE STS TRANSFER RETRIEVAL")
Precision = StrEnum("Precision", "FP32 TF32 BF16 FP16 INT8 AUTO")
"""The arithmetic of the encoder's matrix products.

tf32, on NVIDIA GPUs, is float32 with the mantissas of inputs rounded to 10 bits. int8 is for
inference on x86 processors.
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
"""How attention is computed: on packed batches, or on padded ones as transformers does it."""
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
"""Units of an augmentation: words between spaces, or characters (grapheme clusters)."""
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
VectorType = StrEnum("VectorType", "FLOAT32 FLOAT16 INT8 BINARY")
Dedup = StrEnum("Dedup", "EXACT NEAR")
DuplicateKind = StrEnum("DuplicateKind", "EXACT NEAR MEANING")
KeepDuplicate = StrEnum("KeepDuplicate", "FIRST LONGEST")
GroupMethod = StrEnum("GroupMethod", "KMEANS AGGLOMERATIVE HDBSCAN")
PositiveLabel = StrEnum("PositiveLabel", "ENTAILMENT NEUTRAL CONTRADICTION ALL")
HardNegativeLabel = StrEnum("HardNegativeLabel", "CONTRADICTION NEUTRAL BOTH NONE")
NegativePick = StrEnum("NegativePick", "TOP RANDOM")

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
