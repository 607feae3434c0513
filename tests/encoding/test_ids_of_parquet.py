"""Ids that no column of parquet can hold."""

import numpy as np
import pytest

from simcse_cli.encoding.formats import HEADER_BYTES, finish_file
from simcse_cli.errors import DataError


@pytest.mark.parametrize("ids", [[1, "a"], ["\ud800", "a"], [10**40, 2]])
def test_ids_that_are_no_column_are_told(tmp_path, ids):
    raw = tmp_path / "rows"
    raw.write_bytes(bytes(HEADER_BYTES) + np.ones((2, 3), np.float32).tobytes())
    with pytest.raises(DataError, match="the ids are of several types, no text or too large"):
        finish_file(raw, tmp_path / "a.parquet", np.dtype("<f4"), (2, 3), ["one", "two"], ids)
