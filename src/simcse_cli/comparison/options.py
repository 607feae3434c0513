"""The options of `simcse compare`."""

from dataclasses import dataclass

from simcse_cli.settings.choices import Aggregation, Correction, Metric
from simcse_cli.settings.declare import SEED_RANGE, setting


@dataclass(frozen=True)
class CompareOptions:
    against: list[str] | None = setting(
        None,
        "Published table (see --list) or YAML file of your own. Repeatable.",
        completes="table",
    )
    row: list[str] | None = setting(None, "Row of the table; without it all rows. Repeatable.")
    group: str | None = setting(None, "Group of the row where its name occurs twice.", needs="row")
    baseline: str | None = setting(
        None,
        "Label or path of the entry that differences are taken to; may be one more.",
        completes="run",
    )
    check: bool = setting(
        False, "Exit with 3 if a score is further from the reference than --tolerance."
    )
    tolerance: float = setting(0.5, "In points (x100).", min=0.0, needs="check")
    measures: str | None = setting(None, "Only these columns, for example STS12,STS-B,Avg.")
    aggregation: Aggregation | None = setting(None, "Read STS results under this aggregation.")
    metric: Metric | None = setting(None, "Read STS results under this metric.")
    pareto: str | None = setting(
        None, "Mark the Pareto front over these; default: averages and geometry."
    )
    details: bool = setting(
        False,
        "Add tables of single seeds, differences, tests, and settings and examples that changed.",
    )
    cost: bool = setting(
        False, "Add a table of what runs cost: hardware, precision, memory, hours."
    )
    examples: int | None = setting(
        None,
        "Examples to show that changed most (needs saved scores); default: 6 with --details.",
        min=0,
    )
    resamples: int = setting(2000, "Resamples of the paired bootstrap.", min=1, max=1_000_000)
    correction: Correction = setting(
        Correction.HOLM, "Correction of the p-values for their number."
    )
    list_tables: bool = setting(False, "List the published tables.", "--list")
    show: str | None = setting(
        None, "Show one published table.", metavar="TABLE", completes="table"
    )
    seed: int = setting(0, "Seed of everything random.", env="SIMCSE_SEED", **SEED_RANGE)
