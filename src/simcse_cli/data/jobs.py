"""The jobs that a table is read for."""

from enum import StrEnum


class Job(StrEnum):
    """What a command reads from a table."""

    TEXTS = "texts"
    VIEWS = "views"  # single texts, or pairs under the names anchor and positive
    ROWS = "rows"  # pairs that are all positives, perhaps with hard negatives
    COSINES = "cosines"  # pairs without scores and labels
    SCORED = "scored"
    LABELLED = "labelled"
    NLI = "nli"
    LINT = "lint"  # rows, else single texts, else everything; never asks

    @property
    def is_single(self) -> bool:
        return self in (Job.TEXTS, Job.VIEWS)

    @property
    def keeps_labels(self) -> bool:
        """Whether the user may say which labels mark the pairs to keep."""
        return self in (Job.ROWS, Job.VIEWS, Job.COSINES)

    @property
    def sides(self) -> tuple[str, str]:
        """The roles of the two texts of a pair."""
        if self in (Job.COSINES, Job.SCORED, Job.LABELLED):
            return "left", "right"
        return "anchor", "positive"
