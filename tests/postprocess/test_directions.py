import numpy as np
import pytest

from simcse_cli.postprocess.directions import AllButTheTop, CommonComponentRemoval


def vectors_of(n_rows: int = 60, dim: int = 10) -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.standard_normal((n_rows, dim)) * np.arange(dim, 0, -1) + 2


def test_all_but_the_top_matches_the_equation_of_the_paper():
    vectors = vectors_of()
    centred = vectors - vectors.mean(axis=0)
    _, _, right = np.linalg.svd(centred)
    expected = centred.copy()
    for direction in right[:2]:
        expected -= np.outer(centred @ direction, direction)
    np.testing.assert_allclose(
        AllButTheTop(2).fit(vectors).transform(vectors), expected, atol=1e-10
    )


def test_all_but_the_top_leaves_vectors_orthogonal_to_the_removed_directions():
    vectors = vectors_of()
    fitted = AllButTheTop(3).fit(vectors)
    np.testing.assert_allclose(fitted.transform(vectors + 7) @ fitted.directions_, 0, atol=1e-10)


@pytest.mark.parametrize(("dim", "n_removed"), [(10, 1), (100, 1), (150, 2), (384, 4), (768, 8)])
def test_all_but_the_top_removes_a_hundredth_by_default(dim, n_removed):
    vectors = np.random.default_rng(0).standard_normal((8, dim))
    assert AllButTheTop().fit(vectors).directions_.shape == (dim, n_removed)


def test_common_component_is_the_first_right_singular_vector_of_the_uncentred_matrix():
    vectors = vectors_of()
    _, _, right = np.linalg.svd(vectors)
    expected = vectors - np.outer(vectors @ right[0], right[0])
    np.testing.assert_allclose(
        CommonComponentRemoval().fit(vectors).transform(vectors), expected, atol=1e-10
    )


def test_common_component_of_known_vectors_is_removed():
    vectors = np.array([[3.0, 1.0], [3.0, -1.0]])
    np.testing.assert_allclose(
        CommonComponentRemoval().fit(vectors).transform(vectors), [[0, 1], [0, -1]], atol=1e-12
    )


def test_direction_removal_keeps_float32():
    vectors = vectors_of().astype(np.float32)
    assert AllButTheTop().fit(vectors).transform(vectors).dtype == np.float32


@pytest.mark.parametrize("n_directions", [2, 5])
def test_direction_removal_refuses_to_remove_everything(n_directions):
    with pytest.raises(ValueError, match="cannot remove"):
        AllButTheTop(n_directions).fit(np.ones((4, 2)))


def test_direction_removal_refuses_a_count_below_one():
    with pytest.raises(ValueError, match="need at least 1"):
        CommonComponentRemoval(0)


def test_direction_removal_knows_its_settings():
    assert AllButTheTop().settings() == {"n_directions": None}
    assert CommonComponentRemoval().settings() == {"n_directions": 1}


@pytest.mark.parametrize("directions", [np.ones((4, 1)), np.ones(3), np.ones((3, 1, 1))])
def test_direction_removal_refuses_arrays_that_do_not_belong_together(directions):
    with pytest.raises(ValueError, match="do not fit together"):
        AllButTheTop().load_state({"mean": np.zeros(3), "directions": directions})
