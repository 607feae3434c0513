"""Ids that no column of parquet can hold."""

import json

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


@pytest.mark.parametrize("output", ["v.parquet", "v"])
def test_mixed_ids_are_told_before_the_model_is_loaded(invoke, tmp_path, output):
    rows = [{"id": number, "text": "A cat."} for number in range(3)]
    for row_id in ("a", 10**40):
        lines = map(json.dumps, [*rows, {"id": row_id, "text": "A dog."}])
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
        words = ("encode", tmp_path / "rows.jsonl", "--id-column", "id", "-m", "./nowhere")
        told = invoke(*words, "-o", tmp_path / output).stderr
        assert "the ids are of several types, no text or too large" in " ".join(told.split())
        assert "nowhere" in invoke(*words, "-o", tmp_path / "v.jsonl").stderr
