"""`analyze geometry`: how sentence vectors lie on the unit sphere, by alignment, uniformity and mean cosine.

Every measure scales the rows to length 1 first (a row of zeros stays zero) and computes in float64.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.plots import (
    ALIGNMENT_AXIS,
    COLOUR_MAP,
    INK,
    UNIFORMITY_AXIS,
    Figure,
    geometry_scatter,
    house_style,
    new_figure,
    place_labels,
)
from simcse_cli.analysis.spaces import Space, Vectors, spaces_payload
from simcse_cli.analysis.spectrum import spectrum_of
from simcse_cli.analysis.views import View
from simcse_cli.encoding.search_index import unit_rows
from simcse_cli.errors import DataError
from simcse_cli.report import Column, Report

POSITIVE_SHARE = 0.8  # of the scale: above 4 of 5


def alignment(left: Vectors, right: Vectors) -> float:
    """Return the mean squared distance of positive pairs on the unit sphere.

    Source: Wang and Isola 2020, the alignment loss with exponent 2. For unit vectors it equals
    ``2 - 2 * mean cosine``: 0 for identical pairs, 2 for orthogonal ones, 4 for opposite ones.

    Rows ``(N, D)`` have any norm; row i of ``right`` is the positive of row i of ``left``.

    Raises:
        ValueError: shapes differ or there is no pair.
    """
    if left.shape != right.shape or left.ndim != 2 or len(left) == 0:
        raise ValueError(
            f"left has shape {left.shape} and right {right.shape}, need the same (N, D) with N > 0"
        )
    difference = unit_rows(left, np.float64) - unit_rows(right, np.float64)
    return float(np.einsum("nd,nd->n", difference, difference).mean())


def is_positive(gold: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which pairs count as positive: rated above 4 on a scale from 0 to 5, above 80% of another scale.

    Source: Gao et al. 2021, section 3, for 0 to 5. A scale begins at 0, or at the lowest score if that is below,
    and ends at 1, 5, 10 or 100, or at the highest score if that is above.
    """
    low = min(0.0, float(gold.min(initial=0.0)))
    high = float(gold.max(initial=low))
    high = next((end for end in (1.0, 5.0, 10.0, 100.0) if high <= end), high)
    return np.asarray(gold > low + POSITIVE_SHARE * (high - low))


def uniformity(vectors: Vectors, t: float = 2.0, *, block_rows: int = 1024) -> float:
    """Return the log of the mean Gaussian potential over all unordered pairs of different rows.

    Source: Wang and Isola 2020: ``log mean over i < j of exp(-t * |u_i - u_j|^2)``, rows on the unit sphere,
    each pair counted once, a row never with itself. Exact: tiles of ``block_rows`` squared are visited one by
    one, so memory beside the vectors is ``O(block_rows^2)``; the sum is kept relative to the largest term, so
    a large ``t`` does not underflow. Equal rows in the data count as pairs at distance 0.

    Args:
        vectors: ``(N, D)``, any norm, N at least 2.
        t: above 0; 2 in every table and figure of the papers.
        block_rows: edge of a tile.

    Returns:
        A value in ``[-4t, 0]``: 0 when all rows point the same way, -8 for two antipodal rows at t = 2,
        ``-2t`` for orthogonal rows.

    Raises:
        ValueError: fewer than two rows.
    """
    n_rows = len(vectors)
    if vectors.ndim != 2 or n_rows < 2:
        raise ValueError(f"vectors have shape {vectors.shape}, need (N, D) with N at least 2")
    largest, total = -np.inf, 0.0
    for exponents in _pair_exponents(unit_rows(vectors, np.float64), t, block_rows):
        peak = float(exponents.max())
        if peak > largest:
            total, largest = total * np.exp(largest - peak), peak
        exponents -= largest
        total += float(np.exp(exponents, out=exponents).sum())
    return float(largest + np.log(total) - np.log(n_rows * (n_rows - 1) / 2))


def _pair_exponents(units: NDArray[np.float64], t: float, block_rows: int) -> Iterator[NDArray[np.float64]]:
    """Yield ``-t * squared distance`` of every unordered pair once, tile by tile."""
    squared_norms = np.einsum("nd,nd->n", units, units)
    for top in range(0, len(units), block_rows):
        rows = slice(top, top + block_rows)
        for first in range(top, len(units), block_rows):
            columns = slice(first, first + block_rows)
            tile = units[rows] @ units[columns].T
            tile *= 2
            tile -= squared_norms[rows, None]
            tile -= squared_norms[None, columns]
            np.minimum(tile, 0, out=tile)
            tile *= t
            values = tile[np.triu_indices(len(tile), k=1)] if first == top else tile
            if values.size:
                yield values


def mean_cosine(vectors: Vectors) -> float:
    """Return the mean cosine over all unordered pairs of different rows, in [-1, 1].

    Source: Ethayarajh 2019 (anisotropy as the mean cosine of random texts), here exact: with unit rows the
    sum over pairs is ``(|sum of rows|^2 - sum of squared norms) / 2``. 0 for orthogonal rows, 1 for equal.

    Raises:
        ValueError: fewer than two rows.
    """
    n_rows = len(vectors)
    if n_rows < 2:
        raise ValueError(f"{n_rows} vectors, need at least 2")
    units = unit_rows(vectors, np.float64)
    resultant = units.sum(axis=0)
    own = np.einsum("nd,nd->", units, units)
    return float((resultant @ resultant - own) / (n_rows * (n_rows - 1)))


def describe_geometry(space: Space) -> dict[str, Any]:
    """Return alignment over the pairs rated above 4, the other measures over all sentences of both sides.

    Source: Gao et al. 2021, footnote 3: whole STS-B, positives are the pairs with a gold score strictly above
    4 (1,491 of 8,628). Repeated sentences are kept (17,256 rows), a toolkit default: the paper does not say.
    """
    positive = is_positive(space.data.pairs.gold)
    if not positive.any():
        raise DataError(
            f"{space.data.name}: no pair is rated above {POSITIVE_SHARE:.0%} of the scale, so none is positive",
            hint="give pairs of which some are rated as equal in meaning",
        )
    everything = np.concatenate([space.left, space.right])
    spectrum = spectrum_of(space)
    return {
        "dim": everything.shape[1],
        "n_positives": int(positive.sum()),
        "n_sentences": len(everything),
        "alignment": alignment(space.left[positive], space.right[positive]),
        "uniformity": uniformity(everything),
        "effective_rank": spectrum.effective_rank,
        "isotropy": spectrum.isotropy,
        "mean_cosine": mean_cosine(everything),
        "score": space.score,
        "sts_average": space.average,
    }


@house_style()
def geometry_figure(models: Sequence[Mapping[str, Any]], score_label: str) -> Figure:
    """Return the scatter of models: uniformity to the right, alignment upwards, lower is better in both.

    Source: Gao et al. 2021, Figure 3. Points are coloured by the average over STS tasks (a fraction) where every
    model has one, else by the score on the pairs.
    """
    has_average = all(model.get("sts_average") is not None for model in models)
    key, score_label = (
        ("sts_average", "average STS, Spearman x 100") if has_average else ("score", score_label)
    )
    figure, (axes,) = new_figure(6.4, 4.6)
    x, y = [model["uniformity"] for model in models], [model["alignment"] for model in models]
    scores = [100 * model[key] for model in models if model[key] is not None]
    graded: dict[str, Any] = {"c": scores, "cmap": COLOUR_MAP} if len(scores) == len(models) else {}
    spots = axes.scatter(x, y, s=70, edgecolor=INK, linewidth=0.8, zorder=3, **graded)
    if graded:
        figure.colorbar(spots, ax=axes, label=score_label)
    axes.margins(0.22)
    axes.set_xlabel(UNIFORMITY_AXIS)
    axes.set_ylabel(ALIGNMENT_AXIS)
    place_labels(figure, axes, list(zip(x, y, strict=True)), [model["label"] for model in models])
    return figure


def geometry_view(spaces: Sequence[Space]) -> View:
    """Return alignment, uniformity, effective rank, isotropy, mean cosine and score of each space."""
    data = spaces[0].data
    score_label = {"STS-B": "STS-B test"}.get(data.name, data.name if "STS-B " in data.name else "Spearman")
    colour_label = f"{score_label}, Spearman x100" if "STS-B" in data.name else "Spearman x100"
    payload = spaces_payload("geometry", spaces, [describe_geometry(space) for space in spaces])
    models = payload["models"]
    columns = [
        Column("label", "model"),
        Column("alignment", kind="number"),
        Column("uniformity", kind="number"),
        Column("effective_rank", "eff. rank", "number"),
        Column("isotropy", kind="number"),
        Column("mean_cosine", "mean cosine", "number"),
        Column("score", score_label, "score"),
    ]
    if any(space.average is not None for space in spaces):
        columns.append(Column("sts_average", "Avg. STS", "score"))
    n_positives, n_sentences = models[0]["n_positives"], models[0]["n_sentences"]
    return View(
        title="Alignment and uniformity",
        text="Alignment: mean squared distance between the unit vectors of pairs rated above 4. Uniformity: log of "
        "the mean of exp(-2 squared distance) over all pairs of sentences. Lower is better in both.",
        caption=f"One point a model, coloured by its score. Data: {data.name}.",
        tables=[
            Report(
                f"Geometry on {data.name}: {n_positives:,} positive pairs, {n_sentences:,} sentences",
                columns,
                models,
                [
                    "Lower alignment and uniformity are better; compare effective rank only between equal widths."
                ],
            )
        ],
        payload=payload,
        figure=lambda: geometry_figure(models, colour_label),
        terminal_plot=lambda: geometry_scatter(
            {model["label"]: np.array([[model["uniformity"], model["alignment"]]]) for model in models}
        ),
    )
