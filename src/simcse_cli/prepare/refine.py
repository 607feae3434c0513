"""The way of every kind of row from its corpus into a training file: lint, clean, filter, sample, write."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simcse_cli.choices import Dedup
from simcse_cli.data.text import OverlapMean
from simcse_cli.data.writers import Row, open_rows
from simcse_cli.errors import DataError
from simcse_cli.prepare.leak import LeakFilter, TaskLeak
from simcse_cli.prepare.lint import Finding, Linter
from simcse_cli.prepare.options import RefineOptions
from simcse_cli.prepare.rows import (
    DropByLength,
    DropDuplicates,
    DropEmpty,
    DropNearDuplicates,
    DropSelfNegative,
    RowCounts,
    RowFilter,
    clean_rows,
    filter_rows,
    sample_rows,
)
from simcse_cli.progress import Progress

COLUMNS = {1: ("text",), 2: ("anchor", "positive"), 3: ("anchor", "positive", "hard_negative")}


@dataclass
class RefineResult:
    """What happened to the rows; ``overlap`` is over the written pairs."""

    counts: RowCounts = field(default_factory=RowCounts)
    findings: list[Finding] = field(default_factory=list)
    leaks: list[TaskLeak] | None = None
    overlap: OverlapMean = field(default_factory=OverlapMean)


def write_refined(
    rows: Iterable[Row],
    output: Path | str,
    n_columns: int,
    options: RefineOptions,
    *,
    linter: Linter,
    leak: LeakFilter | None = None,
    measure_overlap: bool = False,
    force: bool = False,
    progress: Progress,
) -> RefineResult:
    """Write the rows that survive to ``output`` and return what happened.

    Memory does not grow with the corpus, except for what must be remembered: a sample, the digests for
    finding duplicates (here and in the lint of pairs), and about 2 kB per row for near duplicates.

    Raises:
        DataError: no row is left, or lint found something and ``strict`` is on; nothing is written then.
        OutputError: the output exists without ``force`` or cannot be written.
    """
    result = RefineResult()
    kept = filter_rows(clean_rows(linter.watch(rows)), _filters(options, leak), result.counts)
    if options.sample is not None:
        kept = _sampled(kept, options.sample, options, result.counts)
    with open_rows(output, COLUMNS[n_columns], force=force) as write, progress.task("rows written") as task:
        for row in kept:
            write(row)
            task.advance()
            if measure_overlap and len(row) > 1:
                result.overlap.add(row[0], row[1])
        result.findings = linter.findings()
        result.leaks = leak.result() if leak is not None else None
        _require_rows(result.counts)
        if options.strict and result.findings:
            names = ", ".join(f"{found.check} {found.n_rows:,}" for found in result.findings)
            raise DataError(
                f"lint found {names}; nothing was written because of --strict",
                hint="mend the input, or leave out --strict: what lint finds is only reported then",
            )
    return result


def _filters(options: RefineOptions, leak: LeakFilter | None) -> Sequence[RowFilter]:
    filters: list[RowFilter] = [DropEmpty(), DropSelfNegative()]
    if options.min_words is not None or options.max_words is not None:
        filters.append(DropByLength(options.min_words, options.max_words))
    if leak is not None:
        filters.append(leak)
    if options.dedup is not None:
        filters.append(DropDuplicates())
    if options.dedup is Dedup.NEAR:
        filters.append(DropNearDuplicates(options.near_threshold))
    return filters


def _sampled(rows: Iterator[Row], size: int, options: RefineOptions, counts: RowCounts) -> Iterator[Row]:
    sample = sample_rows(rows, size, seed=options.seed, keep_order=options.keep_order)
    if counts.kept > len(sample):
        counts.dropped["not_sampled"] = counts.kept - len(sample)
        counts.kept = len(sample)
    yield from sample


def _require_rows(counts: RowCounts) -> None:
    if counts.kept:
        return
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.dropped.most_common())
    raise DataError(
        f"no row is left of {counts.read:,}" + (f" (dropped: {reasons})" if reasons else ""),
        hint="check the input and the filter options",
    )
