import numpy as np
import pytest

from simcse_cli.analysis.spectrum import (
    describe_spectrum,
    effective_rank,
    isotropy,
    negatives_bound,
    prepare_rows,
    singular_values,
    spectrum_figure,
)


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(60, 7)) * np.linspace(1, 4, 7)


def test_singular_values_are_roots_of_the_gram_eigenvalues(vectors):
    oracle = np.sqrt(np.linalg.eigvalsh(vectors.T @ vectors))[::-1]
    np.testing.assert_allclose(singular_values(vectors), oracle, rtol=1e-10)


def test_singular_values_of_fewer_rows_than_columns():
    assert singular_values(np.eye(2, 5)).tolist() == pytest.approx([1.0, 1.0])


def test_singular_values_need_rows():
    with pytest.raises(ValueError, match="N > 0"):
        singular_values(np.ones((0, 3)))


def test_effective_rank_of_equal_values_is_their_number():
    assert effective_rank(np.full(6, 2.5)) == pytest.approx(6.0)


def test_effective_rank_of_one_direction_is_one():
    assert effective_rank(np.array([3.0, 0.0, 0.0])) == pytest.approx(1.0)


def test_effective_rank_of_zeros_is_refused():
    with pytest.raises(ValueError, match="zero"):
        effective_rank(np.zeros(3))


def test_isotropy_of_a_cross_polytope_is_one():
    assert isotropy(np.concatenate([np.eye(4), -np.eye(4)])) == pytest.approx(1.0)


def test_isotropy_of_equal_rows_is_exp_minus_two():
    assert isotropy(np.tile([0.6, 0.8], (9, 1))) == pytest.approx(np.exp(-2))


def test_isotropy_ignores_rotation(vectors):
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(7, 7)))
    assert isotropy(vectors @ rotation) == pytest.approx(isotropy(vectors))


def test_isotropy_of_long_rows_does_not_overflow():
    assert isotropy(1000.0 * np.eye(3)) == pytest.approx(0.0, abs=1e-12)


def test_prepare_rows_centres_after_scaling(vectors):
    prepared = prepare_rows(vectors, normalize=True, center=True)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(prepared, units - units.mean(axis=0))


def test_describe_spectrum_of_raw_rows_keeps_their_scale(vectors):
    raw = describe_spectrum(vectors, normalize=False)
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


def test_spectrum_figure_draws_every_relative_value():
    spectrum = describe_spectrum(np.random.default_rng(0).normal(size=(20, 6)))
    (line,) = spectrum_figure({"one": spectrum}).axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), spectrum.relative)


def test_effective_rank_takes_the_values_themselves_as_a_distribution():
    assert effective_rank(np.array([3.0, 1.0])) == pytest.approx(4 / 3**0.75)  # squared, it would be 1.38


def test_negatives_bound_divides_by_the_temperature_of_the_paper():
    assert negatives_bound(np.eye(5)).bound == pytest.approx(5 / (0.05 * 25))
