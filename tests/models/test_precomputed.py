from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from simcse_cli.errors import DataError
from simcse_cli.models.precomputed import PrecomputedVectors, read_matrix
from simcse_cli.postprocess.unit_rows import unit_rows

MATRIX = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("A dog runs .\nTwo  cats\tsleep .\nA dog runs .\n")
    return path


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "use.npy"
    np.save(path, MATRIX)
    return path


def test_encode_returns_the_row_of_each_sentence(vectors, listed):
    encoder = PrecomputedVectors(vectors, listed)
    np.testing.assert_array_equal(
        encoder.encode(["Two cats sleep .", "A dog runs ."]), [[2, 3], [0, 1]]
    )
    assert (encoder.dim, encoder.name) == (2, "use.npy")


def test_sentences_match_by_their_tokens(vectors, listed):
    encoder = PrecomputedVectors(vectors, listed)
    np.testing.assert_array_equal(encoder.encode(["  Two cats   sleep . "]), [[2, 3]])


@pytest.mark.parametrize("ending", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
def test_formats_and_types_give_the_same_float32_vectors(ending, dtype, tmp_path, listed):
    path = tmp_path / f"vectors{ending}"
    matrix = MATRIX.astype(dtype)
    if ending == ".npy":
        np.save(path, matrix)
    elif ending == ".npz":
        np.savez(path, embeddings=matrix)
    else:
        save_file({"embeddings": matrix}, path)
    rows = PrecomputedVectors(path, listed).encode(["Two cats sleep ."])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, [[2, 3]])


def test_a_sentence_without_vector_is_named(vectors, listed):
    with pytest.raises(
        DataError, match=r"sentences\.txt lacks 1 sentences, the first is 'A bird sings \.'"
    ) as caught:
        PrecomputedVectors(vectors, listed).encode(
            ["A dog runs .", "A bird sings .", "A bird sings ."]
        )
    assert "--fit FILE" in (caught.value.hint or "")
    assert "--write-sentences" in (caught.value.hint or "")


def test_rows_and_lines_must_be_as_many(tmp_path, listed):
    np.save(tmp_path / "v.npy", MATRIX[:2])
    with pytest.raises(DataError, match="2 vectors for the 3 lines"):
        PrecomputedVectors(tmp_path / "v.npy", listed)


def test_vectors_that_are_not_finite_are_refused_when_used(tmp_path, listed):
    np.save(tmp_path / "v.npy", np.array([[0, 1], [np.nan, 1], [0, 0]]))
    encoder = PrecomputedVectors(tmp_path / "v.npy", listed)
    np.testing.assert_array_equal(encoder.encode(["A dog runs ."]), [[0, 1]])
    with pytest.raises(DataError, match="row 1: a value is not finite"):
        encoder.encode(["Two cats sleep ."])


def test_pickled_arrays_are_never_loaded(tmp_path):
    np.save(tmp_path / "v.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        read_matrix(tmp_path / "v.npy")


@pytest.mark.parametrize(
    ("array", "message"),
    [(np.ones(3), "shape"), (np.array([["a", "b"]]), "need"), (np.ones((1, 1, 1)), "shape")],
)
def test_other_shapes_and_types_are_refused(array, message, tmp_path):
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(DataError, match=message):
        read_matrix(tmp_path / "v.npy")


def test_packed_bits_are_refused_since_they_have_no_cosine(tmp_path):
    np.save(tmp_path / "v.npy", np.packbits(np.eye(8, dtype=bool), axis=1))
    with pytest.raises(DataError, match=r"v\.npy holds binary vectors"):
        read_matrix(tmp_path / "v.npy")
    with pytest.raises(DataError, match="the array holds binary vectors"):
        unit_rows(np.load(tmp_path / "v.npy"), np.float32)


@pytest.mark.parametrize("name", ["v.npy", "v.npz", "v.safetensors", "v.txt"])
def test_corrupt_and_unknown_files_are_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"garbage")
    with pytest.raises(DataError, match=name) as caught:
        read_matrix(tmp_path / name)
    assert ".npy" in (caught.value.hint or "")


def test_several_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "v.npz", a=MATRIX, b=MATRIX)
    with pytest.raises(DataError, match=r"2 arrays \(a, b\), need one"):
        read_matrix(tmp_path / "v.npz")


def test_a_matrix_of_zeros_is_refused_and_single_rows_of_zeros_are_not(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"v\.npy holds only zeros"):
        read_matrix(tmp_path / "v.npy")
    np.save(tmp_path / "v.npy", np.array([[0, 0], [0, 1]]))
    assert len(read_matrix(tmp_path / "v.npy")) == 2
