"""`analyze geometry`: alignment, uniformity and mean cosine of sentence vectors on the unit sphere.

Every measure scales the rows to length 1 first (a row of zeros stays zero) and computes in float64.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simcse_cli.analysis.presentation import Analysis
from simcse_cli.analysis.spaces import EmbeddingSpace, spaces_payload
from simcse_cli.analysis.spectrum import spectrum_of
from simcse_cli.evaluation.alignment import (
    alignment,
    is_positive,
    mean_cosine,
    rated_above,
    scale_note,
    uniformity,
)
from simcse_cli.results import plots
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Report

# The axes and the colours span at least this much, so that tiny differences do not look large.
LEAST_SPAN = 0.05  # of an axis
LEAST_SCORES = 1.0  # of the colours, which show scores x100


def describe_geometry(space: EmbeddingSpace) -> dict[str, Any]:
    """Return the alignment of the positive pairs, and the other measures over all sentences.

    Source: Gao et al. 2021, footnote 3. In the whole of STS-B, 1,491 of the 8,628 pairs are
    positive: those with a gold score above 4. The paper does not say whether repeated sentences are
    kept; keeping them is a toolkit default. Without a positive pair, the alignment is None.
    """
    positive = is_positive(space.data.pairs.gold)
    aligned = None
    if positive.any():
        aligned = alignment(space.left[positive], space.right[positive])
    all_vectors = space.vectors
    spectrum = spectrum_of(space, raw=False, center=False)
    return {
        "dim": all_vectors.shape[1],
        "n_positives": int(positive.sum()),
        "n_sentences": len(all_vectors),
        "alignment": aligned,
        "uniformity": uniformity(all_vectors),
        "effective_rank": spectrum.effective_rank,
        "isotropy": spectrum.isotropy,
        "mean_cosine": mean_cosine(all_vectors),
        "score": space.score,
        "sts_average": space.average,
    }


@plots.house_style()
def geometry_figure(models: Sequence[Mapping[str, Any]], score_label: str) -> plots.Figure:
    """Draw a point for each model, with uniformity to the right and alignment upwards.

    Source: Gao et al. 2021, Figure 3; lower is better in both. The colour of a point is the average
    over STS tasks if every model has one, otherwise the score on the pairs, which ``score_label``
    names. If a model has neither, no point is coloured.
    """
    has_average = all(model.get("sts_average") is not None for model in models)
    key = "sts_average" if has_average else "score"
    figure, (axes,) = plots.new_figure(6.4, 4.6)
    x = [model["uniformity"] for model in models]
    y = [model["alignment"] for model in models]

    # Points are coloured only if every model has a score.
    scores = [100 * model[key] for model in models if model[key] is not None]
    colouring: dict[str, Any] = {}
    if len(scores) == len(models):
        low, high = plots.at_least(min(scores), max(scores), LEAST_SCORES)
        colouring = {"c": scores, "cmap": plots.COLOUR_MAP, "vmin": low, "vmax": high}
    spots = axes.scatter(x, y, s=70, edgecolor=plots.INK, linewidth=0.8, zorder=3, **colouring)
    if colouring:
        label = "average STS, Spearman x 100" if has_average else score_label
        bar = figure.colorbar(spots, ax=axes, label=label)
        plots.few_ticks(bar.ax.yaxis)

    # Leave room for the labels, and do not magnify tiny differences.
    axes.margins(0.22)
    axes.set_xlim(plots.at_least(*axes.get_xlim(), LEAST_SPAN))
    axes.set_ylim(plots.at_least(*axes.get_ylim(), LEAST_SPAN))
    plots.geometry_axes(axes)
    names = [model["label"] for model in models]
    plots.place_labels(figure, axes, list(zip(x, y, strict=True)), names)
    return figure


def geometry_analysis(spaces: Sequence[EmbeddingSpace]) -> Analysis:
    """Return the alignment, the uniformity and further measures of each space."""
    data = spaces[0].data

    # A score on STS-B is named after its split. In the whole of STS-B, only the test set is scored.
    heading = "Spearman"
    if data.name == "STS-B":
        heading = "STS-B test"
    elif "STS-B " in data.name:
        heading = data.name
    score_label = "Spearman x100"
    if heading != "Spearman":
        score_label = f"{heading}, Spearman x100"

    payload = spaces_payload("geometry", spaces, [describe_geometry(space) for space in spaces])
    models = payload["models"]

    # The table has a column for the STS average if some model has one.
    keys = ["alignment", "uniformity", "effective_rank", "isotropy", "mean_cosine", "score"]
    if any(space.average is not None for space in spaces):
        keys.append("sts_average")

    # All models embed the same data, so the counts of the first hold for all.
    n_positives = models[0]["n_positives"]
    n_sentences = models[0]["n_sentences"]
    notes = [
        "Lower alignment and uniformity are better; compare effective rank only between "
        "equal widths."
    ]
    threshold = rated_above(data.pairs.gold)
    if n_positives == 0:
        notes.append(
            f"No pair is rated above {threshold}, so there is no alignment, and no figure."
        )
    if note := scale_note(data.pairs.gold):
        notes.append(note)
    table = Report(
        f"Geometry on {data.name}: {n_positives:,} positive pairs, {n_sentences:,} sentences",
        columns("label", *keys, label="model", score=heading),
        models,
        notes,
    )

    def scatter() -> str:
        points = {}
        for model in models:
            points[model["label"]] = np.array([[model["uniformity"], model["alignment"]]])
        return plots.geometry_scatter(points)

    return Analysis(
        title="Alignment and uniformity",
        text="Alignment: mean squared distance between the unit vectors of pairs rated above "
        f"{threshold}. Uniformity: log of the mean of exp(-2 squared "
        "distance) over all pairs of sentences. Lower is better in both.",
        caption=f"One point a model, coloured by its score. Data: {data.name}.",
        tables=[table],
        payload=payload,
        figure=(lambda: geometry_figure(models, score_label)) if n_positives else None,
        terminal_plot=scatter if n_positives else str,  # str() is "", which is no plot
    )
