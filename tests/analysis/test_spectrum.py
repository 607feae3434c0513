import json

import numpy as np
import pytest

from analysis.cases import space
from simcse_cli.analysis.spectrum import (
    describe_spectrum,
    effective_rank,
    isotropy,
    negatives_bound,
    prepare_rows,
    singular_values,
    spectrum_analysis,
    spectrum_figure,
    spectrum_of,
)
from simcse_cli.errors import DataError


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(60, 7)) * np.linspace(1, 4, 7)


def test_singular_values_are_roots_of_the_gram_eigenvalues(vectors):
    oracle = np.sqrt(np.linalg.eigvalsh(vectors.T @ vectors))[::-1]
    np.testing.assert_allclose(singular_values(vectors), oracle, rtol=1e-10)


def test_singular_values_of_fewer_rows_than_columns():
    assert singular_values(np.eye(2, 5)).tolist() == pytest.approx([1.0, 1.0])


def test_spectrum_of_a_single_number():
    assert singular_values(np.array([[-2.0]])).tolist() == [2.0]
    assert isotropy(np.array([[-2.0]])) == pytest.approx(np.exp(-4))


def test_effective_rank_of_equal_values_is_their_number():
    assert effective_rank(np.full(6, 2.5)) == pytest.approx(6.0)
    assert effective_rank(np.full(6, 0.1)) == pytest.approx(6.0)


def test_effective_rank_of_one_direction_is_one():
    assert effective_rank(np.array([3.0, 0.0, 0.0])) == pytest.approx(1.0)


def test_isotropy_of_a_cross_polytope_is_one():
    assert isotropy(np.concatenate([np.eye(4), -np.eye(4)])) == pytest.approx(1.0)


def test_isotropy_of_equal_rows_is_exp_minus_two():
    assert isotropy(np.tile([0.6, 0.8], (9, 1))) == pytest.approx(np.exp(-2))


def test_isotropy_equals_the_direct_formula(vectors):
    _, axes = np.linalg.eigh(vectors.T @ vectors)
    sums = [np.exp(vectors @ (sign * axis)).sum() for axis in axes.T for sign in (1, -1)]
    assert isotropy(vectors) == pytest.approx(min(sums) / max(sums))


def test_isotropy_ignores_rotation(vectors):
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(7, 7)))
    assert isotropy(vectors @ rotation) == pytest.approx(isotropy(vectors))


def test_isotropy_of_long_rows_does_not_overflow():
    assert isotropy(1000.0 * np.eye(3)) == pytest.approx(0.0, abs=1e-12)


def test_prepare_rows_centres_after_scaling(vectors):
    prepared = prepare_rows(vectors, normalize=True, center=True)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(prepared, units - units.mean(axis=0))
    np.testing.assert_allclose(prepare_rows(vectors), units)
    np.testing.assert_allclose(
        describe_spectrum(prepare_rows(vectors)).singular_values, singular_values(units)
    )


def test_describe_spectrum_of_raw_rows_keeps_their_scale(vectors):
    raw = describe_spectrum(prepare_rows(vectors, normalize=False))
    np.testing.assert_allclose(raw.singular_values, singular_values(vectors))
    assert raw.relative[0] == 1
    assert (np.diff(raw.relative) <= 0).all()


def test_negatives_bound_of_equal_rows_is_tight():
    found = negatives_bound(np.tile([0.6, 0.8], (50, 1)), temperature=0.05, block_rows=7)
    assert vars(found) == pytest.approx(
        {
            "gram_sum": 2500,
            "largest_eigenvalue": 50,
            "smallest_element": 1,
            "negatives_term": 20,
            "bound": 20,
        },
        rel=1e-6,
    )


def test_negatives_bound_of_orthogonal_rows():
    found = negatives_bound(np.eye(8), temperature=0.5, block_rows=3)
    assert (found.gram_sum, found.largest_eigenvalue) == pytest.approx((8, 1))
    assert found.negatives_term == pytest.approx(np.log((np.exp(2) + 7) / 8))
    assert found.bound == pytest.approx(8 / (0.5 * 64))


def test_negatives_bound_of_any_rows_agrees_with_a_double_loop_and_with_merikoski(vectors):
    rows = prepare_rows(np.abs(vectors))
    found = negatives_bound(rows, temperature=0.2, block_rows=16)
    gram = np.array([[float(left @ right) for right in rows] for left in rows])
    assert found.gram_sum == pytest.approx(gram.sum())
    assert found.largest_eigenvalue == pytest.approx(np.linalg.eigvalsh(gram).max())
    assert found.smallest_element == pytest.approx(gram.min(), rel=1e-5)
    oracle = np.mean([np.log(np.mean(np.exp(row / 0.2))) for row in gram])
    assert found.negatives_term == pytest.approx(oracle, rel=1e-5)
    assert found.negatives_term >= found.bound == pytest.approx(gram.mean() / 0.2)
    assert found.gram_sum >= found.largest_eigenvalue


def test_negatives_bound_of_long_rows_does_not_overflow():
    found = negatives_bound(3.0 * np.eye(2))
    assert found.negatives_term == pytest.approx(180 - np.log(2))  # ln((exp(9 / 0.05) + 1) / 2)


def test_spectrum_figure_draws_every_relative_value_by_its_rank():
    wide, narrow = (
        describe_spectrum(np.random.default_rng(0).normal(size=(20, dim))) for dim in (6, 2)
    )
    (axes,) = spectrum_figure({"wide": wide, "narrow": narrow}).axes
    for line, spectrum in zip(axes.lines, (wide, narrow), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), spectrum.relative)
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert axes.get_xticks().tolist() == [1, 2, 5]
    bottom, top = axes.get_ylim()
    assert bottom == 0
    assert 1 < top < 1.1


@pytest.mark.parametrize(
    ("rows", "center", "what"),
    [
        ([[0, 0], [0, 0]], False, "zero"),
        ([[0, 0], [0, 0]], True, "zero"),
        ([[1, 0], [1, 0]], True, "equal"),
        ([[0.1, 0.7], [0.3, 2.1]], True, "equal"),
        ([[1, 0], [1, 0]], False, None),
        ([[1, 0], [1, 1]], True, None),
    ],
)
def test_spectrum_of_rows_without_directions_is_refused(rows, center, what):
    given = space(rows, rows, [1, 2])
    how = {"raw": False, "center": center}
    if what is None:
        assert spectrum_of(given, **how) is spectrum_of(given, **how)  # computed once
    else:
        with pytest.raises(
            DataError, match=f"^one: all vectors are {what}, so they have no directions"
        ):
            spectrum_of(given, **how)


def test_spectrum_analysis_of_orthogonal_rows_of_lengths_4_2_1_and_0():
    sides = [[4, 0, 0], [0, 0, 1]], [[0, 2, 0], [0, 0, 0]]
    raw = spectrum_analysis([space(*sides, [1, 2])], raw=True)
    values, bounds = raw.tables
    assert values.title == "Singular values on some, raw rows, not centred"
    shown = [f"s{rank}/s1" for rank in (2, 10, 50, 100, 200, 300)]
    assert [column.heading for column in values.columns] == [
        "model",
        "dim",
        "eff. rank",
        "isotropy",
        *shown,
    ]
    ((name, dim, _, _, *ratios),) = values.cells()
    assert (name, dim, ratios) == ("one", "3", ["0.5", "–", "–", "–", "–", "–"])
    assert bounds.rows[0]["gram_sum"] == pytest.approx(21)
    assert json.loads(json.dumps(raw.payload))["models"][0]["singular_values"] == pytest.approx(
        [4, 2, 1]
    )
    assert raw.series[0].rows == [
        {
            "model": "one",
            "rank": rank,
            "singular_value": pytest.approx(value),
            "relative": pytest.approx(value / 4),
        }
        for rank, value in ((1, 4), (2, 2), (3, 1))
    ]
    assert raw.terminal_plot() == "one  █▄\n"  # without the largest
    unit = spectrum_analysis([space(*sides, [1, 2])]).payload["models"][0]
    assert unit["singular_values"] == pytest.approx([1, 1, 1])
    assert unit["gram_sum"] == pytest.approx(3)
    centred = spectrum_analysis([space(*sides, [1, 2])], center=True)
    assert centred.tables[0].title == "Singular values on some, unit rows, centred"
    assert centred.payload["models"][0]["gram_sum"] == pytest.approx(0)


def test_effective_rank_takes_the_values_themselves_as_a_distribution():
    assert effective_rank(np.array([3.0, 1.0])) == pytest.approx(
        4 / 3**0.75
    )  # squared, it would be 1.38


def test_negatives_bound_divides_by_the_temperature_of_the_paper():
    assert negatives_bound(np.eye(5)).bound == pytest.approx(5 / (0.05 * 25))
