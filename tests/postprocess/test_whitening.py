import numpy as np
import pytest

from simcse_cli.postprocess.base import principal_directions
from simcse_cli.postprocess.whitening import Whitening
from simcse_cli.progress import SilentProgress


def correlated(n_rows: int, dim: int, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n_rows, dim)) @ rng.standard_normal((dim, dim)) + 5).astype(dtype)


def covariance(vectors: np.ndarray) -> np.ndarray:
    return np.cov(vectors.astype(np.float64), rowvar=False, bias=True)


def test_whitening_makes_covariance_of_fit_set_the_identity():
    vectors = correlated(400, 24)
    whitened = Whitening().fit(vectors).transform(vectors)
    np.testing.assert_allclose(covariance(whitened), np.eye(24), atol=1e-6)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-9)


def test_whitening_of_float32_vectors_is_computed_in_float64():
    vectors = correlated(400, 24, dtype=np.float32)
    whitened = Whitening().fit(vectors).transform(vectors)
    assert whitened.dtype == np.float32
    np.testing.assert_allclose(covariance(whitened), np.eye(24), atol=1e-6)


def test_whitening_matches_the_svd_of_the_paper_up_to_signs():
    vectors = correlated(200, 8)
    centred = vectors - vectors.mean(axis=0)
    left, scales, _ = np.linalg.svd(centred.T @ centred / len(vectors))
    expected = centred @ left / np.sqrt(scales)
    whitened = Whitening().fit(vectors).transform(vectors)
    np.testing.assert_allclose(np.abs(whitened), np.abs(expected), rtol=1e-6, atol=1e-8)


def test_whitening_with_k_gives_the_leading_columns_of_the_full_map():
    vectors = correlated(200, 8)
    full = Whitening().fit(vectors).transform(vectors)
    np.testing.assert_allclose(Whitening(3).fit(vectors).transform(vectors), full[:, :3])


def test_whitening_of_known_axes_gives_known_values():
    vectors = np.array([[4.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, -1.0]]) + 10
    whitened = Whitening().fit(vectors).transform(vectors)
    root = np.sqrt(2)
    np.testing.assert_allclose(whitened, [[root, 0], [-root, 0], [0, root], [0, -root]], atol=1e-12)


def test_whitening_leaves_out_directions_without_variance_and_says_so():
    vectors = correlated(5, 8)
    progress = SilentProgress()
    whitening = Whitening().fit(vectors, progress=progress)
    assert whitening.transform(vectors).shape == (5, 4)
    np.testing.assert_allclose(covariance(whitening.transform(vectors)), np.eye(4), atol=1e-6)
    assert "4 of 8 directions" in progress.warnings[0]


def test_whitening_takes_pairs_as_rows():
    vectors = correlated(40, 6)
    by_pairs = Whitening().fit(vectors.reshape(20, 2, 6))
    np.testing.assert_array_equal(by_pairs.projection_, Whitening().fit(vectors).projection_)


def test_whitening_fit_is_independent_of_the_block_size(monkeypatch):
    vectors = correlated(100, 6)
    whole = Whitening().fit(vectors).transform(vectors)
    monkeypatch.setattr("simcse_cli.postprocess.base._BLOCK_ROWS", 7)
    np.testing.assert_allclose(Whitening().fit(vectors).transform(vectors), whole, rtol=1e-8)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((4, 3)), "all the same"),
        (np.ones((1, 3)), "at least two"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "NaN"),
        (np.ones(3), "shape"),
    ],
)
def test_whitening_refuses_unusable_fit_vectors(vectors, message):
    with pytest.raises(ValueError, match=message):
        Whitening().fit(vectors)


def test_whitening_refuses_more_directions_than_dimensions():
    with pytest.raises(ValueError, match="only 3 dimensions"):
        Whitening(4).fit(correlated(10, 3))


def test_whitening_refuses_vectors_of_another_dimension():
    with pytest.raises(ValueError, match=r"fitted on 8 dimensions.*\(2, 5\)"):
        Whitening().fit(correlated(20, 8)).transform(np.ones((2, 5)))


def test_whitening_must_be_fitted_before_use():
    with pytest.raises(ValueError, match="not fitted"):
        Whitening().transform(np.ones((2, 5)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"k": 0}, "k is 0, need"), ({"eigenvalue_floor": -1e-9}, "need 0 or more")],
)
def test_whitening_refuses_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Whitening(**settings)


@pytest.mark.parametrize("k", [1, 3])
def test_whitening_keeps_any_number_of_directions_up_to_all(k):
    whitening = Whitening(k, eigenvalue_floor=0).fit(correlated(40, 3))
    assert whitening.n_features_out == k
    assert whitening.transform(correlated(5, 3)).shape == (5, k)


def test_whitening_keeps_all_but_a_ten_billionth_by_default():
    assert Whitening().settings() == {"k": None, "eigenvalue_floor": 1e-10}


def test_whitening_leaves_out_a_share_of_the_largest_eigenvalue():
    vectors = np.array([[4.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 8 and 0.5
    kept = [Whitening(eigenvalue_floor=floor).fit(vectors).n_features_out for floor in (0.06, 0.07)]
    assert kept == [2, 1]


def test_whitening_warns_only_where_directions_are_left_out():
    progress = SilentProgress()
    for k in (None, 3):
        Whitening(k).fit(correlated(40, 6), progress=progress)
    Whitening(4).fit(correlated(5, 8), progress=progress)
    assert progress.warnings == []
    assert Whitening().fit(correlated(5, 8)).n_features_out == 4


@pytest.mark.parametrize("projection", [np.ones((4, 2)), np.ones(3), np.ones((3, 2, 1))])
def test_whitening_refuses_arrays_that_do_not_belong_together(projection):
    arrays = {"mean": np.zeros(3), "projection": projection, "eigenvalues": np.ones(3)}
    with pytest.raises(ValueError, match="do not fit together"):
        Whitening().load_state(arrays)


def test_principal_directions_are_eigenvectors_whose_largest_entry_is_positive():
    moment = covariance(correlated(50, 12))
    values, columns = principal_directions(moment)
    np.testing.assert_allclose(moment @ columns, columns * values, atol=1e-9)
    assert (np.diff(values) <= 0).all()
    assert (columns.max(axis=0) >= -columns.min(axis=0)).all()
