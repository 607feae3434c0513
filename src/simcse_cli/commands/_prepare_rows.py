"""What the row-writing kinds of `prepare` share: lint, leak check, the summary on stderr and the manifest."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from simcse_cli.commands._row_options import RowOptions
from simcse_cli.console import Console, get_console
from simcse_cli.data.manifest import build_manifest, write_manifest
from simcse_cli.data.writers import Row
from simcse_cli.errors import ConfigError
from simcse_cli.files import STDIO
from simcse_cli.prepare.corpora import DocumentCounts
from simcse_cli.prepare.leak import LeakFilter, TaskLeak, evaluation_sentences
from simcse_cli.prepare.lint import CountTokens, Finding, Linter
from simcse_cli.prepare.nli import NliCounts
from simcse_cli.prepare.refine import RefineResult, write_refined

CorpusCounts = NliCounts | DocumentCounts


def write_rows(
    kind: str,
    rows: Iterable[Row],
    *,
    n_columns: int,
    inputs: Sequence[str],
    settings: dict[str, Any],
    options: RowOptions,
    measure_overlap: bool = False,
    corpus: CorpusCounts | None = None,
) -> RefineResult:
    """Write the rows of one kind with their manifest and tell the user what happened.

    Args:
        kind: the sub-command.
        rows: what the corpus holds.
        n_columns: texts per row.
        inputs: as the user named them.
        settings: options of this kind, for the manifest.
        options: options of all kinds.
        measure_overlap: report the lexical overlap of anchors and positives.
        corpus: what was read, filled by the time the rows are used up.
    """
    console = get_console()
    result = write_refined(
        rows,
        options.output,
        n_columns,
        options.refine,
        linter=Linter(load_token_counter(options.tokenizer), options.max_length),
        leak=_leak_filter(options, console),
        measure_overlap=measure_overlap,
        force=options.force,
        progress=console.progress,
    )
    if corpus is not None:
        console.info(corpus.summary())
    _tell(kind, result, options, console)
    if str(options.output) != STDIO:
        manifest = _manifest(kind, inputs, settings, options, result)
        if corpus is not None:
            manifest["corpus"] = vars(corpus)
        console.info(f"wrote {options.output} and {write_manifest(options.output, manifest)}")
    return result


def load_token_counter(model: str | None) -> CountTokens | None:
    """Return a function that counts the sub-words of texts, special tokens included; None for no model."""
    if model is None:
        return None
    from simcse_cli.models.checkpoint import load_tokenizer
    from simcse_cli.models.resolve import resolve_model

    tokenizer = load_tokenizer(resolve_model(model))

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]]

    return count


def _leak_filter(options: RowOptions, console: Console) -> LeakFilter | None:
    if options.leak_dir is None:
        if options.drop_leaks or options.leak_near:
            flag = "--drop-leaks" if options.drop_leaks else "--leak-near"
            raise ConfigError(
                f"{flag} needs the evaluation folder", hint=f"add --check-leak EVALDIR to {flag}"
            )
        return None
    sentences = evaluation_sentences(options.leak_dir)
    n_sentences = sum(map(len, sentences.values()))
    console.detail(f"looking for {n_sentences:,} evaluation sentences of {', '.join(sentences)}")
    near = options.refine.near_threshold if options.leak_near else None
    return LeakFilter(sentences, drop=options.drop_leaks, near=near)


def _tell(kind: str, result: RefineResult, options: RowOptions, console: Console) -> None:
    counts = result.counts
    console.info(f"{kind}: {counts.read:,} rows read, {counts.kept:,} kept")
    for reason, count in counts.dropped.most_common():
        console.info(f"  dropped {count:>11,}  {reason.replace('_', ' ')}")
    if options.refine.sample is not None and counts.kept < options.refine.sample:
        console.warn(f"only {counts.kept:,} rows, fewer than --sample {options.refine.sample:,}")
    for finding in result.findings:
        console.info(f"  lint    {finding.n_rows:>11,}  {describe_finding(finding)}")
    if result.leaks is not None:
        _tell_leaks(result.leaks, console)
    if result.overlap.value is not None:
        share = 100 * result.overlap.value
        console.info(
            f"  overlap {share:>11.1f}  % lexical overlap F1, mean of {result.overlap.n_pairs:,} pairs"
        )


def describe_finding(finding: Finding) -> str:
    """Return a finding as people read it: check, share of the rows, where it is first."""
    name = finding.check.replace("_", " ")
    return f"{name} ({finding.share:.2%}), first in row {finding.first_row:,}: {finding.example}"


def _tell_leaks(leaks: Sequence[TaskLeak], console: Console) -> None:
    found = [leak for leak in leaks if leak.n_rows]
    for leak in found:
        near = "" if leak.n_near is None else f" and {leak.n_near:,} nearly"
        what = f"rows hold {leak.n_exact:,} of {leak.n_sentences:,} sentences of {leak.task} exactly{near}"
        console.info(f"  leak    {leak.n_rows:>11,}  {what}")
    if not found:
        console.info(f"  no sentence of the {len(leaks)} evaluation tasks occurs in the rows")


def _manifest(
    kind: str, inputs: Sequence[str], settings: dict[str, Any], options: RowOptions, result: RefineResult
) -> dict[str, Any]:
    refine = asdict(options.refine)
    seed = refine.pop("seed")
    leak_settings = {
        "check_leak": None if options.leak_dir is None else str(options.leak_dir),
        "leak_near": options.leak_near,
        "drop_leaks": options.drop_leaks,
    }
    lint_settings = {"tokenizer": options.tokenizer, "max_length": options.max_length}
    return build_manifest(
        kind,
        inputs=inputs,
        folder=options.output.parent,
        outputs=[(options.output, result.counts.kept)],
        settings=settings | refine | leak_settings | lint_settings | {"encoding": options.encoding},
        seed=seed,
        counts={
            "read": result.counts.read,
            "kept": result.counts.kept,
            "dropped": dict(sorted(result.counts.dropped.items())),
        },
        lint=[asdict(finding) for finding in result.findings],
        leaks=None if result.leaks is None else [asdict(leak) for leak in result.leaks],
        overlap_f1=result.overlap.value,
    )
