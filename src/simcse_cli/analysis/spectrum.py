"""`analyze spectrum`: singular values, effective rank and isotropy of an embedding space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from simcse_cli.analysis.presentation import Analysis
from simcse_cli.analysis.spaces import EmbeddingSpace, spaces_payload
from simcse_cli.arrays import AnyFloats, Floats
from simcse_cli.errors import DataError
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.results import plots
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Column, Report

RANKS_SHOWN = (2, 10, 50, 100, 200, 300)
BOUND_NOTE = (
    "Negatives' term: mean over sentences of ln mean exp(cosine / 0.05), at least its bound, "
    "sum / (0.05 m^2). Without negative elements the sum is at least the largest eigenvalue."
)


@dataclass(frozen=True)
class Spectrum:
    """How evenly a space uses its directions; the singular values are largest first."""

    effective_rank: float
    isotropy: float
    singular_values: Floats

    @property
    def relative(self) -> Floats:
        """The singular values divided by the largest: they start at 1 and never rise."""
        relative: Floats = self.singular_values / self.singular_values[0]
        return relative


def describe_spectrum(rows: Floats) -> Spectrum:
    """Return singular values, effective rank and isotropy of ``(N, D)`` rows.

    Source: Gao et al. 2021, Figure F.1. The paper does not say whether rows are scaled or centred,
    but section 5 derives its results for unit rows. The toolkit's default is unit rows that are not
    centred; see ``prepare_rows``.
    """
    values = singular_values(rows)
    return Spectrum(effective_rank(values), isotropy(rows), values)


@dataclass(frozen=True)
class NegativesBound:
    """The term of the contrastive loss that comes from negatives, and its lower bound.

    Source: Gao et al. 2021, Eqs. 6 and 7. W is the matrix whose rows are the m sentence vectors
    h_i:

        gram_sum       = sum of all elements of W W^T
        negatives_term = 1/m sum_i ln(1/m sum_j exp(h_i . h_j / temperature))
        bound          = gram_sum / (temperature m^2), at most negatives_term

    ``largest_eigenvalue`` and ``smallest_element`` are those of W W^T. If no element is negative,
    the largest eigenvalue is at most ``gram_sum`` (Merikoski 1984). So training that lowers
    ``gram_sum`` lowers this limit of the eigenvalue, which flattens the spectrum.

    For m equal unit rows, ``gram_sum`` is m^2, ``largest_eigenvalue`` is m, and ``negatives_term``
    and ``bound`` are 1 / temperature.
    """

    gram_sum: float
    largest_eigenvalue: float
    smallest_element: float
    negatives_term: float
    bound: float


def negatives_bound(
    rows: AnyFloats, *, temperature: float = 0.05, block_rows: int = 1024
) -> NegativesBound:
    """Return the quantities of Eqs. 6 and 7 in Gao et al. 2021 for ``(m, D)`` rows.

    The rows are taken as they are, so the caller scales them. To save memory, the products of the
    rows are computed in float32, block by block.
    """
    # The sum of all products of two rows is the squared length of the sum of the rows.
    total = rows.sum(axis=0, dtype=np.float64)
    gram_sum = float(total @ total)
    n_rows = len(rows)
    rows_float32 = rows.astype(np.float32)
    smallest = np.inf
    log_sum = 0.0
    for start in range(0, n_rows, block_rows):
        products = rows_float32[start : start + block_rows] @ rows_float32.T
        smallest = min(smallest, float(products.min()))
        products /= temperature
        # The largest exponent of a row is added after the logarithm, so that exp never overflows.
        peaks = products.max(axis=1, keepdims=True)
        sums = np.exp(products - peaks).sum(axis=1, dtype=np.float64)
        log_sum += float((np.log(sums / n_rows) + peaks[:, 0]).sum())
    return NegativesBound(
        gram_sum=gram_sum,
        largest_eigenvalue=float(singular_values(rows)[0] ** 2),
        smallest_element=smallest,
        negatives_term=log_sum / n_rows,
        bound=gram_sum / (temperature * n_rows**2),
    )


@lru_cache(maxsize=16)  # `geometry` and `spectrum` need the same spectra
def spectrum_of(space: EmbeddingSpace, *, raw: bool, center: bool) -> Spectrum:
    """Return the spectrum of all sentences of a space; ``raw`` rows keep their lengths.

    Raise DataError if the rows have no directions: they are zero, or equal and to be centred.
    """
    vectors = space.vectors
    # Equal rows are only rounding errors once they are centred, so they are tested before.
    rows = prepare_rows(vectors, normalize=not raw)
    if not rows.any() or (center and np.allclose(rows, rows[0])):
        raise DataError(
            f"{space.label}: all vectors are {'equal' if rows.any() else 'zero'}, so they "
            "have no directions",
            hint="look at them: simcse encode FILE -o VECTORS.npy",
        )
    return describe_spectrum(prepare_rows(vectors, normalize=not raw, center=center))


def prepare_rows(vectors: AnyFloats, *, normalize: bool = True, center: bool = False) -> Floats:
    """Return the rows in float64, first scaled to length 1 and then centred, each if asked for."""
    rows = unit_rows(vectors, np.float64) if normalize else vectors.astype(np.float64)
    if center:
        rows = rows - rows.mean(axis=0)
    return rows


def singular_values(vectors: AnyFloats) -> Floats:
    """Return the ``min(N, D)`` singular values, largest first.

    They are those of the factor R of a QR decomposition, which is no larger than ``(D, D)``,
    however many rows there are. A Gram matrix would be as small, but would lose the values below
    1e-8 of the largest.
    """
    triangle = np.linalg.qr(vectors.astype(np.float64), mode="r")
    values: Floats = np.linalg.svd(triangle, compute_uv=False)
    return values


def effective_rank(values: Floats) -> float:
    """Return the exponential of the entropy of the singular values taken as a distribution.

    Source: Roy and Vetterli 2007. With the singular values s_i:

        exp(-sum_i p_i ln p_i),  p_i = s_i / sum_j s_j

    It lies between 1 (one direction) and the number of values (all equal): an orthogonal matrix of
    width D has effective rank D. Some value must be above 0.
    """
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def isotropy(vectors: AnyFloats) -> float:
    """Return how equally the vectors point in all principal directions, in (0, 1]; 1 is isotropic.

    Source: Mu and Viswanath 2018, after Arora et al. 2016. With the vectors v_i as the rows of V:

        min_c Z(c) / max_c Z(c),  Z(c) = sum_i exp(c . v_i)

    where c runs over the unit eigenvectors of V^T V. Their signs are arbitrary, so each is taken
    with both signs. Equal unit rows give ``exp(-2)``; the 2D vectors ``+e_i`` and ``-e_i`` give 1.
    The value depends on the norms, so models are compared on unit rows.
    """
    rows = vectors.astype(np.float64)
    _, directions = np.linalg.eigh(rows.T @ rows)
    projections = rows @ directions
    log_partitions = np.concatenate([_log_sum_exp(projections), _log_sum_exp(-projections)])
    return float(np.exp(log_partitions.min() - log_partitions.max()))


def _log_sum_exp(columns: Floats) -> Floats:
    """Return ln sum exp of each column."""
    # The largest value is added after the logarithm, so that exp never overflows.
    peaks = columns.max(axis=0)
    sums: Floats = np.log(np.exp(columns - peaks).sum(axis=0)) + peaks
    return sums


@plots.house_style()
def spectrum_figure(spectra: Mapping[str, Spectrum]) -> plots.Figure:
    """Draw the singular values of each model, divided by the largest value of the model.

    Source: Gao et al. 2021, Figure F.1.
    """
    figure, (axes,) = plots.new_figure(6.4, 4.2)
    for position, (name, spectrum) in enumerate(spectra.items()):
        ranks = np.arange(1, len(spectrum.relative) + 1)
        label = f"{plots.shown(name)}\n(effective rank {spectrum.effective_rank:.0f})"
        axes.plot(ranks, spectrum.relative, label=label, **plots.curve_style(position))
    plots.rank_axis(axes, max(len(spectrum.relative) for spectrum in spectra.values()))
    axes.set(ylim=(0, 1.02), xlabel="rank of the singular value", ylabel="singular value / largest")
    plots.legend_below(figure, *axes.get_legend_handles_labels())
    return figure


def spectrum_analysis(
    spaces: Sequence[EmbeddingSpace], *, raw: bool = False, center: bool = False
) -> Analysis:
    """Return the spectrum and the ``NegativesBound`` of each space.

    JSON and CSV hold all singular values, the table some. ``raw`` leaves the lengths of the vectors
    as they are; ``center`` subtracts the mean vector.
    """
    data = spaces[0].data
    by_name = {}
    measures = []
    for space in spaces:
        spectrum = spectrum_of(space, raw=raw, center=center)
        by_name[space.label] = spectrum
        rows = prepare_rows(space.vectors, normalize=not raw, center=center)
        values = {"singular_values": spectrum.singular_values.tolist()}  # JSON takes no array
        measures.append(vars(spectrum) | values | vars(negatives_bound(rows)))
    payload = spaces_payload("spectrum", spaces, measures)

    how = "raw rows" if raw else "unit rows"
    centred = "centred" if center else "not centred"
    shown = columns("label", "dim", "effective_rank", "isotropy", label="model")
    shown += [Column(f"s{rank}", f"s{rank}/s1", "number") for rank in RANKS_SHOWN]
    summaries = []
    for space, row in zip(spaces, payload["models"], strict=True):
        summary = {**row, "dim": space.left.shape[1]}
        for rank, value in enumerate(by_name[space.label].relative.tolist(), start=1):
            summary[f"s{rank}"] = value  # shown if the rank has a column
        summaries.append(summary)
    bound_shown = columns("label", *(field.name for field in fields(NegativesBound)), label="model")

    return Analysis(
        title="Singular values",
        text="Singular values of the matrix of sentence vectors, divided by the largest: the "
        "slower they fall, the more directions the model uses.",
        caption=f"One curve per model; the horizontal axis is logarithmic. Data: {data.name}.",
        tables=[
            Report(f"Singular values on {data.name}, {how}, {centred}", shown, summaries),
            Report(
                "Negatives of the loss (Eqs. 6 and 7)", bound_shown, payload["models"], [BOUND_NOTE]
            ),
        ],
        payload=payload,
        figure=lambda: spectrum_figure(by_name),
        # The terminal leaves the largest value, which is 1, out of its scale.
        terminal_plot=lambda: plots.bar_lines(
            {name: spectrum.relative[1:] for name, spectrum in by_name.items()}
        ),
        series=[_all_values(by_name)],
    )


def _all_values(spectra: Mapping[str, Spectrum]) -> Report:
    rows = []
    for name, spectrum in spectra.items():
        pairs = zip(spectrum.singular_values.tolist(), spectrum.relative.tolist(), strict=True)
        for rank, (value, relative) in enumerate(pairs, start=1):
            rows.append(
                {"model": name, "rank": rank, "singular_value": value, "relative": relative}
            )
    return Report("Singular values", columns(*rows[0]), rows)
