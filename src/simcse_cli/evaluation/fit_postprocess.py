"""``--postprocess`` and ``--fit``: fit a post-processor and apply it to an encoder.

The sentences for the fit are read here as well. A fit uses both sides of a pair, but no labels.

Source: Su et al. 2021 and Li et al. 2020. For ``--fit nli``, the pairs are those of SNLI (train,
dev and test) and of MNLI (train). For ``--fit target``, they are all pairs of the evaluated task:
every subset of an STS year, or train, dev and test of STS-B and SICK-R.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.senteval import has_split, resolve_senteval_dir
from simcse_cli.data.table import Table
from simcse_cli.errors import ConfigError, DataError, UsageError
from simcse_cli.evaluation.embedding_cache import Encode, memoize
from simcse_cli.evaluation.eval_encoder import EvalEncoder, open_encoder
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.evaluation.sts import StsSuite
from simcse_cli.files.inputs import require_file
from simcse_cli.files.output import require_writable
from simcse_cli.files.streams import iter_lines
from simcse_cli.postprocess.registry import FitRecord, FittedPostProcessor, create, load, save
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Postprocess
from simcse_cli.settings.config import DATA_VARIABLE
from simcse_cli.settings.declare import refuse_unused

NLI = "nli"
TARGET = "target"
_FILE_HINT = "--fit takes nli, target or a file of sentences or pairs"

_MAIN_SETTINGS = {
    Postprocess.WHITENING: "k",
    Postprocess.FLOW: "epochs",
    Postprocess.ALL_BUT_THE_TOP: "n_directions",
    Postprocess.SIF: "n_directions",
}
"""For each post-processor, the setting that a number after its name gives, as in flow:3."""

Example = tuple[str, ...]
"""One sentence, or the two sides of a pair."""

_NLI_FILES = {
    "SNLI train": ("SNLI/s{}.train", "snli_1.0_train.jsonl", "snli_train.jsonl"),
    "SNLI dev": ("SNLI/s{}.dev", "snli_1.0_dev.jsonl", "snli_dev.jsonl"),
    "SNLI test": ("SNLI/s{}.test", "snli_1.0_test.jsonl", "snli_test.jsonl"),
    "MNLI train": (
        "MNLI/s{}.train",
        "MultiNLI/s{}.train",
        "multinli_1.0_train.jsonl",
        "mnli_train.jsonl",
    ),
}
"""For each part of the NLI corpora, the possible names of its file, the first choice first.

A name with ``{}`` stands for two files, 1 and 2: one for each side, aligned line by line.
"""


def target_examples(suite: StsSuite, task: str) -> list[Example]:
    # The tasks of an STS year have only a test split.
    all_pairs = suite.read_task(task, "all" if has_split(task, "all") else "test")
    return [pair for subset in all_pairs.subsets.values() for pair in subset.pairs]


def nli_examples(data_dir: Path | str, progress: Progress) -> list[Example]:
    """Return the pairs of the NLI files below a folder; warn if some are missing.

    The files may be in the folder itself, in its ``nli`` folder or in the SentEval folder. Raise
    DataError if there are none.
    """
    folders = [Path(data_dir), Path(data_dir) / "nli"]
    with suppress(DataError):
        folders.append(resolve_senteval_dir(data_dir))
    examples: list[Example] = []
    present: list[str] = []
    missing: list[str] = []
    for part, patterns in _NLI_FILES.items():
        pairs = _nli_part(patterns, folders, progress)
        if pairs:
            present.append(part)
        else:
            missing.append(part)
        examples += pairs
    if not present:
        what = (
            f"{data_dir} has no NLI files (SNLI/s1.train, snli_1.0_train.jsonl, "
            "multinli_1.0_train.jsonl)"
        )
        raise DataError(what, hint="put them there, or give any sentences or pairs with --fit FILE")
    if missing:
        progress.warn(
            f"fitting on {', '.join(present)} only; the papers also use {', '.join(missing)}"
        )
    return examples


def file_examples(path: Path | str, progress: Progress = SILENT) -> list[Example]:
    """Return the examples of a table: pairs if it has two columns of texts, or else single texts.

    Rows with an empty text are left out, and the user is told how many.
    """
    table = Table(path, Job.LINT)
    if table.reading.has("anchor"):
        rows = table.rows("anchor", "positive")
        examples: list[Example] = [tuple(map(table.text_of, cells)) for _, cells in rows]
    elif table.reading.has("text"):
        examples = [(text,) for text in table.texts()]
    else:
        # Job.LINT accepts unclear columns. Job.TEXTS does not: it raises an error that shows the
        # choices, except for an empty table.
        texts = Table(path, Job.TEXTS, Given().of_file("--fit")).texts()
        examples = [(text,) for text in texts]
    examples = _without_empty(examples, path, progress)
    if not examples:
        raise DataError(f"{path} holds no sentence", hint=_FILE_HINT)
    return examples


def _without_empty(
    examples: Sequence[Example], path: Path | str, progress: Progress
) -> list[Example]:
    """Return the examples without an empty text, and tell the user how many are left out."""
    kept = [example for example in examples if all(map(str.strip, example))]
    if n_empty := len(examples) - len(kept):
        rows = "row" if n_empty == 1 else "rows"
        progress.info(f"{path}: left out {n_empty:,} {rows} with an empty text")
    return kept


def sample_examples(
    examples: Sequence[Example], n_examples: int | None, seed: int
) -> list[Example]:
    """Return ``n_examples`` examples, drawn without replacement and kept in order.

    If there are no more than that, or if ``n_examples`` is None, return all examples.
    """
    if n_examples is None or n_examples >= len(examples):
        return list(examples)
    rows = np.random.default_rng(seed).choice(len(examples), n_examples, replace=False)
    return [examples[row] for row in np.sort(rows)]


def _nli_part(
    patterns: Sequence[str], folders: Sequence[Path], progress: Progress
) -> list[Example]:
    """Return the pairs of a part of the NLI corpora; an empty list if no folder has its file.

    ``patterns`` are the possible names of the file, as in ``_NLI_FILES``. The first file that
    exists is read.
    """
    for folder in folders:
        for pattern in patterns:
            left = folder / pattern.format(1)
            right = folder / pattern.format(2)
            if not (left.exists() and right.exists()):
                continue
            # A name without {} is a single file with both sides.
            if left == right:
                return file_examples(left, progress)
            firsts = list(iter_lines(left))
            seconds = list(iter_lines(right))
            if len(firsts) != len(seconds):
                raise DataError(
                    f"{left} has {len(firsts):,} lines, {right} has {len(seconds):,}; both "
                    "need the same number"
                )
            return _without_empty(list(zip(firsts, seconds, strict=True)), left, progress)
    return []


@dataclass(frozen=True)
class PostprocessPlan:
    """A post-processor: either one to load from the file ``saved``, or the method ``name`` to fit.

    ``label`` is the name of the post-processor in results. The fields from ``name`` on are for a
    fit: ``settings`` are those of the method, and ``source`` is ``nli``, ``target`` or the path of
    a file. At most ``sample`` examples are drawn from it, or all if ``sample`` is None.
    """

    label: str
    saved: Path | None = None
    name: Postprocess = Postprocess.WHITENING
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    sample: int | None = None
    seed: int = 42
    save_to: Path | None = None

    @property
    def is_per_task(self) -> bool:
        return self.source == TARGET


def plan_postprocess(options: EncoderOptions, *, force: bool) -> PostprocessPlan | None:
    """Check ``--postprocess`` and its options, and return the plan.

    Return None without ``--postprocess``. ``force`` allows ``--save-postprocess`` to overwrite.
    """
    if options.postprocess is None:
        return None
    name, _, number = options.postprocess.partition(":")

    # A saved post-processor is fitted already, so the options for fitting have no use.
    if name not in list(Postprocess):
        path = Path(options.postprocess)
        if not path.exists():
            what = f"{path} is neither a file nor one of {', '.join(Postprocess)}"
            raise UsageError(what, option="--postprocess")
        reason = f"{path} is fitted already: leave this out"
        refuse_unused(options, ("fit", "fit_sample", "fit_seed", "save_postprocess"), reason)
        return PostprocessPlan(label=path.name, saved=path)

    # Any other is fitted. Its files are checked now, long before they are used.
    if options.fit is None:
        raise UsageError(
            f"{name} needs --fit nli, --fit target or --fit FILE", option="--postprocess"
        )
    if options.save_postprocess is not None:
        require_writable(options.save_postprocess, force=force)
    if options.fit not in (NLI, TARGET):
        require_file(options.fit, hint=_FILE_HINT)

    # The flow draws at random, so it takes the seed. A number after the name sets the main setting.
    settings: dict[str, Any] = {}
    if name == Postprocess.FLOW:
        settings["seed"] = options.fit_seed
    if number:
        if not number.isdecimal():
            what = f"{options.postprocess}: {number!r} is not a whole number"
            raise UsageError(what, option="--postprocess")
        settings[_MAIN_SETTINGS[Postprocess(name)]] = int(number)
    return PostprocessPlan(
        f"{options.postprocess} ({Path(options.fit).name})",
        name=Postprocess(name),
        settings=settings,
        source=options.fit,
        sample=options.fit_sample,
        seed=options.fit_seed,
        save_to=options.save_postprocess,
    )


def with_postprocess(
    encoder: EvalEncoder,
    plan: PostprocessPlan | None,
    data_dir: Path | str | None,
    progress: Progress,
    *,
    target: Sequence[Example] | None = None,
    force: bool = False,
) -> EvalEncoder:
    """Return the encoder followed by one post-processor for all tasks, loaded or fitted.

    ``target`` are the pairs for ``--fit target``, which is refused without them. ``force``
    overwrites the file that a fitted post-processor is saved in.
    """
    if plan is None:
        return encoder
    if plan.saved is not None:
        return encoder.then(load(plan.saved), plan.label)

    # The examples to fit on.
    if plan.is_per_task:
        if target is None:
            what = "target is for `simcse eval sts`; use --fit nli or --fit FILE here"
            raise UsageError(what, option="--fit")
        examples = target
    elif plan.source == NLI:
        if data_dir is None:
            raise UsageError(f"nli needs --data-dir (or {DATA_VARIABLE})", option="--fit")
        examples = nli_examples(data_dir, progress)
    else:
        examples = file_examples(plan.source, progress)

    # Fit on the examples, and keep the result where the user wants it.
    fitted = fit_postprocessor(encoder, plan, examples, progress)
    if plan.save_to is not None:
        save(fitted, plan.save_to, force=force)
        progress.info(f"wrote {plan.save_to}")
    return encoder.then(fitted, plan.label)


def open_with_postprocess(
    options: EncoderOptions, data_dir: Path | None, progress: Progress, *, force: bool = False
) -> EvalEncoder:
    plan = plan_postprocess(options, force=force)
    return with_postprocess(open_encoder(options, progress), plan, data_dir, progress, force=force)


def per_task_postprocess(
    encoder: EvalEncoder, plan: PostprocessPlan, suite: StsSuite, progress: Progress
) -> Callable[[str], Encode]:
    """Return a function that takes the name of an STS task and returns an encode function for it.

    The encode function ends in a post-processor that is fitted on the pairs of the task. Every
    sentence is encoded once, however many tasks and fits use it.
    """
    if plan.save_to is not None:
        what = (
            "--fit target fits one for each task, so there is none to save; use --fit nli or "
            "--fit FILE"
        )
        raise UsageError(what, option="--save-postprocess")
    shared = replace(encoder, encode=memoize(encoder.encode))

    def for_task(task: str) -> Encode:
        fitted = fit_postprocessor(shared, plan, target_examples(suite, task), progress)
        return shared.then(fitted, plan.label).encode

    return for_task


def described_per_task(encoder: EvalEncoder, plan: PostprocessPlan) -> EvalEncoder:
    """Return the encoder as results describe it when a post-processor is fitted for each task.

    Only the description changes: the encoder still has its plain vectors and digest.
    """
    described = {"name": str(plan.name), "settings": plan.settings, "fit": {"source": plan.source}}
    return replace(encoder, name=f"{encoder.name} + {plan.label}", postprocess=described)


def fit_postprocessor(
    encoder: EvalEncoder, plan: PostprocessPlan, examples: Sequence[Example], progress: Progress
) -> FittedPostProcessor:
    """Fit the post-processor of a plan on the vectors of a sample of the examples, and return it.

    Either all examples are sentences, or all are pairs.
    """
    processor = create(plan.name, **plan.settings)
    examples = sample_examples(examples, plan.sample, plan.seed)
    vectors = encoder.encode([sentence for example in examples for sentence in example])
    try:
        # The vectors as (examples, 1 or 2 sentences, D).
        processor.fit(vectors.reshape(len(examples), len(examples[0]), -1), progress=progress)
    except ValueError as error:
        raise ConfigError(
            f"cannot fit {processor.name} on {len(vectors):,} vectors of {plan.source}: {error}",
            hint="fit on other sentences (--fit nli or --fit FILE) or choose another --postprocess",
        ) from error
    record = FitRecord(encoder.name, encoder.digest, plan.source, len(vectors))
    return FittedPostProcessor(processor, record)
