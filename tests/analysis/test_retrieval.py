import numpy as np

from simcse_cli.analysis.retrieval import retrieval_figure
from simcse_cli.evaluation.retrieval import RetrievalScores


def test_retrieval_figure_draws_hit_rate_and_recall():
    scores = RetrievalScores(5, np.array([0.1, 0.2]), np.array([0.4, 0.6]), np.zeros(2), np.zeros(2))
    panels = retrieval_figure({"one": scores}).axes
    assert [panel.lines[0].get_ydata().tolist() for panel in panels] == [[40.0, 60.0], [10.0, 20.0]]
