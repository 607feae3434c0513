"""Rows of length 1, whatever their length was."""

import numpy as np
import pytest

from simcse_cli.postprocess.unit_rows import unit_rows


@pytest.mark.parametrize(
    ("dtype", "factors"), [(np.float32, (1e-16, 1e-30)), (np.float64, (1e-150, 1e-300))]
)
def test_tiny_rows_have_the_directions_of_large_ones(dtype, factors):
    rows = np.random.default_rng(0).normal(size=(6, 384)).astype(dtype)
    units = unit_rows(rows, dtype)
    for factor in factors:
        tiny = rows.copy()
        tiny[1::2] *= dtype(factor)
        tiny[3] = 0
        found = unit_rows(tiny, dtype)
        np.testing.assert_array_equal(found[::2], units[::2])
        np.testing.assert_allclose(found[[1, 5]], units[[1, 5]], rtol=1e-5)
        assert not found[3].any()
