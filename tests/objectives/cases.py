"""One small instance of every objective, with data it can read."""

from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers import SENTENCES, generator_beside
from simcse_cli.data.training_file import TrainingDocuments, TrainingRows
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.heads import MlpHead
from simcse_cli.objectives.base import Batch, DataKind, Objective
from simcse_cli.objectives.registry import OBJECTIVES, build_objective
from simcse_cli.settings.choices import HeadUse, Pooler
from simcse_cli.settings.choices import ObjectiveName as Name

SINGLES = TrainingRows("singles", ("anchor",), [(s,) for s in SENTENCES], 0, "")
PAIRS = TrainingRows("pairs", ("anchor", "positive"), list(pairwise(SENTENCES)), 0, "")
TRIPLETS = TrainingRows(
    "triplets",
    ("anchor", "positive", "hard_negative"),
    list(zip(SENTENCES, SENTENCES[1:], SENTENCES[2:], strict=False)),
    0,
    "",
)
LABELLED = TrainingRows(
    "labelled",
    ("anchor", "positive", "label"),
    [
        (a, b, ("contradiction", "entailment", "neutral")[i % 3])
        for i, (a, b) in enumerate(PAIRS.rows)
    ],
    0,
    "",
)
SCORED = TrainingRows(
    "scored",
    ("left", "right", "score"),
    [(a, b, str(i % 4)) for i, (a, b) in enumerate(PAIRS.rows)],
    0,
    "",
)
DOCUMENTS = TrainingDocuments(
    "documents", [list(SENTENCES[:9]), list(SENTENCES[9:12]), list(SENTENCES[12:])], ""
)
LONG_DOCUMENTS = TrainingDocuments("documents", [list(SENTENCES[i:]) * 2 for i in range(12)], "")

TEMPLATES = ('A "{.}" is a {mask}.', 'The "{.}" is a {mask}.')

VARIANTS: dict[str, tuple[Name, Any, dict[str, Any]]] = {
    "simcse-unsup": (Name.SIMCSE_UNSUP, SINGLES, {}),
    "simcse-unsup mlm matryoshka symmetric": (
        Name.SIMCSE_UNSUP,
        SINGLES,
        {"mlm_weight": 0.1, "matryoshka_dims": [8, 16], "symmetric": True},
    ),
    "simcse-unsup queue": (Name.SIMCSE_UNSUP, SINGLES, {"queue_size": 10, "momentum": 0.9}),
    "simcse-unsup queue, filled": (Name.SIMCSE_UNSUP, SINGLES, {"queue_size": 10}),
    "simcse-unsup no-dropout": (
        Name.SIMCSE_UNSUP,
        SINGLES,
        {"negatives": "no-dropout", "dimension_weight": 0.1},
    ),
    "simcse-unsup all-views": (Name.SIMCSE_UNSUP, SINGLES, {"negatives": "all-views"}),
    "simcse-unsup heads": (Name.SIMCSE_UNSUP, SINGLES, {"head_dropout": 0.5}),
    "simcse-unsup mix": (Name.SIMCSE_UNSUP, SINGLES, {"mix": 0.2}),
    "simcse-unsup noise": (Name.SIMCSE_UNSUP, SINGLES, {"noise": 1.5}),
    "simcse-unsup false negatives": (
        Name.SIMCSE_UNSUP,
        SINGLES,
        {"teacher": 4, "false_negative_cosine": 0.3, "noise": 1.0},
    ),
    "simcse-unsup false negatives as released": (
        Name.SIMCSE_UNSUP,
        SINGLES,
        {"teacher": 4, "false_negative_cosine": 0.3, "as_released": True},
    ),
    "rankcse": (Name.RANKCSE, SINGLES, {"teacher": 12}),
    "rankcse listnet": (Name.RANKCSE, SINGLES, {"teacher": 12, "rank": "listnet"}),
    "rankcse as released": (Name.RANKCSE, SINGLES, {"teacher": 12, "as_released": True}),
    "distill": (Name.DISTILL, SINGLES, {"teacher": 12}),
    "distill mse": (Name.DISTILL, SINGLES, {"teacher": 12, "match": "mse"}),
    "distill similarities": (Name.DISTILL, PAIRS, {"teacher": 12, "match": "similarities"}),
    "simcse-sup guided": (Name.SIMCSE_SUP, TRIPLETS, {"teacher": 12, "guide_margin": 0.1}),
    "simcse-sup": (Name.SIMCSE_SUP, TRIPLETS, {"hard_negative_alpha": 2.0}),
    "simcse-sup angle": (Name.SIMCSE_SUP, TRIPLETS, {"angle_weight": 0.5, "unsup_weight": 1.0}),
    "simcse-sup dual mlm": (Name.SIMCSE_SUP, TRIPLETS, {"dual_encoder": True, "mlm_weight": 0.1}),
    "next-sentence": (Name.NEXT_SENTENCE, DOCUMENTS, {"window": 3, "dual_encoder": True}),
    "cosent": (Name.COSENT, SCORED, {}),
    "cosent angle": (Name.COSENT, SCORED, {"angle_weight": 0.5}),
    "ct": (Name.CT, SINGLES, {"n_negatives": 3}),
    "is-bert": (Name.IS_BERT, SINGLES, {"n_channels": 8}),
    "declutr": (Name.DECLUTR, LONG_DOCUMENTS, {"min_span": 4, "max_span": 24}),
    "barlow-twins": (Name.BARLOW_TWINS, SINGLES, {"projector_dim": 24}),
    "vicreg": (Name.VICREG, PAIRS, {"projector_dim": 24}),
    "promptbert": (Name.PROMPTBERT, SINGLES, {}),
    "promptbert triplets": (Name.PROMPTBERT, TRIPLETS, {"template_bias": "both"}),
    "promptbert off mlm": (
        Name.PROMPTBERT,
        SINGLES,
        {"template_bias": "off", "mlm_weight": 0.1},
    ),
    "sncse": (Name.SNCSE, TRIPLETS, {"soft_weight": 0.5}),
    "tsdae": (Name.TSDAE, SINGLES, {}),
    "tsdae untied": (Name.TSDAE, SINGLES, {"tie_decoder": False}),
    "diffcse": (Name.DIFFCSE, SINGLES, {"rtd_weight": 1.0}),
    "diffcse mlm": (Name.DIFFCSE, PAIRS, {"rtd_weight": 1.0, "mlm_weight": 0.1}),
    "mlm": (Name.MLM, SINGLES, {"mlm_probability": 0.3}),
}
BY_KIND = {DataKind.LABELLED: LABELLED, DataKind.SCORED: SCORED, DataKind.DOCUMENTS: DOCUMENTS}


def of_defaults(name: Name) -> tuple[Name, Any, dict[str, Any]]:
    """Return the variant of an objective without options, on the smallest data that it takes."""
    cls = OBJECTIVES[name]
    rows = (SINGLES, PAIRS, TRIPLETS)[cls.n_columns[0] - 1]
    return name, BY_KIND.get(cls.reads, rows), {}


_with_options = {name for name, _, _ in VARIANTS.values()}
VARIANTS |= {str(name): of_defaults(name) for name in Name if name not in _with_options}


@cache
def _encoder(model_dir: Path, dropout: float | None) -> SentenceEncoder:
    return load_encoder(model_dir, pooler="avg", device="cpu", dropout=dropout)


def build(variant: str, model_dir: Path, **overrides: Any) -> tuple[Objective, Any]:
    """Return the objective in training mode and its data; weights are equal in every call."""
    name, data, options = VARIANTS[variant]
    dropout = overrides.pop("dropout", None)
    if dropout == 0 and "head_dropout" in options:  # nothing is to be random
        options = options | {"head_dropout": 0.0}
    encoder = deepcopy(_encoder(model_dir, dropout))
    if name is Name.DIFFCSE and (options | overrides)["rtd_weight"]:
        options = options | {"generator": str(generator_beside(model_dir))}
    torch.manual_seed(0)
    if name in (Name.SIMCSE_UNSUP, Name.SIMCSE_SUP, Name.NEXT_SENTENCE, Name.RANKCSE):
        encoder.change(head=MlpHead(32), head_use=HeadUse.TRAIN_ONLY, pooler=Pooler.CLS)
    given: dict[str, Any] = {}
    if name in (Name.PROMPTBERT, Name.SNCSE):
        pooler = overrides.pop("pooler", Pooler.MASK)
        encoder.change(head=MlpHead(32), head_use=HeadUse.TRAIN_ONLY, pooler=pooler)
        given = {"template": overrides.pop("template", TEMPLATES)}
    objective = build_objective(name, encoder, given, options | overrides)
    if variant == "simcse-unsup queue, filled":
        objective.queue.vectors.normal_(generator=torch.Generator().manual_seed(7))
        objective.queue.n_filled = 6
    return objective.train(), data


def batch_of(objective: Objective, data: Any, rows: slice = slice(0, 8)) -> Batch:
    """Return a batch of the first epoch's examples; the random draws follow the examples, not the slice."""
    examples = objective.examples(data, np.random.default_rng(1)).items
    if getattr(objective, "queue", None) is not None:
        objective.queue.epoch = objective.epoch  # what it holds is of this epoch
    parts = [
        objective.collate([examples[i]], np.random.default_rng((2, i)))
        for i in range(len(examples))[rows]
    ]
    n_views = len(parts[0].rows) // parts[0].n_examples
    joined = Batch(
        [
            row
            for v in range(n_views)
            for p in parts
            for row in p.rows[v * p.n_examples : (v + 1) * p.n_examples]
        ],
        sum(part.n_examples for part in parts),
    )
    if getattr(objective.options, "teacher", None):
        # Of the eight rows that all processes together have, for each text.
        size = 8, len(data.columns), objective.options.teacher
        vectors = torch.randn(size, generator=torch.Generator().manual_seed(4))
        joined.extra["teacher"] = torch.nn.functional.normalize(vectors, dim=2)
        joined.extra["first"] = rows.start
    for key, value in parts[0].extra.items():
        joined.extra[key] = _join(key, [part.extra[key] for part in parts], parts, type(value))
    return joined


def _join(key: str, values: list[Any], parts: list[Batch], kind: type) -> Any:
    if key == "n_plain":
        return sum(values)
    if key == "epoch":
        return values[0]
    if key == "whole":
        return [row for rows in values for row in rows]
    if key in ("mlm_labels", "masked"):  # view by view, as the rows are
        n_views = len(values[0]) // parts[0].n_examples
        return [
            row
            for v in range(n_views)
            for labels, part in zip(values, parts, strict=True)
            for row in labels[v * part.n_examples : (v + 1) * part.n_examples]
        ]
    return np.concatenate(values) if kind is np.ndarray else torch.cat(values)
