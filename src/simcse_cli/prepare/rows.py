"""Lint, clean, filter and sample the rows of a corpus, and write them with a manifest."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from simcse_cli.data.table import RowPosition
from simcse_cli.data.text import OverlapMean
from simcse_cli.data.writers import Row, build_manifest, open_rows, row_output
from simcse_cli.errors import DataError
from simcse_cli.files.inputs import STDIO
from simcse_cli.prepare import filters
from simcse_cli.prepare.leak import LeakFilter, TaskLeak, leak_filter
from simcse_cli.prepare.lint import CountTokens, Finding, Linter, faults, list_findings
from simcse_cli.prepare.options import RowOptions
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import Dedup
from simcse_cli.settings.tables import TableOptions

_MANIFEST_SETTINGS = (
    "min_words",
    "max_words",
    "dedup",
    "near_threshold",
    "sample",
    "keep_order",
    "strict",
    "check_leak",
    "leak_near",
    "drop_leaks",
    "tokenizer",
    "max_length",
    "encoding",
    "header",
    "separator",
    "sheet",
    "keep_label",
)


class CorpusCounts(Protocol):
    """Counts of what was read from a corpus; they are complete after its last row."""

    def summary(self) -> str: ...


@dataclass
class RowResult:
    """Counts of rows, the findings of lint, leaks, and the lexical overlap of the written pairs.

    ``leaks`` is None without the option ``check_leak``.
    """

    counts: filters.RowCounts = field(default_factory=filters.RowCounts)
    findings: list[Finding] = field(default_factory=list)
    leaks: list[TaskLeak] | None = None
    overlap: OverlapMean = field(default_factory=OverlapMean)

    def record(self) -> dict[str, Any]:
        """Return the part of the result that goes into a manifest."""
        dropped = dict(sorted(self.counts.dropped.items()))
        return {
            "counts": asdict(self.counts) | {"dropped": dropped},
            "lint": [asdict(finding) for finding in self.findings],
            "leaks": None if self.leaks is None else [asdict(leak) for leak in self.leaks],
            "overlap_f1": self.overlap.value,
        }


@dataclass
class RowWriter:
    """Write the rows that pass the filters to a file with a manifest, and report the counts.

    Memory does not grow with the corpus, with three exceptions:

    - a sample is held;
    - digests of rows are held to find duplicates, by lint even without the option ``dedup``;
    - the search for near duplicates holds about 2 kB per row.
    """

    options: RowOptions
    progress: Progress
    count_tokens: CountTokens | None = None

    def __post_init__(self) -> None:
        # Read the evaluation sets now: if this fails, it must fail before hours of mining.
        self._leak = leak_filter(self.options, self.progress)

    def write(
        self,
        kind: str,
        rows: Iterable[Row],
        columns: Sequence[str],
        *,
        inputs: Sequence[str],
        settings: dict[str, Any],
        corpus: CorpusCounts | None = None,
        position: RowPosition | None = None,
    ) -> RowResult:
        """Write the rows that pass the filters.

        Raise DataError and write nothing if no row is left, or if lint found a fault and the option
        ``strict`` is on. The manifest records ``kind`` (the name of the sub-command), ``settings``
        (the options that only this sub-command has) and ``corpus`` (the counts of what was read).
        ``position`` follows ``rows``: it always holds the file and the number of the row that was
        taken last. The findings of lint name this place; without ``position``, they count the rows
        through all inputs.
        """
        # Rows are checked and filtered as they pass, so no step holds them all.
        options = self.options
        linter = Linter(self.count_tokens, options.max_length, position)
        result = RowResult()
        kept = self._kept(filters.clean_rows(linter.watch(rows)), result.counts)

        # This is called after the last row, when the counts are known.
        def manifest(complete: Path) -> dict[str, Any]:
            facts = build_manifest(
                kind,
                inputs=inputs,
                folder=complete.parent,
                outputs=[(complete, result.counts.kept)],
                settings=settings | shared_settings(options),
                seed=options.seed,
                **result.record(),
            )
            return facts if corpus is None else facts | {"corpus": vars(corpus)}

        # An error inside this block, also one of ``_require_faultless``, leaves no output.
        with (
            row_output(options.output, columns, inputs=inputs, force=options.force) as output,
            self.progress.task("rows written") as task,
        ):
            # Without any row, not even a header may go to standard output.
            first = list(islice(kept, 1))
            if not first:
                raise _no_row(result.counts, inputs, "" if corpus is None else corpus.summary())
            with open_rows(output, columns, manifest) as write:
                for row in chain(first, kept):
                    write(row)
                    task.advance()
                    if options.overlap:
                        result.overlap.add(row[0], row[1])
                if position is not None:
                    result.counts.input_rows = position.n_rows
                result.findings = linter.findings()
                if self._leak is not None:
                    result.leaks = self._leak.result()
                if options.strict:
                    _require_faultless(result.findings)

        # Tell the user.
        if corpus is not None and (summary := corpus.summary()):
            self.progress.info(summary)
        _report(kind, result, options, self.progress)
        if str(options.output) != STDIO:
            self.progress.info(f"wrote {options.output} and {output.record}")
        return result

    def _kept(self, rows: Iterator[Row], counts: filters.RowCounts) -> Iterator[Row]:
        """Yield the rows that pass the filters, or a sample of them, and fill ``counts``."""
        options = self.options
        kept = filters.filter_rows(rows, _filters(options, self._leak), counts)
        if options.sample is None:
            yield from kept
            return
        sample = filters.sample_rows(
            kept, options.sample, seed=options.seed, keep_order=options.keep_order
        )
        # ``counts`` counted the rows before sampling.
        if counts.kept > len(sample):
            counts.dropped["not_sampled"] = counts.kept - len(sample)
            counts.kept = len(sample)
        yield from sample


def chosen(options: TableOptions, *names: str) -> dict[str, Any]:
    """Return the settings with these names, for a manifest."""
    return {name: getattr(options, name) for name in names}


def shared_settings(options: RowOptions) -> dict[str, Any]:
    """Return the settings that every sub-command records in its manifest."""
    shared = chosen(options, *_MANIFEST_SETTINGS)
    if options.check_leak is not None:
        shared["check_leak"] = str(options.check_leak)
    return shared


def _no_row(counts: filters.RowCounts, inputs: Sequence[str], summary: str) -> DataError:
    """Return the error for an input of which no row is left; ``summary`` says what was read."""
    if not counts.read:
        what = "the input gives no row"
        if summary:
            what += f": {summary}"
        command = shlex.join(["simcse", "prepare", "lint", *inputs[:1]])
        return DataError(what, hint=f"look at it: {command}")
    reasons = [f"{reason} {count:,}" for reason, count in counts.dropped.most_common()]
    what = f"no row is left of {counts.read:,} (dropped: {', '.join(reasons)})"
    return DataError(what, hint="check the input and the filter options")


def _require_faultless(findings: Sequence[Finding]) -> None:
    """Raise DataError if lint found a fault."""
    if found_faults := faults(findings):
        raise DataError(
            f"lint found {list_findings(found_faults)}, which --strict refuses",
            hint="correct the input, or leave out --strict to have the findings only reported",
        )


def _filters(options: RowOptions, leak: LeakFilter | None) -> list[filters.RowFilter]:
    """Return the filters that the options ask for, in the order in which rows pass them."""
    row_filters: list[filters.RowFilter] = [filters.drop_empty, filters.drop_self_negatives]
    if options.min_words is not None or options.max_words is not None:
        row_filters.append(filters.drop_by_length(options.min_words, options.max_words))
    if leak is not None:
        row_filters.append(leak.reasons)
    # Exact duplicates are always dropped first, which spares the slower search for near ones.
    if options.dedup is not None:
        row_filters.append(filters.drop_duplicates())
    if options.dedup is Dedup.NEAR:
        row_filters.append(filters.drop_near_duplicates(options.near_threshold))
    return row_filters


def _report(kind: str, result: RowResult, options: RowOptions, progress: Progress) -> None:
    counts = result.counts
    if counts.input_rows is None:
        made = f"{counts.read:,} rows made"
    elif counts.input_rows == counts.read:
        made = f"{counts.read:,} rows read"
    else:
        made = f"{counts.input_rows:,} rows read, {counts.read:,} rows made of them"
    progress.info(f"{kind}: {made}, {counts.kept:,} kept")
    for reason, count in counts.dropped.most_common():
        progress.info(f"  dropped {count:>11,}  {reason.replace('_', ' ')}")
    if options.sample is not None and counts.kept < options.sample:
        progress.warn(f"only {counts.kept:,} rows, fewer than --sample {options.sample:,}")
    for finding in result.findings:
        check = f"{finding.check.replace('_', ' ')} ({finding.share:.2%})"
        row = f"row {finding.first_row:,}"
        place = f"{row} of those made" if finding.file is None else f"{finding.file}, {row}"
        progress.info(
            f"  lint    {finding.n_rows:>11,}  {check}, first in {place}: {finding.example}"
        )
    if result.leaks is not None:
        _report_leaks(result.leaks, progress)
    if result.overlap.value is not None:
        percent = 100 * result.overlap.value
        what = f"% lexical overlap F1, mean of {result.overlap.n_pairs:,} pairs"
        progress.info(f"  overlap {percent:>11.1f}  {what}")


def _report_leaks(leaks: Sequence[TaskLeak], progress: Progress) -> None:
    leaking = [leak for leak in leaks if leak.n_rows]
    for leak in leaking:
        held = f"{leak.n_exact:,} of {leak.n_sentences:,} sentences of {leak.task} exactly"
        if leak.n_near is not None:
            held += f" and {leak.n_near:,} nearly"
        progress.info(f"  leak    {leak.n_rows:>11,}  rows hold {held}")
    if not leaking:
        progress.info(f"  no sentence of the {len(leaks)} evaluation tasks occurs in the rows")
