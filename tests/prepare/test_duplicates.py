"""`simcse prepare duplicates`: against a loop over all pairs, and as a user meets it."""

import csv
import json
import os
import random
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from simcse_cli.data.text import match_key
from simcse_cli.prepare import duplicates
from simcse_cli.prepare.duplicates import parse_kinds
from simcse_cli.prepare.finders import (
    ExactFinder,
    Match,
    MeaningFinder,
    NearFinder,
    find_duplicates,
)
from simcse_cli.prepare.minhash import shingles
from simcse_cli.settings.choices import DuplicateKind

WORDS = [
    "the",
    "red",
    "dog",
    "cat",
    "runs",
    "sleeps",
    "in",
    "a",
    "small",
    "big",
    "house",
    "garden",
    "today",
]


@pytest.fixture(scope="module")
def texts():
    """2,000 short texts, of which many repeat another in other letters, or with a word replaced."""
    draw = random.Random(7)
    found = [" ".join(draw.choices(WORDS, k=draw.randint(5, 9)))]
    while len(found) < 2000:
        earlier = draw.choice(found).split()
        kind = draw.random()
        if kind < 0.1:
            earlier[0] = earlier[0].upper()
        elif kind < 0.3:
            earlier[draw.randrange(len(earlier))] = draw.choice(WORDS)
        else:
            earlier = draw.choices(WORDS, k=draw.randint(5, 9))
        found.append(" ".join(earlier))
    return found


def plain_loop(texts, similar):
    """Compare each text with all kept ones: ``similar`` gives kind and score, or None."""
    kept, found = [], {}
    for number in range(len(texts)):
        matches = [(other, *match) for other in kept if (match := similar(number, other))]
        if not matches:
            kept.append(number)
            continue
        first_kind = min(list(DuplicateKind).index(kind) for _, kind, _ in matches)
        kind = list(DuplicateKind)[first_kind]
        of, score = max(
            ((other, score) for other, own, score in matches if own is kind),
            key=lambda pair: (pair[1], -pair[0]),
        )
        found[number] = (kind, Match(of, score))
    return found


def test_all_kinds_equal_a_loop_over_all_pairs(texts):
    """Near texts are candidates with a probability of 0.99 at 0.7; here the threshold is 0.8."""
    rng = np.random.default_rng(3)
    units = rng.normal(size=(len(texts), 12)).astype(np.float32)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    keys, sets = [match_key(text) for text in texts], [set(shingles(text)) for text in texts]

    def similar(number, other):
        if keys[number] == keys[other]:
            return DuplicateKind.EXACT, 1.0
        shared = len(sets[number] & sets[other])
        jaccard = shared / (len(sets[number]) + len(sets[other]) - shared)
        if jaccard >= 0.8:
            return DuplicateKind.NEAR, jaccard
        cosine = float(units[number] @ units[other])
        return (DuplicateKind.MEANING, cosine) if cosine >= 0.85 else None

    expected = plain_loop(texts, similar)
    finders = {
        DuplicateKind.EXACT: ExactFinder(),
        DuplicateKind.NEAR: NearFinder(0.8),
        DuplicateKind.MEANING: MeaningFinder(units, 0.85),
    }
    found = dict(find_duplicates(range(len(texts)), texts, finders))
    assert {kind for kind, _ in expected.values()} == set(DuplicateKind)
    assert found.keys() == expected.keys()
    for number, (kind, match) in expected.items():
        assert found[number][0] is kind
        assert found[number][1].score == pytest.approx(match.score, abs=1e-6)
        if kind is not DuplicateKind.MEANING:
            assert found[number][1].kept_number == match.kept_number


def test_equal_vectors_have_a_cosine_of_one():
    """Rounding makes that of some a little less."""
    rows = np.random.default_rng(1).normal(size=(50, 7)).astype(np.float32)
    units = np.repeat(rows / np.linalg.norm(rows, axis=1, keepdims=True), 2, axis=0)
    finders = {DuplicateKind.MEANING: MeaningFinder(units, 1.0)}
    found = dict(find_duplicates(range(100), [""] * 100, finders))
    assert {number: match.kept_number for number, (_, match) in found.items()} == {
        number: number - 1 for number in range(1, 100, 2)
    }


def test_texts_that_are_known_are_kept_and_found():
    texts = ["a b", "A B", "new", "a-b"]
    finders = {DuplicateKind.EXACT: ExactFinder()}
    found = list(find_duplicates([0, 1, 2, 3], texts, finders, n_known=2))
    assert [(number, match.kept_number) for number, (_, match) in found] == [(3, 1)]


def test_kinds_are_read_in_their_order():
    assert parse_kinds("meaning, exact") == [DuplicateKind.EXACT, DuplicateKind.MEANING]


# ------------------------------------------------------------------ the command
ROWS = [
    ("7", "How do I reset my password?", "login", "a, b"),
    ("8", "how do i reset my password", "login", "x"),
    ("9", "Where are my invoices?", "billing", ""),
    ("10", "", "billing", "blank"),
    ("11", "Where are all of my invoices from the year before?", "billing", "z"),
    ("12", "Where are all of my invoices from the year after?", "billing", "zz"),
]
HEADER = ("id", "text", "topic", "note")


@pytest.fixture
def tickets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tickets.csv", ROWS)
    return "tickets.csv"


def write(path, rows):
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([HEADER, *rows])


def read(path):
    with Path(path).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_each_duplicate_names_the_row_that_it_repeats(invoke, tickets):
    words = ("--id-column", "id", "--kind", "exact,near", "-o", "found.csv")
    outcome = invoke("prepare", "duplicates", tickets, *words)
    assert outcome.exit_code == 0, outcome.stderr
    first, second = read("found.csv")
    assert (first["row"], first["id"], first["of_id"], first["kind"]) == ("2", "8", "7", "exact")
    assert (second["id"], second["of_id"], second["kind"]) == ("12", "11", "near")
    own, other = (set(shingles(row[1])) for row in ROWS[4:])
    assert second["score"] == f"{len(own & other) / len(own | other):.4f}"
    assert second["of_text"] == ROWS[4][1]
    assert "2 of 6 rows repeat another (exact 1, near 1)" in outcome.stderr
    assert "not compared, since without text: 1" in outcome.stderr
    counts = json.loads(Path("found.csv.manifest.json").read_text())["counts"]
    assert counts == {"read": 6, "written": 2, "exact": 1, "near": 1}


@pytest.mark.parametrize(("keep", "ids"), [("first", "7 9 10 11"), ("longest", "7 9 10 11")])
def test_the_table_without_duplicates_keeps_its_columns(invoke, tickets, keep, ids):
    words = ("--kind", "exact,near", "--keep", keep, "-o", "kept.csv")
    assert invoke("prepare", "duplicates", tickets, *words).exit_code == 0
    rows = read("kept.csv")
    assert [row["id"] for row in rows] == ids.split()
    assert [tuple(row.values()) for row in rows] == [ROWS[0], *ROWS[2:5]]


def test_the_longest_of_texts_that_repeat_each_other_is_kept(invoke, tickets, tmp_path):
    write(tmp_path / "two.csv", [("1", "a dog runs", "", ""), ("2", "A dog runs !!!", "", "")])
    for keep, kept in (("first", "1"), ("longest", "2")):
        words = ("--kind", "exact", "--keep", keep, "-o", "kept.csv", "--force")
        assert invoke("prepare", "duplicates", "two.csv", *words).exit_code == 0
        assert [row["id"] for row in read("kept.csv")] == [kept]


def test_the_weekly_file_is_compared_with_the_older_one(invoke, tickets, tmp_path):
    write(tmp_path / "week.csv", [("20", "WHERE are my invoices", "", ""), ("21", "New!", "", "")])
    words = ("--against", tickets, "--id-column", "id", "--kind", "exact", "-o", "found.csv")
    outcome = invoke("prepare", "duplicates", "week.csv", *words)
    assert outcome.exit_code == 0
    said = f"no id of {tickets} (the first: '7') is in week.csv (the first: '20')\n"
    assert said in outcome.stderr
    (row,) = read("found.csv")
    assert (row["id"], row["of_file"], row["of_row"], row["of_id"]) == ("20", tickets, "3", "9")
    words = ("--against", tickets, "--kind", "exact", "--keep", "first", "-o", "new.csv")
    assert invoke("prepare", "duplicates", "week.csv", *words).exit_code == 0
    assert [row["id"] for row in read("new.csv")] == ["21"]


def test_rows_of_the_older_file_are_known_by_their_ids(invoke, tickets, tmp_path):
    """An export that has all rows each week: as before is no duplicate, a new text replaces the older one."""
    week = [
        *ROWS[:1],  # as before
        ("8", "How do I reset my password?", "", ""),  # now equal to 7
        ("9", "Where is the parcel that I ordered?", "", ""),  # no more the invoices
        ("20", "where are my invoices", "", ""),  # the older text of 9 is gone
        ("21", "how do I reset my password!", "", ""),
    ]
    write(tmp_path / "week.csv", week)
    words = ("--against", tickets, "--id-column", "id", "--kind", "exact", "-o", "found.csv")
    outcome = invoke("prepare", "duplicates", "week.csv", *words)
    assert outcome.exit_code == 0
    assert f"3 ids of {tickets} are in week.csv\n" in outcome.stderr
    found = [(row["id"], row["of_file"], row["of_id"]) for row in read("found.csv")]
    assert found == [("8", tickets, "7"), ("21", tickets, "7")]


def test_meaning_is_the_cosine_of_the_model(invoke, tickets, tiny_model_dir):
    """Against the vectors that encode writes."""
    model = ("-m", tiny_model_dir, "--pooler", "avg", "--device", "cpu")
    words = ("--kind", "meaning", "--threshold", "-1", "-o", "found.csv")
    assert invoke("prepare", "duplicates", tickets, *words, *model).exit_code == 0
    rows = read("found.csv")
    assert [row["of_row"] for row in rows] == ["1"] * 4  # everything repeats the first text
    vectors = ("--column", "text", "-o", "v.npy", "--normalize", *model)
    assert invoke("encode", tickets, *vectors).exit_code == 0
    units = np.load("v.npy")
    for row in rows:
        cosine = float(units[int(row["row"]) - 1] @ units[0])
        assert float(row["score"]) == pytest.approx(cosine, abs=1e-4)


def test_faults_are_named(invoke, tickets):
    os.mkfifo("pipe")
    for words, message in (
        (("-", "-o", "x.csv"), "standard input cannot be read twice"),
        (("pipe", "-o", "x.csv"), "pipe cannot be read twice"),
        ((tickets, "--against", "pipe", "-o", "x.csv"), "pipe cannot be read twice"),
        ((tickets, "-o", "x.csv", "--kind", "same"), "'same'; need some of exact, near, meaning"),
        ((tickets, "-o", "x.csv", "--id-column", "nr"), "no column nr; there are id, text"),
        ((tickets, "-o", "x.txt", "--kind", "exact"), "cannot hold the columns"),
    ):
        outcome = invoke("prepare", "duplicates", *words)
        assert outcome.exit_code in (1, 2)
        assert message in outcome.stderr


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("--kind", "exact,near", "--threshold", "0.5"), "meaning"),
        (("--kind", "exact", "--model", "nowhere/model"), "meaning"),
        (("--kind", "near", "--prompt", "query: "), "meaning"),
        (("--kind", "exact,meaning", "--near-threshold", "0.5"), "near"),
    ],
)
def test_an_option_of_a_kind_that_is_not_sought_is_refused(invoke, tickets, words, kind):
    outcome = invoke("prepare", "duplicates", tickets, *words, "-o", "x.csv")
    assert outcome.exit_code == 2
    assert f"{words[2]}: has no use without --kind {kind}" in outcome.stderr


def test_values_of_json_keep_their_types_and_lines_of_tsv_stay_lines(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": 1, "text": "A dog.", "tags": ["a"], "ok": True, "score": 4.5, "x": None},
        {"id": 2, "text": "A dog.", "tags": [], "ok": False, "score": 1.0, "x": 1},
        {"id": 3, "text": "A\ncat.", "ok": False, "score": 1e-9, "x": {"y": {"z": 1}}, "new": 1},
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("prepare", "duplicates", "rows.jsonl", "--column", "text", "--kind", "exact")
    outcome = invoke(*words, "--keep", "first", "-o", "kept.jsonl")
    assert outcome.exit_code == 0, outcome.stderr
    kept = [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]
    assert kept == [rows[0], rows[2]]
    assert invoke(*words, "--keep", "first", "-o", "kept.tsv").exit_code == 0
    lines = Path("kept.tsv").read_text().splitlines()
    assert [line.split("\t")[1] for line in lines] == ["text", "A dog.", "A cat."]


def test_json_lines_of_a_parquet_file_hold_no_nan(invoke, tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    columns = {"text": ["A dog.", "a dog", "A cat."], "score": [0.5, 1.0, float("nan")]}
    columns["day"] = [date(2024, 5, 7)] * 3
    parquet.write_table(pyarrow.table(columns), "rows.parquet")
    words = ("prepare", "duplicates", "rows.parquet", "--column", "text", "--kind", "exact")
    assert invoke(*words, "--keep", "first", "-o", "kept.jsonl").exit_code == 0
    kept = [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]
    day = "2024-05-07"
    assert kept == [
        {"text": "A dog.", "score": 0.5, "day": day},
        {"text": "A cat.", "score": None, "day": day},
    ]


def test_a_text_of_two_lines_is_one_line_of_plain_text(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"text": "A\\ncat."}\n{"text": "A dog."}\n')
    words = ("prepare", "duplicates", "rows.jsonl", "--kind", "exact", "--keep", "first")
    assert invoke(*words, "-o", "kept.txt").exit_code == 0
    assert Path("kept.txt").read_text() == "A cat.\nA dog.\n"


def test_a_text_under_another_name_is_not_lost(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = '{"text": "A dog."}\n{"text": null}\n{"sentence": "A cat."}\n'
    Path("rows.jsonl").write_text(rows)
    words = ("prepare", "duplicates", "rows.jsonl", "--kind", "exact", "--keep", "first")
    outcome = invoke(*words, "-o", "kept.csv")
    assert outcome.exit_code != 0
    assert "row 3: the text is in another column than in row 1" in outcome.stderr
    assert "-o FILE.jsonl" in outcome.stderr
    assert not Path("kept.csv").exists()
    assert invoke(*words, "-o", "kept.jsonl").exit_code == 0
    assert Path("kept.jsonl").read_text() == rows


def test_lines_of_text_get_a_name_in_a_table(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.txt").write_text("a b\na b\nc d\n")
    words = ("prepare", "duplicates", "rows.txt", "--kind", "exact")
    assert invoke(*words, "--keep", "first", "-o", "kept.csv").exit_code == 0
    assert Path("kept.csv").read_text() == "text\na b\nc d\n"
    outcome = invoke(*words, "--id-column", "id", "-o", "ids.csv")
    assert "rows.txt: plain text has no column id" in outcome.stderr


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("tickets.csv", "is read by this command, and would be replaced"),
        ("rows.txt", "exists already"),
        (".", "is a folder, need a file name"),
        ("kept.parquet", "cannot write parquet"),
        ("kept.txt", "plain text cannot hold the columns"),
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_the_search(
    invoke, tickets, monkeypatch, output, message
):
    monkeypatch.setattr(duplicates, "find_duplicates", None)
    Path("rows.txt").write_text("a b\n")
    outcome = invoke("prepare", "duplicates", tickets, "--keep", "first", "-o", output)
    assert outcome.exit_code == (2 if output == "tickets.csv" else 1)
    assert message in outcome.stderr


def test_texts_that_the_model_cannot_read_repeat_nothing(invoke, tiny_model_dir, monkeypatch):
    monkeypatch.chdir(tiny_model_dir.parent)
    texts = ["\U0001f680", "\U0001f621", "a cat", "\U0001f680", "A cat."]
    Path("e.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    model = ("-m", tiny_model_dir, "--pooler", "avg", "--device", "cpu")
    result = invoke(
        "prepare", "duplicates", "e.txt", "-o", "found.csv", "--kind", "meaning", *model
    )
    assert result.exit_code == 0, result.stderr
    assert [(row["row"], row["of_row"]) for row in read("found.csv")] == [("5", "3")]
    assert "not compared by meaning: 3 texts that are unknown to" in result.stderr
    # Equal texts are found all the same.
    assert invoke("prepare", "duplicates", "e.txt", "-o", "all.csv", *model).exit_code == 0
    assert [row["row"] for row in read("all.csv")] == ["4", "5"]


def test_a_file_is_not_compared_with_itself_as_an_older_one(invoke, tickets, tmp_path):
    Path("link.csv").symlink_to(tickets)
    os.link(tickets, "hard.csv")
    for older in (tickets, f"../{Path.cwd().name}/{tickets}", "link.csv", "hard.csv"):
        words = ("--against", older, "--keep", "first", "-o", "gone.csv", "--kind", "exact")
        refused = invoke("prepare", "duplicates", tickets, *words)
        assert refused.exit_code == 2, older
        assert "is the input itself" in " ".join(refused.stderr.split())
    assert not Path("gone.csv").exists()


@pytest.mark.parametrize("name", ["id", "_id"])
def test_a_usual_column_names_the_rows_that_are_listed(invoke, tickets, name):
    table = Path(tickets)
    table.write_text(table.read_text().replace("id,", f"{name},", 1))
    outcome = invoke("prepare", "duplicates", tickets, "--kind", "exact", "-o", "found.csv")
    assert outcome.exit_code == 0
    assert outcome.stderr.endswith("wrote found.csv\n")
    assert [(row["id"], row["of_id"]) for row in read("found.csv")] == [("8", "7")]
    assert f"{name}," not in outcome.stderr.partition("not used: ")[2]
    # Only ids that are asked for join the rows of two files.
    Path("older.csv").write_text(f"{name},text\n7,Where are my invoices?\n")
    words = ("--against", "older.csv", "--kind", "exact", "-o", "new.csv")
    assert invoke("prepare", "duplicates", tickets, *words).exit_code == 0
    assert [(row["id"], row["of_id"]) for row in read("new.csv")] == [("8", "7"), ("9", "7")]


@pytest.mark.parametrize("wrong", ["7", ""])
def test_a_usual_column_without_an_id_for_each_row_is_passed_over(invoke, tickets, wrong):
    table = Path(tickets)
    table.write_text(table.read_text().replace("8,", f"{wrong},", 1))
    words = ("prepare", "duplicates", tickets, "--kind", "exact", "-o", "found.csv")
    outcome = invoke(*words)
    assert outcome.exit_code == 0
    assert "in column id: the rows are listed without ids" in outcome.stderr
    assert [(row["id"], row["of_id"]) for row in read("found.csv")] == [("", "")]
    assert invoke(*words, "--id-column", "id", "--force").exit_code == 1


def test_numbers_are_numbers_in_json_lines(invoke, tickets):
    words = ("prepare", "duplicates", tickets, "--kind", "exact", "--id-column", "id")
    assert invoke(*words, "-o", "found.jsonl").exit_code == 0
    (found,) = map(json.loads, Path("found.jsonl").read_text().splitlines())
    assert (found["row"], found["of_row"], found["score"]) == (2, 1, 1.0)
    assert (found["id"], found["of_id"]) == ("8", "7")  # as the table has them
    # The other formats hold the same, and a reader of tables takes both.
    assert invoke(*words, "-o", "found.csv").exit_code == 0
    assert read("found.csv") == [
        {name: str(value) for name, value in found.items()} | {"score": "1.0000"}
    ]
    for name in ("found.jsonl", "found.csv"):
        pairs = invoke(
            "prepare", "pairs", name, "-o", f"pairs-{name}.csv", "--columns", "text,of_text"
        )
        assert pairs.exit_code == 0, pairs.stderr
    assert Path("pairs-found.jsonl.csv").read_text() == Path("pairs-found.csv.csv").read_text()
