"""Pair files in every layout give the same pairs; what cannot be read names the line and the fix."""

import json

import numpy as np
import pytest

from simcse_cli.data.given import Given, Told, parse_columns
from simcse_cli.data.pair_files import SCORED_PAIR, iter_pairs, iter_scored_pairs, read_scored_pairs
from simcse_cli.data.senteval import StsSubset, read_sts_task, stsb_pairs
from simcse_cli.errors import DataError
from simcse_cli.progress import SilentProgress
from simcse_cli.results.result import PUBLISHED, describe_set

ROWS = [("A man, alone.", "Someone; here", 0.8), ('He said "no".', "No.", 0.25)]


def as_jsonl(*names):
    rows = (dict(zip(names, row, strict=True)) if names else list(row) for row in ROWS)
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_words_are_no_scores_whatever_the_name_of_the_column(tmp_path):
    path = tmp_path / "nli.csv"
    rows = "A man.,A person.,entailment\nA dog.,A cat.,contradiction\n"
    path.write_text("premise,hyp,gold\n" + 4 * rows)
    with pytest.raises(DataError, match="no column looks like the score") as caught:
        read_scored_pairs(path)
    assert caught.value.hint == "add a column of numbers named score"


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.csv", 'sentence1,sentence2,score\n"A man, alone.",Someone; here,0.8\n"He said '
'""no"".",No.,0.25\n', None),
        ("a.csv", 'score;text1;text2\n0.8;A man, alone.;"Someone; here"\n0.25;"He said '
'""no"".";No.\n', None),
        ("a.csv", 'A;B;C\nA man, alone.;"Someone; here";0.8\n"He said ""no"".";No.;0.25\n', "left=A,right=B,score=C"),
        ("a.tsv", 'premise\thypothesis\trating\nA man, alone.\tSomeone; here\t0.8\nHe said '
'"no".\tNo.\t0.25\n', None),
        ("a.tsv", 'A man, alone.\tSomeone; here\t0.8\nHe said "no".\tNo.\t0.25\n', None),
        ("a.txt", '0.8\tA man, alone.\tSomeone; here\n0.25\tHe said "no".\tNo.\n', None),
        ("a.txt", '0.8\tA man, alone.\tSomeone; here\n0.25\tHe said "no".\tNo.\n', "left=2,right=3,score=1"),
        ("a.jsonl", as_jsonl("sentence1", "sentence2", "label"), None),
        ("a.jsonl", as_jsonl(), None),
        ("a.jsonl", as_jsonl("q1", "q2", "how"), "left=q1,right=q2,score=how"),
        ("a.csv", 'topic,left,right,score\nx,"A man, alone.",Someone; here,0.8\ny,"He said '
'""no"".",No.,0.25\n', None),
        ("a.csv", 'label,left,right,score\n1,"A man, alone.",Someone; here,0.8\n0,"He said '
'""no"".",No.,0.25\n', None),
        ("a.jsonl", '{"left": "A man, alone.", "right": "Someone; here", "score": 0.8}\n'
         '{"left": "He said \\"no\\".", "sentence2": "No.", "score": 0.25}\n', None),
        ("a.jsonl", '{"left": "A man, alone.", "right": "Someone; here", "score": 0.8}\n'
         '{"sentence1": "He said \\"no\\".", "sentence2": "No.", "rating": 0.25}\n', None),
        ("sts-dev.csv", 'g\tf\t2017\t1\t0.8\tA man, alone.\tSomeone; here\tCC\n'
         'g\tf\t2017\t2\t0.25\tHe said "no".\tNo.\n', None),
    ],
)  # fmt: skip
def test_every_layout_gives_the_same_pairs(tmp_path, name, text, columns):
    path = tmp_path / name
    path.write_text(text)
    names = parse_columns(columns, SCORED_PAIR)
    read = read_scored_pairs(path, Given(names))
    assert list(zip(read.left, read.right, read.gold.tolist(), strict=True)) == ROWS
    pair_names = {role: column for role, column in names.items() if role != "score"}
    assert list(iter_pairs(path, Given(pair_names))) == [row[:2] for row in ROWS]


def test_parquet_pairs_keep_their_scale_and_drop_blank_scores(tmp_path):
    import pyarrow
    from pyarrow import parquet

    table = {
        "sentence1": ["a", "b", "c"],
        "sentence2": ["d", "e", "f"],
        "score": [100.0, None, -1.0],
    }
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    read = read_scored_pairs(tmp_path / "a.parquet")
    assert (read.left, read.gold.tolist()) == (["a", "c"], [100.0, -1.0])


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("A,B,C,D\nOne text.,Another text here.,3,2\nA third one.,A fourth one here.,1,7\n",
         "2 columns may hold the score", "--columns left=A,right=B,score=C"),
        ("sentence1,sentence2\na,b\n", "no column looks like the score", None),
        ("One text.,5,1\nA third one.,6,2\n", "no two columns look like texts", "two columns of texts"),
        ("sentence1,sentence2,score\na,b,inf\nc,d,2\n", "'inf' is not a finite number", "write a number there"),
        ("sentence1,sentence2,score\na,b,high\nc,d,2\n", "line 2: score 'high' is not a finite number", "--columns"),
        ("sentence1,sentence2,score\na,,1\n", "line 2: the right text is empty", "remove the row"),
        ("sentence1,sentence2,score\na,b,\n", "holds no pair with a score", None),
    ],
)  # fmt: skip
def test_what_cannot_be_read_names_line_and_fix(tmp_path, text, message, hint):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_scored_pairs(tmp_path / "a.csv")
    assert hint is None or hint in caught.value.hint


def read_scores(tmp_path, *scores):
    """Return what was read of a column of scores, and what was told about it."""
    rows = "".join(f"One text {n}.;Another {n}.;{score}\n" for n, score in enumerate(scores))
    (tmp_path / "a.csv").write_text(f"left;right;score\n{rows}")
    lines = []
    progress = SilentProgress()
    progress.info = lines.append
    given = Given(told=Told(progress))
    return read_scored_pairs(tmp_path / "a.csv", given).gold.tolist(), lines


@pytest.mark.parametrize(
    ("scores", "message", "hint"),
    [
        (["90%", "40%", "0.8"], r"line 4: score '0.8' has no .* '90%' has one \(.*line 2\)", "0.9"),
        (["0,8", "40 %"], r"line 2: score '0,8' has no .* '40 %' has one \(.*line 3\)", "0.9"),
        (["1,234", "900", "5"], r"line 2: score '1,234' may be .* '900' \(.*line 3\)", "write 1234 "),
        (["3", "1,000", "2,500"], r"line 3: score '1,000' may be .* '3' \(.*line 2\)", "write 1000 "),
        (["1.000,5", "2"], "line 2: score '1.000,5' is not", "such as 1000.5"),
    ],
)  # fmt: skip
def test_scores_of_two_spellings_are_refused(tmp_path, scores, message, hint):
    with pytest.raises(DataError, match=message) as caught:
        read_scores(tmp_path, *scores)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("scores", "numbers"),
    [
        (["0,85", "3,5", "100"], [0.85, 3.5, 100]),
        (["1,000", "0,250", "3"], [1, 0.25, 3]),
        (["3,667", "5", "2,333"], [3.667, 5, 2.333]),
        (["1,000", "2,500"], [1, 2.5]),
    ],
)
def test_decimal_commas_are_told(tmp_path, scores, numbers):
    found, lines = read_scores(tmp_path, *scores)
    assert found == numbers
    assert lines == [f"{tmp_path}/a.csv: commas in scores are read as decimal points"]


def test_a_word_in_a_named_column_of_scores_is_to_be_written_as_a_number(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\nOne text.,Another text.,high\nA.,B.,2\n")
    with pytest.raises(DataError, match="score 'high'") as caught:
        read_scored_pairs(tmp_path / "a.csv", Given(parse_columns("a,b,c", SCORED_PAIR)))
    assert "write a number" in caught.value.hint


def test_files_of_senteval_are_read_as_the_protocol_reads_them(shared_data):
    sts = shared_data / "senteval" / "downstream" / "STS"
    for split in ("dev", "test"):
        path = sts / "STSBenchmark" / f"sts-{split}.csv"
        assert read_scored_pairs(path).digest == StsSubset.of(stsb_pairs(path), path).digest
    year = read_sts_task(shared_data / "senteval", "STS16").subsets["headlines"]
    assert (
        read_scored_pairs(sts / "STS16-en-test" / "STS.input.headlines.txt").digest == year.digest
    )
    sick = read_sts_task(shared_data / "senteval", "SICKRelatedness").subsets["test"]
    read = read_scored_pairs(
        shared_data / "senteval" / "downstream" / "SICK" / "SICK_test_annotated.txt"
    )
    assert (read.digest, read.n_pairs) == (sick.digest, 4927)
    assert describe_set("SICKRelatedness", "test", 4927, None) == PUBLISHED


def test_files_of_an_sts_year_need_scores_only_where_they_are_read(tmp_path):
    path = tmp_path / "STS.input.headlines.txt"
    path.write_text("a  b\tc\tsource\nx\ty\n\td\n")
    left_out = []
    pairs = iter_pairs(path, left_out=lambda: left_out.append(1))
    assert list(pairs) == [("a b", "c"), ("x", "y")]
    assert len(left_out) == 1

    path.write_text("a  b\tc\tsource\nx\ty\n")
    (tmp_path / "STS.gs.headlines.txt").write_text("3\n\n")
    progress = SilentProgress()
    lines = []
    progress.info = lines.append
    assert read_scored_pairs(path, Given(told=Told(progress))).left == ["a b"]
    assert lines == [f"{path}: 1 row has no score, not annotated, and left out"]


def test_digests_of_the_published_and_the_demo_sets_are_known(shared_data, tmp_path):
    from simcse_cli.data.demo import build_demo_corpus, write_demo_corpus
    from simcse_cli.data.demo_grammar import DemoSizes
    from simcse_cli.data.transfer_files import read_transfer_task
    from simcse_cli.results.result import DEMO
    from simcse_cli.settings.choices import STS_TASKS

    for name in STS_TASKS:
        task = read_sts_task(shared_data / "senteval", name)
        assert describe_set(name, "test", task.n_pairs, task.digest) == PUBLISHED
    trec = read_transfer_task(shared_data / "senteval", "TREC")
    assert describe_set("TREC", "test", 500, trec.digest) == PUBLISHED
    write_demo_corpus(build_demo_corpus(DemoSizes(), seed=42), tmp_path, force=True)
    demo = read_sts_task(tmp_path, "STSBenchmark")
    assert describe_set("STSBenchmark", "test", demo.n_pairs, demo.digest) == DEMO
    assert describe_set("STS12", "test", 3108, "0") == "3,108 examples that are not those published"
    assert describe_set("STS12", "test", 7, None) == "7 examples instead of the published 3,108"
    assert describe_set("mine", "test", 7, None) is None


def test_positive_pairs_follow_the_scale():
    from simcse_cli.evaluation.alignment import is_positive

    assert is_positive(np.array([4.0, 4.2, 5.0])).tolist() == [False, True, True]
    assert is_positive(np.array([0.8, 0.81, 0.1])).tolist() == [False, True, False]
    assert is_positive(np.array([80.0, 81.0, 6.0])).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("header", "labels", "asks"),
    [
        ("premise,hypothesis,label", "012", True),
        ("premise,hypothesis,label", "010", True),
        ("sentence1,sentence2,label", "012", True),
        ("sentence1,sentence2,label", ["0", "-1", "1"], True),
        ("sentence1,sentence2,label", 110 * "0" + "12", True),
        ("sentence1,sentence2,label", 60 * "01" + "2", True),
        ("sentence1,sentence2,label", 60 * "012" + "3", False),
        ("sentence1,sentence2,label", "010", False),
        ("sentence1,sentence2,label", "015", False),
        ("sentence1,sentence2,score", "012", False),
    ],
)
def test_classes_are_no_scores(tmp_path, header, labels, asks):
    rows = [f"A dog {i}.,An animal {i}.,{label}\n" for i, label in enumerate(labels)]
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{''.join(rows)}")
    named = Given(dict(zip(("left", "right", "score"), header.split(","), strict=True)))
    scores = list(map(float, labels))
    assert [score for *_, score in iter_scored_pairs(path, named)] == scores
    if asks:
        with pytest.raises(DataError, match="which may be classes") as caught:
            list(iter_scored_pairs(path))
        assert f"--columns left={header.split(',')[0]}," in caught.value.hint
    else:
        assert [score for *_, score in iter_scored_pairs(path)] == scores


@pytest.mark.parametrize("name", ["test_id", "old_index", "id", "#1 ID"])
def test_ids_are_no_scores(tmp_path, name):
    rows = [f"{number},How far is {number}?,How long is {number}?\n" for number in (2, 7, 9, 12)]
    path = tmp_path / "a.csv"
    path.write_text(f"{name},question1,question2\n{''.join(rows)}")
    with pytest.raises(DataError, match="no column looks like the score") as caught:
        list(iter_scored_pairs(path))
    assert caught.value.hint == "add a column of numbers named score"


@pytest.mark.parametrize(
    ("scores", "refused"), [("-1 4.5 0", True), ("-1 1 0.5", False), ("-1 4 -0.5", False)]
)
def test_the_score_minus_one_may_be_none(tmp_path, scores, refused):
    rows = [f"A dog {i}.,A hen {i}.,{score}\n" for i, score in enumerate(scores.split())]
    path = tmp_path / "a.csv"
    path.write_text(f"sentence1,sentence2,score\n{''.join(rows)}")
    if refused:
        with pytest.raises(DataError, match=r"line 2: score -1 beside scores from 0 to 4\.5"):
            list(iter_scored_pairs(path))
    else:
        assert len(list(iter_scored_pairs(path))) == 3


def test_pairs_that_all_have_an_empty_text_are_not_called_missing_rows(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2\n , \na,\n")
    with pytest.raises(DataError, match=r"pairs\.csv: every row has an empty text, need pairs"):
        list(iter_pairs(path))
