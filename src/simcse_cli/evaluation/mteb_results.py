"""Scores of MTEB tasks and their averages; the running is in ``mteb_adapter``."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

CATEGORIES = (
    "Classification",
    "Clustering",
    "PairClassification",
    "Reranking",
    "Retrieval",
    "STS",
    "Summarization",
)
"""The seven categories of the English benchmark, in the order of the papers' tables."""

LOCAL_REVISION = "local-"
"""How the revision of a dataset begins that was read from a local folder; its digest follows."""


@dataclass(frozen=True)
class MtebTaskScore:
    """The main score of one task, with what it was measured on."""

    category: str
    metric: str
    score: float | None
    dataset: str
    dataset_revision: str
    is_cached: bool
    seconds: float

    @property
    def data(self) -> str:
        """Where the dataset was read: ``local`` or ``hub``."""
        return "local" if self.dataset_revision.startswith(LOCAL_REVISION) else "hub"

    def to_json(self) -> dict[str, Any]:
        return {
            "category": self.category,
            "metric": self.metric,
            "score": self.score,
            "dataset": self.dataset,
            "dataset_revision": self.dataset_revision,
            "data": self.data,
            "cached": self.is_cached,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class MtebResult:
    """Scores by task; a task that could not be run is None and named in ``missing`` with the reason."""

    categories: dict[str, str]
    tasks: dict[str, MtebTaskScore | None]
    missing: dict[str, str]
    mteb_version: str

    def score(self, task: str) -> float | None:
        """Return the main score of a task, a fraction, or None."""
        outcome = self.tasks[task]
        return None if outcome is None else outcome.score

    def category_tasks(self) -> dict[str, list[str]]:
        """Return the tasks of each category, in the papers' order."""
        present = sorted(set(self.categories.values()), key=lambda name: (_rank(name), name))
        return {name: [task for task in self.tasks if self.categories[task] == name] for name in present}

    def scores(self, tasks: Iterable[str]) -> list[float]:
        """Return the scores of those of ``tasks`` that have one."""
        return [score for task in tasks if (score := self.score(task)) is not None]

    def mean(self, tasks: Iterable[str]) -> float | None:
        scores = self.scores(tasks)
        return float(np.mean(scores)) if scores else None

    @property
    def average(self) -> float | None:
        """Mean over datasets, not over categories (the papers' "Avg." when all 56 datasets are scored)."""
        return self.mean(self.tasks)

    @property
    def n_scored(self) -> int:
        return len(self.scores(self.tasks))

    def to_json(self, **facts: Any) -> dict[str, Any]:
        """Return the result as one JSON object (``docs/evaluation.md``, MTEB)."""
        return {
            "suite": "mteb",
            **facts,
            "mteb_version": self.mteb_version,
            "tasks": {name: None if task is None else task.to_json() for name, task in self.tasks.items()},
            "missing": self.missing,
            "categories": {
                name: {
                    "n_tasks": len(tasks),
                    "n_scored": len(self.scores(tasks)),
                    "score": self.mean(tasks),
                }
                for name, tasks in self.category_tasks().items()
            },
            "n_tasks": len(self.tasks),
            "n_scored": self.n_scored,
            "average": self.average,
        }


def _rank(category: str) -> int:
    return CATEGORIES.index(category) if category in CATEGORIES else len(CATEGORIES)
