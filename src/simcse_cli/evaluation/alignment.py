"""Alignment, uniformity and mean cosine of vectors on the unit sphere.

Every measure scales the rows to length 1 first (a row of zeros stays zero) and computes in float64.
"""

from collections.abc import Iterator

import numpy as np

from simcse_cli.arrays import AnyFloats, Booleans, Floats
from simcse_cli.postprocess.unit_rows import unit_rows

POSITIVE_SHARE = 0.8  # of the scale; pairs with a higher rating, such as above 4 of 5, are positive


def alignment(left: AnyFloats, right: AnyFloats) -> float:
    """Return the mean squared distance of positive pairs on the unit sphere.

    Source: Wang and Isola 2020, the alignment loss with exponent 2. For unit vectors it equals
    ``2 - 2 * mean cosine``: 0 for identical pairs, 2 for orthogonal ones, 4 for opposite ones.

    The rows ``(N, D)`` may have any norm; row i of ``right`` is the positive of row i of ``left``.
    """
    if left.shape != right.shape or left.ndim != 2 or len(left) == 0:
        raise ValueError(
            f"left has shape {left.shape} and right {right.shape}, need the same (N, D) with N > 0"
        )
    difference = unit_rows(left, np.float64) - unit_rows(right, np.float64)
    return float(np.einsum("nd,nd->n", difference, difference).mean())


def is_positive(gold: AnyFloats) -> Booleans:
    """Return a mask of the positive pairs, which are rated above 80% of the scale.

    Source: Gao et al. 2021, section 3: above 4 on the scale from 0 to 5.
    """
    low, high = rating_scale(gold)
    return np.asarray(gold > low + POSITIVE_SHARE * (high - low))


def rating_scale(gold: AnyFloats) -> tuple[float, float]:
    """Return the lower and the upper end of the scale that the ratings ``gold`` seem to use.

    The lower end is 0, or the lowest rating if that is below 0. The upper end is the first of 1, 5,
    10 and 100 that no rating exceeds, or the highest rating if it exceeds 100.
    """
    low = min(0.0, float(gold.min(initial=0.0)))
    high = float(gold.max(initial=low))
    for end in (1.0, 5.0, 10.0, 100.0):
        if high <= end:
            return low, end
    return low, high


def rated_above(gold: AnyFloats) -> str:
    """Return the rating above which pairs are positive, such as "4"."""
    low, high = rating_scale(gold)
    return f"{low + POSITIVE_SHARE * (high - low):g}"


def scale_note(gold: AnyFloats) -> str | None:
    """Return a note on the scale of the ratings, and on the rating above which pairs are positive.

    Return None if nothing is unusual: the scale is that of STS, and there is a positive pair.
    """
    low, high = rating_scale(gold)
    if (low, high) == (0.0, 5.0) and is_positive(gold).any():
        return None
    return (
        f"ratings are taken for a scale from {low:g} to {high:g}: pairs rated above "
        f"{rated_above(gold)} are positive; if theirs is another scale, convert them to 0 to 5"
    )


def uniformity(vectors: AnyFloats, t: float = 2.0, *, block_rows: int = 1024) -> float:
    """Return the log of the mean Gaussian potential over all unordered pairs of rows.

    Source: Wang and Isola 2020. With u_i the rows, scaled to length 1:

        log of the mean over i < j of exp(-t * |u_i - u_j|^2)

    Each pair counts once, and no row is paired with itself. The value is exact. To save memory,
    tiles of ``block_rows`` by ``block_rows`` pairs are computed one by one. The potentials are
    divided by the largest one before they are added up, so that they do not underflow.

    ``vectors`` are ``(N, D)``, any norm, N at least 2. ``t`` must be above 0; it is 2 in all tables
    and figures of the papers. The value is in ``[-4t, 0]``: 0 when all rows point the same way, -8
    for two antipodal rows at t = 2, ``-2t`` for orthogonal rows.
    """
    n_rows = len(vectors)
    if vectors.ndim != 2 or n_rows < 2:
        raise ValueError(f"vectors have shape {vectors.shape}, need (N, D) with N at least 2")
    largest = -np.inf
    total = 0.0  # sum of the potentials, divided by the largest potential so far
    for exponents in _pair_exponents(unit_rows(vectors, np.float64), t, block_rows):
        peak = float(exponents.max())
        # If this tile has a new largest potential, the sum so far is divided by it instead.
        if peak > largest:
            total *= np.exp(largest - peak)
            largest = peak
        exponents -= largest
        total += float(np.exp(exponents, out=exponents).sum())
    return float(largest + np.log(total) - np.log(n_rows * (n_rows - 1) / 2))


def _pair_exponents(units: Floats, t: float, block_rows: int) -> Iterator[Floats]:
    """Yield ``-t * squared distance`` of every unordered pair of rows once, tile by tile."""
    squared_norms = np.einsum("nd,nd->n", units, units)
    for first_row in range(0, len(units), block_rows):
        rows = slice(first_row, first_row + block_rows)
        for first_column in range(first_row, len(units), block_rows):
            columns = slice(first_column, first_column + block_rows)
            # -|u - v|^2 = 2 u.v - |u|^2 - |v|^2, which rounding must not make positive.
            tile = units[rows] @ units[columns].T
            tile *= 2
            tile -= squared_norms[rows, None]
            tile -= squared_norms[None, columns]
            np.minimum(tile, 0, out=tile)
            tile *= t
            # A tile on the diagonal has each pair twice, and each row with itself. Only what lies
            # above the diagonal is kept.
            if first_column == first_row:
                tile = tile[np.triu_indices(len(tile), k=1)]
            if tile.size:
                yield tile


def mean_cosine(vectors: AnyFloats) -> float:
    """Return the mean cosine over all unordered pairs of rows, in [-1, 1].

    No row is paired with itself. Source: Ethayarajh 2019, who measures anisotropy as the mean
    cosine of texts drawn at random; here the mean is over all texts. With u_i the N rows, scaled to
    length 1, the mean is

        (|sum_i u_i|^2 - sum_i |u_i|^2) / (N (N - 1))

    Orthogonal rows give 0, equal rows give 1.
    """
    n_rows = len(vectors)
    if n_rows < 2:
        raise ValueError(f"{n_rows} vectors, need at least 2")
    units = unit_rows(vectors, np.float64)
    resultant = units.sum(axis=0)
    sum_of_squares = np.einsum("nd,nd->", units, units)
    return float((resultant @ resultant - sum_of_squares) / (n_rows * (n_rows - 1)))
