import gzip
import io
import json
import os
import threading

import pytest

from simcse_cli.data.given import Given
from simcse_cli.errors import DataError, UsageError
from simcse_cli.prepare.options import PairOptions
from simcse_cli.prepare.pairs import (
    PairCounts,
    caption_rows,
    pair_rows,
    parallel_rows,
    prepare_pairs,
)
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.progress import SilentProgress

QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tHow?\tHow "
    "so?\t1\n1\t3\t4\tA\tB\t0\n"
)
MRPC = (
    '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe " said\tSaid '
    "he\n0\t7\t8\ta\tb\n"
)
WIKIAUTO = "".join(
    f"{label}\ts{i}\tn{i}\tsimple {i}\tnormal {i}\n"
    for i, label in enumerate(["aligned", "notAligned", "partialAligned"])
)
TOKEN = "10.jpg#0\ta\n10.jpg#1\tb\n10.jpg#2\tc\n20.jpg#0\td\n20.jpg#1\te\n"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("quora_duplicate_questions.tsv", QQP, [("How?", "How so?")]),
        ("msr_paraphrase_train.txt", MRPC, [('He " said', "Said he")]),
        ("train.tsv", WIKIAUTO, [("normal 0", "simple 0"), ("normal 2", "simple 2")]),
        ("scored.tsv", "notAligned\ts0\tn0\ta\tb\t0.1\naligned\ts1\tn1\tc\td\t0.9\n", [("d", "c")]),
        ("two.csv", "A dog.,A cat.\nA cow.,A hen.\n", [("A dog.", "A cat."), ("A cow.", "A hen.")]),
        ("named.csv", "score,positive,anchor\n1,b,a\n", [("a", "b")]),
        ("glue.jsonl", json.dumps({"question1": "a", "question2": "b", "label": 1}), [("a", "b")]),
        ("wiki.csv", "alignment_label,normal_sentence,simple_sentence\n0,a,b\n1,c,d\n", [("c", "d")]),
    ],
)  # fmt: skip
def test_pair_rows_finds_the_published_layouts(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    assert list(pair_rows([tmp_path / name])) == expected


def test_pair_rows_takes_the_columns_named(tmp_path):
    (tmp_path / "a.csv").write_text("id,left,right\n1,a,b\n")
    assert list(
        pair_rows([tmp_path / "a.csv"], Given({"anchor": "right", "positive": "left"}))
    ) == [("b", "a")]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "no two columns look like texts"),
        ({"anchor": "left", "positive": "wrong"}, "no column wrong; there are id, left, n"),
    ],
)
def test_pair_rows_says_which_columns_there_are(tmp_path, columns, message):
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, "left": "a", "n": 0}))
    with pytest.raises(DataError, match=message):
        list(pair_rows([tmp_path / "a.jsonl"], Given(columns)))


def test_pairs_with_a_score_are_asked_about_and_all_taken_if_named(tmp_path):
    (tmp_path / "para-nmt-50m.txt").write_text(
        "so , unhindered .\tunhindered\t0.78\na dog\ta cat\t0.5\n"
    )
    with pytest.raises(DataError, match="column 3 judges the pairs"):
        list(pair_rows([tmp_path / "para-nmt-50m.txt"]))
    given = Given({"anchor": "1", "positive": "2"})
    assert list(pair_rows([tmp_path / "para-nmt-50m.txt"], given))[1] == ("a dog", "a cat")


def test_two_classes_beside_a_hypothesis_are_asked_about(tmp_path):
    for classes in ("01", "0", ["0", "1", "-1"]):
        rows = "".join(f"A dog {i}.,An animal {i}.,{label}\n" for i, label in enumerate(classes))
        (tmp_path / "a.csv").write_text(f"premise,hypothesis,label\n{rows}")
        with pytest.raises(DataError, match="which rows are positives") as caught:
            list(pair_rows([tmp_path / "a.csv"]))
        assert "label=label --keep-label 0" in caught.value.hint
    (tmp_path / "a.csv").write_text(f"premise,hypothesis,label\n{rows}A cow.,A hen.,2\n")
    assert list(pair_rows([tmp_path / "a.csv"])) == [("A dog 0.", "An animal 0.")]


@pytest.mark.parametrize("words", ["entails neutral", "entails contradicts"])
def test_triplets_are_offered_where_labels_allow_them(tmp_path, words):
    rows = "".join(f"A dog {i}.,An animal {i}.,{words.split()[i % 2]}\n" for i in range(8))
    (tmp_path / "a.csv").write_text(rows)
    with pytest.raises(DataError, match="which rows are positives") as caught:
        list(pair_rows([tmp_path / "a.csv"]))
    assert ("make triplets" in caught.value.hint) == (words == "entails contradicts")


@pytest.mark.parametrize(
    ("header", "values"),
    [("question,sentence,label", ["entailment", "not_entailment"]), ("sent1,sent2,points", "05")],
)
def test_a_pair_of_unclear_sides_is_offered_with_its_labels(tmp_path, header, values):
    rows = "".join(f"How is dog {i}?,Dog {i} is well.,{values[i % 2]}\n" for i in range(8))
    (tmp_path / "a.csv").write_text(f"{header}\n{rows}")
    with pytest.raises(DataError, match="which rows are positives") as caught:
        list(pair_rows([tmp_path / "a.csv"]))
    assert f"label={header.split(',')[2]} --keep-label {values[0]}" in caught.value.hint


def test_the_entailments_of_sick_are_pairs(tmp_path):
    rows = "".join(
        f"a dog {i}\tan animal\t{word}\n" for i, word in enumerate(["NEUTRAL", "ENTAILMENT"])
    )
    (tmp_path / "a.tsv").write_text(f"sentence_A\tsentence_B\tentailment_label\n{rows}")
    assert list(pair_rows([tmp_path / "a.tsv"])) == [("a dog 1", "an animal")]


def test_pairs_can_come_from_standard_input_and_captions_cannot(monkeypatch):
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b"A dog.\tA cat.\nA cow.\tA hen.\n"))
    )
    assert list(pair_rows(["-"])) == [("A dog.", "A cat."), ("A cow.", "A hen.")]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TOKEN.encode())))
    with pytest.raises(DataError, match="need an image name and a caption"):
        list(caption_rows(["-"]))


def test_a_pipe_of_captions_is_not_read_twice(tmp_path):
    # What is read first, to see how the file is cut, would be lost.
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=[TOKEN])
    writer.start()
    with pytest.raises(DataError, match="need an image name and a caption"):
        list(caption_rows([tmp_path / "pipe"]))
    writer.join()


@pytest.mark.parametrize(
    ("contents", "options", "expected"),
    [
        (["image\tcaption\n1\ta\n1\tb\n"], {"flickr30k": True}, "a,b\n"),
        (["a\n", "b\n"], {"parallel": True}, "a,b\n"),
        (["id\tx\ty\n1\ta\tb\n"], {"columns": "y,x"}, "b,a\n"),
        (["q\ta\tb\n"], {}, "q,a\n"),
    ],
)
def test_prepare_pairs_writes_pairs_and_the_options_that_made_them(
    tmp_path, contents, options, expected
):
    inputs = [tmp_path / f"{number}.tsv" for number in range(len(contents))]
    for path, content in zip(inputs, contents, strict=True):
        path.write_text(content)
    chosen = PairOptions(output=tmp_path / "out.csv", **options)
    prepare_pairs(list(map(str, inputs)), chosen, RowWriter(chosen, SilentProgress()))
    assert chosen.output.read_text() == f"anchor,positive\n{expected}"
    settings = json.loads((tmp_path / "out.csv.manifest.json").read_text())["settings"]
    assert options.items() <= settings.items()


@pytest.mark.parametrize(
    "words",
    [
        ("prepare", "sentences"),
        ("prepare", "neighbours"),
        ("prepare", "duplicates", "--kind", "exact"),
        ("prepare", "nli"),
        ("prepare", "pairs", "--paraphrases"),
        ("prepare", "pairs", "--flickr30k"),
        ("prepare", "pairs", "--parallel"),
        ("augment", "--method", "delete"),
    ],
)
def test_keep_label_is_refused_where_no_labels_are_read(invoke, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text,label\na dog,1\na cat,0\n")
    outcome = invoke(*words, "a.csv", "--keep-label", "1", "-o", "o.csv")
    assert outcome.exit_code == 2
    assert "--keep-label: has no use" in outcome.stderr.replace(
        "Invalid value for '--keep-label'", "--keep-label"
    )
    assert not (tmp_path / "o.csv").exists()


def test_prepare_pairs_has_no_use_for_a_third_column(tmp_path):
    chosen = PairOptions(output=tmp_path / "out.csv", columns="a,b,c")
    with pytest.raises(UsageError, match=r"need anchor=NAME,positive=NAME$"):
        prepare_pairs(["in.csv"], chosen, RowWriter(chosen, SilentProgress()))


@pytest.mark.parametrize("read", [pair_rows, caption_rows])
def test_pair_and_caption_rows_of_an_empty_archive(tmp_path, read):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b""))
    if read is caption_rows:
        assert list(read([tmp_path / "a.txt.gz"])) == []
    else:
        with pytest.raises(DataError, match="has no rows"):
            list(read([tmp_path / "a.txt.gz"]))


@pytest.mark.parametrize(("kept", "labels"), [((), "0"), (("7",), "0"), (("7", "8"), "0, 1")])
def test_labels_without_pairs_are_named(tmp_path, kept, labels):
    rows = [f"How are you {n}?,Who is it {n}?,{labels[-1] if n % 2 else 0}" for n in range(4)]
    (tmp_path / "a.csv").write_text("\n".join(["question1,question2,is_duplicate", *rows]))
    given = Given(roles=("anchor", "positive", "label"), keep_labels=kept)
    with pytest.raises(DataError, match=f"no row has a label of pairs; the labels are {labels}\n"):
        list(pair_rows([tmp_path / "a.csv"], given))


def test_parallel_rows_joins_lines(tmp_path):
    (tmp_path / "a.src").write_text("a\nb\n")
    (tmp_path / "a.dst").write_text("c\nd\n")
    assert list(parallel_rows(tmp_path / "a.src", tmp_path / "a.dst")) == [("a", "c"), ("b", "d")]


@pytest.mark.parametrize(
    ("left", "right", "shorter"), [("a\nb\n", "c\n", "a.dst"), ("a\n", "b\nc\n", "a.src")]
)
def test_parallel_rows_names_the_shorter_file(tmp_path, left, right, shorter):
    (tmp_path / "a.src").write_text(left)
    (tmp_path / "a.dst").write_text(right)
    with pytest.raises(DataError, match=f"{shorter} ends after line 1"):
        list(parallel_rows(tmp_path / "a.src", tmp_path / "a.dst"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results_20130124.token", TOKEN),
        ("results.csv", "image_name| comment_number| comment\n"
         "10.jpg| 0| a\n10.jpg| 1| b\n10.jpg| 2| c\n20.jpg| 0| d\n20.jpg| 1| e\n"),
        ("captions.tsv", "caption\timage_id\na\t0\nb\t0\nc\t0\nd\t1\ne\t1\n"),
        ("captions.csv", "image,caption\n0,a\n0,b\n0,c\n1,d\n1,e\n"),
    ],
)  # fmt: skip
def test_caption_rows_pairs_every_two_captions_of_an_image(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert list(caption_rows([tmp_path / name])) == [("a", "b"), ("a", "c"), ("b", "c"), ("d", "e")]


def test_caption_rows_refuses_scattered_images(tmp_path):
    (tmp_path / "a.token").write_text("1.jpg#0\ta\n2.jpg#0\tb\n1.jpg#1\tc\n")
    with pytest.raises(DataError, match=r"line 3: image 1\.jpg comes again"):
        list(caption_rows([tmp_path / "a.token"]))


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.tsv", "image\tright\n1\tb\n", "the columns are image, right"),
        ("a.tsv", "left\tcaption\n1\tb\n", "the columns are left, caption"),
        ("a.token", "1.jpg#0\ta\nb\n", "line 2: 1 column"),
    ],
)
def test_caption_rows_says_what_is_missing(tmp_path, name, content, place):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{place}, need an image name and a caption"):
        list(caption_rows([tmp_path / name]))


def test_caption_rows_leaves_the_separators_in_captions(tmp_path):
    (tmp_path / "a.token").write_text("1.jpg#0\ta\tb\n1.jpg#1\tc | d\n")
    (tmp_path / "b.csv").write_text(
        "image_name| comment_number| comment\n1.jpg| 0| a | b\n1.jpg| 1| c\n"
    )
    assert list(caption_rows([tmp_path / "a.token", tmp_path / "b.csv"])) == [
        ("a\tb", "c | d"),
        ("a | b", "c"),
    ]


def test_caption_rows_of_flickr30k_give_ten_pairs_per_image(shared_data):
    assert sum(1 for _ in caption_rows([shared_data / "flickr30k" / "captions.tsv"])) == 29000 * 10


def test_pair_rows_takes_each_pair_of_triplets_once_and_counts_what_is_left_out(tmp_path):
    records = [
        {"query": "q", "pos": ["a", "b"], "neg": ["x", "y", "z"]},
        {"query": "r", "pos": "c", "neg": "x"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (tmp_path / "b.csv").write_text("anchor,positive,hard_negative\nq,a,x\nr,c,y\nq,a,y\n")
    counts = PairCounts()
    assert list(pair_rows([tmp_path / "a.jsonl"], counts=counts)) == [
        ("q", "a"),
        ("q", "b"),
        ("r", "c"),
    ]
    assert "left out 4 hard negatives" in counts.summary()
    assert list(pair_rows([tmp_path / "b.csv"])) == [("q", "a"), ("r", "c")]
    (tmp_path / "qqp.tsv").write_text(QQP)
    list(pair_rows([tmp_path / "qqp.tsv"], counts=(counts := PairCounts())))
    assert counts.summary() == "left out rows that are not pairs: 1 with label 0"
