import csv
import json
from pathlib import Path

import pytest

LONG = "Two dogs are running through a field of tall grass near the river."
SNLI = [
    ("entailment", "A dog runs.", "An animal moves."),
    ("contradiction", "A dog runs.", "A dog sleeps."),
    ("neutral", "A dog runs.", "A dog is brown."),
    ("-", "A dog runs.", "A cat."),
]


@pytest.fixture
def snli(tmp_path):
    path = tmp_path / "snli.jsonl"
    records = ({"gold_label": label, "sentence1": a, "sentence2": b} for label, a, b in SNLI)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text(f"One.\nTwo words.\n\n{LONG}\nTwo words\nDrei \x07 Wörter.\n")
    return path


def read_manifest(output):
    return json.loads(Path(f"{output}.manifest.json").read_text())


def test_prepare_sentences_writes_lines_and_manifest(invoke, text, tmp_path):
    output = tmp_path / "out.txt"
    result = invoke(
        "prepare", "sentences", text, "-o", output, "--min-words", 2, "--dedup", "exact"
    )
    assert result.exit_code == 0, result.stderr
    assert output.read_text() == f"Two words.\n{LONG}\nDrei Wörter.\n"
    assert result.stdout == ""
    manifest = read_manifest(output)
    assert manifest["counts"] == {
        "input_rows": 6,
        "read": 6,
        "kept": 3,
        "dropped": {"duplicate": 1, "empty": 1, "too_short": 1},
    }
    assert manifest["inputs"][0]["bytes"] == text.stat().st_size
    assert manifest["outputs"][0]["rows"] == 3
    assert {finding["check"] for finding in manifest["lint"]} == {"empty", "control_characters"}
    assert "dropped           1  empty" in result.stderr


def test_prepare_sentences_gives_the_same_bytes_for_the_same_seed(invoke, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("".join(f"line {i}\n" for i in range(500)))
    written = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        folder = tmp_path / name
        invoke(
            "prepare", "sentences", source, "-o", folder / "out.txt", "--sample", 50, "--seed", seed
        )
        written[name] = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert written["a"] == written["b"]
    assert written["a"] != written["c"]


def test_prepare_sentences_reads_stdin_and_writes_stdout(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("prepare", "sentences", "-", "-o", "-", input="a  b\n\nc\n")
    assert (result.exit_code, result.stdout) == (0, "a b\nc\n")
    assert list(tmp_path.iterdir()) == []


def test_prepare_sentences_splits_running_text(invoke, tmp_path):
    result = invoke(
        "prepare", "sentences", "-", "-o", "-", "--split-sentences", input="Dr. A came. He left.\n"
    )
    assert result.stdout == "Dr. A came.\nHe left.\n"


def test_prepare_sentences_overwrites_only_with_force(invoke, text, tmp_path):
    output = tmp_path / "out.txt"
    output.write_text("mine")
    result = invoke("prepare", "sentences", text, "-o", output)
    assert result.exit_code == 1
    assert "exists already" in result.stderr
    assert "--force" in result.stderr
    assert output.read_text() == "mine"
    assert invoke("prepare", "sentences", text, "-o", output, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.txt", "-o", "out.txt"], 1, "missing.txt does not exist"),
        (["in.txt", "-o", "out.parquet"], 1, "cannot write parquet"),
        (["in.txt", "-o", "out.txt", "--strict"], 1, "lint found empty 1"),
        (["in.txt", "-o", "out.txt", "--min-words", "99"], 1, "no row is left of 6"),
        (["in.txt", "-o", "out.txt", "--drop-leaks"], 1, "--check-leak EVALDIR"),
        (["in.txt", "-o", "out.txt", "--encoding", "ascii"], 1, "in.txt, line 6, byte"),
        (["in.txt", "-o", "out.txt", "--encoding", "klingon"], 2, "unknown encoding 'klingon'"),
        (["in.txt", "-o", "out.txt", "--encoding", "base64"], 2, "unknown encoding 'base64'"),
        (["in.txt"], 2, "--output"),
        (["-o", "out.txt"], 2, "INPUT"),
    ],
)
def test_prepare_sentences_says_what_is_wrong(
    invoke, text, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    result = invoke("prepare", "sentences", *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_prepare_sentences_counts_sub_words_with_a_tokenizer(
    invoke, text, tmp_path, tiny_model_dir
):
    output = tmp_path / "out.txt"
    result = invoke(
        "prepare",
        "sentences",
        text,
        "-o",
        output,
        "--tokenizer",
        tiny_model_dir,
        "--max-length",
        10,
    )
    assert result.exit_code == 0, result.stderr
    found = {finding["check"]: finding for finding in read_manifest(output)["lint"]}
    assert found["truncated"]["example"].startswith("Two dogs are running")


def test_prepare_sentences_checks_and_drops_leaks(invoke, tmp_path):
    demo = tmp_path / "demo"
    invoke(
        "prepare",
        "demo",
        "-o",
        demo,
        "--sentences",
        20,
        "--triplets",
        5,
        "--pairs",
        40,
        "--documents",
        2,
    )
    dev = (
        (demo / "downstream/STS/STSBenchmark/sts-dev.csv").read_text().split("\n")[0].split("\t")[5]
    )
    source = tmp_path / "in.txt"
    source.write_text((demo / "sentences.txt").read_text() + dev.lower().replace(".", " .") + "\n")
    output = tmp_path / "out.txt"
    result = invoke(
        "prepare", "sentences", source, "-o", output, "--check-leak", demo, "--drop-leaks"
    )
    assert result.exit_code == 0, result.stderr
    assert "rows hold 1 of 80 sentences of STSBenchmark exactly" in result.stderr
    assert output.read_text() == (demo / "sentences.txt").read_text()
    assert read_manifest(output)["leaks"][0]["n_exact"] == 1
    clean = invoke("prepare", "sentences", demo / "sentences.txt", "-o", "-", "--check-leak", demo)
    assert "no sentence of the 1 evaluation tasks occurs" in clean.stderr


def test_prepare_nli_writes_triplets_and_reports_overlap(invoke, snli, tmp_path):
    output = tmp_path / "nli.csv"
    result = invoke("prepare", "nli", snli, "-o", output)
    assert result.exit_code == 0, result.stderr
    with output.open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [
        ["anchor", "positive", "hard_negative"],
        ["A dog runs.", "An animal moves.", "A dog sleeps."],
    ]
    manifest = read_manifest(output)
    assert manifest["overlap_f1"] == 0.0
    assert manifest["corpus"]["labels"] == {
        "entailment": 1,
        "contradiction": 1,
        "neutral": 1,
        "no_label": 1,
    }
    assert "lexical overlap F1" in result.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--hard-negative", "none"], [["A dog runs.", "An animal moves."]]),
        (["--positive", "all", "--hard-negative", "none", "--sample", "2"], 2),
        (["--hard-negative", "both"], 2),
        (["--positive", "neutral"], [["A dog runs.", "A dog is brown.", "A dog sleeps."]]),
    ],
)
def test_prepare_nli_makes_the_variants_of_table_4(invoke, snli, tmp_path, options, expected):
    output = tmp_path / "nli.csv"
    result = invoke("prepare", "nli", snli, "-o", output, *options)
    assert result.exit_code == 0, result.stderr
    with output.open(newline="") as stream:
        rows = list(csv.reader(stream))[1:]
    assert rows == expected if isinstance(expected, list) else len(rows) == expected


def test_prepare_nli_adds_anli(invoke, snli, tmp_path):
    anli = tmp_path / "anli.jsonl"
    records = [
        {"uid": "1", "context": "P.", "hypothesis": h, "label": label}
        for h, label in (("E.", "e"), ("C.", "c"))
    ]
    anli.write_text("".join(json.dumps(record) + "\n" for record in records))
    output = tmp_path / "nli.csv"
    invoke("prepare", "nli", snli, "--anli", anli, "-o", output)
    assert output.read_text().splitlines()[-1] == "P.,E.,C."
    assert len(read_manifest(output)["inputs"]) == 2


def test_prepare_pairs_of_captions(invoke, tmp_path):
    source = tmp_path / "captions.token"
    source.write_text("1.jpg#0\ta b\n1.jpg#1\ta b\n1.jpg#2\tc\n")
    result = invoke(
        "prepare", "pairs", source, "--flickr30k", "--overlap", "-o", tmp_path / "out.csv"
    )
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "out.csv").read_text() == "anchor,positive\na b,a b\na b,c\na b,c\n"
    assert read_manifest(tmp_path / "out.csv")["overlap_f1"] == pytest.approx(1 / 3)
    assert "anchor is positive" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parallel"], "--parallel needs two files, found 1"),
        (["--columns", "a"], "--columns needs two names"),
    ],
)
def test_prepare_pairs_needs_two_of_some_things(invoke, text, options, message):
    result = invoke("prepare", "pairs", text, "-o", "-", *options)
    assert result.exit_code == 1
    assert message in result.stderr


def test_prepare_neighbours_keeps_document_borders(invoke, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("a\nb\n\nc\nd\n")
    result = invoke("prepare", "neighbours", source, "-o", tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_text() == "anchor\tpositive\na\tb\nc\td\n"
    assert "read 4 sentences in 2 documents" in result.stderr


def test_prepare_neighbours_warns_without_documents(invoke, tmp_path):
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    result = invoke("prepare", "neighbours", tmp_path / "in.txt", "-o", "-")
    assert "no blank line separates documents" in result.stderr


def test_prepare_senteval_passes_on_the_published_folder(invoke, shared_data):
    result = invoke(
        "prepare", "senteval", "--data-dir", shared_data / "senteval", "--format", "json"
    )
    assert result.exit_code == 0, result.stderr
    payload = json.loads(result.stdout)
    assert payload["ok"]
    assert {file["state"] for file in payload["files"]} == {"ok"}


def test_prepare_senteval_names_every_problem_and_where_to_get_the_files(invoke, sts_folder):
    result = invoke("prepare", "senteval", "--data-dir", sts_folder, "--tasks", "STSBenchmark,MR")
    assert result.exit_code == 1
    for name in (
        "sts-train.csv",
        "sts-dev.csv",
        "sts-test.csv",
        "rt-polarity.pos",
        "rt-polarity.neg",
    ):
        assert name in result.stdout
        assert name in result.stderr
    assert "expected 5,331 lines" in result.stdout
    assert "download_dataset.sh" in result.stderr


def test_prepare_senteval_knows_its_tasks(invoke, sts_folder):
    result = invoke("prepare", "senteval", "--data-dir", sts_folder, "--tasks", "STS99")
    assert result.exit_code == 1
    assert "no task 'STS99'" in result.stderr


def test_prepare_lint_reports_and_fails_only_when_strict(invoke, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("anchor,positive\na,b\na,b\n")
    result = invoke("prepare", "lint", source, "--format", "json")
    assert result.exit_code == 0, result.stderr
    findings = json.loads(result.stdout)["findings"]
    assert [(finding["check"], finding["n_rows"]) for finding in findings] == [
        ("duplicate_pair", 1),
        ("shared_text", 1),
    ]
    strict = invoke("prepare", "lint", source, "--strict")
    assert strict.exit_code == 1
    assert "duplicate_pair 1" in strict.stderr
    assert "duplicate pair" in strict.stdout


def test_prepare_demo_writes_the_same_corpus_again(invoke, tmp_path):
    for name in ("a", "b"):
        result = invoke(
            "prepare",
            "demo",
            "-o",
            tmp_path / name,
            "--sentences",
            30,
            "--triplets",
            10,
            "--pairs",
            40,
        )
        assert result.exit_code == 0, result.stderr
    files = [sorted(p for p in (tmp_path / name).rglob("*") if p.is_file()) for name in ("a", "b")]
    assert len(files[0]) == 8
    assert [p.read_bytes() for p in files[0]] == [p.read_bytes() for p in files[1]]
    again = invoke("prepare", "demo", "-o", tmp_path / "a")
    assert again.exit_code == 1
    assert "exists already" in again.stderr
