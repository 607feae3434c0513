from pathlib import Path

import numpy as np
import pytest

from simcse_cli.errors import DataError
from simcse_cli.models.word_vectors import WordAverage, WordVectors, read_word_frequencies
from simcse_cli.progress import SilentProgress

GLOVE = "the 1 0 0\ncat 0 2 0\nThe 0 0 9\nsat 0.5 -1 3e-1\n"


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE)
    return path


def average(path: Path, *sentences: str) -> np.ndarray:
    return WordAverage(WordVectors(path)).encode(sentences)


def test_average_is_the_mean_of_known_tokens(glove):
    np.testing.assert_allclose(average(glove, "the cat"), [[0.5, 1, 0]])
    np.testing.assert_allclose(average(glove, "the the cat sat"), [[0.625, 0.25, 0.075]], rtol=1e-6)


def test_average_keeps_case(glove):
    np.testing.assert_allclose(
        average(glove, "the", "The", "THE"), [[1, 0, 0], [0, 0, 9], [0, 0, 0]]
    )


def test_average_passes_over_unknown_tokens(glove):
    np.testing.assert_allclose(average(glove, "the zyzzyva cat ."), [[0.5, 1, 0]])


def test_average_splits_at_white_space_only(glove):
    np.testing.assert_allclose(average(glove, "cat, the", " \tcat\n "), [[1, 0, 0], [0, 2, 0]])


def test_average_of_a_sentence_without_known_words_is_zero_and_is_reported(glove):
    progress = SilentProgress()
    rows = WordAverage(WordVectors(glove)).encode(["zyzzyva", "", "cat"], progress=progress)
    np.testing.assert_array_equal(rows, [[0, 0, 0], [0, 0, 0], [0, 2, 0]])
    assert progress.warnings == ["2 of 3 sentences have no word in glove.txt: zero vectors"]


def test_average_has_one_float32_row_per_sentence(glove):
    rows = average(glove, "cat", "the", "cat")
    assert rows.dtype == np.float32
    assert rows.shape == (3, 3)
    assert average(glove).shape == (0, 3)


@pytest.mark.parametrize("header", ["4 3\n", "4 3\r\n"])
def test_header_of_word2vec_and_fasttext_is_no_word(header, tmp_path):
    path = tmp_path / "crawl.vec"
    path.write_bytes((header + GLOVE).encode())
    vectors = WordVectors(path)
    assert (len(vectors), vectors.dim, "4" in vectors) == (4, 3, False)
    np.testing.assert_array_equal(vectors["cat"], [0, 2, 0])


@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_blank_lines_are_no_words(header, tmp_path):
    path = tmp_path / "crawl.vec"
    path.write_text(f"{header}{GLOVE}\n \n")
    vectors = WordVectors(path)
    assert len(vectors) == 4
    np.testing.assert_array_equal(vectors["cat"], [0, 2, 0])


def test_one_dimensional_vectors_are_not_taken_for_a_header(tmp_path):
    path = tmp_path / "tiny.txt"
    path.write_text("a 1.5\nb 2\n")
    np.testing.assert_array_equal(WordVectors(path)["b"], [2])


def test_trailing_spaces_and_non_ascii_words_are_read(tmp_path):
    path = tmp_path / "v.vec"
    path.write_text("2 2\ncafé 1 2 \n\u2028 3 4 \n", encoding="utf-8")
    vectors = WordVectors(path)
    np.testing.assert_array_equal(vectors["café"], [1, 2])
    assert len(vectors) == 2


def test_a_word_that_stands_twice_has_its_last_vector(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("a 1 1\na 2 2\n")
    np.testing.assert_array_equal(WordVectors(path)["a"], [2, 2])


def test_words_with_spaces_are_passed_over(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("a 1 1\n. . . 5 6\nat me@example.org 2 2\nb 3 3\n")
    vectors = WordVectors(path)
    assert len(vectors) == 2
    np.testing.assert_array_equal(vectors["b"], [3, 3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2 3\nb 1 2\n", "line 2: 2 values, need 3"),
        ("a 1 2 3\nb 1 2 3 4\n", "line 2: 4 values, need 3"),
        ("2 3\na 1 2 3\nb 1 2\n", "line 3: 2 values, need 3"),
        ("word\nother\n", "line 1: 0 values"),
        ("2 3\n", "holds no word vectors"),
        ("3 3\na 1 2 3\nb 1 2 3\n", "ends after 2 of the 3 words"),
        ("", "is empty"),
        ("a\0 1 2\n", "line 1: a NUL byte"),
    ],
)
def test_corrupt_vectors_are_refused_with_the_line(content, message, tmp_path):
    path = tmp_path / "v.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        WordVectors(path)
    assert "v.txt" in caught.value.message


@pytest.mark.parametrize("value", ["abc", "nan", "inf"])
def test_a_vector_that_is_no_number_is_refused_with_the_word(value, tmp_path):
    path = tmp_path / "v.txt"
    path.write_text(f"a 1 2\nb 1 {value}\n")
    with pytest.raises(DataError, match=r"v\.txt, word 'b'"):
        average(path, "a b")


def test_packed_files_are_refused_with_the_command(tmp_path):
    path = tmp_path / "glove.txt.gz"
    path.write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match="packed") as caught:
        WordVectors(path)
    assert caught.value.hint == f"gunzip {path}"


def test_missing_vectors_are_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        WordVectors(tmp_path / "none.txt")


def test_digest_follows_the_file(glove):
    before = WordAverage(WordVectors(glove)).digest
    assert WordAverage(WordVectors(glove)).digest == before
    glove.write_text(GLOVE + "dog 1 1 1\n")
    assert WordAverage(WordVectors(glove)).digest != before


def test_frequencies_are_shares(tmp_path):
    path = tmp_path / "counts.txt"
    path.write_text("the 30\ncat 10\n")
    assert read_word_frequencies(path) == {"the": 0.75, "cat": 0.25}


@pytest.mark.parametrize("line", ["the", "the x", "the 0", "the -1", "the nan", "a b 3"])
def test_frequencies_refuse_other_lines(line, tmp_path):
    path = tmp_path / "counts.txt"
    path.write_text(f"cat 10\n{line}\n")
    with pytest.raises(DataError, match=r"counts\.txt, line 2"):
        read_word_frequencies(path)


def test_sif_weighs_words_by_rarity_in_lower_case(glove):
    frequencies = {"the": 0.75, "cat": 0.25}
    encoder = WordAverage(WordVectors(glove), frequencies)
    # sat has no frequency and weighs 1.
    the, cat = (
        0.001 / (0.001 + 0.75) * np.array([1, 0, 0]),
        0.001 / (0.001 + 0.25) * np.array([0, 2, 0]),
    )
    expected = (the + cat + np.array([0.5, -1, 0.3])) / 3
    np.testing.assert_allclose(encoder.encode(["The CAT sat zyzzyva"])[0], expected, rtol=1e-6)


def test_sif_and_plain_averages_have_different_digests(glove):
    vectors = WordVectors(glove)
    assert WordAverage(vectors).digest != WordAverage(vectors, {"the": 1.0}).digest
