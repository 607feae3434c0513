import json
import os
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from simcse_cli.encoding import search_index
from simcse_cli.encoding.search_index import SearchIndex, check_index_output, nearest, rank_rows
from simcse_cli.errors import DataError, MissingExtraError, OutputError
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.settings.choices import SearchBackend

ANGLES = np.deg2rad([0, 10, 25, 40, 90])
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
NAMES = ["east", "ten", "twenty-five", "forty", "north"]


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(8).normal(size=(230, 16)).astype(np.float32)


@pytest.fixture
def texts() -> list[str]:
    return [f"sentence {row} – é" for row in range(229)] + [""]


def full_ranking(queries: np.ndarray, vectors: np.ndarray, k: int) -> np.ndarray:
    queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.argsort(-(queries @ units.T), axis=1)[:, :k]


@pytest.mark.parametrize("k", [2, 9])
@pytest.mark.parametrize(("query_block", "corpus_block"), [(1, 7), (3, 64), (256, 16_384)])
def test_exact_search_in_blocks_is_the_full_ranking(
    vectors, texts, monkeypatch, query_block, corpus_block, k
):
    monkeypatch.setattr(search_index, "QUERY_BLOCK", query_block)
    monkeypatch.setattr(search_index, "CORPUS_BLOCK", corpus_block)
    queries = np.random.default_rng(1).normal(size=(5, 16))
    scores, rows = SearchIndex.build(vectors, texts).search(queries, k)
    np.testing.assert_array_equal(rows, full_ranking(queries, vectors, k))
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("k", [2, 150])
def test_candidates_are_all_that_reach_the_bound(k):
    """Which is the k-th largest maximum of the 4k groups of a row, or what the row has already, if that is more."""
    scores = np.random.default_rng(3).normal(size=(5, 40 * k + 3)).astype(np.float32)
    maxima = scores[:, :-3].reshape(5, 4 * k, 10).max(axis=2)  # three columns are left over
    lowest = np.array([-np.inf, -1, 0, 1.5, 9], np.float32)
    bound = np.maximum(lowest, np.sort(maxima, axis=1)[:, -k])
    scores[:4, -2] = bound[:4]
    found = set(
        zip(*(part.tolist() for part in search_index._candidates(scores, lowest, k)), strict=True)
    )
    assert found == {(i, j) for i, j in np.ndindex(scores.shape) if scores[i, j] >= bound[i]}
    assert not any(i == 4 for i, _ in found)


@pytest.mark.parametrize(("n_ties", "n_found"), [(32, 32), (33, 2)])
def test_candidates_are_k_where_sixteen_times_as_many_tie(n_ties, n_found):
    scores = np.zeros((3, 200), np.float32)
    scores[:, -n_ties:] = 1
    rows, columns = search_index._candidates(scores, np.full(3, -np.inf, np.float32), 2)
    assert rows.tolist() == [0] * n_found + [1] * n_found + [2] * n_found
    assert (scores[rows, columns] == 1).all()


def test_candidates_of_few_columns_are_the_k_largest():
    scores = np.random.default_rng(3).normal(size=(4, 20)).astype(np.float32)
    rows, columns = search_index._candidates(scores, np.full(4, -np.inf, np.float32), 3)
    assert rows.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    np.testing.assert_array_equal(
        np.sort(columns.reshape(4, 3)), np.sort(np.argsort(scores)[:, -3:])
    )


@pytest.mark.parametrize("corpus_block", [40, 16_384])
def test_equal_scores_are_all_candidates(corpus_block, texts, monkeypatch):
    """Of 230 vectors along four axes each query has 57 or 58 at cosine 1, and a zero query none."""
    monkeypatch.setattr(search_index, "CORPUS_BLOCK", corpus_block)
    vectors = np.eye(4, dtype=np.float32)[np.arange(230) % 4]
    scores, rows = SearchIndex.build(vectors, texts).search(np.r_[np.eye(4), np.zeros((1, 4))], 20)
    np.testing.assert_array_equal(scores, np.r_[np.ones((4, 20)), np.zeros((1, 20))])
    assert (rows[:4] % 4 == np.arange(4)[:, None]).all()
    assert all(len(set(found)) == 20 for found in rows.tolist())


def test_exact_search_returns_everything_when_k_is_larger(vectors, texts):
    scores, rows = SearchIndex.build(vectors, texts).search(vectors[:1], 1000)
    assert sorted(rows[0]) == list(range(230))
    assert scores[0, 0] == pytest.approx(1.0)


def test_a_zero_vector_has_cosine_zero(vectors, texts):
    vectors[4] = 0
    scores, rows = SearchIndex.build(vectors, texts).search(vectors[:1], 230)
    assert scores[0, list(rows[0]).index(4)] == 0


def test_unit_rows_keep_a_row_of_zeros():
    rows = np.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(unit_rows(rows, np.float64), [[0, 0], [0.6, 0.8]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unit_rows_equal_the_direct_division(vectors, monkeypatch, dtype):
    monkeypatch.setattr(search_index, "CORPUS_BLOCK", 50)
    np.testing.assert_allclose(
        unit_rows(vectors, dtype),
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        rtol=1e-6,
    )


@pytest.mark.parametrize("backend", SearchBackend)
def test_a_saved_index_finds_the_same_after_loading(vectors, texts, tmp_path, backend):
    if backend is SearchBackend.FAISS:
        pytest.importorskip("faiss")
    index = SearchIndex.build(
        vectors, texts, backend=backend, info={"model": "tiny", "pooler": "cls"}, unused=["é", "b"]
    )
    index.save(tmp_path / "words.index")
    loaded = SearchIndex.load(tmp_path / "words.index")
    assert list(loaded.sentences) == texts
    assert loaded.info == {"model": "tiny", "pooler": "cls"}
    assert list(loaded.unused) == ["é", "b"]
    for before, after in zip(
        index.search(vectors[:3], 5), loaded.search(vectors[:3], 5), strict=True
    ):
        np.testing.assert_array_equal(before, after)


@pytest.mark.upkeep
@pytest.mark.parametrize("factory", ["IVF16,Flat", "PQ4", "PCA8,IVF16,Flat", "IVF16,PQ4"])
def test_faiss_trains_on_few_points_without_a_warning(factory, capfd):
    pytest.importorskip("faiss")
    few = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    search_index.FaissSearcher.build(few, factory)
    assert capfd.readouterr() == ("", "")


def test_a_faiss_file_is_read_by_faiss_and_by_us(vectors, texts, tmp_path):
    """FAISS finds in the file what NumPy finds in the vectors, and so do we; the file beside it is part of it."""
    faiss = pytest.importorskip("faiss")
    SearchIndex.build(vectors, texts, info={"model": "tiny"}).save(tmp_path / "v.faiss")
    opened = faiss.read_index(str(tmp_path / "v.faiss"))
    units = unit_rows(vectors, np.float32)
    np.testing.assert_array_equal(opened.reconstruct_n(0, len(units)), units)
    np.testing.assert_array_equal(
        opened.search(units[:9], 4)[1], full_ranking(vectors[:9], vectors, 4)
    )
    loaded = SearchIndex.load(tmp_path / "v.faiss")
    assert (list(loaded.sentences), loaded.info) == (texts, {"model": "tiny"})
    np.testing.assert_array_equal(
        loaded.search(vectors[:9], 4)[1], full_ranking(vectors[:9], vectors, 4)
    )
    SearchIndex.build(vectors[::-1], texts).save(tmp_path / "w.faiss")
    (tmp_path / "w.faiss").replace(tmp_path / "v.faiss")
    with pytest.raises(DataError, match=r"v.faiss cannot be read .its content has changed"):
        SearchIndex.load(tmp_path / "v.faiss")
    (tmp_path / "v.faiss.texts").unlink()
    with pytest.raises(DataError, match=r"v.faiss.texts"):
        SearchIndex.load(tmp_path / "v.faiss")


@pytest.mark.parametrize("factory", ["Flat", "HNSW32", "IVF4,Flat"])
def test_faiss_finds_what_exact_search_finds(vectors, texts, factory):
    pytest.importorskip("faiss")
    approximate = SearchIndex.build(vectors, texts, backend=SearchBackend.FAISS, factory=factory)
    np.testing.assert_array_equal(
        approximate.search(vectors[:20], 3)[1], full_ranking(vectors[:20], vectors, 3)
    )


def test_faiss_searches_half_of_64_cells_and_leaves_what_it_does_not_find(monkeypatch):
    """As FAISS itself does with 32 probes. With one probe of one text a cell, the second neighbour is missing."""
    faiss = pytest.importorskip("faiss")
    vectors = np.random.default_rng(8).normal(size=(2600, 16)).astype(np.float32)
    texts = list(map(str, range(2600)))
    index = SearchIndex.build(vectors, texts, backend=SearchBackend.FAISS, factory="IVF64,Flat")
    plain = faiss.index_factory(16, "IVF64,Flat", faiss.METRIC_INNER_PRODUCT)
    units = unit_rows(vectors, np.float32)
    plain.train(units)
    plain.add(units)
    plain.nprobe = 32
    np.testing.assert_array_equal(
        index.search(vectors[:300], 20)[1], plain.search(units[:300], 20)[1]
    )
    monkeypatch.setattr(search_index, "IVF_PROBES", 1)
    one = SearchIndex.build(np.eye(4), NAMES[:4], backend=SearchBackend.FAISS, factory="IVF4,Flat")
    scores, rows = one.search(np.eye(4), 2)
    assert rows.tolist() == [[0, -1], [1, -1], [2, -1], [3, -1]]
    assert scores.tolist() == [[1, -np.inf]] * 4


@pytest.mark.parametrize(
    ("limit", "step"), [(1 << 30, 1), (4 * 2600 * 16, 1), (4 * 2600 * 16 - 1, 2), (9000, 19)]
)
def test_faiss_trains_on_every_row_that_fits_or_every_nth(limit, step, monkeypatch):
    faiss = pytest.importorskip("faiss")
    vectors = np.random.default_rng(8).normal(size=(2600, 16)).astype(np.float32)
    units = unit_rows(vectors, np.float32)
    plain = faiss.index_factory(16, "IVF3,Flat", faiss.METRIC_INNER_PRODUCT)
    plain.train(units[::step])
    monkeypatch.setattr(search_index, "FAISS_TRAINING_BYTES", limit)
    ours = search_index.FaissSearcher.build(vectors, "IVF3,Flat")
    np.testing.assert_array_equal(
        ours._index.quantizer.reconstruct_n(0, 3), plain.quantizer.reconstruct_n(0, 3)
    )


def test_faiss_names_the_row_that_is_not_finite_where_it_trains_on_every_nth(monkeypatch):
    pytest.importorskip("faiss")
    vectors = np.random.default_rng(8).normal(size=(2600, 16)).astype(np.float32)
    vectors[2 * 700, 3] = np.nan
    monkeypatch.setattr(search_index, "FAISS_TRAINING_BYTES", 4 * 2600 * 16 // 2)
    with pytest.raises(DataError, match=r"vector 1,401 is not finite"):
        search_index.FaissSearcher.build(vectors, "IVF3,Flat", are_units=False)


def test_faiss_factory_that_makes_no_sense_names_alternatives(vectors, texts):
    pytest.importorskip("faiss")
    with pytest.raises(DataError, match="Nonsense") as raised:
        SearchIndex.build(vectors, texts, backend=SearchBackend.FAISS, factory="Nonsense")
    assert "--backend exact" in raised.value.hint


def test_faiss_that_is_not_installed_names_the_extra(vectors, texts, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"simcse-cli\[faiss\]"):
        SearchIndex.build(vectors, texts, backend=SearchBackend.FAISS)
    with pytest.raises(MissingExtraError, match=r"x\.faiss"):
        check_index_output(tmp_path / "x.faiss", force=False)
    check_index_output(tmp_path / "x.index", force=False)


@pytest.mark.parametrize(
    ("factory", "compresses"),
    [("Flat", False), ("HNSW32", False), ("SQ8", True), ("HNSW32_SQ8", True), ("PCA8,Flat", True)],
)
def test_an_index_tells_whether_its_cosines_are_approximations(vectors, texts, factory, compresses):
    pytest.importorskip("faiss")
    index = SearchIndex.build(vectors, texts, backend=SearchBackend.FAISS, factory=factory)
    assert index.compresses == compresses
    scores, rows = index.search(vectors[:20], 5)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    true = np.einsum("qd,qkd->qk", units[:20], units[rows])
    assert (np.abs(scores - true).max() > 1e-5) == compresses
    assert not SearchIndex.build(vectors, texts).compresses


def test_build_refuses_another_number_of_sentences(vectors):
    with pytest.raises(DataError, match=r"\(230, 16\) vectors for 1 sentences"):
        SearchIndex.build(vectors, ["one"])
    with pytest.raises(DataError, match="an index of no sentences"):
        SearchIndex.build(vectors[:0], [])
    one = SearchIndex.build(vectors[:1], ["one"])
    with pytest.raises(DataError, match=r"the queries have 15 dimensions, the indexed vectors 16"):
        one.search(vectors[:, :15], 1)


def test_an_index_is_searched_with_the_encoder_that_made_it(vectors):
    def encoder(digest: str) -> SimpleNamespace:
        return SimpleNamespace(name="mine", digest_with=lambda prompt: f"{digest}/{prompt}")

    index = SearchIndex.build(
        vectors[:1], ["one"], info={"model": "m", "digest": "a/query: ", "prompt": "query: "}
    )
    index.require_made_by(encoder("a"))
    with pytest.raises(
        DataError, match=r"the index was made by another model or pooler \(m\) than mine"
    ):
        index.require_made_by(encoder("b"))
    SearchIndex.build(vectors[:1], ["one"]).require_made_by(encoder("b"))
    index.info["digest"] = "a"  # as in version 1.0.0
    with pytest.raises(DataError, match=r"the index is of simcse 1\.0\.0") as caught:
        index.require_made_by(encoder("2-a"))
    assert caught.value.hint == "build it again with --force"


def test_save_keeps_an_existing_file(vectors, texts, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        SearchIndex.build(vectors, texts).save(tmp_path / "taken")


def test_load_refuses_a_file_that_is_no_index(tmp_path):
    (tmp_path / "notes.txt").write_text("hello, this is just some text")
    with pytest.raises(DataError, match="need a search index"):
        SearchIndex.load(tmp_path / "notes.txt")


def test_nearest_orders_by_angle():
    (found,) = nearest(SearchIndex.build(CIRCLE, NAMES), np.array([[2.0, 0.0]]), 3)
    assert [neighbour.sentence for neighbour in found] == ["east", "ten", "twenty-five"]
    assert found[1].cosine == pytest.approx(np.cos(np.deg2rad(10)), abs=1e-6)


def test_a_cosine_is_at_most_one(vectors, texts):
    """The products of some unit rows with themselves are rounded up."""
    index = SearchIndex.build(vectors, texts)
    assert index.search(vectors, 1)[0].max() > 1
    assert max(neighbour.cosine for (neighbour,) in nearest(index, vectors, 1)) == 1


def test_sentences_equal_to_the_query_are_left_out_and_k_is_still_filled():
    names = ["east", "ten", "east", "forty", "north"]
    found = nearest(SearchIndex.build(CIRCLE, names), CIRCLE[:2], 2, ["east", "new"])
    assert [[neighbour.row for neighbour in query] for query in found] == [[1, 3], [1, 0]]


def test_nearest_returns_fewer_when_there_are_fewer():
    (found,) = nearest(SearchIndex.build(CIRCLE[:2], NAMES[:2]), CIRCLE[:1], 5, ["east"])
    assert [neighbour.row for neighbour in found] == [1]


@pytest.mark.parametrize("texts", [None, ["forty"]])
def test_sentences_without_text_are_no_results_and_keep_their_rows(texts):
    names = ["", " \u3000", *NAMES[2:]]
    index = SearchIndex.build(CIRCLE, names)
    rows, scores = rank_rows(index, CIRCLE[:1], len(names), texts)
    usual, usual_scores = rank_rows(SearchIndex.build(CIRCLE, NAMES), CIRCLE[:1], 9, texts)
    is_kept = usual[0] > 1
    n_kept = is_kept.sum()
    assert rows[0, :n_kept].tolist() == usual[0, is_kept].tolist()
    assert scores[0, :n_kept].tolist() == usual_scores[0, is_kept].tolist()
    assert set(rows[0, n_kept:].tolist()) == {-1}


def test_rank_rows_fills_up_with_minus_one():
    rows, scores = rank_rows(SearchIndex.build(CIRCLE, NAMES), CIRCLE[:1], 7, ["forty"])
    assert rows.tolist() == [[0, 1, 2, 4, -1, -1, -1]]
    assert scores[0, 4:].tolist() == [-np.inf] * 3


def test_a_text_that_fills_the_first_results_is_looked_through():
    """A query that is in the index 100 times: the search goes on until it finds other sentences."""
    vectors, texts = np.repeat(CIRCLE, [100, 1, 1, 1, 1], axis=0), ["east"] * 100 + NAMES[1:]
    rows, _ = rank_rows(SearchIndex.build(vectors, texts), CIRCLE[[3, 0]], 3, ["new", "east"])
    assert rows.tolist() == [[102, 101, 100], [100, 101, 102]]
    vectors, texts = (
        np.repeat(CIRCLE, [1, 100, 1, 1, 1], axis=0),
        ["east", *["ten"] * 100, *NAMES[2:]],
    )
    rows, _ = rank_rows(SearchIndex.build(vectors, texts), CIRCLE[:1], 3, ["ten"])
    assert rows.tolist() == [[0, 101, 102]]  # row 0 is a row like others


def test_vectors_on_disk_give_the_same_faiss_index_block_by_block(
    vectors, texts, tmp_path, monkeypatch
):
    pytest.importorskip("faiss")
    SearchIndex.build(vectors, texts, backend=SearchBackend.FAISS, factory="SQ8").save(
        tmp_path / "a.faiss"
    )
    np.save(tmp_path / "v.npy", vectors)
    monkeypatch.setattr(search_index, "FAISS_BLOCK", 64)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    SearchIndex.build(mapped, texts, backend=SearchBackend.FAISS, factory="SQ8").save(
        tmp_path / "b.faiss"
    )
    assert (tmp_path / "a.faiss").read_bytes() == (tmp_path / "b.faiss").read_bytes()


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
def test_vectors_on_disk_are_searched_block_by_block(tmp_path, monkeypatch, dtype):
    """With the results of vectors in memory, in less memory than these take; a bad one is named by its row."""
    rows = (20 * np.random.default_rng(4).normal(size=(20_000, 32))).clip(-127, 127).astype(dtype)
    texts = list(map(str, range(20_000)))
    expected = SearchIndex.build(rows, texts).search(rows[:9], 5)
    np.save(tmp_path / "v.npy", rows)
    monkeypatch.setattr(search_index, "CORPUS_BLOCK", 1024)
    index = SearchIndex.build(np.load(tmp_path / "v.npy", mmap_mode="r"), texts)
    tracemalloc.start()
    found = index.search(rows[:9], 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000 * 32 * 4 / 4
    # A product of another shape may be summed in another order.
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])
    if dtype is not np.int8:
        for row, named in ((17_000, "17,001"), (5, "6")):
            rows[row, 3] = np.nan
            np.save(tmp_path / "bad.npy", rows)
            bad = SearchIndex.build(np.load(tmp_path / "bad.npy", mmap_mode="r"), texts)
            with pytest.raises(DataError, match=f"vector {named} is not finite"):
                bad.search(rows[10:19], 5)


def test_faiss_bytes_that_have_changed_are_not_given_to_faiss(vectors, texts, tmp_path):
    pytest.importorskip("faiss")
    SearchIndex.build(vectors, texts, backend=SearchBackend.FAISS, factory="Flat").save(
        tmp_path / "i"
    )
    assert SearchIndex.load(tmp_path / "i").search(vectors[:1], 1)[1].tolist() == [[0]]
    data = bytearray((tmp_path / "i").read_bytes())
    place = data.index(b"IxFI") + 40  # within the serialised index
    data[place] ^= 1
    (tmp_path / "i").write_bytes(bytes(data))
    with pytest.raises(DataError, match="its content has changed since it was written"):
        SearchIndex.load(tmp_path / "i")


@pytest.mark.parametrize("tensor", ["vectors", "text", "text_ends"])
def test_an_index_with_zeros_in_place_of_its_content_is_refused(tensor, vectors, texts, tmp_path):
    SearchIndex.build(vectors, texts).save(tmp_path / "i")
    data = (tmp_path / "i").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8:start])[tensor]["data_offsets"]
    (tmp_path / "i").write_bytes(data[: start + first] + bytes(last - first) + data[start + last :])
    with pytest.raises(
        DataError, match=r"i cannot be read .its content has changed since it was written"
    ):
        SearchIndex.load(tmp_path / "i")


def test_a_damaged_index_is_named(vectors, texts, tmp_path, monkeypatch):
    from safetensors.numpy import load_file, save_file

    SearchIndex.build(vectors, texts, info={"model": "m"}).save(tmp_path / "i")
    good = load_file(tmp_path / "i")
    bad = {"vectors": good["vectors"][:5], "text_ends": good["text_ends"][::-1].copy()}
    bad["text_ends"] += 10**12
    monkeypatch.setattr(search_index, "CORPUS_BLOCK", 100)
    not_finite = good["vectors"].repeat(2, axis=0).reshape(-1, 2, 16).swapaxes(0, 1).copy()
    not_finite[0, 0, 3] = not_finite[1, -1, 3] = np.nan
    for name, array in (*bad.items(), *(("vectors", each) for each in not_finite)):
        tensors = good | {name: array}
        facts = {"format": search_index.FORMAT, "sha256": search_index._digest(tensors)}
        save_file(tensors, tmp_path / "bad", metadata=facts)
        with pytest.raises(DataError, match=r"bad cannot be read .* need a search index") as raised:
            SearchIndex.load(tmp_path / "bad")
        assert ("5 vectors for 230 sentences" in str(raised.value)) == (
            len(tensors["vectors"]) == 5
        )


def test_vectors_whose_squares_are_not_finite_are_refused():
    with pytest.raises(DataError, match="vector 2 is not finite, or too large to be squared"):
        unit_rows(np.array([[1.0, 2.0], [1e30, 1.0]]), np.float32)


def test_metadata_of_the_file_are_sorted(tmp_path):
    info = {name: f"{name} é" for name in ("pooler", "model", "digest", "b", "a")}
    SearchIndex.build(np.eye(3), ["x", "y", "z"], info=info).save(tmp_path / "i.idx")
    raw = (tmp_path / "i.idx").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert list(json.loads(raw[8 : 8 + length])["__metadata__"]) == [
        "a",
        "b",
        "digest",
        "format",
        "model",
        "pooler",
        "sha256",
    ]
    loaded = SearchIndex.load(tmp_path / "i.idx")
    assert (loaded.info, list(loaded.sentences)) == (info, ["x", "y", "z"])


def test_a_pipe_in_the_place_of_an_index_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.index")
    with pytest.raises(DataError, match="is a pipe or a device, need a file"):
        SearchIndex.load(tmp_path / "a.index")


def test_an_index_of_version_1_0_0_is_recognised(vectors, tiny_encoder):
    """Its digest has no mark, and says nothing of tokenizer and configuration."""
    encoder = ReadyEncoder(tiny_encoder)
    old = {"model": "tiny", "digest": encoder.digest.removeprefix("2-")}
    index = SearchIndex.build(vectors, [str(row) for row in range(len(vectors))], info=old)
    with pytest.raises(
        DataError, match=r"is of simcse 1.0.0, .* leaves out its tokenizer"
    ) as refused:
        index.require_made_by(encoder)
    assert refused.value.hint == "build it again with --force"
