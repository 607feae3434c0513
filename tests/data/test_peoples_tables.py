"""Tables as people have them: each is read at once, or after one hint that works as typed."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.jobs import Job
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.pair_files import read_scored_pairs
from simcse_cli.data.table import Table
from simcse_cli.data.training_file import read_training_rows
from simcse_cli.errors import DataError, UsageError
from simcse_cli.prepare.pairs import pair_rows

Q = [
    "Where is my refund?",
    "Why does the lid not close?",
    "Can I pay by card?",
    "When do you open?",
    "Who answers?",
]
A = [
    "It takes five days.",
    "A new one is on the way.",
    "Any card works.",
    "We open at nine.",
    "Somebody does.",
]


def table(row, head=""):
    return head + "".join(row(n) + "\n" for n in range(len(Q)))


def chat(n):
    return json.dumps(
        {"id": n, "turns": [{"by": "user", "text": Q[n]}, {"by": "staff", "text": A[n]}]}
    )


TABLES = {
    "sep-line.csv": (table(lambda n: f"{Q[n]};{A[n]}", "sep=;\nAsked;Answered\n"), "anchor=Asked,positive=Answered"),
    "title.csv": (table(lambda n: f"{n};{Q[n]};{A[n]}", "Report 2024;;\n;;\nNo;Asked;Answered\n"),
                  "anchor=Asked,positive=Answered"),
    "index.csv": (table(lambda n: f"{n},{Q[n]},{n % 2}", ",review_body,stars\n"), "anchor=review_body"),
    "one.csv": (table(lambda n: Q[n], "Feedback\n"), "anchor=Feedback"),
    "ragged.csv": (table(lambda n: f"{n},{Q[n]}" + ",,," * (n % 2), "id,remarks,,,\n"), "anchor=remarks"),
    "trailing.csv": (table(lambda n: f"{Q[n]},{A[n]},,", "asked,answered,\n"), "anchor=asked,positive=answered"),
    "array.json": (json.dumps([{"instruction": Q[n], "input": "", "output": A[n]} for n in range(len(Q))], indent=1),
                   "anchor=instruction,positive=output"),
    "nested.jsonl": (table(lambda n: json.dumps({"id": n, "data": {"body": Q[n]}})), "anchor=data.body"),
    "chat.jsonl": (table(chat), "anchor=turns.0.text,positive=turns.1.text"),
    "twice.csv": (table(lambda n: f"{Q[n]},{n},{A[n]}", "text,id,text\n"), "anchor=text.1,positive=text.2"),
    "markdown.csv": (table(lambda n: f"| {n} | {Q[n]} | {A[n]} |", "\n| no | asked | answered |\n|--:|:---|---|\n"),
                     "anchor=asked,positive=answered"),
    "bare-markdown.tsv": (table(lambda n: f"{Q[n]} | {A[n]}", "asked | answered\n--- | ---\n"),
                          "anchor=asked,positive=answered"),
    "quoted.tsv": (table(lambda n: f'{n}\t"{Q[n]}"\t"{A[n]}"', '"no"\t"asked"\t"answered"\n'),
                   "anchor=asked,positive=answered"),
    "squad.jsonl": (table(lambda n: json.dumps({"question": Q[n], "reply": {"text": [A[n]], "start": [0]}})),
                    "anchor=question,positive=reply.text"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_at_once(name, tmp_path):
    text, columns = TABLES[name]
    (tmp_path / name).write_text(text)
    is_pair = "positive" in columns
    rows = read_training_rows(tmp_path / name, n_columns=1 + is_pair).rows
    assert list(rows) == [pair[: 1 + is_pair] for pair in zip(Q, A, strict=True)]
    given = Given(parse_columns(columns, POSITIONAL))
    assert list(read_training_rows(tmp_path / name, given, n_columns=1 + is_pair).rows) == list(
        rows
    )


def test_an_array_of_rows_is_not_an_array_a_line(tmp_path):
    (tmp_path / "a.json").write_text(table(lambda n: json.dumps([Q[n], A[n]])))
    assert list(read_training_rows(tmp_path / "a.json", n_columns=2).rows) == list(
        zip(Q, A, strict=True)
    )


@pytest.mark.parametrize(
    ("spell", "scores"), [("{:.1f}%", [0, 20, 40, 60, 80]), ("0,{:02.0f}", [0, 0.2, 0.4, 0.6, 0.8])]
)
def test_scores_may_be_percentages_and_have_decimal_commas(spell, scores, tmp_path):
    lines = table(lambda n: f"{Q[n]}\t{A[n]}\t{spell.format(20 * n)}", "one\ttwo\tmatch\n")
    (tmp_path / "a.tsv").write_text(lines)
    found = read_scored_pairs(tmp_path / "a.tsv")
    assert found.gold.tolist() == scores


@pytest.mark.parametrize("name", ["a.txt", "a.md", "table"])
@pytest.mark.parametrize(
    ("row", "head"),
    [
        ("{}\t{}", "anchor\tpositive\n"), ("{}|{}", "anchor|positive\n"), ("{};{}", ""), ("{}|{}", ""),
        ("| {} | {} |", "# Pairs\n\n| anchor | positive |\n|---|---|\n"),
    ],
)  # fmt: skip
def test_a_text_is_a_table_only_where_columns_are_wanted(row, head, name, tmp_path):
    path, rows = tmp_path / name, list(zip(Q, A, strict=True))
    path.write_text(table(lambda n: row.format(Q[n], A[n]), head))
    assert list(pair_rows([path])) == list(read_training_rows(path, n_columns=2).rows) == rows
    if head:
        assert list(Table(path, Job.TEXTS, Given().of_texts("positive")).texts()) == A
    assert list(Table(path, Job.TEXTS).texts()) == path.read_text().splitlines()


def test_cells_of_markdown_may_hold_bars(tmp_path):
    (tmp_path / "a.md").write_text(
        f"|anchor|positive|\n|-|-|\n|a \\| b||\n|{Q[0]}|{A[0]}|\n\nThe end.\n"
    )
    table = Table(tmp_path / "a.md", Job.ROWS)
    assert [record for _, record in table.records()] == [
        {"anchor": "a | b", "positive": ""},
        {"anchor": Q[0], "positive": A[0]},
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "One dog.\rTwo cats.\rThree hens.\r"),
        ("a b.txt", "One dog.\r\nTwo cats.\n\nThree hens.\rFour cows.\n"),
        ("a.tsv", "anchor\tpositive\rOne dog.\tA dog.\rTwo cats.\tCats.\r"),
        ("a.csv", "anchor,positive\rOne dog.,A dog.\rTwo cats.,Cats.\r"),
    ],
)
def test_the_command_that_mends_carriage_returns_does(tmp_path, monkeypatch, name, content):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content.encode())
    with pytest.raises(DataError, match=f"{name}, line [14]: .*carriage return") as caught:
        list(Table(name, Job.TEXTS).texts())
    _, _, command = caught.value.hint.partition(": ")
    if shutil.which("perl") is None:
        pytest.skip("no perl here")
    subprocess.run(command, shell=True, check=True)
    (mended,) = tmp_path.glob("*-lines.*")
    lines = content.replace("\r\n", "\n").replace("\r", "\n")
    assert mended.read_text() == lines
    n_rows = lines.count("\n") - (mended.suffix != ".txt")
    assert len(list(Table(mended, Job.TEXTS).texts())) == n_rows


def test_a_column_of_plain_text_is_a_cell_if_there_is_one(tmp_path):
    (tmp_path / "a.txt").write_text(table(lambda n: f"{Q[n]} {A[n]}"))
    with pytest.raises(UsageError, match="needs a table"):
        list(Table(tmp_path / "a.txt", Job.TEXTS, Given().of_texts("2")).texts())
