import json
from itertools import combinations

import pytest

from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import RowPosition, Table
from simcse_cli.errors import DataError
from simcse_cli.prepare.lint import (
    Check,
    Linter,
    faults,
    guess_language,
    lint_files,
    lint_outcome,
    training_rows,
)
from simcse_cli.prepare.options import LintFileOptions
from simcse_cli.progress import SilentProgress

ENGLISH = "The cat was in the house and it was not happy."


def count_words(texts):
    return [len(text.split()) for text in texts]


def lint(*rows, count_tokens=None, max_length=2):
    linter = Linter(count_tokens, max_length)
    assert list(linter.watch(rows)) == list(rows)
    return {finding.check: finding for finding in linter.findings()}


@pytest.mark.parametrize(
    ("row", "check"),
    [
        (("",), Check.EMPTY),
        (("a sentence", "0.543"), Check.NUMBER_AS_TEXT),
        (("  ", "a"), Check.EMPTY),
        (("\u200b", "a"), Check.EMPTY),
        (("a\x07b", "c"), Check.CONTROL_CHARACTERS),
        (("caf\u00c3\u00a9", "c"), Check.WRONG_ENCODING),
        (("it\u00e2\u20ac\u2122s",), Check.WRONG_ENCODING),
        (("a \ufffd b",), Check.WRONG_ENCODING),
        (("A dog.", "a dog"), Check.ANCHOR_IS_POSITIVE),
        (("a", "A dog.", "a dog"), Check.POSITIVE_IS_HARD_NEGATIVE),
    ],
)
def test_linter_finds_one_problem_in_one_row(row, check):
    found = lint(("fine", "well", "good")[: len(row)], row)
    assert list(found) == [check]
    assert (found[check].n_rows, found[check].share, found[check].first_row) == (1, 0.5, 2)


@pytest.mark.parametrize(
    "text", ["Ça va très bien.", "“Quoted” – naïve café", "Ångström Â", "नमस्ते", "a\tb"]
)
def test_linter_accepts_clean_texts(text):
    assert lint((text,)) == {}


def test_linter_finds_repeated_and_swapped_pairs():
    found = lint(("a b", "c"), ("A b!", "c"), ("c", "a b"), ("d", "e"))
    assert found[Check.DUPLICATE_PAIR].first_row == 2
    assert found[Check.SWAPPED_COLUMNS].first_row == 3
    assert (found[Check.SHARED_TEXT].first_row, found[Check.SHARED_TEXT].n_rows) == (2, 2)
    assert len(found) == 3


@pytest.mark.parametrize("exchanged", [("a", "c", "b"), ("b", "a", "c")])
def test_linter_finds_two_texts_of_a_triplet_exchanged(exchanged):
    found = lint(("a", "b", "c"), exchanged)
    assert list(found) == [Check.SHARED_TEXT, Check.SWAPPED_COLUMNS]


def test_texts_that_rows_share_are_counted_but_no_fault():
    found = lint(("a", "b"), ("c", "c"), ("d", "a"), ("A", "e"))
    assert [
        (check, each.n_rows, each.first_row)
        for check, each in found.items()
        if check is Check.SHARED_TEXT
    ] == [(Check.SHARED_TEXT, 1, 3)]
    assert Check.SHARED_TEXT not in {each.check for each in faults(found.values())}


def test_repeated_texts_are_counted_but_no_fault(tmp_path):
    (tmp_path / "a.txt").write_text("a\nA\n")
    found = lint_files([tmp_path / "a.txt"], LintFileOptions(), None, SilentProgress()).findings()
    assert [(each.check, each.n_rows) for each in found] == [(Check.REPEATED_TEXT, 1)]
    assert faults(found) == []
    assert lint(("a",), ("A",)) == {}


@pytest.mark.parametrize(
    ("text", "check"), [("nan", Check.MISSING_VALUE), ("['a', 'b']", Check.LIST_AS_TEXT)]
)
def test_linter_finds_what_programs_write_for_nothing_and_for_lists(text, check):
    assert list(lint(("a dog",), (text,))) == [check]


def test_a_table_in_a_text_file_is_found(tmp_path):
    (tmp_path / "a.txt").write_text("1\ta dog\n2\ta cat\n")
    linter = lint_files([tmp_path / "a.txt"], LintFileOptions(), None, SilentProgress())
    assert [(each.check, each.n_rows) for each in linter.findings()] == [(Check.CELLS_AS_TEXT, 2)]


def test_kanji_with_and_without_kana_are_one_script():
    found = lint(("東京都庁舎展望室",), ("これはペンです",), ("東京タワー",))
    assert Check.LANGUAGE_MIX not in found or found[Check.LANGUAGE_MIX].share <= 1


def test_a_row_of_two_languages_counts_once():
    german = "Das ist nicht der Hund, und ich mit dem Kind auch nicht."
    found = lint((ENGLISH, german), (ENGLISH, german), (ENGLISH, german))
    assert found[Check.LANGUAGE_MIX].n_rows == 3


def test_linter_finds_rows_in_another_language_than_most():
    german = "Das ist nicht der Hund, und ich mit dem Kind auch nicht."
    found = lint((ENGLISH,), (ENGLISH,), (german,), ("Де бабушка живёт",))
    assert list(found) == [Check.LANGUAGE_MIX]
    assert (found[Check.LANGUAGE_MIX].n_rows, found[Check.LANGUAGE_MIX].first_row) == (2, 3)


def test_of_two_languages_that_are_as_frequent_the_same_one_is_always_the_main_one():
    # In a set of two languages, either may come first, in each process anew.
    texts = ["Де живёт", "αβγδε", "שלום עולם", "مرحبا", "नमस्ते", "สวัสดี", "안녕하세요", "გამარჯობა"]
    by_language = {guess_language(text): text for text in texts}
    *_, last = sorted(by_language)
    for first, second in combinations(sorted(by_language.keys() - {last}), 2):
        texts_of = [(first, second), (first, last), (second,)]
        found = lint(*(tuple(by_language[name] for name in names) for names in texts_of))
        assert found[Check.LANGUAGE_MIX].n_rows == 3  # `first` is the main one


def test_linter_accepts_a_corpus_in_one_other_language():
    assert lint(("Де бабушка живёт",), ("Привет, мир",)) == {}


def test_linter_counts_cut_texts_with_the_tokenizer_given():
    rows = [("one two",), ("one two three",)] * 700
    found = lint(*rows, count_tokens=count_words)
    assert list(found) == [Check.TRUNCATED]
    assert (found[Check.TRUNCATED].n_rows, found[Check.TRUNCATED].first_row) == (700, 2)


def test_linter_counts_a_row_once_however_many_texts_are_cut():
    found = lint(("a b c", "d e f"), ("g", "h i j"), ("k", "l"), count_tokens=count_words)
    assert found[Check.TRUNCATED].n_rows == 2


@pytest.mark.parametrize(("n_rows", "sizes"), [(1024, [1024]), (1025, [1024, 1])])
def test_linter_has_many_texts_counted_together_but_never_none(n_rows, sizes):
    asked = []
    lint(
        *[("a",)] * n_rows,
        count_tokens=lambda texts: asked.append(len(texts)) or count_words(texts),
    )
    assert asked == sizes


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("a\x07b", "a\\x07b"),
        ("\x07" + "a" * 56, "\\x07" + "a" * 56),
        ("\x07" + "a" * 57, "\\x07" + "a" * 55 + "…"),
    ],
)
def test_linter_shows_control_characters_and_sixty_characters_in_its_example(text, example):
    assert lint((text,))[Check.CONTROL_CHARACTERS].example == example


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat was in the house and it was not happy with that.", "English"),
        ("Das ist nicht der Hund, den ich auf dem Weg gesehen habe.", "German"),
        ("Les enfants sont dans une maison qui est au bord du lac.", "French"),
        ("Los niños están en una casa que está cerca del río y muy lejos.", "Spanish"),
        ("Il cane non è nella casa che ha una porta.", "Italian"),
        ("Het kind is niet op de fiets van zijn vader.", "Dutch"),
        ("Ele não foi com os dois cães da sua mãe.", "Portuguese"),
        ("The dog is with us.", "English"),  # three function words
        ("The dog is ours.", None),  # two
        ("los las que para", "Spanish"),  # four function words, of which two are Portuguese, too
        ("los que para", None),
        ("Де бабушка живёт", "Cyrillic"),
        ("мир cat", None),  # half of the letters
        ("миру cat και", None),
        ("我喜欢猫", "CJK"),
        ("नमस्ते दुनिया", "Devanagari"),
        ("Two dogs run.", None),
        ("", None),
        ("1234 …", None),
    ],
)
def test_guess_language_of_clear_and_unclear_texts(text, expected):
    assert guess_language(text) == expected


def test_guess_language_goes_by_most_letters():
    assert guess_language("The word мир is in the title of that book.") == "English"


def rows_of(path, columns=None):
    return list(training_rows(Table(path, Job.LINT, Given(columns or {})), RowPosition()))


def test_training_rows_takes_the_columns_there_are(tmp_path):
    (tmp_path / "a.csv").write_text("sent0,sent1,hard_neg\na,b,c\n")
    (tmp_path / "b.txt").write_text("one\n")
    assert rows_of(tmp_path / "a.csv") == [("a", "b", "c")]
    assert rows_of(tmp_path / "b.txt") == [("one",)]
    (tmp_path / "c.jsonl").write_text('{"query": "q", "pos": ["a", "b"], "score": 1}')
    assert rows_of(tmp_path / "c.jsonl") == [("q", "a"), ("q", "b")]
    (tmp_path / "d.jsonl").write_text(
        '{"sent0": "a", "hard_neg": "b", "n": 1}\n{"sent0": "c", "hard_neg": null, "n": 2}'
    )
    assert rows_of(tmp_path / "d.jsonl") == [("a",), ("c",)]
    (tmp_path / "lists.jsonl").write_text('{"p": ["a"], "q": ["b"], "r": ["c"], "s": ["d"]}')
    assert rows_of(tmp_path / "lists.jsonl") == [('["a"]', '["b"]', '["c"]', '["d"]')]
    (tmp_path / "e.csv").write_text("left,right\na,b\n")
    assert rows_of(tmp_path / "e.csv", {"anchor": "right"}) == [("b",)]
    assert rows_of(tmp_path / "e.csv") == [("a", "b")]


def test_findings_name_the_file_and_its_row(invoke, tmp_path):
    for name, text in (("a.txt", "one\n2\n"), ("b.txt", "three\n\n"), ("c.txt", "four\x07\n\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt")]
    outcome = invoke("prepare", "lint", *files, "--format", "json")
    found = {
        each["check"]: (each["n_rows"], each["file"], each["first_row"])
        for each in findings_of(outcome)
    }
    assert found == {
        "empty": (2, files[1], 2), "number_as_text": (1, files[0], 2), "control_characters": (1, files[2], 1),
        "repeated_text": (1, files[2], 2),
    }  # fmt: skip
    assert "b.txt" in invoke("prepare", "lint", *files).stdout
    assert "  file  " not in invoke("prepare", "lint", files[1]).stdout


def test_a_finding_after_a_list_has_the_row_of_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"query": "q", "pos": ["a", "b"]}\n{"query": "r", "pos": ["c\\u0007"]}\n')
    linter = lint_files([path], LintFileOptions(), None, SilentProgress())
    (finding, _) = linter.findings()  # the other one is the shared text
    assert (finding.check, finding.first_row, linter.n_rows) == (Check.CONTROL_CHARACTERS, 2, 3)


def test_lint_outcome_lists_every_check_and_the_files_of_several(tmp_path):
    sources = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    for source, text in zip(sources, ("one\n\n", "two three four\nfive\n"), strict=True):
        (tmp_path / source).write_text(text)
    options = LintFileOptions(max_length=3)
    linter = lint_files(sources, options, count_tokens=count_words, progress=SilentProgress())
    outcome = lint_outcome(sources, linter)
    empty = {
        "check": "empty",
        "n_rows": 1,
        "share": 0.25,
        "first_row": 2,
        "example": "",
        "file": sources[0],
    }
    readings = outcome.payload.pop("readings")
    assert [each["file"] for each in readings] == sources
    assert outcome.payload == {"inputs": sources, "n_rows": 4, "findings": [empty]}
    nothing = {"n_rows": 0, "share": 0.0, "first_row": None, "example": None, "file": None}
    assert outcome.reports[-1].rows == [
        {
            **(empty if check is Check.EMPTY else nothing),
            "check": check.replace("_", " "),
            "meaning": check.meaning,
        }
        for check in Check
    ]
    assert [column.key for column in outcome.reports[-1].columns] == [
        *("check", "n_rows", "share", "file", "first_row", "example", "meaning")
    ]
    plain = lint_files(sources[:1], options, count_tokens=None, progress=SilentProgress())
    shown = lint_outcome(sources[:1], plain).reports[-1]
    assert "truncated" not in [row["check"] for row in shown.rows]
    assert "file" not in [column.key for column in shown.columns]
    (tmp_path / "c.csv").write_text("anchor,positive\n")
    with pytest.raises(DataError, match=r"c\.csv: no rows"):
        lint_files([tmp_path / "c.csv"], options, count_tokens=None, progress=SilentProgress())


def findings_of(outcome):
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)["findings"]
