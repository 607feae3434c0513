"""Write the rows of a corpus to a training file with a manifest: lint, clean, filter, sample, write."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from simcse_cli.data.text import OverlapMean
from simcse_cli.data.writers import Row, build_manifest, open_rows, row_output
from simcse_cli.errors import DataError
from simcse_cli.files.streams import STDIO
from simcse_cli.prepare import filters
from simcse_cli.prepare.leak import LeakFilter, TaskLeak, leak_filter
from simcse_cli.prepare.lint import CountTokens, Finding, Linter, faults, list_findings
from simcse_cli.prepare.options import RowOptions
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import Dedup

_MANIFEST_SETTINGS = (
    *("min_words", "max_words", "dedup", "near_threshold", "sample", "keep_order", "strict"),
    *("check_leak", "leak_near", "drop_leaks", "tokenizer", "max_length", "encoding"),
    *("header", "separator", "keep_label"),
)


class CorpusCounts(Protocol):
    """Counts of what was read from a corpus, complete when its rows are exhausted."""

    def summary(self) -> str: ...


@dataclass
class RowResult:
    """Counts and findings of the rows; ``overlap`` is over the written pairs."""

    counts: filters.RowCounts = field(default_factory=filters.RowCounts)
    findings: list[Finding] = field(default_factory=list)
    leaks: list[TaskLeak] | None = None
    overlap: OverlapMean = field(default_factory=OverlapMean)


class RowWriter:
    """Write the rows that pass the filters to a file with a manifest, and report the counts.

    Memory does not grow with the corpus, except for a sample, the digests to find duplicates (here
    and in the lint of pairs), and about 2 kB per row to find near duplicates.
    """

    def __init__(
        self, options: RowOptions, progress: Progress, count_tokens: CountTokens | None = None
    ) -> None:
        self.options, self.progress, self._count_tokens = options, progress, count_tokens
        self._leak = leak_filter(
            options, progress
        )  # reads the evaluation sets before hours of mining

    def write(
        self,
        kind: str,
        rows: Iterable[Row],
        columns: Sequence[str],
        *,
        inputs: Sequence[str],
        settings: dict[str, Any],
        corpus: CorpusCounts | None = None,
    ) -> RowResult:
        """Write the rows; nothing is written if none is left, or if lint found something and ``strict`` is on.

        ``kind`` is the sub-command and ``settings`` its own options, for the manifest; ``corpus``
        counts what was read.
        """
        options, progress = self.options, self.progress
        linter, result = Linter(self._count_tokens, options.max_length), RowResult()
        counts, cleaned = result.counts, filters.clean_rows(linter.watch(rows))
        kept = filters.filter_rows(cleaned, _filters(options, self._leak), counts)
        if options.sample is not None:
            kept = _sampled(kept, options.sample, options, counts)

        def manifest(complete: Path) -> dict[str, Any]:
            shared = {name: getattr(options, name) for name in _MANIFEST_SETTINGS}
            if options.check_leak is not None:
                shared["check_leak"] = str(options.check_leak)
            facts = build_manifest(
                kind,
                inputs=inputs,
                folder=complete.parent,
                outputs=[(complete, counts.kept)],
                settings=settings | shared,
                seed=options.seed,
                counts=asdict(counts) | {"dropped": dict(sorted(counts.dropped.items()))},
                lint=[asdict(finding) for finding in result.findings],
                leaks=None if result.leaks is None else [asdict(leak) for leak in result.leaks],
                overlap_f1=result.overlap.value,
            )
            return facts if corpus is None else facts | {"corpus": vars(corpus)}

        with (
            row_output(options.output, columns, inputs=inputs, force=options.force) as output,
            open_rows(output, columns, manifest) as write,
            progress.task("rows written") as task,
        ):
            for row in kept:
                write(row)
                task.advance()
                if options.overlap:
                    result.overlap.add(row[0], row[1])
            result.findings = linter.findings()
            result.leaks = self._leak.result() if self._leak is not None else None
            if not counts.kept:
                reasons = ", ".join(
                    f"{reason} {count:,}" for reason, count in counts.dropped.most_common()
                )
                what = f"no row is left of {counts.read:,}" + (
                    f" (dropped: {reasons})" if reasons else ""
                )
                raise DataError(what, hint="check the input and the filter options")
            if options.strict and (found := faults(result.findings)):
                raise DataError(
                    f"lint found {list_findings(found)}; nothing was written because of --strict",
                    hint="mend the input, or leave out --strict to have the findings only reported",
                )
        if corpus is not None and (summary := corpus.summary()):
            progress.info(summary)
        _report(kind, result, options, progress)
        if str(options.output) != STDIO:
            progress.info(f"wrote {options.output} and {output.record}")
        return result


def _filters(options: RowOptions, leak: LeakFilter | None) -> list[filters.RowFilter]:
    chosen: list[filters.RowFilter] = [filters.drop_empty, filters.drop_self_negatives]
    if options.min_words is not None or options.max_words is not None:
        chosen.append(filters.drop_by_length(options.min_words, options.max_words))
    if leak is not None:
        chosen.append(leak.reasons)
    if options.dedup is not None:
        chosen.append(filters.drop_duplicates())
    if options.dedup is Dedup.NEAR:
        chosen.append(filters.drop_near_duplicates(options.near_threshold))
    return chosen


def _sampled(
    rows: Iterator[Row], size: int, options: RowOptions, counts: filters.RowCounts
) -> Iterator[Row]:
    sample = filters.sample_rows(rows, size, seed=options.seed, keep_order=options.keep_order)
    if counts.kept > len(sample):
        counts.dropped["not_sampled"] = counts.kept - len(sample)
        counts.kept = len(sample)
    yield from sample


def _report(kind: str, result: RowResult, options: RowOptions, progress: Progress) -> None:
    counts = result.counts
    progress.info(f"{kind}: {counts.read:,} rows read, {counts.kept:,} kept")
    for reason, count in counts.dropped.most_common():
        progress.info(f"  dropped {count:>11,}  {reason.replace('_', ' ')}")
    if options.sample is not None and counts.kept < options.sample:
        progress.warn(f"only {counts.kept:,} rows, fewer than --sample {options.sample:,}")
    for finding in result.findings:
        check = finding.check.replace("_", " ")
        what = (
            f"{check} ({finding.share:.2%}), first in row {finding.first_row:,}: {finding.example}"
        )
        progress.info(f"  lint    {finding.n_rows:>11,}  {what}")
    found = [leak for leak in result.leaks or () if leak.n_rows]
    for leak in found:
        near = "" if leak.n_near is None else f" and {leak.n_near:,} nearly"
        what = f"rows hold {leak.n_exact:,} of {leak.n_sentences:,} sentences of {leak.task} exactly{near}"
        progress.info(f"  leak    {leak.n_rows:>11,}  {what}")
    if result.leaks is not None and not found:
        progress.info(
            f"  no sentence of the {len(result.leaks)} evaluation tasks occurs in the rows"
        )
    if result.overlap.value is not None:
        share, n_pairs = 100 * result.overlap.value, result.overlap.n_pairs
        progress.info(f"  overlap {share:>11.1f}  % lexical overlap F1, mean of {n_pairs:,} pairs")
