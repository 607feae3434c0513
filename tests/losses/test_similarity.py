import numpy as np
import pytest
import torch
from draws import cosine, normal

from simcse_cli.losses.similarity import l2_normalize, similarity_matrix


def test_similarity_matrix_is_every_cosine():
    a, b = normal(3, 5), normal(4, 5, seed=1)
    expected = [[cosine(x, y) for y in b] for x in a]
    np.testing.assert_allclose(similarity_matrix(a, b).numpy(), expected, rtol=1e-12)


def test_similarities_may_be_named_by_texts():
    left, right = torch.randn(2, 3, 4).unbind()
    by_name = similarity_matrix(left, right, "cosine")
    torch.testing.assert_close(by_name, similarity_matrix(left, right), rtol=0, atol=0)
    with pytest.raises(ValueError, match="euclid"):
        similarity_matrix(left, right, "euclid")


def test_l2_normalize_divides_by_the_norm_of_the_last_dimension():
    vectors = torch.tensor([[[3.0, 4.0], [0.0, 2.0]]])
    assert l2_normalize(vectors).tolist() == [
        [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 1.0]]
    ]


def test_l2_normalize_keeps_zero_rows_and_tiny_directions():
    rows = torch.tensor([[0.0, 0.0], [3e-20, 4e-20], [3.0, 4.0]], dtype=torch.float64)
    assert l2_normalize(rows).numpy() == pytest.approx(np.array([[0, 0], [0.6, 0.8], [0.6, 0.8]]))
