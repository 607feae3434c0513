"""Embedding spaces for `analyze`: the encoders, the rated pairs, and their vectors."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from simcse_cli.analysis.options import SpaceOptions
from simcse_cli.analysis.presentation import label_sources, name_sources
from simcse_cli.arrays import Floats, Floats32
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.pair_files import SCORED_PAIR, read_scored_pairs
from simcse_cli.data.senteval import Split, StsSubset, read_sts_task
from simcse_cli.errors import UsageError
from simcse_cli.evaluation.alignment import rating_scale
from simcse_cli.evaluation.correlation import correlate, cosine_rows
from simcse_cli.evaluation.embedding_cache import Encode, memoize
from simcse_cli.evaluation.eval_encoder import EvalEncoder, open_encoder
from simcse_cli.evaluation.fit_postprocess import (
    NLI,
    PostprocessPlan,
    plan_postprocess,
    with_postprocess,
)
from simcse_cli.evaluation.options import EncoderOptions, FitOptions
from simcse_cli.files.digests import OLDER_DIGEST, is_older_digest
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import checked
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.report import mean_and_deviation
from simcse_cli.results.result import SuiteResult
from simcse_cli.settings.choices import STS_TASKS, Aggregation, Metric
from simcse_cli.settings.config import LoadOptions
from simcse_cli.settings.declare import refuse_unused, settings_of


@dataclass(frozen=True)
class NamedEncoder:
    """A model or a file of vectors, ready to encode, with its ``label`` in tables.

    ``source`` is its path or name. A file of vectors has no ``pooler``. ``group`` is the name that
    several seeds share, and ``suffix`` names the post-processing, as in " + whitening (nli)".
    """

    label: str
    source: str
    encode: Encode
    digest: str
    pooler: str | None
    group: str | None = None
    suffix: str = ""

    @property
    def name(self) -> str:
        """The path with the post-processing, which is the name in result files."""
        return self.source + self.suffix

    def facts(self) -> dict[str, str | None]:
        facts = {
            "model": self.name,
            "label": self.label,
            "model_digest": self.digest,
            "pooler": self.pooler,
        }
        if self.group:
            facts["group"] = self.group
        return facts


def load_encoders(
    options: SpaceOptions, labels: Sequence[str] | None, pairs: StsSubset, progress: Progress
) -> Iterator[NamedEncoder]:
    """Yield the models, then the files of vectors, each post-processed as the options say.

    Each is opened only when its turn comes. ``--fit target`` fits the post-processing to ``pairs``.
    """
    # A source that is a folder of seeds gives a named encoder for each seed.
    sources = []
    for source in _plan_sources(options, labels):
        for named in name_sources([source.path], [source.label]):
            sources.append((source, named))

    # A model that occurs several times, with different post-processors, is opened once.
    n_uses = Counter(named.path for _, named in sources)
    kept: dict[str, EvalEncoder] = {}
    for source, named in sources:
        path = named.path
        opened = _open(replace(source.options, model=path), n_uses[path], kept, progress)
        encoder = with_postprocess(
            opened, source.plan, options.data_dir, progress, target=pairs.pairs
        )
        yield NamedEncoder(
            named.label,
            path,
            encoder.encode,
            encoder.digest,
            encoder.pooler,
            group=named.group,
            suffix=_suffix(source.plan),
        )


@dataclass(frozen=True)
class _Source:
    """A model or a file of vectors, with the options to open it and its post-processing."""

    path: str
    label: str
    options: EncoderOptions
    plan: PostprocessPlan | None


def _plan_sources(options: SpaceOptions, labels: Sequence[str] | None) -> list[_Source]:
    """Return the sources that the options name: the models, then the files of vectors.

    Raise UsageError if options disagree.
    """
    paths = [*(options.model or []), *map(str, options.embeddings or [])]
    if not paths:
        raise UsageError("need a model, or --embeddings with --sentences", option="--model")
    options_by_source = _options_of_each(options, paths)
    plans = [plan_postprocess(one, force=False) for one in options_by_source]
    if options.data_dir is None and any(plan is not None and plan.source == NLI for plan in plans):
        raise UsageError("nli looks for its pairs below --data-dir", option="--fit")
    # One model may occur with several post-processors, so default names include these.
    names = [path.rstrip("/") + _suffix(plan) for path, plan in zip(paths, plans, strict=True)]
    labels = label_sources(names, labels)
    return list(map(_Source, paths, labels, options_by_source, plans))


def _suffix(plan: PostprocessPlan | None) -> str:
    return f" + {plan.label}" if plan else ""


def _options_of_each(options: SpaceOptions, sources: Sequence[str]) -> list[EncoderOptions]:
    """Return for each source the options with which `simcse eval` would open it."""
    postprocessors = options.postprocess or ["none"]
    if len(postprocessors) not in (1, len(sources)):
        raise UsageError(
            f"{len(postprocessors)} for {len(sources)} models, need one for all or one for each",
            option="--postprocess",
        )
    if options.embeddings and options.sentences is None:
        raise UsageError(
            "needed with --embeddings: line i is the sentence of row i", option="--sentences"
        )
    if not options.model:
        unused = [name for name in settings_of(LoadOptions) if name != "device"]
        refuse_unused(options, unused, "has no use with --embeddings, which need no model")
    shared = settings_of(LoadOptions) | settings_of(FitOptions)
    common = {name: getattr(options, name) for name in shared}
    n_models = len(options.model or [])
    options_by_source = []
    for number, source in enumerate(sources):
        # A single post-processor is for all sources.
        name = postprocessors[number % len(postprocessors)]
        source_options = EncoderOptions(
            **common, model=source, postprocess=None if name == "none" else name
        )
        # The files of vectors come after the models.
        if number >= n_models:
            source_options = replace(
                source_options, embeddings=Path(source), sentences=options.sentences
            )
        options_by_source.append(source_options)
    return options_by_source


def _open(
    options: EncoderOptions, n_uses: int, kept: dict[str, EvalEncoder], progress: Progress
) -> EvalEncoder:
    """Return the encoder of a model or file of vectors, from ``kept`` if it is there.

    If the encoder has several uses, it is added to ``kept``, and remembers its vectors.
    """
    path = options.model
    if path in kept:
        return kept[path]
    opened = open_encoder(options, progress=progress)
    if n_uses > 1:
        opened = replace(opened, encode=memoize(opened.encode))
        kept[path] = opened
    return opened


@dataclass(frozen=True)
class PairSet:
    """Rated pairs with a name.

    Only the last ``n_scored`` pairs count for the correlation. In the whole of STS-B, they are the
    pairs of the test set; in other data, they are all pairs. ``measure`` is the name of their score
    in results of `eval sts`.
    """

    name: str
    pairs: StsSubset
    n_scored: int
    measure: str


def read_pair_set(options: SpaceOptions, progress: Progress = SILENT) -> PairSet:
    """Return the rated pairs of ``--pair-file``, or those of STS-B.

    The whole of STS-B has 8,628 pairs of 17,256 sentences.
    """
    splits = get_args(Split)
    if options.split not in splits:
        raise UsageError(f"{options.split!r}; need one of {', '.join(splits)}", option="--split")
    if options.pair_file is not None:
        # With a pair file, the folder has only one use: it holds the NLI pairs of --fit nli.
        if options.fit != "nli":
            refuse_unused(
                options, ["data_dir"], "has no use with --pair-file and without --fit nli"
            )
        if options.split != "all":
            raise UsageError("STS-B has parts, --pair-file has none", option="--split")
        columns = parse_columns(options.columns, SCORED_PAIR)
        given = Given.of(options, columns, roles=SCORED_PAIR, progress=progress)
        pairs = read_scored_pairs(options.pair_file, given)
        return PairSet(options.pair_file.name, pairs, pairs.n_pairs, measure=options.pair_file.stem)
    if options.data_dir is None:
        raise UsageError("need the SentEval folder, or --pair-file", option="--data-dir")
    task = read_sts_task(options.data_dir, "STSBenchmark", split=cast(Split, options.split))
    (pairs,) = task.subsets.values()
    if options.split in ("train", "dev"):
        measure = f"{task.name}-{options.split}"
        return PairSet(f"STS-B {options.split}", pairs, pairs.n_pairs, measure)
    if options.split == "test":
        return PairSet("STS-B test", pairs, pairs.n_pairs, measure=task.name)
    test_set = read_sts_task(options.data_dir, "STSBenchmark")
    return PairSet("STS-B", pairs, n_scored=test_set.n_pairs, measure=task.name)


@dataclass(eq=False)  # equal and hashed by identity, for the cache of `spectrum_of`
class EmbeddingSpace:
    """The vectors of rated pairs by one encoder.

    Row i of ``left`` and row i of ``right``, both ``(N, D)``, belong to pair i. ``average`` is the
    mean score of the encoder over the seven STS tasks, if a result has it.
    """

    encoder: NamedEncoder
    data: PairSet
    left: Floats32
    right: Floats32
    average: float | None = None

    @property
    def label(self) -> str:
        return self.encoder.label

    @property
    def vectors(self) -> Floats32:
        """The vectors of all sentences, ``(2N, D)``."""
        return np.concatenate([self.left, self.right])

    @cached_property
    def cosines(self) -> Floats:
        return cosine_rows(self.left, self.right)

    @property
    def score(self) -> float | None:
        """Spearman correlation of cosines and ratings over the scored pairs; None if undefined."""
        scored = slice(-self.data.n_scored, None)
        return correlate(Metric.SPEARMAN, self.cosines[scored], self.data.pairs.gold[scored])


def encode_pairs(
    options: SpaceOptions,
    labels: Sequence[str] | None,
    progress: Progress,
    data: PairSet | None = None,
) -> list[EmbeddingSpace]:
    """Return the space of each encoder on ``data``, by default the pairs that the options name."""
    if data is None:
        data = read_pair_set(options, progress)
    spaces = []
    for encoder in load_encoders(options, labels, data.pairs, progress):
        vectors = encoder.encode(data.pairs.sentences)
        left = vectors[: data.pairs.n_pairs]
        right = vectors[data.pairs.n_pairs :]
        average = sts_average(encoder, options.scores or (), progress)
        spaces.append(EmbeddingSpace(encoder, data, left, right, average))
        progress.detail(f"{encoder.label}: {len(vectors):,} sentences encoded")
    return spaces


def sts_average(
    encoder: NamedEncoder, results: Sequence[Path], progress: Progress = SILENT
) -> float | None:
    """Return the mean score of an encoder over the seven STS tasks, or None if no result has it.

    Scores are Spearman's correlations over all pairs of a task, without a regressor, even if the
    main score of the result is another. The mean comes from the first file with such scores of this
    encoder: ``results`` are searched first, then the files in its run folder.

    Results of simcse 1.0.0 are passed over, because their digests do not say which tokenizer was
    used. A warning names the last of them if no other result can be used.
    """
    older: Path | None = None
    for path, result in _sts_results(encoder, results):
        if is_older_digest(result.settings.get("model_digest"), encoder.digest):
            older = path
            continue
        is_regressed = result.settings.get("regressor")
        if result.split != "test" or is_regressed or not _belongs_to(result, encoder):
            continue
        scores_of = result.under(Metric.SPEARMAN, Aggregation.ALL).scores
        scores = [scores_of.get(task) for task in STS_TASKS]
        if None not in scores:
            return mean_and_deviation(scores)[0]
    if older is not None:
        progress.warn(
            f"{older} {OLDER_DIGEST}, so whether it is of {encoder.label} is not known; "
            "evaluate it again"
        )
    return None


def _sts_results(
    encoder: NamedEncoder, results: Sequence[Path]
) -> Iterator[tuple[Path, SuiteResult]]:
    """Yield each STS result with the path of its file; a file may hold those of several seeds.

    The files are ``results``, then the JSON files in the encoder's own folder.
    """
    folder = Path(encoder.source)
    for path in (*results, *sorted(folder.glob("*.json")), *sorted(folder.glob("results/*.json"))):
        content = read_json(path)
        if not isinstance(content, dict) or content.get("suite") != "sts":
            continue
        runs = checked(content.get("runs", [content]), list[dict[str, Any]], f"{path}: runs")
        for run in runs:
            yield path, SuiteResult.from_json(run, str(path))


def _belongs_to(result: SuiteResult, encoder: NamedEncoder) -> bool:
    """Tell whether a result was measured with this encoder and the same post-processing."""
    settings = result.settings
    # If a post-processor was fitted for each task, the result has the digest of the plain model.
    # Such a result is known by the name of the model, which includes the post-processing.
    if encoder.suffix and settings.get("model") == encoder.name:
        return True
    if settings.get("model_digest") != encoder.digest:
        return False
    # A plain encoder has the same digest as such a result, but the result is not its own.
    return bool(settings.get("postprocess")) == bool(encoder.suffix)


def spaces_payload(
    analysis: str, spaces: Sequence[EmbeddingSpace], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the JSON object of an analysis: the measures of each space, and means over seeds.

    Row i of ``rows`` has the measures of space i.
    """
    data = spaces[0].data
    models = [space.encoder.facts() | row for space, row in zip(spaces, rows, strict=True)]
    payload = {
        "analysis": analysis,
        "data": data.name,
        "n_pairs": data.pairs.n_pairs,
        "rating_scale": rating_scale(data.pairs.gold),
        "models": models,
    }
    return payload | seeds_entry(models, [model.get("group") for model in models])


def seeds_entry(
    rows: Sequence[Mapping[str, Any]], groups: Sequence[str | None]
) -> dict[str, list[dict[str, Any]]]:
    """Return the entry ``seeds`` of a JSON object: means and deviations over the seeds of a group.

    ``groups`` has the group of each row, or None. Without any group there is no entry.
    """
    rows_of: dict[str, list[Mapping[str, Any]]] = {}
    for row, group in zip(rows, groups, strict=True):
        if group is not None:
            rows_of.setdefault(group, []).append(row)
    seeds = [_seed_means(group, members) for group, members in rows_of.items()]
    return {"seeds": seeds} if seeds else {}


def _seed_means(group: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and the deviation over the seeds of a group, by key.

    Only values that are floats in all seeds are averaged; with a single seed, none are.
    """
    mean = {}
    deviation = {}
    for key in seeds[0]:
        values = [seed[key] for seed in seeds]
        if len(values) > 1 and all(isinstance(value, float) for value in values):
            mean[key], deviation[key] = mean_and_deviation(values)
    return {"label": group, "n_seeds": len(seeds), "mean": mean, "deviation": deviation}
