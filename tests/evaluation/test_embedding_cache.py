from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from simcse_cli.evaluation.embedding_cache import EvaluationCache, digest_of, memoize
from simcse_cli.files.system import default_cache_dir
from simcse_cli.progress import SilentProgress


class CountingEncoder:
    """Vectors from the letters of a sentence; remembers what it was asked."""

    def __init__(self):
        self.calls = []

    def __call__(self, sentences):
        self.calls.append(list(sentences))
        return np.array([[len(s), s.count("a")] for s in sentences], dtype=np.float32)


def test_memoize_encodes_every_sentence_once_over_all_calls():
    encode = CountingEncoder()
    memoized = memoize(encode)
    assert memoized(["a", "bb", "a"]).tolist() == [[1, 1], [2, 0], [1, 1]]
    assert memoized(["bb", "ca"]).tolist() == [[2, 0], [2, 1]]
    memoized(["a"])
    assert encode.calls == [["a", "bb"], ["ca"]]


@pytest.mark.parametrize("kept", [True, False])
def test_embed_encodes_each_distinct_sentence_once_and_returns_rows_in_order(tmp_path, kept):
    encode = CountingEncoder()
    cache = EvaluationCache(tmp_path if kept else None, "m")
    vectors = cache.embed("CR", ["banana", "x", "banana"], encode)
    assert vectors.tolist() == [[6, 3], [1, 0], [6, 3]]
    assert encode.calls == [["banana", "x"]]


def test_second_call_reads_the_vectors_from_disk(tmp_path):
    encode = CountingEncoder()
    first = EvaluationCache(tmp_path, "m").embed("CR", ["a", "bb"], encode)
    second = EvaluationCache(tmp_path, "m").embed("CR", ["a", "bb"], encode)
    assert np.array_equal(first, second)
    assert len(encode.calls) == 1


def test_other_sentences_or_another_encoder_meet_no_old_entry(tmp_path):
    encode = CountingEncoder()
    EvaluationCache(tmp_path, "m").embed("CR", ["a", "bb"], encode)
    EvaluationCache(tmp_path, "m").embed("CR", ["a", "cc"], encode)
    EvaluationCache(tmp_path, "other").embed("CR", ["a", "bb"], encode)
    assert len(encode.calls) == 3


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_damaged_entry_is_computed_again_and_replaced(tmp_path, content):
    encode = CountingEncoder()
    cache = EvaluationCache(tmp_path, "m")
    cache.embed("CR", ["a"], encode)
    (entry,) = tmp_path.rglob("*.npz")
    entry.write_bytes(content)
    assert cache.embed("CR", ["a"], encode).tolist() == [[1, 1]]
    cache.embed("CR", ["a"], encode)
    assert len(encode.calls) == 2


def test_result_is_found_under_the_same_key_only(tmp_path):
    cache = EvaluationCache(tmp_path, "m")
    cache.save_result("MR", {"folds": 5}, {"accuracy": 0.5})
    assert cache.load_result("MR", {"folds": 5}) == {"accuracy": 0.5}
    assert cache.load_result("MR", {"folds": 10}) is None
    assert EvaluationCache(tmp_path, "other").load_result("MR", {"folds": 5}) is None


def test_damaged_result_is_ignored(tmp_path):
    cache = EvaluationCache(tmp_path, "m")
    cache.save_result("MR", {}, {"accuracy": 0.5})
    (entry,) = tmp_path.rglob("*.json")
    entry.write_text("{")
    assert cache.load_result("MR", {}) is None


def test_cache_without_a_folder_keeps_nothing(tmp_path):
    cache = EvaluationCache(None, "m")
    cache.save_result("MR", {}, {"accuracy": 0.5})
    assert cache.load_result("MR", {}) is None


def test_digest_separates_neighbouring_parts():
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert digest_of(np.array([1, 2])) != digest_of(np.array([2, 1]))
    assert len(digest_of("x")) == 16


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SIMCSE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/simcse")),
        ({}, Path.home() / ".cache/simcse"),
    ],
)
def test_default_cache_dir_follows_the_environment(monkeypatch, environment, expected):
    for name in ("SIMCSE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_cache_dir() == expected


def test_a_changed_value_in_an_entry_is_noticed(tmp_path):
    encode = CountingEncoder()
    cache = EvaluationCache(tmp_path, "m")
    expected = cache.embed("CR", ["a", "bb"], encode)
    (entry,) = tmp_path.rglob("*.npz")
    data = bytearray(entry.read_bytes())
    data[data.index(expected.tobytes()) + 2] ^= 1
    entry.write_bytes(bytes(data))
    assert cache.embed("CR", ["a", "bb"], encode).tolist() == expected.tolist()
    assert len(encode.calls) == 2
    cache.save_result("MR", {}, {"accuracy": 0.5})
    (entry,) = tmp_path.rglob("*.json")
    entry.write_text(entry.read_text().replace("0.5", "0.6"))
    assert cache.load_result("MR", {}) is None


def test_entries_of_version_1_0_0_are_not_read_and_told(tmp_path):
    class Told(SilentProgress):
        hints: ClassVar[list[str]] = []

        def hint(self, message):
            self.hints.append(message)

    (tmp_path / digest_of("m")).mkdir()
    cache = EvaluationCache(tmp_path, "m", progress=Told())
    cache.save_result("CR", {}, {"accuracy": 0.5})
    (hint,) = Told.hints
    assert hint.startswith("vectors and results of simcse 1.0.0")
    assert f"rm -r {tmp_path}/[0-9a-f]" in hint
    assert list((tmp_path / digest_of("m")).iterdir()) == []
    EvaluationCache(tmp_path, "m", progress=Told())
    assert len(Told.hints) == 1
