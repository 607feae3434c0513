"""Build the objects of a run from its settings: encoder and head, objective, data, dev set."""

import itertools
import math
import random
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from simcse_cli.augment.augmentations import (
    ON_TOKENS,
    TextAugmenter,
    TokenAugmenter,
    parse_steps,
)
from simcse_cli.augment.language_model import model_augmenter
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.data import training_file
from simcse_cli.data.formats import FileFormat, guess_format
from simcse_cli.data.writers import Row
from simcse_cli.errors import ConfigError, DataError, require_extra
from simcse_cli.files.code import code_digest, names_code
from simcse_cli.files.inputs import STDIO, require_file
from simcse_cli.machine.devices import resolve_device
from simcse_cli.machine.precision import DTYPES, resolve_precision
from simcse_cli.machine.processes import process_count, process_rank
from simcse_cli.machine.rng import has_rng_state
from simcse_cli.models.adapters import add_lora
from simcse_cli.models.checkpoint import has_original_head, load_encoder
from simcse_cli.models.encoder import FLASH_LIBRARIES, SentenceEncoder
from simcse_cli.models.heads import MlpHead
from simcse_cli.models.mask_template import NOTHING_AROUND
from simcse_cli.models.model_files import ModelFiles, find_model
from simcse_cli.models.poolers import POOLERS, without_head
from simcse_cli.models.record import ModelRecord
from simcse_cli.models.resolve import hub_name_of, naming_option
from simcse_cli.objectives.base import DataKind, Examples, Objective
from simcse_cli.objectives.mlm import MaskedLm
from simcse_cli.objectives.registry import build_objective, find_objective, objective_options
from simcse_cli.progress import Progress
from simcse_cli.results.runs import RunRecord
from simcse_cli.settings import choices
from simcse_cli.settings.choices import (
    Batches,
    DropoutMode,
    HeadUse,
    LoraSave,
    Pooler,
)
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.declare import flag, refuse_unused, settings_of
from simcse_cli.training.batches import (
    SHARED_SHARE,
    BatchMaker,
    SharedTexts,
    files_of,
    n_taken,
    random_generator,
)
from simcse_cli.training.dev import DevMasked, DevSet, build_dev_set, given_tables
from simcse_cli.training.teachers import Teachers

LOW_LORA_RATE = 1e-4
MOST_LOOKED_AT = 20_000
"""At most how many examples are checked for texts that are too long, before training."""
LOOKED_AT_ONCE = 1024


@dataclass(frozen=True)
class TrainingParts:
    """What a ``Trainer`` needs besides the settings.

    ``digests`` holds what the run records of its data and code: digests, names and counts.
    """

    objective: Objective
    batches: BatchMaker
    dev_set: DevSet | None
    digests: dict[str, Any]


def pooler_and_head(config: TrainConfig, record: ModelRecord) -> tuple[Pooler, HeadUse]:
    """Return the pooler and the use of a head, from the settings or else from the model's record.

    If neither names a pooler, it is SimCSE's ``cls``. By default, a head is for training only; but
    if the record has a kept head with this pooler, the head is kept.
    """
    pooler = config.pooler or record.pooler or Pooler.CLS
    head = HeadUse.TRAIN_ONLY
    if record.pooler is pooler and record.head_use is HeadUse.KEPT:
        head = HeadUse.KEPT
    return pooler, config.head or head


def with_model_defaults(config: TrainConfig, progress: Progress) -> TrainConfig:
    pooler, head = pooler_and_head(config, find_model(config.pinned_model, progress).record)
    return replace(config, pooler=pooler, head=head)


def build_encoder(config: TrainConfig, progress: Progress) -> SentenceEncoder:
    """Return the encoder to train, in float32, and report it in one line.

    With ``--head none``, it has no head. Otherwise, its head is the first of these that there is:

    - the kept head of a model that records the pooler of this run;
    - the ``mlp`` head of a checkpoint of the original SimCSE code;
    - a new head, drawn from the seed, if the pooler trains one, as ``cls`` does. It is one linear
      layer and tanh over [CLS] (Gao et al. 2021, section 6.3).

    A model that normalises its vectors goes on to do so if it records the pooler of this run and
    training compares by cosine.
    """
    # Find out whether the model has a head, by its record or by the layout of the original code.
    model = find_model(config.pinned_model)
    record = model.record
    pooler, head_use = pooler_and_head(config, record)
    is_recorded = record.pooler is pooler
    has_kept_head = is_recorded and record.head_use is HeadUse.KEPT
    has_mlp = POOLERS[pooler].has_head and record.pooler is None and has_original_head(model)
    has_own_head = (has_kept_head or has_mlp) and head_use is not HeadUse.NONE
    # Only a model with its own head is loaded with a head.
    encoder = load_encoder(
        model,
        pooler=pooler if has_own_head else without_head(pooler),
        template=_first_template(config),
        device="cpu",
        force_pooler=True,
        dropout=0.0 if config.dropout_mode is DropoutMode.NONE else config.dropout,
        progress=progress,
    )
    may_normalize = is_recorded and config.similarity is choices.Similarity.COSINE
    comparison: dict[str, Any] = {
        "normalize": encoder.record.normalize and may_normalize,
        "similarity": config.similarity,
    }

    # Seed the draw of a fresh head here, so that it does not depend on what was drawn before.
    torch.manual_seed(config.seed)
    if has_own_head:
        encoder.change(head=encoder.head, head_use=head_use, **comparison)
    elif POOLERS[pooler].trains_head and head_use is not HeadUse.NONE:
        std = float(getattr(encoder.config, "initializer_range", 0.02))
        head = MlpHead(encoder.hidden_size, std)
        encoder.change(head=head, head_use=head_use, pooler=pooler, **comparison)
    else:
        encoder.change(head=None, **comparison)
    progress.info(_about(encoder, record, has_own_head))
    if config.lora is not None:
        put_lora(encoder, model, config, config.lora, progress)
    return encoder


def _about(encoder: SentenceEncoder, record: ModelRecord, has_own_head: bool) -> str:
    """Return one line on the encoder, its pooler and head, and what the model records."""
    about = f"training {encoder.name} with pooler {encoder.pooler}"
    if encoder.head is not None:
        origin = "its own" if has_own_head else "a fresh"
        after = "kept" if encoder.record.head_use is HeadUse.KEPT else "dropped after training"
        about += f" through {origin} head, {after}"
    if record.pooler is encoder.pooler:
        return f"{about}, as the model records"
    return f"{about}; the model records {record.pooler or 'no pooler'}"


def _first_template(config: TrainConfig) -> str | None:
    """Return the first view's template, which the saved model keeps; None if missing or ``{}``.

    Raise ConfigError for several templates if the objective takes only one.
    """
    templates = config.template or []
    accepted = settings_of(find_objective(config.objective).Options)
    if len(templates) > 1 and "template" not in accepted:
        raise ConfigError(
            f"--template: --objective {config.objective} puts one template around all texts, "
            f"these are {len(templates)}",
            hint="give one, or use --objective promptbert",
        )
    if not templates or templates[0] == NOTHING_AROUND:
        return None
    return templates[0]


def put_lora(
    encoder: SentenceEncoder, model: ModelFiles, config: TrainConfig, rank: int, progress: Progress
) -> None:
    """Add LoRA of a rank to the transformer, and tell the user how many weights are trained."""
    if rank >= encoder.hidden_size:
        raise ConfigError(
            f"--lora {rank}: need a rank below {encoder.hidden_size}, the width of {config.model}",
            hint="8 or 16 is enough for most data",
        )
    if config.lora_save is LoraSave.ADAPTER and model.is_adapter:
        raise ConfigError(
            f"--lora-save adapter: {config.model} is an adapter itself, an adapter needs a "
            "whole model",
            hint="leave it out, which merges both into a whole model",
        )
    # An adapter records the Hub name or the absolute path of the model that it belongs to.
    base = hub_name_of(config.model) or str(model.named.resolve())
    backbone = encoder.backbone
    n_weights = sum(weight.numel() for weight in backbone.parameters())
    add_lora(backbone, rank, config.lora_alpha, base=base, revision=config.revision)
    n_trained = sum(weight.numel() for weight in backbone.parameters() if weight.requires_grad)
    progress.info(
        f"LoRA of rank {rank}: {n_trained:,} weights beside {n_weights:,} that stay as they are"
    )
    if config.lr < LOW_LORA_RATE:
        wants = "which wants about ten times that of full training"
        progress.info(f"--lr {config.lr:g} is low for LoRA, {wants}")


def build_augment(text: str | None, device: str = "auto") -> TextAugmenter | TokenAugmenter | None:
    """Return the augmenter for the text of ``--augment``, or None without one.

    The text is ``METHOD[:RATE[:RESOURCE]]``, or several of these joined by ``+``. The methods
    ``shuffle`` and ``repeat`` act on sub-words and cannot be combined; the others act on texts.
    """
    if text is None:
        return None
    options = AugmentOptions(method=text, device=device)
    steps = parse_steps(options)
    if any(step.method == choices.Augmentation.NEGATE for step in steps):
        raise ConfigError(
            f"--augment {text}: negate makes negatives, not positives",
            hint="write a file with `simcse augment --method negate`, and train sncse on it",
        )
    on_tokens = [step for step in steps if step.method in ON_TOKENS]
    if not on_tokens:
        return model_augmenter(options)
    method = choices.Augmentation(on_tokens[0].method)
    rate = on_tokens[0].rate or 0.0  # 0.0 is for mypy alone: both methods have a default rate
    # A step on sub-words changes the rows that the encoder's tokenizer makes in training. So it
    # names no other tokenizer, and stands alone.
    if len(steps) > 1 or steps[0].model is not None:
        verb = "moves" if method is choices.Augmentation.SHUFFLE else "repeats"
        raise ConfigError(
            f"--augment {text}: {method} {verb} the sub-words of the encoder's own tokenizer "
            "and cannot be combined",
            hint=f"write --augment {method}:{rate:g}, or combine others by `simcse augment`",
        )
    return ON_TOKENS[method](rate)


# By setting: the reason why some objectives do not take it.
REFUSALS = {
    "temperature": "its loss has no temperature",
    "similarity": "its loss compares vectors in one way only",
    "hard_negative_alpha": "it has no hard negatives",
    "augment": "it makes its own pairs of texts",
    "teacher": "no part of its loss reads the vectors of another model",
    "generator": "it edits no sentences by a masked language model",
    "whole_words": "it masks sub-words at most",
    "dropout_mode": "it never compares two encodings of one text, so there is no mask to share",
}


def check_settings(config: TrainConfig) -> None:
    """Raise an error for settings that the objective cannot use, or that need missing packages."""
    objective = find_objective(config.objective)
    accepted = settings_of(objective.Options)
    refused = {name: reason for name, reason in REFUSALS.items() if name not in accepted}
    if "original_scaling" not in accepted:
        refused["gather"] = "its gradient has one form"
    if objective.ordered:
        refused["bucket_batches"] = "its examples keep their order"
    for name, reason in refused.items():
        value = getattr(config, name)
        is_default = value == getattr(TrainConfig, name)
        # Every objective takes ``DropoutMode.NONE``: without masks there is nothing to share.
        if not is_default and value is not DropoutMode.NONE:
            raise ConfigError(
                f"{flag(TrainConfig, name)} {value}: --objective {config.objective} cannot "
                f"use it, {reason}",
                hint=f"leave {flag(TrainConfig, name)} out",
            )
    if not config.has_dev_score:
        refuse_unused(
            config,
            ("patience", "dev_metric"),
            "has no use without a dev score (--dev-file, --dev-split or --dev-suite)",
        )
    reads_texts = objective.reads in (DataKind.ROWS, DataKind.DOCUMENTS)
    if config.text is not None and not (reads_texts and objective.n_columns[0] == 1):
        raise ConfigError(
            f"--text makes single texts, and --objective {config.objective} reads pairs",
            hint="name the columns of a pair with --columns anchor=A,positive=B",
        )
    if config.precision is choices.Precision.INT8:
        raise ConfigError(
            "--precision int8 is for inference: training has no int8",
            hint="use --precision bf16 or fp32",
        )
    if issubclass(objective, MaskedLm) and config.lora_save is LoraSave.ADAPTER:
        raise ConfigError(
            "--lora-save adapter: an adapter has no place for the masked-LM head of "
            f"--objective {config.objective}",
            hint="leave it out, which saves the whole model",
        )
    # Raise an error for wrong options of the objective before an augmenter or a teacher is loaded.
    objective.check_options(
        objective_options(config.objective, _common_settings(config), config.options)
    )
    if objective.needs_teacher and config.teacher is None:
        raise ConfigError(
            f"--objective {config.objective} learns from a teacher, and none is named",
            hint="add --teacher MODEL, or --teacher FILE.npy that `simcse encode` wrote",
        )
    if config.lora is not None:
        require_extra("peft", "--lora")
    if config.track is not None:
        require_extra(config.track, f"--track {config.track}")


# The most examples that a file with a weight above 1 may give an epoch: the order of an epoch takes
# 40 bytes for each example.
MOST_REPEATED = 100_000_000


def train_sources(config: TrainConfig) -> list[tuple[str, float]]:
    """Return the training files with their weights; raise an error for one that is missing."""
    if not config.train_file:
        raise ConfigError("no training file", hint="give one with --train-file FILE")
    sources = [split_weight(text) for text in config.train_file]
    for source, _ in sources:
        if source != STDIO and guess_format(source) is not FileFormat.HUB:
            require_file(source, hint=_folder_hint(source))
    return sources


def _folder_hint(source: str) -> str | None:
    """Return how to make a training file out of a folder; None if ``source`` is no folder."""
    if not Path(source).is_dir():
        return None
    text = shlex.quote(f"{Path(source).resolve().name}.txt")
    command = f"simcse prepare sentences {shlex.quote(source)} -o {text}"
    return f"of a folder, make one file: {command}"


def split_weight(text: str, place: str = "--train-file") -> tuple[str, float]:
    """Split ``SOURCE:WEIGHT``; the weight is 1 if none is given, or if ``text`` names a file.

    ``place`` is the flag that an error message names.
    """
    source, _, number = text.rpartition(":")
    if not source or Path(text).exists():
        return text, 1.0
    try:
        weight = float(number)
    except ValueError:
        return text, 1.0
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"{place} {text}: need a weight above 0, for example {source}:2")
    return source, weight


def read_data(config: TrainConfig, progress: Progress) -> Any:
    """Read the training data in the form that the objective needs, joining several files.

    Of a Hub dataset, only the rows that ``--max-steps`` needs are read, if every row is an example.
    """
    # A file can have a weight only if each example comes from one file.
    objective = find_objective(config.objective)
    sources = train_sources(config)
    for source, weight in sources:
        if weight != 1 and not objective.rows_are_examples:
            raise ConfigError(
                f"--train-file {source}:{weight:g}: --objective {config.objective} makes its "
                "examples from all files together, so a file has no weight of its own",
                hint=f"write --train-file {source}",
            )
    options_for_rows, options_for_pairs = given_tables(config, progress)

    # Join the documents of all files: the objective makes its examples from all of them together.
    if objective.reads is DataKind.DOCUMENTS:
        documents = [
            training_file.read_training_documents(source, options_for_rows) for source, _ in sources
        ]
        return training_file.join_documents(documents)

    # Read each file by itself, and remark on what was left out of it.
    parts = []
    for source, weight in sources:
        if objective.reads is DataKind.LABELLED:
            part = training_file.read_labelled_rows(source, options_for_rows)
        elif objective.reads is DataKind.SCORED:
            part = training_file.read_scored_rows(source, options_for_pairs)
        else:
            limit = _row_limit(source, config, objective, progress)
            part = training_file.read_training_rows(
                source, options_for_rows, limit=limit, n_columns=objective.n_columns[0]
            )
        if part.n_dropped:
            lacking = " or ".join(part.columns)
            progress.info(f"{part.name}: left out {part.n_dropped:,} rows without {lacking}")
        for remark in part.remarks:
            progress.info(remark)
        parts.append((part, weight))
        n_wanted = weight * len(part)
        if weight > 1 and n_wanted > MOST_REPEATED:
            raise ConfigError(
                f"--train-file {source}:{weight:g}: an epoch would have {n_wanted:,.0f} "
                f"examples of this file, it can have {MOST_REPEATED:,}",
                hint="the weight of a file is its number of passes in an epoch; --epochs repeats "
                "all files",
            )
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    return training_file.join_rows(parts)


def _row_limit(
    source: str, config: TrainConfig, objective: type[Objective], progress: Progress
) -> int | None:
    """Return how many rows of ``source`` to read, or None for all of them.

    Only a Hub dataset in which every row is an example is cut, to what ``--max-steps`` needs.
    """
    can_be_cut = guess_format(source) is FileFormat.HUB and objective.rows_are_examples
    if not can_be_cut or config.max_steps is None:
        return None
    limit = config.max_steps * config.batch_size * process_count()
    enough = f"which is enough for {config.max_steps:,} steps"
    progress.info(f"{source}: reading only the first {limit:,} rows, {enough}")
    return limit


def _hold_out(
    config: TrainConfig, data: Any, share: float
) -> tuple[training_file.TrainingRows, list[Row]]:
    """Return the rows to train on, and the rows that are held out.

    A random share of the anchors (the first texts of the rows) is chosen, and all rows with a
    chosen anchor are held out. The choice does not depend on the seed of the run.
    """
    # A masked LM is scored on single texts, any other model on pairs. Rows with a label are
    # refused: their texts may contradict each other.
    least_columns = 1 if issubclass(find_objective(config.objective), MaskedLm) else 2
    has_rows = isinstance(data, training_file.TrainingRows)
    if not has_rows or len(data.columns) < least_columns or data.columns[-1] == "label":
        raise ConfigError(
            f"--dev-split {share:g}: --objective {config.objective} reads no pairs here",
            hint="give --dev-file with scored pairs, or --dev-suite retrieval with --corpus, "
            "--queries and --qrels",
        )
    anchors = list(dict.fromkeys(row[0] for row in data.rows))
    n_chosen = max(1, round(share * len(anchors)))
    chosen = set(random.Random("dev-split").sample(anchors, n_chosen))
    held_out = [row for row in data.rows if row[0] in chosen]
    kept = training_file.StoredRows(row for row in data.rows if row[0] not in chosen)

    # The rows of all files come one after another; count the rows that each file keeps.
    rows = iter(data.rows)
    files = []
    for n_rows, weight in data.files:
        n_kept = sum(row[0] not in chosen for row in itertools.islice(rows, n_rows))
        files.append((n_kept, weight))
    # ``files`` may be empty if there is one file, so look at the rows that are kept as well.
    if any(n_kept == 0 for n_kept, _ in files) or not len(kept):
        raise DataError(f"{data.name}: --dev-split {share:g} would hold out every row of a file")
    return replace(data, rows=kept, files=tuple(files)), held_out


def _set_up_encoders(objective: Objective, config: TrainConfig, device: torch.device) -> None:
    """Apply the settings of attention, compilation and gradient checkpointing to the encoders.

    Raise ConfigError for a setting

    - that computes a layer twice, on a device whose random state cannot be saved: the second time
      would have other dropout masks;
    - that the precision does not allow;
    - that has no effect, because the rows are packed.
    """
    for name in ("micro_batch_size", "gradient_checkpointing"):
        if getattr(config, name) and not has_rng_state(device):
            raise ConfigError(
                f"{flag(TrainConfig, name)}: the random state of {device.type} is not saved, "
                "so that computing again would draw other dropout masks",
                hint="leave it out, or use --device cpu or cuda",
            )
    precision = resolve_precision(config.precision, device)
    if config.attention in FLASH_LIBRARIES and DTYPES[precision] is torch.float32:
        raise ConfigError(
            f"--attention {config.attention} takes numbers of 16 bits, this is "
            f"--precision {precision}",
            hint="use --precision bf16 or fp16, or --attention sdpa",
        )
    encoders = [part for part in objective.children() if isinstance(part, SentenceEncoder)]
    for encoder in encoders:
        if config.gradient_checkpointing:
            encoder.checkpoint_layers()
        for name in ("attention", "compile"):
            if getattr(config, name) and device.type == "cpu" and not encoder.pads_in_training:
                raise ConfigError(
                    f"{flag(TrainConfig, name)}: has no effect, on a CPU the rows of "
                    f"{encoder.name} are packed, not padded",
                    hint="leave it out; it is for GPUs and for architectures that are padded",
                )
        if config.attention is not None:
            encoder.attend_by(config.attention)
        if config.compile:
            encoder.backbone.compile(dynamic=True)


def build_teachers(config: TrainConfig, data: Any, progress: Progress) -> Teachers | None:
    """Return the teachers that the settings name, or None. Their vectors are made later."""
    if config.teacher is None:
        return None
    weighted_names = [split_weight(text, "--teacher") for text in config.teacher]
    teachers = Teachers(
        weighted_names, data.rows, config.device, progress, texts_digest=data.digest
    )
    # Warn of vectors of another file. The record of vectors names one input, so there is nothing to
    # compare if there are several training files.
    sources = train_sources(config)
    if len(sources) == 1:
        teachers.tell_origin(sources[0][0], progress)
    return teachers


def build_parts(
    config: TrainConfig, progress: Progress, resumed: RunRecord | None = None
) -> TrainingParts:
    """Read the data, and build the objective and the dev set.

    ``resumed`` is the record of a run that goes on from a saved state: it keeps its batches.
    """
    # Read the data to train on, and the dev set, which chooses the model.
    check_settings(config)
    data = read_data(config, progress)
    held_out: list[Row] = []
    if config.dev_split is not None:
        data, held_out = _hold_out(config, data, config.dev_split)
    dev_set, dev_facts = build_dev_set(config, progress, held_out)
    teachers = build_teachers(config, data, progress)

    # Build the objective. A masked LM scores held-out texts by its own loss, so its dev set is
    # built only now.
    objective = _objective_of(config, teachers, progress)
    if isinstance(objective, MaskedLm) and config.dev_split is not None:
        trained = {text for row in data.rows for text in row}
        texts = dict.fromkeys(text for row in held_out for text in row if text not in trained)
        dev_set = DevMasked.of_texts(objective, list(texts))
    # Freeze parameters that no vector depends on: they get no gradients, for which several
    # processes would wait.
    for module in objective.modules():
        if process_count() > 1 and isinstance(module, SentenceEncoder):
            module.freeze_unread()
    _set_up_encoders(objective, config, resolve_device(config.device))

    # Make the examples of the first epoch, to count them; this may add to ``objective.warnings``.
    examples = objective.examples(data, random_generator(config.seed, 0))
    n_examples = sum(n_taken(n_of_file, weight) for n_of_file, weight in files_of(examples))
    if n_examples < 2 and not objective.learns_from_one_row:
        raise DataError(
            f"{data.name}: {n_examples} training example, need at least 2 (the loss compares the "
            "examples of a batch)"
        )
    if n_examples < process_count():
        raise DataError(
            f"{data.name}: {n_examples} training examples, need one for each of the "
            f"{process_count()} processes",
            hint="start fewer processes",
        )
    if config.batch_size * process_count() == 1:
        has_hard_negatives = examples.are_rows and len(data.columns) > 2
        if objective.needs_two_rows:
            raise ConfigError(
                f"--batch-size 1: --objective {config.objective} compares the rows of a batch "
                "here, need at least 2",
                hint="use a larger --batch-size",
            )
        if objective.in_batch_negatives and not has_hard_negatives:
            progress.warn(
                "--batch-size 1: negatives come from the batch, so the loss is 0 and nothing is "
                "learnt"
            )
        elif objective.reads is DataKind.SCORED and not objective.learns_from_one_row:
            progress.warn("--batch-size 1: the loss compares the scores of a batch, so it is 0")
    for warning in objective.warnings:
        progress.warn(warning)
    cut_counts = count_cut(objective, examples, progress)

    # Make the batches. Batches without duplicates may have no place for some rows.
    resumed_batches = None if resumed is None else resumed.batches
    shared, kind = shared_texts(config, objective, examples, progress, resumed_batches)
    least_rows = 1 if objective.learns_from_one_row else 2
    if resumed is not None:
        least_rows = resumed.least_rows
    batches = BatchMaker(
        objective,
        data,
        n_examples,
        config,
        rank=process_rank(),
        n_processes=process_count(),
        shared=shared,
        kind=kind,
        least_rows=least_rows,
        # A resumed run may leave out any share of its rows: version 1.0.0 of this program, which
        # may have started it, had no limit.
        most_left_out=SHARED_SHARE if resumed is None else 1.0,
        teachers=teachers,
    )
    if n_without_place := n_examples - batches.n_examples:
        progress.info(
            f"{n_without_place:,} of {n_examples:,} rows have no place in an epoch: their texts "
            f"are too frequent for batches of {batches.global_batch_size:,}"
        )
    if batches.n_left_out:
        unit = "rows" if examples.are_rows else "examples"
        progress.info(
            f"each epoch leaves out {batches.n_left_out:,} of {batches.n_examples:,} {unit}: "
            f"its last batch needs at least {batches.least:,}"
        )

    # Collect what the run records of its data and code.
    digests: dict[str, Any] = {
        "train_file": ", ".join(config.train_file or ()),
        "train_sha256": data.digest,
        "n_examples": batches.n_examples,  # without the rows that have no place
        **_code_and_models(config, objective, teachers),
        **cut_counts,
        "batches": kind.value,
        "least_rows": least_rows,
        **dev_facts,
    }
    return TrainingParts(objective, batches, dev_set, digests)


def _code_and_models(
    config: TrainConfig, objective: Objective, teachers: Teachers | None
) -> dict[str, Any]:
    """Return the digests of the user's code, of the teachers and of the objective's models."""
    digests: dict[str, Any] = {}
    for text in (config.objective, config.augment):
        if names_code(text):
            digests.setdefault("code_files", {}).update(code_digest(str(text)))
    if teachers is not None:
        digests["teachers"] = teachers.digests
    if objective.model_digests:
        digests["models"] = objective.model_digests
    return digests


def _objective_of(config: TrainConfig, teachers: Teachers | None, progress: Progress) -> Objective:
    """Return the objective with its encoder; layers that it adds are drawn from the seed."""
    settings = _common_settings(config) | {
        "augment": build_augment(config.augment, config.device),
        "teacher": None if teachers is None else teachers.dim,  # objectives take the width alone
    }
    if config.generator is not None:  # fetched first, because this may fail
        kind = "a masked language model, such as a run of `train --objective mlm`"
        with naming_option("--generator", config.generator, folder=kind):
            find_model(config.generator, progress)
    encoder = build_encoder(config, progress)
    torch.manual_seed(config.seed)
    return build_objective(config.objective, encoder, settings, config.options)


def _common_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings of a run under the names that options of objectives have for them."""
    return config.to_dict() | {
        "temperature": config.effective_temperature,
        # ``to_dict`` has choices as text, but objectives take the choices themselves.
        "similarity": config.similarity,
        "dropout_mode": config.dropout_mode,
        "original_scaling": config.gather is choices.Gather.ORIGINAL,
    }


def count_cut(objective: Objective, examples: Examples, progress: Progress) -> dict[str, int]:
    """Tell the user how many examples have a text that training cuts, and by which limit.

    If there are many examples, only an evenly spaced part of them is looked at. The result is for
    the record: of ``n_looked_at`` examples, ``n_cut`` have such a text. For documents, the result
    is empty.
    """
    if objective.reads is DataKind.DOCUMENTS:
        return {}
    tokens = objective.encoder.tokens
    limit = min(objective.options.max_length, tokens.max_length)
    step = max(1, math.ceil(len(examples) / MOST_LOOKED_AT))
    looked_at = range(0, len(examples), step)
    n_cut = 0
    for first in range(0, len(looked_at), LOOKED_AT_ONCE):
        texts: list[str] = []
        owners: list[int] = []  # for each text, the number of its example
        for number in looked_at[first : first + LOOKED_AT_ONCE]:
            example_texts = _texts_of(examples.items[number])
            texts += example_texts
            owners += [number] * len(example_texts)
        # A text can be longer only if its cut ids reach the limit; only such texts are read again.
        cut_ids = tokens.ids(texts, limit)
        longer = tokens.longer_than(limit, texts, cut_ids)
        n_cut += len({owners[position] for position in longer})

    if n_cut:
        unit = "rows" if examples.are_rows else "examples"
        share = f"{n_cut / len(looked_at):.1%}"
        reason = "--max-length"
        if limit < objective.options.max_length:
            reason = f"the model's limit, below --max-length {objective.options.max_length}"
        what = f"a text of more than {limit} sub-words, which is cut there ({reason})"
        if step == 1:
            progress.info(f"{n_cut:,} of {len(looked_at):,} {unit} ({share}) have {what}")
        else:
            progress.info(
                f"about {share} of the {unit} have {what}; {len(looked_at):,} were looked at"
            )
    return {"n_cut": n_cut, "n_looked_at": len(looked_at)}


def _texts_of(example: Any) -> list[str]:
    """Return the texts of an example without its other parts, such as a class or a flag."""
    if isinstance(example, str):
        return [example]
    return [part for part in example if isinstance(part, str)]


def shared_texts(
    config: TrainConfig,
    objective: Objective,
    examples: Examples,
    progress: Progress,
    resumed_batches: Batches | None,
) -> tuple[SharedTexts | None, Batches]:
    """Return the texts that rows share, and the kind of batches to make.

    The kind is the first of these that applies:

    - shuffled, where other rows are no negatives; kinds that look at duplicates are refused there;
    - the kind that the settings name;
    - shuffled, if very few rows share texts;
    - the kind of the resumed run, ``resumed_batches``;
    - batches in which duplicates are masked.

    For shuffled batches, the texts are None.
    """
    if not (objective.in_batch_negatives and examples.are_rows):
        if config.batches in (Batches.NO_DUPLICATES, Batches.MASK_DUPLICATES):
            raise ConfigError(
                f"--batches {config.batches}: the rows of a batch are no negatives in "
                f"--objective {objective.name}",
                hint="leave it out",
            )
        return None, Batches.SHUFFLED
    if config.batches is Batches.SHUFFLED:
        return None, Batches.SHUFFLED

    # By default, a small share of duplicates is ignored.
    shared = SharedTexts(examples.items)
    if config.batches is None and shared.share <= SHARED_SHARE:
        return None, Batches.SHUFFLED
    kind = config.batches or resumed_batches or Batches.MASK_DUPLICATES
    effect = "no batch holds a text twice"
    if kind is Batches.MASK_DUPLICATES:
        effect = "the loss takes no equal text as a negative"
    progress.info(
        f"{shared.share:.1%} of the rows have a text of an earlier one: {effect} "
        "(--batches shuffled takes rows as they come)"
    )
    # If all rows are equal, only hard negatives are left, and of these only texts that are neither
    # the anchor nor the positive.
    numbers = shared.numbers
    rows_are_equal = bool((numbers == numbers[0]).all())
    hard_negatives = set(numbers[0, 2:].tolist()) - set(numbers[0, :2].tolist())
    if kind is Batches.MASK_DUPLICATES and rows_are_equal and not hard_negatives:
        progress.warn(
            "the rows to train on are all equal: none has a negative, so the loss is 0 and nothing "
            "is learnt"
        )
    return shared, kind
