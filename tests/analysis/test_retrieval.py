"""Search among sentences that are angles: the cosine of "10 degrees" and "40 degrees" is that of 30 degrees."""

import csv
import io
import json
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from comparison.cases import write_run
from helpers import Told
from simcse_cli.analysis import retrieval
from simcse_cli.analysis.options import RetrievalOptions, ViewOptions
from simcse_cli.analysis.retrieval import (
    open_search,
    read_queries,
    read_ranks,
    retrieval_analysis,
    retrieval_figure,
    with_arguments,
)
from simcse_cli.data.qrels import NumberedTexts
from simcse_cli.encoding.search_index import Neighbour, SearchIndex
from simcse_cli.errors import DataError, MissingExtraError, UsageError
from simcse_cli.evaluation.retrieval import RetrievalScores
from simcse_cli.files.digests import sha256_file
from simcse_cli.progress import SILENT, SilentProgress
from simcse_cli.settings.choices import LongTexts, Pooler, SearchBackend


class AngleModel:
    query_prompt = "query"
    variations, device = {}, torch.device("cpu")

    def __init__(self, name, options):
        self.name, self.options, self.prompts = name, options, []
        self.digest, self.pooler = f"digest of {name}", options.pooler or Pooler.AVG

    def encode(self, sentences, *, prompt, progress, batch_tokens):
        self.prompts.append(prompt)
        angles = np.deg2rad([float(sentence.split()[0]) for sentence in sentences])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def document_prompt(self, chosen):
        return "document" if chosen is None else f"the prompt {chosen}"

    def digest_with(self, prompt):
        return f"{self.digest}/{prompt}"

    def facts(self, prompt):
        return {
            "model": self.name,
            "digest": self.digest_with(prompt),
            "pooler": self.pooler.value,
            "prompt": prompt,
        }


@pytest.fixture
def loaded(monkeypatch):
    """Load any name as a model of angles, and return those that were loaded."""
    found = []

    def load_for_encoding(name, options, progress):
        found.append(AngleModel(name, options))
        return found[-1]

    monkeypatch.setattr(retrieval, "load_for_encoding", load_for_encoding)
    return found


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("0 degrees\n90 degrees\n20 degrees\n10 degrees\n")
    return str(path)


def search(shown=None, *, force=False, **options):
    return open_search(RetrievalOptions(**options), shown or ViewOptions(), SILENT, force=force)


def analyse(**options):
    return retrieval_analysis(search(**options))


@pytest.mark.parametrize(
    ("given", "words", "expected"),
    [
        ({}, ["c.txt", "a", "b"], ("c.txt", ["a", "b"], ["minilm"])),
        ({}, [], (None, [], ["minilm"])),
        ({"corpus": "c.txt", "query": ["a"]}, ["b"], ("c.txt", ["a", "b"], ["minilm"])),
        ({"index": ["i"]}, ["a"], (None, ["a"], [])),
        ({"index": ["i"], "model": ["m"]}, ["a"], (None, ["a"], ["m"])),
    ],
)
def test_the_first_argument_is_the_corpus_unless_there_is_one(given, words, expected):
    found = with_arguments(RetrievalOptions(**given), words)
    assert (found.corpus, found.query, found.model) == expected


def test_neighbours_of_a_query_leave_it_out_and_stand_side_by_side(loaded, corpus):
    options = {
        "corpus": corpus,
        "model": ["d/m", "n"],
        "query": ["0 degrees", "80 degrees"],
        "top_k": 2,
    }
    found = analyse(**options)
    assert [model.prompts for model in loaded] == [["document", "query"]] * 2
    table, _ = found.tables
    assert (table.title, [column.heading for column in table.columns]) == (
        "Query: 0 degrees",
        ["#", "m", "cosine", "n", "cosine"],
    )
    assert table.notes == ["left out: 1 sentence equal to the query (kept with --keep-identical)"]
    assert table.cells() == [
        ["1", "10 degrees", "0.9848", "10 degrees", "0.9848"],
        ["2", "20 degrees", "0.9397", "20 degrees", "0.9397"],
    ]
    assert found.series[0].rows[4] == {
        "query_row": 2,
        "query": "80 degrees",
        "model": "m",
        "rank": 1,
        "line": 2,
        "sentence": "90 degrees",
        "cosine": pytest.approx(np.cos(np.pi / 18)),
    }
    facts = {"model": "d/m", "label": "m", "model_digest": "digest of d/m", "pooler": "avg"}
    assert found.payload["models"][0] == facts
    assert {key: value for key, value in found.payload.items() if key != "models"} == {
        "analysis": "retrieval",
        "corpus": corpus,
        "n_sentences": 4,
        "n_queries": 2,
        "n_left_out": 1,
        "neighbours": found.series[0].rows,
        "scores": [],
        "tests": {},
    }
    assert (found.figure, found.terminal_plot()) == (None, "")
    kept = analyse(**options, keep_identical=True, show_n=1)
    assert [row["sentence"] for row in kept.payload["neighbours"]] == [
        "0 degrees",
        "10 degrees",
    ] * 2


QRELS = "q\td\tscore\n1\t1\t1\n1\t2\t1\n1\t4\t1\n2\t3\t1\n"
"""For the query 0: itself, 90 and 10; for the query 85: 20. Query 3 has none."""


def test_a_corpus_of_the_query_alone_has_no_neighbours(loaded, tmp_path):
    (tmp_path / "one.txt").write_text("0 degrees\n")
    found = analyse(corpus=str(tmp_path / "one.txt"), model=["m"], query=["0 degrees"])
    assert [column.heading for column in found.tables[0].columns] == ["#", "text", "cosine"]
    assert found.tables[0].rows == []
    assert found.payload["n_left_out"] == 1


@pytest.fixture
def judged(tmp_path, corpus):
    (tmp_path / "queries.txt").write_text("0 degrees\n85 degrees\n5 degrees\n")
    (tmp_path / "qrels.tsv").write_text(QRELS)
    return {
        "corpus": corpus,
        "queries": tmp_path / "queries.txt",
        "qrels": tmp_path / "qrels.tsv",
        "model": ["m"],
    }


def test_scores_of_known_rankings(loaded, judged):
    # The first query finds 10, 20, 90, of which 10 and 90 are relevant; the second 90, 20, 10, 0.
    found = analyse(**judged, at="2,1,3")
    (row,) = found.payload["scores"]
    second = 1 / np.log2(3)
    intervals = row.pop("ci")
    assert intervals["hit_rate@1"] == {"low": 0.0, "high": 1.0, "level": 0.95}
    assert intervals.keys() == row.keys() - {"model", "n_queries"}
    assert row == pytest.approx(
        {"model": "m", "n_queries": 2, "hit_rate@1": 0.5, "hit_rate@2": 1.0, "hit_rate@3": 1.0}
        | {"recall@1": 0.25, "recall@2": 0.75, "recall@3": 1.0, "mrr": 0.75, "mrr@3": 0.75}
        | {"ndcg@3": (1.5 / (1 + second) + second) / 2}
    )
    assert found.payload["neighbours"] == []
    (table,) = found.tables
    assert (table.title, [table] == found.series, found.payload["n_queries"]) == (
        "Retrieval",
        True,
        3,
    )
    rates = [f"{name}@{k}" for name in ("hit", "recall") for k in (1, 2, 3)]
    headings = ["model", "queries", *rates, "MRR@100", "MRR@3", "nDCG@3"]
    assert [column.heading for column in table.columns] == headings
    assert table.cells()[0][:3] == ["m", "2", "50.00"]
    bars, note = found.terminal_plot().splitlines()
    assert (bars[:5], note) == ("m  ▄█", "hit rate at 1 (left) to 4 (right)")
    assert found.figure().axes[0].lines[0].get_ydata().tolist() == [50.0] + [100.0] * 3

    whole = analyse(**judged, at="1", keep_identical=True, show_n=2)
    (row,) = whole.payload["scores"]
    assert (row["recall@1"], row["mrr@1"], row["ndcg@1"]) == pytest.approx((1 / 6, 0.5, 0.5))
    assert len(whole.payload["neighbours"]) == 6
    assert [table.title for table in whole.tables] == [
        "Query: 0 degrees",
        "Query: 85 degrees",
        "Retrieval",
    ]
    assert [table.title for table in whole.series] == ["Neighbours", "Retrieval"]


def test_a_query_whose_only_relevant_sentence_is_itself_is_no_result(loaded, judged):
    judged["qrels"].write_text("1 1 1\n")
    with pytest.raises(DataError) as raised:
        analyse(**judged)
    assert raised.value.message == (
        f"{judged['qrels']}: the only relevant sentence of every query is the query itself, "
        "which is left out"
    )
    assert analyse(**judged, keep_identical=True).payload["scores"][0]["mrr"] == 1


def test_seeds_of_one_setting_are_searched_each(loaded, corpus, tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"runs/seed-{seed}", seed=seed)
    found = analyse(corpus=corpus, model=[str(tmp_path / "runs")], query=["5"])
    assert [model["label"] for model in found.payload["models"]] == ["runs/seed-1", "runs/seed-2"]


def test_scores_of_seeds_have_a_mean_in_json(loaded, judged, tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"runs/seed-{seed}", seed=seed)
    found = analyse(**judged | {"model": [str(tmp_path / "runs"), "m"]}).payload
    (summary,) = found["seeds"]
    assert (summary["label"], summary["n_seeds"]) == ("runs", 2)
    assert summary["mean"]["mrr"] == fmean(row["mrr"] for row in found["scores"][:2])
    assert summary["deviation"]["mrr"] == 0
    assert "seeds" not in analyse(**judged).payload


def test_an_index_is_saved_and_searched_with_its_model(loaded, corpus, tmp_path):
    saved = tmp_path / "saved.index"
    own = {"corpus": corpus, "model": ["m"], "pooler": Pooler.CLS, "corpus_prompt": "text"}
    search(**own, save_index=saved)
    assert loaded[0].prompts == ["the prompt text"]
    with pytest.raises(Exception, match="exists already"):
        search(**own, save_index=saved)
    assert len(loaded) == 1  # refused before anything is loaded
    search(**own, save_index=saved, force=True)

    (tmp_path / "m").mkdir()
    index = SearchIndex.load(saved)
    index.info |= {"truncate_dim": "2", "long": "mean", "model": str(tmp_path / "m")}
    index.info.pop("digest")
    index.save(saved, force=True)
    found = analyse(index=[saved], query=["1"], show_n=1)
    used = loaded[-1]
    assert (used.name, used.options.pooler, used.options.force_pooler) == (
        str(tmp_path / "m"),
        Pooler.CLS,
        True,
    )
    assert (used.options.truncate_dim, used.options.long) == (2, LongTexts.MEAN)
    assert [row["line"] for row in found.payload["neighbours"]] == [1, 4, 3]
    assert (found.payload["models"][0]["label"], found.payload["n_sentences"]) == ("saved.index", 4)

    index.save(tmp_path / "second.index")
    both = [saved, tmp_path / "second.index"]
    found = analyse(index=both, model=[str(tmp_path / "m")] * 2, query=["1"])
    assert [each["label"] for each in found.payload["models"]] == ["saved.index", "second.index"]
    assert {row["model"] for row in found.payload["neighbours"]} == {"saved.index", "second.index"}
    search(index=[saved], model=["other"], query=["1"], pooler=Pooler.AVG)
    assert (loaded[-1].name, loaded[-1].options.pooler, loaded[-1].options.force_pooler) == (
        "other",
        Pooler.AVG,
        False,
    )
    two = search(index=[saved, saved], model=["a/m", "b/n"], query=["1"])
    assert [encoder.label for encoder, _ in two.indexes] == ["m", "n"]

    # Judgements count rows, so they are of indexes of the same sentences.
    other = tmp_path / "other.index"
    SearchIndex(index.sentences[::-1], index._searcher, index.info).save(other)
    (tmp_path / "qrels.tsv").write_text("1\t1\t1\n")
    shared = {"model": ["a/m", "b/n"], "qrels": tmp_path / "qrels.tsv", "query": ["1"]}
    search(index=[saved, saved], **shared)
    with pytest.raises(DataError, match=r"other\.index holds other sentences than .*saved\.index"):
        search(index=[saved, other], **shared)
    search(index=[saved, other], **shared | {"qrels": None})

    index.info |= {"model": "org/model"}
    index.save(saved, force=True)
    with pytest.raises(DataError) as raised:
        search(index=[saved], query=["1"])
    assert "names the model 'org/model', which is not on this machine" in raised.value.message
    index.info |= {"digest": "another"}
    index.save(saved, force=True)
    with pytest.raises(DataError, match="made by another model or pooler"):
        search(index=[saved], model=["m"], query=["1"])
    index.info.clear()
    index.save(saved, force=True)
    with pytest.raises(DataError, match="does not say which model made it"):
        search(index=[saved], query=["1"])
    search(index=[saved], model=["m"], query=["1"])
    assert (loaded[-1].options.pooler, loaded[-1].options.truncate_dim) == (None, None)


@pytest.mark.parametrize(
    ("judgements", "message"),
    [
        ("1\t3\tmuch\n1\t3\tlittle\n", "qrels.tsv, line 2: relevance"),
        ("1\t1\t1\n", "the only relevant sentence of every query is the query itself"),
    ],
)
def test_faults_of_judgements_are_told_before_a_model_is_loaded(
    loaded, corpus, tmp_path, judgements, message
):
    (tmp_path / "qrels.tsv").write_text(judgements)
    with pytest.raises(DataError, match=message):
        search(corpus=corpus, model=["m"], query=["0 degrees"], qrels=tmp_path / "qrels.tsv")
    assert not loaded


def test_vectors_of_the_corpus_are_read_for_each_model(loaded, corpus, tmp_path):
    for number, angles in enumerate(([0, 90, 20, 10], [90, 0, 20, 10])):
        turns = np.deg2rad(angles)
        np.save(
            tmp_path / f"{number}.npy",
            np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32),
        )
    files = [tmp_path / "0.npy", tmp_path / "1.npy"]
    found = analyse(corpus=corpus, model=["m", "n"], embeddings=files, query=["1"], top_k=1)
    assert [model.prompts for model in loaded] == [["query"], ["query"]]
    assert [row["sentence"] for row in found.payload["neighbours"]] == ["0 degrees", "90 degrees"]


OWN, OTHER = {"model_digest": "digest of m/"}, {"model_digest": "other", "model": "n"}


@pytest.mark.parametrize(
    ("side", "variations", "found"),
    [
        (OWN, {}, None),
        (OWN | {"model_digest": "digest of m/query: ", "prompt": "query: "}, {}, None),
        (OTHER, {}, r"made by another model or pooler \(n\) than m"),
        (OTHER | {"precision": "bf16"}, {}, None),  # which may convert the weights
        (OTHER | {"long": "mean"}, {}, None),
        (OTHER | {"weight_levels": 64}, {}, None),
        (OTHER, {"long": "mean"}, None),
        (OWN | {"postprocess_sha256": "a"}, {}, "queries are not post-processed"),
        (
            OWN | {"input_sha256": "a", "input": "x.txt"},
            {},
            "was written from x.txt; its row i is taken for line i of",
        ),
        (["of another program"], {}, None),
        ({"of": "another program"}, {}, None),
    ],
)
def test_vectors_are_held_against_their_side_file(
    loaded, corpus, tmp_path, monkeypatch, side, variations, found
):
    monkeypatch.setattr(AngleModel, "variations", variations)
    np.save(tmp_path / "v.npy", np.eye(4, 2, dtype=np.float32))
    if "model_digest" in side:
        side = {"precision": "fp32", "input_sha256": sha256_file(corpus)} | side
    (tmp_path / "v.npy.json").write_text(json.dumps(side))
    options = RetrievalOptions(
        corpus=corpus, model=["m"], embeddings=[tmp_path / "v.npy"], query=["1"]
    )
    told = SilentProgress()
    if found is None or "was written" in found:
        open_search(options, ViewOptions(), told, force=False)
        assert [found in warning for warning in told.warnings] == [True] * (found is not None)
    else:
        with pytest.raises(DataError, match=found):
            open_search(options, ViewOptions(), told, force=False)


@pytest.mark.parametrize(
    ("options", "shown", "message"),
    [
        (
            {"corpus": "CORPUS", "model": ["m", "n"], "save_index": Path("i")},
            {},
            "saves the index of one model",
        ),
        ({"query": ["1"]}, {}, "need the sentences to search, or --index"),
        (
            {"corpus": "CORPUS", "query": ["1"]},
            {"plot": Path("p.png")},
            "the figure shows scores: it needs --qrels",
        ),
        ({"corpus": "CORPUS", "query": ["1"], "column": "text"}, {}, "needs a table"),
        (
            {"corpus": "-", "interactive": True},
            {},
            "stdin cannot be both the corpus and the queries",
        ),
        (
            {"corpus": "-", "queries": Path("-")},
            {},
            "stdin cannot be both the corpus and the queries",
        ),
        (
            {"corpus": "CORPUS", "query": ["1"], "sample": 1},
            {},
            "give one of --query, --queries and --sample",
        ),
        (
            {"corpus": "CORPUS"},
            {},
            "need a query after the corpus, --queries, --sample or --interactive",
        ),
        (
            {"corpus": "CORPUS", "interactive": True, "show_n": 1},
            {},
            "has no use without --query, --queries",
        ),
        (
            {"corpus": "CORPUS", "interactive": True, "qrels": Path("q")},
            {},
            "has no use without --query, --queries",
        ),
        (
            {"corpus": "CORPUS", "interactive": True},
            {"html": Path("p.html")},
            "has no use without --query",
        ),
        (
            {"corpus": "CORPUS", "model": ["m", "n"], "embeddings": [Path("v")], "query": ["1"]},
            {},
            "1 files for 2 models, need one --model each to encode the queries",
        ),
        (
            {"index": [Path("i"), Path("j")], "model": ["m"], "query": ["1"]},
            {},
            "2 indexes for 1 models, need as many (or no --model)",
        ),
        (
            {"corpus": "CORPUS", "model": ["SEEDS"], "embeddings": [Path("v")], "query": ["1"]},
            {},
            "each file goes with one run, such as FOLDER/seed-1",
        ),
        (
            {"corpus": "CORPUS", "query": ["1"], "at": "0,1"},
            {},
            "'0,1': need whole numbers above 0, as in 1,5,10",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_a_model_is_loaded(
    loaded, corpus, tmp_path, monkeypatch, options, shown, message
):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        write_run(tmp_path / f"runs/seed-{seed}", seed=seed)
    places = {"CORPUS": corpus, "SEEDS": "runs"}
    options = {"model": ["m"]} | options if "index" not in options else options
    options |= {"model": [places.get(name, name) for name in options["model"]]}
    with pytest.raises(UsageError) as raised:
        search(
            ViewOptions(**shown),
            **options | {"corpus": places.get(options.get("corpus"), options.get("corpus"))},
        )
    assert message in str(raised.value)
    assert loaded == []


def test_faiss_is_asked_for_only_where_it_is_used(loaded, corpus, monkeypatch):
    def require_extra(module, purpose):
        raise MissingExtraError(module, "extra", purpose)

    monkeypatch.setattr(retrieval, "require_extra", require_extra)
    search(corpus=corpus, model=["m"], query=["1"])
    with pytest.raises(MissingExtraError, match="--backend faiss"):
        search(corpus=corpus, model=["m"], query=["1"], backend=SearchBackend.FAISS)
    assert len(loaded) == 1


def test_a_query_may_be_asked_for_drawn_or_read(loaded, corpus, tmp_path):
    texts = NumberedTexts(["0", "90"])
    table = tmp_path / "queries.csv"
    table.write_text("id,text\n7,45\n")
    assert read_queries(RetrievalOptions(query=["1"]), texts).sentences == ["1"]
    assert list(read_queries(RetrievalOptions(), texts).sentences) == []
    assert list(read_queries(RetrievalOptions(queries=table, column="text"), texts).ids) == ["7"]
    (drawn,) = analyse(corpus=corpus, model=["m"], sample=1, top_k=1).payload["neighbours"]
    assert drawn["query"] != drawn["sentence"]
    for plain in ({"interactive": True}, {"query": ["1"], "interactive": True}):
        assert search(corpus=corpus, model=["m"], **plain).corpus.sentences[0] == "0 degrees"


def test_queries_without_text_are_left_out_and_counted(loaded, corpus, tmp_path, monkeypatch):
    queries = tmp_path / "queries.txt"
    queries.write_text("5 degrees\n\n  \n90 degrees\n")
    told, infos = SilentProgress(), []
    monkeypatch.setattr(told, "info", infos.append)
    found = read_queries(RetrievalOptions(queries=queries), NumberedTexts([]), told)
    assert (found.sentences, found.ids) == (["5 degrees", "90 degrees"], ["1", "4"])
    assert infos == [f"{queries}: left out, since without text: 2 rows"]
    queries.write_text("\n")
    with pytest.raises(DataError, match="has no row with text"):
        read_queries(RetrievalOptions(queries=queries), NumberedTexts([]))
    with pytest.raises(UsageError, match="--query: need a query with text"):
        search(corpus=corpus, model=["m"], query=["5 degrees", " "])


def test_rows_without_text_are_no_results_and_are_counted(invoke, tmp_path, tiny_model_dir):
    texts = tmp_path / "texts.txt"
    texts.write_text("a dog\n\n  \na cat\n")
    index = tmp_path / "texts.index"
    command = ["analyze", "search", "--query", "a cow", "-k", "9", "--format", "json"]
    model = ["-m", tiny_model_dir, "--pooler", "avg"]
    for chosen in ([texts, *model, "--save-index", index], ["--index", index]):
        corpus = ["--corpus", chosen[0], *chosen[1:]] if chosen[0] == texts else chosen
        done = invoke(*command, *corpus)
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        assert sorted(row["line"] for row in found["neighbours"]) == [1, 4]
        assert found["n_sentences"] == 4
        assert f"{corpus[1]}: no results, since without text: 2 rows\n" in done.stderr
    texts.write_text("\n \n")
    done = invoke(*command, "--corpus", texts, *model)
    assert done.exit_code == 1
    assert f"{texts} has no row with text, need texts to search" in done.stderr


def test_tables_cut_long_texts_and_json_and_page_keep_them(loaded, tmp_path):
    long = "10 degrees" + " and more" * 100
    (tmp_path / "corpus.txt").write_text(f"{long}\n20 degrees\n")
    found = analyse(corpus=str(tmp_path / "corpus.txt"), model=["m"], query=[f"0 {long}"])
    assert found.payload["neighbours"][0]["sentence"] == long
    (table,) = found.tables
    assert table.cells()[0][1] == f"{long[:119]}…"
    assert table.title == f"Query: 0 {long[:117]}…"
    assert found.page is not None
    (on_page,) = found.page.analyses()
    assert on_page.tables[0].cells()[0][1] == long
    assert on_page.tables[0].title == f"Query: 0 {long}"


@pytest.mark.parametrize(("text", "ranks"), [("1", [1]), ("10, 2,10", [2, 10])])
def test_ranks_are_sorted_and_each_is_shown_once(text, ranks):
    assert read_ranks(text) == ranks


@pytest.mark.parametrize("text", ["0", "-3,1", "", "1,x"])
def test_ranks_are_whole_numbers_above_0(text):
    with pytest.raises(UsageError, match="need whole numbers above 0"):
        read_ranks(text)


def test_retrieval_figure_draws_hit_rate_and_recall():
    zeros = np.zeros((5, 2))
    recalls = np.tile([0.1, 0.2], (5, 1))
    scores = RetrievalScores(recalls, np.tile([0.4, 0.6], (5, 1)), zeros, zeros)
    longer = RetrievalScores(*[np.zeros((5, 5))] * 4)
    figure = retrieval_figure({"one": scores, "two": longer}, 9)
    panels = figure.axes
    assert [panel.lines[0].get_ydata().tolist() for panel in panels] == [[40.0, 60.0], [10.0, 20.0]]
    assert panels[0].lines[0].get_xdata().tolist() == [1, 2]
    assert [panel.get_title(loc="left") for panel in panels] == [
        "at least one relevant (hit rate@k)",
        "share of the relevant (recall@k)",
    ]
    assert [panel.get_ylabel() for panel in panels] == [
        "% of queries, or of relevant sentences",
        "",
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    for panel in panels:
        assert panel.get_xticks().tolist() == [1, 2, 5]
        bottom, top = panel.get_ylim()
        assert bottom == 0
        assert 100 < top < 103
    assert panels[0].get_shared_y_axes().joined(*panels)
    panels = retrieval_figure({"one": scores, "two": longer}, 3).axes
    assert [len(line.get_xdata()) for line in panels[0].lines] == [2, 3]
    assert panels[0].get_xticks().tolist() == [1, 2]


@pytest.mark.parametrize("saved", [None, "corpus.idx"])
def test_neighbours_have_the_ids_of_the_table_or_of_the_index(
    invoke, tiny_model_dir, tmp_path, saved
):
    """Printed in the table, and written as JSON and CSV; the template makes the texts."""
    table, index = tmp_path / "tickets.csv", tmp_path / "corpus.idx"
    rows = [("T-1", "Refund", "Where is it?"), ("T-2", "", "The parcel never came to us.")]
    cells = "".join(f"{','.join(row)}\n" for row in rows)
    table.write_text(f"ticket,subject,body\n{cells}")
    model = ["--model", tiny_model_dir, "--device", "cpu"]
    corpus = [table, "--text", "{subject}: {body}", "--id-column", "ticket"]
    if saved:
        done = invoke("encode", *corpus, "-o", tmp_path / "v.npy", "--index", index, *model)
        assert done.exit_code == 0, done.stderr
        corpus = ["--index", index]
    texts = {"T-1": "Refund: Where is it?", "T-2": "The parcel never came to us."}
    ask = ["analyze", "search", *corpus, "a parcel", "-k", "2", *model]
    done = invoke(*ask, "-f", "json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["neighbours"]
    assert {each["id"]: each["sentence"] for each in found} == texts
    lines = list(csv.DictReader(io.StringIO(invoke(*ask, "-f", "csv").stdout)))
    assert [line["id"] for line in lines] == [each["id"] for each in found]
    assert "T-1" in invoke(*ask).stdout


def test_an_id_column_is_that_of_the_file_that_has_it(invoke, tiny_model_dir, tmp_path):
    corpus, queries, index = (tmp_path / name for name in ("c.csv", "q.csv", "c.idx"))
    corpus.write_text("id,text\n1,A dog runs.\n2,A child eats.\n")
    queries.write_text("nr,text\n2,A child eats fruit.\n1,A dog runs fast.\n")
    (tmp_path / "qrels.tsv").write_text("1\t1\t2\n2\t2\t1\n")
    model = ["--model", tiny_model_dir, "--device", "cpu"]
    ask = [
        "--queries",
        queries,
        "--qrels",
        tmp_path / "qrels.tsv",
        "--at",
        "1",
        *model,
        "-f",
        "json",
    ]
    search = ["analyze", "search"]
    encode = [*search, "--corpus", corpus, "--save-index", index, "--interactive", *model]
    assert invoke(*encode).exit_code == 0

    swapped = tmp_path / "swapped.csv"  # the same queries in the order of their numbers
    swapped.write_text("id,text\n1,A dog runs fast.\n2,A child eats fruit.\n")
    right = invoke(*search, "--corpus", corpus, "--queries", swapped, *ask[2:])
    (expected,) = json.loads(right.stdout)["scores"]
    for source in (["--corpus", corpus], ["--index", index]):
        done = invoke(*search, *source, *ask, "--id-column", "nr")
        assert done.exit_code == 0, done.stderr
        (found,) = json.loads(done.stdout)["scores"]
        assert [found[key] for key in ("mrr", "ndcg@1")] == [
            expected[key] for key in ("mrr", "ndcg@1")
        ]
        assert "row numbers" not in done.stderr
        wrong = invoke(*search, *source, *ask, "--id-column", "nix")
        assert (wrong.exit_code, "encoding" in wrong.stderr) == (1, False)
        assert "q.csv: no column nix; there are nr, text" in " ".join(wrong.stderr.split())
    assert "warning: " in invoke(*search, "--corpus", corpus, *ask).stderr
    useless = invoke(*search, "--index", index, "A dog.", "--id-column", "nr", *model)
    assert "has no use with --index, which was built already, without --queries" in useless.stderr


@pytest.mark.parametrize("factory", ["Flat", "SQ8"])
def test_cosines_of_a_compressing_index_are_told_to_be_approximations(loaded, corpus, factory):
    pytest.importorskip("faiss")
    told = Told()
    backend = {"backend": SearchBackend.FAISS, "faiss_factory": factory}
    options = RetrievalOptions(corpus=corpus, model=["m"], query=["1"], **backend)
    open_search(options, ViewOptions(), told, force=False)
    line = "m: its FAISS index compresses the vectors, so the cosines are approximations"
    assert (line in told.lines) == (factory == "SQ8")


@pytest.mark.parametrize("name", ["corpus.idx", "corpus.faiss"])
def test_an_index_in_place_of_texts_is_named(invoke, tmp_path, name):
    index = tmp_path / name
    SearchIndex.build(np.eye(3, dtype=np.float32), ["a", "b", "c"]).save(tmp_path / "corpus.idx")
    index.touch()
    done = invoke("analyze", "search", index, "where is it?")
    assert done.exit_code == 2
    assert f"--index {index}, and leave the rest" in " ".join(done.stderr.split())


@pytest.mark.parametrize("chosen", [{"corpus": "other.txt"}, {"index": [Path("my.index")]}])
def test_a_file_is_no_query_beside_what_is_searched(chosen, tmp_path):
    (tmp_path / "corpus.txt").write_text("A dog.\n")
    options = RetrievalOptions(**chosen)
    with pytest.raises(UsageError, match=r"is a file, but --(corpus|index) already says what to"):
        with_arguments(options, [str(tmp_path / "corpus.txt"), "dog"])
    long = "a dog " * 100
    assert with_arguments(options, [long]).query == [long]


@pytest.mark.parametrize("saved", ["index", "embeddings"])
def test_a_prompt_that_only_the_texts_have_is_told(invoke, tiny_model_dir, tmp_path, saved):
    texts, vectors, index = (tmp_path / name for name in ("t.txt", "v.npy", "v.idx"))
    texts.write_text("The parcel never came.\nWhere is my money?\n")
    model = ["--model", tiny_model_dir, "--device", "cpu"]
    encode = ["encode", texts, "-o", vectors, "--index", index, "--force", *model]
    searched = ["--index", index] if saved == "index" else [texts, "--embeddings", vectors]
    search = ["analyze", "search", *searched, "--query", "a parcel", *model]
    told = "its texts have the prompt 'query: ', and the queries have none"
    assert invoke(*encode, "--prompt", "query: ").exit_code == 0
    assert told in invoke(*search).stderr
    for prompt in ("query: ", ""):
        done = invoke(*search, "--prompt", prompt)
        assert done.exit_code == 0, done.stderr
        assert "the queries have none" not in done.stderr
    assert invoke(*encode).exit_code == 0
    assert "the queries have none" not in invoke(*search).stderr


def test_the_ids_of_queries_stand_before_their_texts() -> None:
    found = {"tiny": [[Neighbour(0, "some text", 0.5)], [Neighbour(1, "more", 0.4)]]}
    tables = retrieval.neighbour_tables(["first", "second"], found, Counter(), ids=["q7", "q9"])
    assert [table.title for table in tables] == ["Query q7: first", "Query q9: second"]
    tables = retrieval.neighbour_tables(["first", "second"], found, Counter())
    assert [table.title for table in tables] == ["Query: first", "Query: second"]


@pytest.mark.parametrize("name", ["id", "nr"])
def test_an_index_without_the_ids_of_its_table_is_not_scored_by_row_numbers_in_silence(
    invoke, tiny_model_dir, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    Path("c.csv").write_text(f"{name},text\n2,A dog runs.\n1,A child eats.\n")
    Path("q.csv").write_text("id,text\n1,A dog runs fast.\n2,A child eats fruit.\n")
    Path("qrels.tsv").write_text("1\t2\t1\n2\t1\t1\n")
    model = ["--model", tiny_model_dir, "--device", "cpu"]
    search = ["analyze", "search", "--queries", "q.csv", "--qrels", "qrels.tsv", *model]
    ask = [*search, "--index", "c.idx", "--at", "1", "-f", "json"]
    encode = ["encode", "c.csv", "-o", "v.npy", "--index", "c.idx", *model]
    assert invoke(*encode).exit_code == 0
    told = invoke(*ask)
    said = " ".join(told.stderr.split())
    if name == "id":
        assert (told.exit_code, told.stdout) == (1, "")
        assert "c.idx was made without the column id of its table, need the ids" in said
    else:
        assert told.exit_code == 0
        assert "one of its columns has the ids (nr), name the table of the index too" in said

    # Both ways of the fix have the scores of a search of the table.
    ids = [] if name == "id" else ["--id-column", name]
    in_table = invoke(*search, "--corpus", "c.csv", *ids, "--at", "1", "-f", "json")
    (expected,) = json.loads(in_table.stdout)["scores"]
    found = [invoke(*ask, "--corpus", "c.csv", *ids)]
    assert invoke(*encode, "--id-column", name, "--force").exit_code == 0
    found.append(invoke(*ask))
    for done in found:
        assert "row numbers" not in done.stderr
        (scores,) = json.loads(done.stdout)["scores"]
        assert scores | {"model": expected["model"]} == expected

    # An index of a search records what it left out, too.
    save = ["analyze", "search", "c.csv", "--save-index", "s.idx", "--interactive", *model]
    assert invoke(*save).exit_code == 0
    again = invoke(*search, "--index", "s.idx", "-f", "json")
    assert ("(nr)" in again.stderr) == (name == "nr")


def test_judgements_that_fit_no_row_of_an_index_name_its_table(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "c.txt").write_text("A dog runs.\nA child eats.\n")
    (tmp_path / "qrels.tsv").write_text("1\td1\t1\n")
    index = tmp_path / "c.idx"
    model = ["--model", tiny_model_dir, "--device", "cpu"]
    invoke("encode", tmp_path / "c.txt", "-o", tmp_path / "v.npy", "--index", index, *model)
    ask = ["analyze", "search", "--index", index, "A dog.", "--qrels", tmp_path / "qrels.tsv"]
    refused = invoke(*ask, *model)
    assert refused.exit_code == 1
    assert "fix: name the table of the index too" in " ".join(refused.stderr.split())
