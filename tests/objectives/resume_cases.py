"""A short run of every objective and its main variants, with files it can read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers import SENTENCES, generator_beside
from simcse_cli.objectives.base import DataKind
from simcse_cli.objectives.registry import OBJECTIVES, objective_defaults
from simcse_cli.settings.choices import Batches
from simcse_cli.settings.choices import ObjectiveName as Name
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import resolve_config

LABELS = ("entailment", "neutral", "contradiction")

# case -> objective, its options, settings
CASES: dict[str, tuple[Name, dict[str, Any], dict[str, Any]]] = {
    "simcse-unsup": (Name.SIMCSE_UNSUP, {"mlm_weight": 0.1}, {}),
    "simcse-unsup, augmented": (
        Name.SIMCSE_UNSUP,
        {"dual_encoder": True},
        {"augment": "delete:0.2"},
    ),
    "simcse-unsup, queue": (
        Name.SIMCSE_UNSUP,
        {"queue_size": 20, "momentum": 0.9},
        {"augment": "repeat", "max_length": 16},
    ),
    "simcse-unsup, no-dropout": (
        Name.SIMCSE_UNSUP,
        {"negatives": "no-dropout", "dimension_weight": 0.1, "mlm_weight": 0.1},
        {"micro_batch_size": 5},
    ),
    "simcse-unsup, noise": (Name.SIMCSE_UNSUP, {"noise": 1.5}, {"augment": "mask-span:5"}),
    "distill": (Name.DISTILL, {"match": "mse"}, {"micro_batch_size": 5}),
    "simcse-sup": (Name.SIMCSE_SUP, {}, {}),
    "simcse-sup, masked duplicates": (Name.SIMCSE_SUP, {}, {"batches": Batches.MASK_DUPLICATES}),
    "simcse-sup, no duplicates": (Name.SIMCSE_SUP, {}, {"batches": Batches.NO_DUPLICATES}),
    "simcse-sup, chunks": (Name.SIMCSE_SUP, {}, {"micro_batch_size": 5}),
    "next-sentence": (Name.NEXT_SENTENCE, {"window": 3, "dual_encoder": True}, {}),
    "is-bert": (Name.IS_BERT, {"n_channels": 8}, {}),
    "declutr": (Name.DECLUTR, {"min_span": 4, "max_span": 16}, {"batch_size": 2}),
    "barlow-twins": (Name.BARLOW_TWINS, {"projector_dim": 16}, {}),
    "vicreg": (Name.VICREG, {"projector_dim": 16}, {}),
    "promptbert": (Name.PROMPTBERT, {}, {"micro_batch_size": 5}),
    "sncse": (Name.SNCSE, {"soft_weight": 0.5}, {"micro_batch_size": 5}),
    "tsdae": (Name.TSDAE, {}, {"micro_batch_size": 5}),
    "diffcse": (Name.DIFFCSE, {"fill": "sample"}, {}),
    "diffcse, chunks": (Name.DIFFCSE, {"as_released": True}, {"micro_batch_size": 5}),
    "mlm": (Name.MLM, {}, {"whole_words": True, "dev_split": 0.2, "eval_every": 3}),
    "vicreg, chunks": (Name.VICREG, {"projector_dim": 16}, {"micro_batch_size": 5}),
}
_with_options = {name for name, _, _ in CASES.values()}
CASES |= {str(name): (name, {}, {}) for name in Name if name not in _with_options}


def write_train_files(folder: Path) -> dict[str, Path]:
    """Write a file of each kind and return the paths by kind; ``pairs`` are for the supervised objective."""
    texts = {
        DataKind.ROWS: "\n".join(SENTENCES),
        DataKind.DOCUMENTS: "\n\n".join("\n".join(SENTENCES[i:] * 2) for i in range(0, 24, 3)),
        DataKind.LABELLED: "sentence1\tsentence2\tgold_label\n"
        + "\n".join(f"{SENTENCES[i]}\t{SENTENCES[i - 1]}\t{LABELS[i % 3]}" for i in range(24)),
        DataKind.SCORED: "sentence1\tsentence2\tscore\n"
        + "\n".join(f"{SENTENCES[i]}\t{SENTENCES[i - 1]}\t{i % 5}" for i in range(24)),
        "triplets": "anchor\tpositive\thard_negative\n"
        + "\n".join(f"{a}\t{a}\tNot {a}" for a in SENTENCES),
        "pairs": "anchor\tpositive\n" + "\n".join(f"{a}\t{a} Yes." for a in SENTENCES),
    }
    paths = {}
    for kind, text in texts.items():
        paths[str(kind)] = (
            folder / f"{kind}.{'txt' if kind in (DataKind.ROWS, DataKind.DOCUMENTS) else 'tsv'}"
        )
        paths[str(kind)].write_text(text + "\n")
    return paths


def config_of(case: str, train_files: Mapping[str, Path], model_dir: Path) -> TrainConfig:
    """Return the settings of a case."""
    name, options, more = CASES[case]
    cls = OBJECTIVES[name]
    reads = {2: "pairs", 3: "triplets"}.get(cls.n_columns[0], cls.reads)
    flags = {
        "objective": name,
        "model": str(model_dir),
        "train_file": str(train_files[reads]),
        "batch_size": 8,
        "max_steps": 9,
        "save_every": 2,
        "log_every": 1,
        "lr": 1e-3,
        "device": "cpu",
        "options": options,
    }
    if name in (Name.RANKCSE, Name.DISTILL):
        flags["teacher"] = [str(model_dir)]
    if name is Name.DIFFCSE:
        flags["generator"] = str(generator_beside(model_dir))
    return resolve_config(flags=flags | more, objective_defaults=objective_defaults)
