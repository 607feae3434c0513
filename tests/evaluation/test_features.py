import numpy as np
import pytest
import torch

from simcse_cli.errors import DataError
from simcse_cli.evaluation.features import pair_features, require_finite, with_constant


def test_pair_features_are_the_absolute_difference_and_the_product():
    features = pair_features(np.array([[1.0, -2.0]]), np.array([[3.0, 4.0]]))
    assert features.tolist() == [[2.0, 6.0, 3.0, -8.0]]


def test_with_constant_appends_ones_in_float32():
    design = with_constant(np.array([[0.5, 2.0], [1.0, 3.0]]))
    assert design.dtype == torch.float32
    assert design.tolist() == [[0.5, 2.0, 1.0], [1.0, 3.0, 1.0]]


def test_require_finite_counts_the_rows_that_are_not():
    features = np.array([[1.0, 2.0], [np.inf, np.nan], [np.nan, 0.0]])
    with pytest.raises(DataError, match="MR: the vectors of 2 of 3 examples are not finite"):
        require_finite(features, "MR")
    assert require_finite(features[:1], "MR").tolist() == [[1.0, 2.0]]
