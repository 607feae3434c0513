"""Tables after public ones: each job reads the columns that it should, or asks with options that work as typed."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import helpers
from simcse_cli.data.formats import cells_in_text
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.jobs import Job
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.pair_files import iter_pairs, iter_scored_pairs
from simcse_cli.data.table import Table
from simcse_cli.data.training_file import iter_training_rows
from simcse_cli.errors import DataError
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.tables import TableOptions

CASES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
JOBS = {
    "sentences": (Job.TEXTS, ("text",)),
    "corpus": (Job.TEXTS, ("text",)),
    "queries": (Job.TEXTS, ("text",)),
    "pairs": (Job.ROWS, (*POSITIONAL, "label")),
    "triplets": (Job.ROWS, (*POSITIONAL, "label")),
    "cosines": (Job.COSINES, ("left", "right")),
    "scored": (Job.SCORED, ("left", "right", "score")),
    "labelled": (Job.LABELLED, ("text", "left", "right", "label")),
    "nli": (Job.NLI, ("anchor", "positive", "label")),
    "lint": (Job.LINT, POSITIONAL),
}
TEXTS = ("text", "anchor", "positive", "hard_negative", "left", "right")
EVERY = [(name, number) for name, case in CASES.items() for number in range(len(case["jobs"]))]


def given_of(job, words, progress):
    """Return the choices that options as typed make."""
    values, columns = {}, None
    words = list(words)
    while words:
        flag = words.pop(0)
        if flag in ("--header", "--no-header"):
            values["header"] = flag == "--header"
        elif flag in ("--column", "--columns"):
            columns = words.pop(0)
        elif flag == "--keep-label":
            values.setdefault("keep_label", []).append(words.pop(0))
        else:
            values[flag.removeprefix("--")] = words.pop(0)
    kind, roles = JOBS[job]
    options = TableOptions(**values)
    if kind is Job.TEXTS:
        return Given.of(options, progress=progress).of_texts(columns)
    return Given.of(options, parse_columns(columns, roles), roles=roles, progress=progress)


def read(path, job, words, progress=None):
    """Return the columns of texts by name and number, in the order of their roles, and the number of rows."""
    table = Table(path, JOBS[job][0], given_of(job, words, progress or SilentProgress()))
    names = table.reading.grid.names
    places = [table.reading.places(role)[0] for role in TEXTS if table.reading.has(role)]
    chosen = [{names[at], str(at + 1)} for at in places]
    if "set" in table.reading.roles.columns:
        return [{"set"}, {"set"}], len(list(iter_training_rows(table)))
    if JOBS[job][0] is Job.ROWS:
        return chosen, len(list(iter_training_rows(table)))
    if JOBS[job][0] is Job.TEXTS:
        return chosen, len(list(table.texts()))
    if job == "scored":
        return chosen, len(list(iter_scored_pairs(path, given_of(job, words, SilentProgress()))))
    return chosen, len(list(table.rows(*table.reading.roles.columns)))


def columns_of(want):
    columns = want["columns"]
    return [columns[role] for role in TEXTS if role in columns]


def are(columns, names):
    """Tell whether columns are those of these names or numbers; without a header they have numbers alone."""
    pairs = list(zip(names, columns, strict=False))
    is_headless = all(len(own) == 1 for own in columns) and columns[0] != {"text"}
    return len(pairs) == len(names) and (is_headless or all(name in own for name, own in pairs))


def choices(hint):
    """Return the options in a hint, a list of words for each line."""
    found = []
    for line in (hint or "").splitlines():
        if match := re.search(r"--.*", line):
            found.append(shlex.split(match[0]))
    return [words for words in found if "simcse" not in words and "--objective" not in words]


@pytest.mark.parametrize(("name", "number"), EVERY, ids=[f"{name}-{n}" for name, n in EVERY])
def test_a_job_reads_its_columns_or_asks(name, number, tmp_path):
    case, want = CASES[name], CASES[name]["jobs"][number]
    path = tmp_path / name
    path.write_bytes(case["content"].encode(case.get("encoding", "utf-8")))
    job, options = want["job"], want.get("options", [])
    if "asks" in want:
        with pytest.raises(DataError) as asked:
            read(path, job, options)
        said = f"{asked.value.message}\n{asked.value.hint}"
        assert len(said.encode()) < 3000
        for pattern in want.get("names", ()):
            assert re.search(pattern, said, re.IGNORECASE)
        answers = []
        for words in choices(asked.value.hint) if want["asks"] else ():
            try:
                answers.append(read(path, job, [*options, *words]))
            except DataError:
                continue  # one question after another
        for answer in want["asks"]:
            names = columns_of(answer)
            same = [n for columns, n in answers if are(columns, names)]
            assert answer["n_rows"] in same, (answer, answers)
        return
    progress = helpers.Told()
    columns, n_rows = read(path, job, options, progress)
    wanted = columns_of(want)
    is_plain = columns == [{"1"}] and wanted in (["id"], ["anchor"])  # lines of text
    assert is_plain or are(columns, wanted)
    assert n_rows == want["n_rows"]
    if want.get("unused"):
        (line,) = [line for line in progress.lines if "not used:" in line]
        for unused in want["unused"][:3]:
            assert unused in line.partition("not used:")[2]


# ------------------------------------------------------------------ the same table in other dress
QUESTIONS = [
    "Where is the key to the shed?", "When does the ferry leave?", "Who waters the plants?", "How deep is the lake?",
    "Why is the road closed?", "Can I borrow the ladder?", "What does the ticket cost?", "Is the tower open today?",
]  # fmt: skip
ANSWERS = [
    "It hangs behind the blue door.", "The first one goes at six.", "Our neighbour does it.", "About forty metres.",
    "They repair the bridge.", "Yes, until Sunday evening.", "Four coins for adults.", "It opens again in May.",
]  # fmt: skip
NAMES = [
    ("question", "answer"),
    ("Frage", "Antwort"),
    ("质问题", "回复语"),
    ("вопрос", "ответ"),
    ("質問", "回答"),
]


def write_table(path, columns, header, separator, *, quoted):
    def cell(text):
        return f'"{text}"' if quoted or separator in text else text

    rows = [header, *zip(*columns, strict=True)] if header else list(zip(*columns, strict=True))
    path.write_text(
        "".join(separator.join(map(cell, row)) + "\n" for row in rows), encoding="utf-8"
    )


@settings(max_examples=60)
@given(
    order=st.permutations(range(4)),
    names=st.sampled_from([None, *NAMES]),
    separator=st.sampled_from([",", ";", "\t", "|"]),
    quoted=st.booleans(),
    extra=st.sampled_from([("nr", "topic"), ("id", "source"), ("key", "lang")]),
)
def test_dress_changes_no_row(tmp_path_factory, order, names, separator, quoted, extra):
    path = tmp_path_factory.mktemp("dress") / "table.csv"
    ids = [f"K-{n}" for n in range(8)]
    topics = ["house", "ways", "house", "water", "ways", "house", "ways", "house"]
    columns = [QUESTIONS, ANSWERS, ids, topics]
    header = None if names is None else [*names, *extra]
    write_table(
        path,
        [columns[at] for at in order],
        header and [header[at] for at in order],
        separator,
        quoted=quoted,
    )
    pairs = list(zip(QUESTIONS, ANSWERS, strict=True))
    swapped = [(answer, question) for question, answer in pairs]
    try:
        found = list(iter_pairs(path))
    except DataError as asked:  # names that look like nothing may be data
        assert "header" in asked.message  # noqa: PT017 - both ends are fine
        return
    is_known = names is not None and names != NAMES[2]
    in_order = order.index(0) < order.index(1)
    assert found == (pairs if is_known or in_order else swapped)


@settings(max_examples=40)
@given(order=st.permutations(range(3)), name=st.sampled_from(["score", "match", "балл", "value"]))
def test_a_score_is_found_under_any_name_and_place(tmp_path_factory, order, name):
    path = tmp_path_factory.mktemp("scores") / "table.tsv"
    scores = ["4.2", "0.5", "3.1", "5", "1.75", "2", "0", "4.8"]
    columns, header = [QUESTIONS, ANSWERS, scores], ["question", "answer", name]
    write_table(
        path, [columns[at] for at in order], [header[at] for at in order], "\t", quoted=False
    )
    expected = list(zip(QUESTIONS, ANSWERS, map(float, scores), strict=True))
    assert list(iter_scored_pairs(path)) == expected
    with pytest.raises(DataError, match="judges the pairs"):
        _ = Table(path, Job.ROWS).reading


def test_every_dropped_row_is_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "sentence1,sentence2,score\nA dog.,A cat.,1\nA dog.,A cow.,\nA dog.,A hen.,nan\nA "
        "fox.,A den.,3\n"
    )
    progress = helpers.Told()
    given = Given.of(TableOptions(), progress=progress)
    assert [score for *_, score in iter_scored_pairs(path, given)] == [1.0, 3.0]
    assert any("2 rows have no score" in line for line in progress.lines)
    left_out = Counter()
    path.write_text("question,answer\nA?,b\nC?,\nnan,d\n")
    assert list(iter_pairs(path, left_out=lambda: left_out.update(n=1))) == [("A?", "b")]
    assert left_out["n"] == 2


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ('id,subject\n1,hello\n2,"good, bye"\n', ","),
        ("id;subject\n1;hello\n", ";"),
        ("Yes, please\nNo, thanks\n", None),  # the first line is no line of names
        ("yes,no\nA dog, a cat, a bird\n", None),
        ("id,subject\n", None),
        ("a\tb\nc\td\n", "\t"),
        ("id,subject\na\rb,c\n", None),  # a carriage return within a line
    ],
)
def test_lines_of_text_below_a_line_of_names_look_like_cells(text, separator):
    assert cells_in_text(text.removesuffix("\n").split("\n")) == separator


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_json_without_end_of_its_nesting_is_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"a": ' * 100_000)
    with pytest.raises(DataError, match="nested more than 100 levels deep"):
        list(Table(path, Job.TEXTS).texts())


def test_a_digit_that_is_no_number_names_no_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("left,right\nA dog.,A cat.\n")
    with pytest.raises(DataError, match="no column ²"):
        next(Table(path, Job.LINT).column("²"))


def test_a_packed_value_that_unpacks_to_too_much_is_refused_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr("simcse_cli.data.formats.LARGEST_TEXT", 1000)
    n_read = 0

    def lines(*_, **__):
        nonlocal n_read
        for n_read in range(10**6):
            yield "[" * (n_read < 2)

    monkeypatch.setattr("simcse_cli.data.formats.iter_lines", lines)
    with pytest.raises(DataError, match=r"a\.json\.gz has more than"):
        Table(tmp_path / "a.json.gz", Job.TEXTS).reading  # noqa: B018
    assert n_read < 2000


def test_a_question_names_columns_by_titles_that_are_numbers(tmp_path):
    rows = [
        f"The cat sees {n}.,A dog barks at {n}.,My bird sings {n} songs.,{n} cows." for n in "abc"
    ]
    (tmp_path / "a.csv").write_text("\n".join(["0,1,2,3", *rows]))
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.csv", "pairs", ())
    first, second, *_ = caught.value.hint.splitlines()
    for hint, wanted in ((first, [("0", 0), ("1", 1)]), (second, [("0", 0), ("2", 2)])):
        words = hint.split()[2:]
        assert words[1] == f"anchor={wanted[0][0]},positive={wanted[1][0]}"
        table = Table(tmp_path / "a.csv", Job.ROWS, given_of("pairs", words, SilentProgress()))
        assert table.reading.places("anchor", "positive") == tuple(place for _, place in wanted)


def test_ids_are_used_whether_they_are_named_or_numbered(tmp_path):
    (tmp_path / "a.csv").write_text(
        "id,text,topic\n101,A dog runs.,sport\n102,A cat sleeps.,home\n"
    )
    for column in ("id", "1"):
        progress = helpers.Told()
        options = Given.of(TableOptions(), progress=progress).of_texts("text", None, column)
        assert Table(tmp_path / "a.csv", Job.TEXTS, options).count() == 2
        assert [line.partition("not used: ")[2] for line in progress.lines] == ["topic"]


@pytest.mark.parametrize("title", ["", " text", "x,y"])
def test_columns_with_names_that_cannot_be_typed_are_numbered(tmp_path, title):
    row = json.dumps({title: "A dog runs fast.", "two": "A cat sleeps now.", "more": "It is so."})
    (tmp_path / "a.jsonl").write_text(row)
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.jsonl", "pairs", ())
    words = caught.value.hint.splitlines()[1].split()[2:]
    assert read(tmp_path / "a.jsonl", "pairs", words)
    assert words == ["--columns", "anchor=1,positive=two"]
