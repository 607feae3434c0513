import json

import pytest

from simcse_cli.data.nli import Label, NliPair, iter_nli
from simcse_cli.errors import DataError

E, N, C = Label
EXPECTED = [
    NliPair("p", "h", E),
    NliPair("p", "i", N),
    NliPair("p", "j", C),
    NliPair("p", "k", None),
]


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


SNLI = jsonl(*({"gold_label": label, "sentence1": "p", "sentence2": h, "captionID": "1"} for label, h in
               [("entailment", "h"), ("neutral", "i"), ("contradiction", "j"), ("-", "k")]))  # fmt: skip
ANLI = jsonl(*({"uid": "1", "context": "p", "hypothesis": h, "label": label} for label, h in
               [("e", "h"), ("n", "i"), ("c", "j"), ("", "k")]))  # fmt: skip
HUB = jsonl(*({"premise": "p", "hypothesis": h, "label": label} for label, h in
              [(0, "h"), (1, "i"), (2, "j"), (-1, "k")]))  # fmt: skip
TSV = "gold_label\tsentence1_parse\tsentence1\tsentence2\n" + "".join(
    f'{label}\t( "x )\tp\t{h}\n'
    for label, h in [("entailment", "h"), ("neutral", "i"), ("contradiction", "j"), ("-", "k")]
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("snli.jsonl", SNLI),
        ("anli.jsonl", ANLI),
        ("hub.jsonl", HUB),
        ("mnli.tsv", TSV),
        ("snli_train.txt", TSV),
    ],
)
def test_iter_nli_reads_the_published_layouts(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert [list(pairs) for pairs in iter_nli(tmp_path / name)] == [EXPECTED]


def test_labels_of_two_classes_are_no_numbers_of_an_nli_corpus(tmp_path):
    rows = "".join(f"A dog {i}.,A hen {i}.,{i % 2}\n" for i in range(300))
    (tmp_path / "a.csv").write_text(f"sentence1,sentence2,label\n{rows}")
    with pytest.raises(DataError, match="no label is 2, only 0 and 1") as caught:
        list(*iter_nli(tmp_path / "a.csv"))
    assert "--keep-label 1" in caught.value.hint
    (tmp_path / "a.csv").write_text(f"sentence1,sentence2,label\n{rows}A cow.,A cat.,2\n")
    (pairs,) = iter_nli(tmp_path / "a.csv")
    assert [pair.label for pair in pairs][-2:] == [N, C]


def test_words_of_scitail_and_xnli_are_labels(tmp_path):
    rows = ["A man sleeps.,Somebody rests.,entails", "A dog runs.,It sleeps.,contradictory"] * 3
    (tmp_path / "a.csv").write_text("\n".join(["premise,hypothesis,label", *rows]))
    (pairs,) = iter_nli(tmp_path / "a.csv")
    assert [pair.label for pair in pairs] == [E, C] * 3


def test_missing_texts_of_tables_are_empty(tmp_path):
    rows = ["A man sleeps.,Somebody rests.,entailment", "A dog runs.,nan,neutral"] * 3
    (tmp_path / "a.csv").write_text("\n".join(["premise,hypothesis,label", *rows]))
    (pairs,) = iter_nli(tmp_path / "a.csv")
    assert [pair.hypothesis for pair in pairs] == ["Somebody rests.", ""] * 3


def write_senteval(folder):
    for split in ("dev", "test"):
        (folder / f"s1.{split}").write_text("p \np \n")
        (folder / f"s2.{split}").write_text("h \ni \n")
        (folder / f"labels.{split}").write_text("entailment\nneutral\n")


@pytest.mark.parametrize(
    ("name", "n_files"), [("s1.dev", 1), ("s2.test", 1), ("labels.dev", 1), ("", 2)]
)
def test_iter_nli_reads_the_senteval_layout(tmp_path, name, n_files):
    write_senteval(tmp_path)
    assert [list(pairs) for pairs in iter_nli(tmp_path / name)] == [EXPECTED[:2]] * n_files


def test_iter_nli_counts_the_lines_of_the_three_files(tmp_path):
    write_senteval(tmp_path)
    (tmp_path / "s2.dev").write_text("h\n")
    with pytest.raises(DataError, match=r"s1\.dev 2, s2\.dev 1, labels\.dev 2"):
        [list(pairs) for pairs in iter_nli(tmp_path)]


def test_iter_nli_takes_the_files_of_senteval_only_where_there_are_labels(tmp_path):
    write_senteval(tmp_path)
    (tmp_path / "s1.jsonl").write_text(SNLI)
    (tmp_path / "pairs.dev").write_text(TSV)
    for name in ("s1.jsonl", "pairs.dev"):
        assert [list(pairs) for pairs in iter_nli(tmp_path / name)] == [EXPECTED]


def test_iter_nli_names_the_line_of_a_label_file(tmp_path):
    write_senteval(tmp_path)
    (tmp_path / "labels.dev").write_text("entailment\nmaybe\n")
    with pytest.raises(DataError, match=r"labels\.dev, line 2: label 'maybe'"):
        [list(pairs) for pairs in iter_nli(tmp_path / "labels.dev")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            jsonl({"sentence1": "a", "sentence2": "b", "gold_label": "maybe"}),
            "line 1: label 'maybe'",
        ),
        (jsonl({"sentence1": "a", "sentence2": "b"}), "no column looks like the label"),
    ],
)
def test_iter_nli_names_what_is_no_nli(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        [list(pairs) for pairs in iter_nli(tmp_path / "a.jsonl")]


def test_iter_nli_refuses_folders_of_something_else(tmp_path):
    with pytest.raises(DataError, match=r"without labels\.\* files"):
        list(iter_nli(tmp_path))
