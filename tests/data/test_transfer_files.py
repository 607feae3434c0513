import numpy as np
import pytest

import helpers
from simcse_cli.data.given import Given, Told
from simcse_cli.data.transfer_files import (
    TRANSFER_ROWS,
    missing_transfer_files,
    read_task_file,
    read_transfer_task,
    transfer_files,
)
from simcse_cli.errors import DataError
from simcse_cli.progress import SilentProgress


def write_task(root, task, **contents):
    (root / "MR").mkdir(parents=True, exist_ok=True)  # marks a SentEval folder
    for role, path in transfer_files(root, task).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[role])


def test_polarity_files_are_latin1_sorted_by_length_then_label_and_keep_empty_lines(tmp_path):
    write_task(tmp_path, "CR", pos=b"caf\xe9  au lait \n\ngood\n", neg=b"bad\nit M-i s bad\n")
    task = read_transfer_task(tmp_path, "CR")
    assert task.left == ["", "bad", "good", "caf\u00e9 au lait", "it M-i s bad"]
    assert task.labels.tolist() == [1, 0, 1, 1, 0]
    assert task.parts == {"all": range(5)}
    assert task.right == []


def test_polarity_lines_break_where_the_protocol_breaks_them(tmp_path):
    write_task(tmp_path, "MPQA", pos=b"one\x85two\n", neg=b"three\x0cfour\r\n")
    assert sorted(read_transfer_task(tmp_path, "MPQA").left) == ["four", "one", "three", "two"]


def test_subj_objective_sentences_are_the_positive_class(tmp_path):
    write_task(tmp_path, "SUBJ", pos=b"a fact\n", neg=b"an opinion\n")
    assert transfer_files(tmp_path, "SUBJ")["pos"].name == "subj.objective"
    task = read_transfer_task(tmp_path, "SUBJ")
    assert dict(zip(task.left, task.labels.tolist(), strict=True)) == {"a fact": 1, "an opinion": 0}


def test_trec_takes_the_coarse_class_and_drops_the_fine_one(tmp_path):
    write_task(
        tmp_path,
        "TREC",
        train=b"NUM:dist How far : is it ?\nDESC:def Wha\xf1 ?\n",
        test=b"HUM:ind Who ?\n",
    )
    task = read_transfer_task(tmp_path, "TREC")
    assert task.left == ["Wha\u00f1 ?", "How far : is it ?", "Who ?"]
    assert task.labels.tolist() == [1, 5, 3]
    assert task.parts == {"train": range(2), "test": range(2, 3)}
    assert task.n_classes == 6


def test_sst2_has_three_parts_each_sorted_on_its_own(tmp_path):
    write_task(tmp_path, "SST2", train=b"b c\t0\na\t1\n", dev=b"d \t1\n", test=b"e f\t1\ng\t0\n")
    task = read_transfer_task(tmp_path, "SST2")
    assert task.left == ["a", "b c", "d", "g", "e f"]
    assert task.rows("dev").tolist() == [2]
    assert task.rows("test").tolist() == [3, 4]


def test_mrpc_reads_pairs_after_the_header_and_sorts_by_both_lengths(tmp_path):
    header = b"\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    train = header + b'1\t1\t2\tshe said "x\ta b c\n0\t3\t4\tone\ttwo words\n1\t5\t6\tone\ttwo\n'
    write_task(tmp_path, "MRPC", train=train, test=header + b"0\t7\t8\tl\tr\n")
    task = read_transfer_task(tmp_path, "MRPC")
    assert list(zip(task.left, task.right, task.labels.tolist(), strict=True)) == [
        ("one", "two", 1),
        ("one", "two words", 0),
        ('she said "x', "a b c", 1),
        ("l", "r", 0),
    ]
    assert task.sentences == [*task.left, *task.right]


@pytest.mark.parametrize(
    ("task", "broken", "needs"),
    [
        ("TREC", b"HUM:x Who ?\nHow far ?\n", "line 2: class 'How far ?', need one of ABBR"),
        ("SST2", b"fine\t1\nno label\n", "line 2: need a sentence, a tab and the label 0 or 1"),
        ("SST2", b"fine\t2\n", "line 1: need a sentence, a tab and the label 0 or 1"),
        ("MRPC", b"header\n1\t2\t3\n", "line 2: 3 columns, need 5"),
        ("MRPC", b"header\n1\t1\t2\ta\t \tb\n", "line 2: a sentence is blank, need two"),
        ("MRPC", b"header\n2\t1\t2\ta\tb\n", "line 2: 5 columns, need 5 (label 0 or 1"),
    ],
)
def test_malformed_line_is_named(tmp_path, task, broken, needs):
    write_task(tmp_path, task, train=broken, dev=broken, test=broken)
    with pytest.raises(DataError) as caught:
        read_transfer_task(tmp_path, task)
    assert f"{transfer_files(tmp_path, task)['train']}, line" in caught.value.message
    assert needs in caught.value.message


def test_file_without_an_example_is_refused(tmp_path):
    write_task(tmp_path, "MRPC", train=b"header only\n", test=b"header only\n")
    with pytest.raises(DataError, match="holds no example"):
        read_transfer_task(tmp_path, "MRPC")


def test_missing_files_are_listed_by_task(tmp_path):
    write_task(tmp_path, "CR", pos=b"a\n", neg=b"b\n")
    (tmp_path / "CR" / "custrev.neg").unlink()
    missing = missing_transfer_files(tmp_path, ("CR", "TREC"))
    assert [path.name for path in missing["CR"]] == ["custrev.neg"]
    assert len(missing["TREC"]) == 2


def test_size_remarks_name_what_differs_from_the_published_set(tmp_path):
    write_task(tmp_path, "CR", pos=b"a\n", neg=b"b\n")
    (remark,) = read_transfer_task(tmp_path, "CR").size_remarks()
    assert remark.startswith("CR all has 2 rows, the published set 3,775")


def test_unknown_task_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="unknown transfer task 'SST5'"):
        read_transfer_task(tmp_path, "SST5")


def test_sizes_are_those_of_senteval():
    whole = {"MR": 10662, "CR": 3775, "SUBJ": 10000, "MPQA": 10606}
    split = {
        "SST2": {"train": 67349, "dev": 872, "test": 1821},
        "TREC": {"train": 5452, "test": 500},
        "MRPC": {"train": 4076, "test": 1725},
    }
    assert {task: {"all": size} for task, size in whole.items()} | split == TRANSFER_ROWS


@pytest.mark.parametrize("name", TRANSFER_ROWS)
def test_published_files_have_the_published_sizes(shared_data, name):
    task = read_transfer_task(shared_data / "senteval", name)
    assert task.size_remarks() == []
    assert len(np.unique(task.labels)) == task.n_classes
    for part in task.parts:
        lengths = [len(task.left[row].split()) for row in task.rows(part)]
        assert lengths == sorted(lengths)


def task_of(path, text, columns=None):
    path.write_text(text)
    task = read_task_file(path, Given(columns or {}))
    rows = list(
        zip(task.left, task.right or [""] * len(task.left), task.labels.tolist(), strict=True)
    )
    return task.name, rows, task.parts, (task.n_classes, task.classes)


PAIRS = "A\tB\tlabel\tsplit\n" + "".join(
    f"{row}\n"
    for row in (
        *("one  two\tx\t10\tTrain ", "one\tx y\t9\ttrain", "one\tx\tno\ttrain"),
        *("t\tu\t9\tTEST", "v\tw\t10\tValidation", "w\tw w\t9\tDev", "w w\tw\t9\tVALID"),
    )
)


def test_task_file_has_numbered_classes_first_and_parts_in_order(tmp_path):
    texts = "text,label\na b,no\na,yes\n"
    rows = [("a", "", 1), ("a b", "", 0)]
    expected = (rows, {"all": range(2)}, (2, ("no", "yes")))
    for name in ("own.csv", "own.txt"):
        assert task_of(tmp_path / name, texts) == ("own", *expected)
    rows = [("one", "x", 2), ("one", "x y", 0), ("one two", "x", 1)]
    rows += [("v", "w", 1), ("w", "w w", 0), ("w w", "w", 0), ("t", "u", 0)]
    expected = (
        rows,
        {"train": range(3), "dev": range(3, 6), "test": range(6, 7)},
        (3, ("9", "10", "no")),
    )
    assert task_of(tmp_path / "a.tsv", PAIRS, {"left": "A", "right": "B"}) == ("a", *expected)
    usual = PAIRS.replace("A\tB", "sentence1\tsentence2")
    assert task_of(tmp_path / "a.tsv", usual) == ("a", *expected)
    left_only = [("one", "", 0), ("one", "", 2), ("one two", "", 1)]
    assert task_of(tmp_path / "a.tsv", usual, {"text": "sentence1"})[1][:3] == left_only


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,label\na,1\nb,\n", "line 3: the label is missing"),
        ("text,label\n ,1\n", "line 2: a text is missing"),
        ("left,right,label\na,,1\n", "line 2: a text is missing"),
        ("text,label\na,1\nb,1\n", "every label is 1, need two or more"),
        (
            "text,label,split\na,1,train\nb,0,other\n",
            "the parts are train, other; need train and test",
        ),
        ("text,label\n", "the parts are none"),
    ],
)
def test_task_file_that_is_no_task_is_refused(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_task_file(tmp_path / "a.csv")


def test_an_id_is_not_offered_as_the_label(tmp_path):
    rows = [f"A-{n},How are you {n}?,note {'abc'[n]}" for n in range(3)]
    (tmp_path / "a.csv").write_text("\n".join(["nr,comment,hint", *rows]))
    with pytest.raises(DataError, match="no column looks like the label") as caught:
        read_task_file(tmp_path / "a.csv")
    assert caught.value.hint == "--columns text=comment,label=hint"


def test_the_column_of_splits_is_no_unused_one(tmp_path):
    progress = SilentProgress()
    lines = []
    progress.info = lines.append
    (tmp_path / "a.tsv").write_text(PAIRS)
    given = Given({"left": "A", "right": "B"}, told=Told(progress))
    read_task_file(tmp_path / "a.tsv", given)
    assert lines == []


@pytest.mark.parametrize(
    ("header", "label"),
    [("Class,Title,Description", "Class"), ("title,content,rating", "rating"), (None, "1")],
)
def test_a_title_and_its_text_may_be_no_pair(tmp_path, header, label):
    texts = ["Rain falls.", "The hall is open today.", "All trains are late now."]
    rows = [f"{i % 4},{texts[i % 3]},Row {i}: {texts[i % 2]}" for i in range(24)]
    if label == "rating":
        rows = [",".join([*row.split(",")[1:], row[0]]) for row in rows]
    (tmp_path / "a.csv").write_text("\n".join([*filter(None, [header]), *rows]))
    with pytest.raises(DataError, match="or of the pair") as caught:
        read_task_file(tmp_path / "a.csv")
    assert caught.value.hint.count("text=") == 2
    assert "left=" in caught.value.hint


def test_names_of_a_pair_are_no_question(tmp_path):
    rows = [f"Rain falls {i}.,It is wet {i}.,{i % 2}" for i in range(24)]
    for names in ("premise,hypothesis", "text_a,text_b", "question1,question2", "s_1,s_2"):
        (tmp_path / "a.csv").write_text("\n".join([f"{names},label", *rows]))
        assert read_task_file(tmp_path / "a.csv").right


def test_codes_for_no_label_are_named(tmp_path):
    path = tmp_path / "a.csv"

    def classes_of(*labels):
        rows = [f"Row {i} falls.,{labels[i % len(labels)]}" for i in range(24)]
        path.write_text("\n".join(["sentence,label", *rows]))
        lines = helpers.Told()
        return read_task_file(path, Given(told=Told(lines))).classes, lines.lines

    with pytest.raises(DataError, match="8 rows have the label -, need a class"):
        classes_of("0", "1", "-")
    assert classes_of("+", "-") == (("+", "-"), [])
    assert classes_of("1", "-1") == (("1", "-1"), [])
    classes, (line,) = classes_of("0", "1", "-1")
    assert set(classes) == {"0", "1", "-1"}
    assert "8 rows have the class -1" in line
