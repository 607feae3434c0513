"""What a file or a number can do wrong, through the commands that meet it."""

import json

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from helpers import SENTENCES
from simcse_cli.analysis.analyses import SPACE_ANALYSES
from simcse_cli.encoding.search_index import SearchIndex

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m"


@pytest.fixture
def rated(tmp_path):
    """Return the options for vectors from a file on twelve rated pairs, and a function that writes the vectors."""
    (tmp_path / "lines.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    scores = (5.0, 4.5, 1.0, 2.0) * 3
    rows = [
        f"{a}\t{b}\t{score}\n"
        for a, b, score in zip(SENTENCES[::2], SENTENCES[1::2], scores, strict=True)
    ]
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(rows))

    def options(vectors):
        np.save(tmp_path / "v.npy", vectors)
        files = ("--embeddings", tmp_path / "v.npy", "--sentences", tmp_path / "lines.txt")
        return (*files, "--pair-file", tmp_path / "pairs.tsv", "--format", "json")

    return options


@pytest.mark.parametrize("kind", SPACE_ANALYSES)
def test_vectors_that_are_all_zero(invoke, rated, kind, tmp_path):
    with (tmp_path / "lines.txt").open("a") as lines:
        lines.write("In no pair, and not zero: a file of zeros is refused.\n")
    outcome = invoke("analyze", kind, *rated(np.eye(len(SENTENCES) + 1, 4, -len(SENTENCES))))
    if kind == "density":
        (model,) = json.loads(outcome.stdout)["models"]
        assert {group["mean"] for group in model["groups"]} <= {0.0, None}
    else:
        assert outcome.exit_code == 1
        assert "all vectors are zero, so they have no directions" in outcome.stderr


def test_no_pair_rated_above_four(invoke, rated, tmp_path):
    options = rated(np.eye(len(SENTENCES)))
    path = tmp_path / "pairs.tsv"
    path.write_text(path.read_text().replace("\t5.0\n", "\t3\n").replace("\t4.5\n", "\t4\n"))
    result = tmp_path / "geometry.json"
    outcome = invoke("analyze", "geometry", *options, "-o", result)
    assert outcome.exit_code == 0, outcome.stderr
    (model,) = json.loads(result.read_text())["models"]
    assert model["alignment"] is None
    (entry,) = json.loads(invoke("compare", result, "--format", "json").stdout)["entries"]
    assert entry["scores"] == {"uniformity": model["uniformity"]}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_from_a_file_that_are_not_finite(invoke, rated, value):
    vectors = np.eye(len(SENTENCES))
    vectors[3, 3] = value
    outcome = invoke("analyze", "geometry", *rated(vectors.astype(np.float32)))
    assert outcome.exit_code == 1
    assert "finite" in outcome.stderr


@pytest.mark.parametrize("gold", ["nan", "inf", "1e999", "x", "9" * 5000])
def test_gold_scores_that_are_not_finite_name_file_and_line(
    invoke, sts_folder, tiny_model_dir, gold
):
    path = sts_folder / "downstream" / "STS" / "STS12-en-test" / "STS.gs.MSRpar.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], gold, *lines[2:]]) + "\n")
    outcome = invoke(
        "eval", "sts", "--model", tiny_model_dir, "--data-dir", sts_folder, "--tasks", "STS12"
    )
    assert outcome.exit_code == 1
    assert (
        f"STS.gs.MSRpar.txt, line 2: gold score '{gold[:40]}' is not a finite number"
        in outcome.stderr
    )


def test_components_too_large_for_float16(invoke, tiny_model_dir, tmp_path):
    path = tiny_model_dir / "model.safetensors"
    tensors = load_file(path)
    tensors["encoder.layer.1.output.LayerNorm.weight"] *= 1e6
    save_file(tensors, path, metadata={"format": "pt"})
    (tmp_path / "in.txt").write_text("rain\n")
    command = (
        "encode",
        tmp_path / "in.txt",
        "-o",
        tmp_path / "v.npy",
        "--model",
        tiny_model_dir,
        "--pooler",
        "avg",
    )
    outcome = invoke(*command, "--dtype", "float16")
    assert outcome.exit_code == 1
    assert "a component is too large for float16" in outcome.stderr
    assert not (tmp_path / "v.npy").exists()


def test_a_cache_that_cannot_be_written_is_gone_without(
    invoke, tmp_path, tiny_model_dir, monkeypatch
):
    from helpers import write_transfer_folder

    data = write_transfer_folder(tmp_path / "data")
    (tmp_path / "cache").write_text("a file where the folder should be")
    command = (
        "eval",
        "transfer",
        "--model",
        tiny_model_dir,
        "--pooler",
        "avg",
        "--data-dir",
        data,
        "--tasks",
        "MRPC",
    )
    command += ("--protocol", "fast", "--format", "json")
    outcome = invoke(*command, "--cache-dir", tmp_path / "cache")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stderr.count("continuing without the cache") == 1
    assert (
        json.loads(outcome.stdout)["tasks"]
        == json.loads(invoke(*command, "--no-cache").stdout)["tasks"]
    )


def test_an_index_of_vectors_of_another_width(invoke, tiny_model_dir, tmp_path):
    SearchIndex.build(
        np.eye(2, 7), ["a", "b"], info={"model": str(tiny_model_dir), "pooler": "avg"}
    ).save(tmp_path / "i")
    outcome = invoke("analyze", "retrieval", "--index", tmp_path / "i", "--query", "rain")
    assert outcome.exit_code == 1
    assert "the queries have 32 dimensions, the indexed vectors 7" in outcome.stderr


@pytest.mark.parametrize("model", ["somebody/model", "bert-base"])
def test_a_model_that_an_index_names_is_not_looked_up(invoke, tmp_path, monkeypatch, model):
    from simcse_cli.models import resolve

    monkeypatch.setattr(resolve, "_download", lambda name, _: pytest.fail(f"a look-up of {name}"))
    SearchIndex.build(np.eye(2, 7), ["a", "b"], info={"model": model, "pooler": "avg"}).save(
        tmp_path / "i"
    )
    outcome = invoke("analyze", "retrieval", "--index", tmp_path / "i", "--query", "rain")
    assert outcome.exit_code == 1
    assert f"names the model '{model}', which is not on this machine" in outcome.stderr
    assert f"--model {model}" in outcome.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: " + "9" * 5000, "not valid YAML"),
        ("lr: .nan", "lr nan, need a finite number"),
        ("lr: 1e999", "lr '1e999', need a finite number"),
        ("[" * 5000, "not valid YAML"),
        ("lr: &x [*x]", "nested more than 100 levels deep"),
        ("lr: 2020-99-99", "not valid YAML"),
        ("model: [a]", "model ['a'], need a text"),
        ("model: !!python/object/apply:os.system [true]", "not valid YAML"),
    ],
)
def test_recipes_that_are_no_settings(invoke, tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text)
    outcome = invoke("train", "--config", tmp_path / "r.yaml", "-o", tmp_path / "run", "--dry-run")
    assert outcome.exit_code == 1
    assert message in outcome.stderr


def test_aliases_that_grow_without_end_are_refused(invoke, tmp_path):
    lines = [
        "a0: &a0 lol",
        *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(30)),
    ]
    (tmp_path / "r.yaml").write_text("\n".join(lines))
    assert len(yaml.safe_load("\n".join(lines))) == 31  # small in memory, until somebody prints it
    outcome = invoke("train", "--config", tmp_path / "r.yaml", "-o", tmp_path / "run", "--dry-run")
    assert outcome.exit_code == 1
    assert "its aliases repeat so much" in outcome.stderr


def test_terminal_escapes_are_shown_and_not_obeyed(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{sentence} {ESCAPES}\n" for sentence in SENTENCES))
    (tmp_path / f"x{ESCAPES}.npy").write_text("x")
    search = (
        "analyze",
        "retrieval",
        "--model",
        tiny_model_dir,
        "--corpus",
        tmp_path / "in.txt",
        "--query",
        "rain",
    )
    preview = ("augment", tmp_path / "in.txt", "--method", "delete", "--preview", "3")
    for command in (search, ("compare", tmp_path / f"x{ESCAPES}.npy"), preview):
        outcome = invoke(*command)
        shown = outcome.stdout + outcome.stderr
        assert (
            "\\x1b]0;title\\x07\\x1b[2J\\x9b31m" in shown or command is preview
        )  # which cleans its text
        assert not {"\x1b", "\x07", "\x9b"} & set(shown)


def test_cells_that_a_spreadsheet_would_run_stay_as_they_are(invoke, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"anchor": "=1+1 is two", "positive": "@SUM(A1) too"}\n')
    assert (
        invoke("prepare", "pairs", tmp_path / "in.jsonl", "-o", tmp_path / "out.csv").exit_code == 0
    )
    assert (tmp_path / "out.csv").read_text() == "anchor,positive\n=1+1 is two,@SUM(A1) too\n"


@pytest.mark.parametrize("seed", ["-1", "9" * 22])
def test_seeds_that_no_generator_takes_are_refused(invoke, tiny_model_dir, tmp_path, seed):
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    source = ("--train-file", tmp_path / "lines.txt", "--model", tiny_model_dir)
    command = ("train", "--mode", "unsup", *source, "-o", tmp_path / "run")
    assert f"--seed {seed}: need at " in invoke(*command, "--seed", seed).stderr
    assert (
        "need whole numbers from 0 to 2^63 - 1" in invoke(*command, "--seeds", f"1,{seed}").stderr
    )
    assert invoke("compare", "--list", "--seed", seed).exit_code == 2
    assert not list(tmp_path.glob("run/*"))


def test_queries_whose_only_relevant_sentence_is_themselves(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "corpus.tsv").write_text("id\ttext\n1\tA dog.\n2\tA cat.\n")
    (tmp_path / "qrels.tsv").write_text("1\t0\t1\t1\n")
    corpus = ("--corpus", tmp_path / "corpus.tsv", "--queries", tmp_path / "corpus.tsv")
    common = (
        "analyze",
        "retrieval",
        *corpus,
        "--qrels",
        tmp_path / "qrels.tsv",
        "--model",
        tiny_model_dir,
    )
    outcome = invoke(*common)
    assert outcome.exit_code == 1
    assert (
        "qrels.tsv: the only relevant sentence of every query is the query itself" in outcome.stderr
    )
    assert invoke(*common, "--keep-identical").exit_code == 0


def test_a_page_that_cannot_be_drawn_leaves_no_half_of_the_outputs(invoke, rated, tmp_path):
    # Density is measured for vectors of zeros, the spectrum on its page is not.
    with (tmp_path / "lines.txt").open("a") as lines:
        lines.write("In no pair, and not zero.\n")
    options = rated(np.eye(len(SENTENCES) + 1, 4, -len(SENTENCES)))
    outputs = ("-o", tmp_path / "o.json", "--html", tmp_path / "x.html")
    outcome = invoke("analyze", "density", *options, *outputs)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "all vectors are zero" in outcome.stderr
    assert not list(tmp_path.glob("[ox].*"))


def test_control_characters_are_escaped_in_forecasts_and_pages(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "lines.txt").write_text(f"{ESCAPES} one \u202e.\ntwo\n")
    source = ("--train-file", tmp_path / "lines.txt", "--model", tiny_model_dir)
    outcome = invoke("train", "--mode", "unsup", *source, "-o", tmp_path / "run", "--dry-run")
    assert r"\x1b]0;title\x07\x1b[2J\x9b31m one \u202e." in outcome.stdout, outcome.stderr
    page = tmp_path / "page.html"
    outcome = invoke(
        "analyze", "search", tmp_path / "lines.txt", "two", "-m", tiny_model_dir, "--html", page
    )
    assert outcome.exit_code == 0, outcome.stderr
    for text in (outcome.stdout, page.read_text()):
        assert r"\x1b]0;title\x07\x1b[2J\x9b31m one \u202e." in text
        assert not set(text) & set(ESCAPES[0] + "\x07\x9b\u202e")


@pytest.mark.parametrize("name", ["n" * 5000, "n/" * 5000])
@pytest.mark.parametrize(
    "command",
    [
        "encode {} -o v.npy",
        "encode lines.txt -o v.npy --model {}",
        "eval sts --data-dir {} --model none",
        "prepare sentences {} -o out.txt",
        "analyze search {} dog",
        "compare {}",
        "train --train-file {} --model none -o run",
        "train --train-file lines.txt --model none -o {}",
    ],
)
def test_names_longer_than_the_system_allows(invoke, name, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    outcome = invoke(*(word.format(name) for word in command.split()))
    assert outcome.exit_code == 1, outcome.stderr
    assert len(outcome.stderr) < 12_000
    assert "error: " in outcome.stderr


def test_a_long_query_is_no_file(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    outcome = invoke(
        "analyze", "search", tmp_path / "lines.txt", "word " * 2000, "-m", tiny_model_dir
    )
    assert outcome.exit_code == 0, outcome.stderr


@pytest.fixture
def encode_where_models_raise(invoke, tmp_path, monkeypatch):
    """Encode a line while the search for the model raises an error, and return the outcome."""

    def encode(error):
        def fail(*arguments, **options):
            raise error

        monkeypatch.setattr("simcse_cli.models.checkpoint.find_model", fail)
        (tmp_path / "lines.txt").write_text("one\n")
        outcome = invoke("encode", tmp_path / "lines.txt", "-o", tmp_path / "v.npy")
        assert outcome.exit_code == 1
        return outcome

    return encode


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_too_little_memory_is_an_error_in_words(error, encode_where_models_raise):
    outcome = encode_where_models_raise(error)
    assert outcome.stderr.startswith("error: there is not enough memory (")
    assert "ulimit -v" in outcome.stderr


@pytest.mark.parametrize(
    "command",
    [
        "encode rows.csv -o v.npy",
        "encode rows.csv -o folder",
        "encode rows.parquet -o v.npy",
        "encode rows.csv --id-column id -o v.parquet --update",
        "encode rows.csv --pairs -o pairs.csv",
        "analyze search rows.csv dog",
        "analyze overlap rows.csv",
        "prepare pairs rows.csv -o out.csv",
        "prepare hard-negatives rows.csv -o out.csv",
    ],
)
def test_a_table_without_rows_is_told_before_a_model_is_loaded(
    command, invoke, tmp_path, monkeypatch
):
    import pyarrow
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("id,subject,body\n")
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], "string")}), "rows.parquet")
    monkeypatch.setenv("SIMCSE_MODEL", "nowhere/model")
    outcome = invoke(*command.split())
    assert outcome.exit_code == 1
    name = next(word for word in command.split() if word.startswith("rows"))
    assert outcome.stderr.endswith(f"error: {name} has no rows\n")


def test_sentences_of_a_table_without_rows(invoke, tmp_path):
    (tmp_path / "rows.csv").write_text("id,subject,body\n")
    outcome = invoke("prepare", "sentences", tmp_path / "rows.csv", "-o", tmp_path / "out.txt")
    assert outcome.exit_code == 1
    assert "error: the input gives no row\n" in outcome.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/closed/model"), "/closed/model: Permission"),
        (OSError(28, "No space left on device"), "the system refuses: No space left on device"),
        (OSError(24, "Too many open files", "a.txt"), "a.txt: Too many open files"),
    ],
)
def test_what_the_system_refuses_is_an_error_in_words(error, message, encode_where_models_raise):
    outcome = encode_where_models_raise(error)
    assert outcome.stderr.startswith(f"error: {message}")
    assert "fix: " in outcome.stderr
