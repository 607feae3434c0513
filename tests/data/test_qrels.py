import json

import pytest

from helpers import Told
from simcse_cli.data.given import Given
from simcse_cli.data.ids import QUERY_NAMES
from simcse_cli.data.qrels import NumberedTexts, read_relevance, read_texts
from simcse_cli.errors import DataError
from simcse_cli.settings.tables import TableOptions

CORPUS = NumberedTexts(["a dog", "a hound", "a cat"], ["d1", "d2", "d3"])
QUERIES = NumberedTexts(["a dog", "a tiger"], ["q1", "q2"])


def write(tmp_path, text):
    path = tmp_path / "qrels.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 d2 1\nq1 0 d3 0\nq2 0 d3 2\n",
        "query-id\tcorpus-id\tscore\nq1\td2\t1\nq2\td3\t1\n",
        "q1\td2\t1\n\nq2\td3\t1\nq9\td1\t1\nq1\td9\t0\n",
    ],
)
def test_relevance_by_id(tmp_path, text):
    assert read_relevance(write(tmp_path, text), QUERIES, CORPUS) == [
        {1: 1},
        {2: 2 if " 2\n" in text else 1},
    ]


def test_documents_that_the_corpus_lacks_stay_relevant_and_are_counted(tmp_path):
    told = Told()
    queries = NumberedTexts(["a", "b", "c", "d"], ["q1", "q2", "q3", "q4"])
    text = "q1 d1 2\nq1 d8 2\nq1 d9 1\nq2 d9 1\nq3 d2 0\nq7 d1 1\n"
    path = write(tmp_path, text)
    found = read_relevance(path, queries, CORPUS, told)
    assert found == [{0: 2, 3: 2, 4: 1}, {4: 1}, {}, {}]  # rows 3 and 4 are d8 and d9
    assert told.warnings == [
        f"{path}: the corpus lacks 3 of the 4 relevant sentences of these queries, "
        "which count as not found"
    ]
    assert told.lines == [
        f"{path}: left out, since not among the queries that are searched: 1 of 4 judged queries",
        f"{path}: left out, since without a relevant sentence: 2 of 4 queries",
    ]


def test_repeated_ids_and_contradictory_judgements_are_refused(tmp_path):
    twice = NumberedTexts(["a", "b", "c", "d"], ["1", "2", "1", "3"], source="c.csv")
    other = NumberedTexts(["a", "b"], ["1", "2"])
    qrels = write(tmp_path, "1 1 1\n")
    message = "c.csv: rows 1 and 3 have the id '1', need ids that differ"
    for queries, corpus in ((twice, other), (other, twice), (other, twice.select([2, 0]))):
        with pytest.raises(DataError, match=message):
            read_relevance(qrels, queries, corpus)
    assert read_relevance(write(tmp_path, "x\ta\nx\tb\n"), twice, twice)[2:] == [{}, {}]

    write(tmp_path, "query-id corpus-id score\n1 1 2\n2 1 1\n\n1 1 2\n")
    assert read_relevance(qrels, other, other) == [{0: 2}, {0: 1}]
    write(tmp_path, "query-id corpus-id score\n1 1 2\n2 1 1\n\n1 1 0\n")
    with pytest.raises(
        DataError,
        match="lines 2 and 5: document '1' has the relevance 2 and 0 for query '1', need one",
    ):
        read_relevance(qrels, other, other)


def test_relevance_by_group_matches_texts(tmp_path):
    text = "image_id\tcaption\n7\ta dog\n7\ta hound\n8\ta cat\n9\ta hound\n"
    assert read_relevance(write(tmp_path, text), QUERIES, CORPUS) == [{0: 1, 1: 1}, {}]


def test_numbered_texts_count_from_one():
    assert NumberedTexts(["x", "y"]).ids == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q7 0 d1 1\n", r"none of its queries \('q7'\) is in the queries \('q1', 'q2'\)"),
        (
            "q1 a 1\nq1 b 1\nq2 a 1\nq2 c 1\nq1 d 1\n",
            r"none of its documents \('a', 'b', 'c', \.\.\.\) is in c\.csv \('d1', 'd2', 'd3'\)",
        ),
        ("q1 d1 0\nq9 d1 1\n", "none of the 2 queries has a relevance above 0"),
        ("1\ta wolf\n", "none of the 2 queries has a relevant sentence"),
    ],
)
def test_relevance_without_any_match_is_refused(tmp_path, text, message):
    corpus = NumberedTexts(CORPUS.sentences, CORPUS.ids, source="c.csv")
    with pytest.raises(DataError, match=message):
        read_relevance(write(tmp_path, text), QUERIES, corpus)


@pytest.mark.parametrize("name", ["qid", "query-id", "query_id", "_id"])
def test_queries_have_the_ids_of_a_column_with_a_usual_name(tmp_path, name):
    (tmp_path / "q.csv").write_text(f"{name},text\n2,someone eating\n1,dogs at the sea\n")
    assert read_texts(tmp_path / "q.csv", usual=QUERY_NAMES).ids == ["2", "1"]


def test_row_numbers_in_place_of_ids_are_told(tmp_path):
    (tmp_path / "q.csv").write_text("nr,text\n2,someone eating\n1,dogs at the sea\n")
    (tmp_path / "c.txt").write_text("a dog\na cat\n")
    qrels = write(tmp_path, "1 1 1\n2 2 1\n")
    queries, corpus = read_texts(tmp_path / "q.csv"), read_texts(tmp_path / "c.txt")
    told = Told()
    read_relevance(qrels, queries.select([0, 1]), corpus, told, id_option="--id-column")
    line = "the ids of the judgements are taken for its row numbers, from 1"
    assert told.lines == [f"{tmp_path / 'c.txt'}: {line}"]
    assert told.warnings == [
        f"{tmp_path / 'q.csv'}: {line}; if one of its columns has the ids (nr), name it with "
        "--id-column or call it id"
    ]
    without_option = Told()
    read_relevance(qrels, queries, corpus, without_option)
    assert without_option.warnings == [
        f"{tmp_path / 'q.csv'}: {line}; if one of its columns has the ids (nr), call it id in row 1"
    ]
    named = read_texts(tmp_path / "q.csv", id_column="nr")
    again = Told()
    read_relevance(qrels, named, read_texts(tmp_path / "q.csv", id_column="nr"), again)
    assert (named.ids, again.lines, again.warnings) == (["2", "1"], [], [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0 1", "line 2: document '0' is no row of c.txt, need a row number from 1 to 3"),
        ("1 4 1", "line 2: document '4' is no row"),
        (f"1 {'9' * 5000} 1", "line 2: document '999"),
        ("1 d2 1", "line 2: document 'd2' is no row"),
        ("01 1 1", "line 2: query '01' is no row of q.txt, need a row number from 1"),
    ],
)
def test_a_judged_id_is_a_row_number_where_rows_have_no_ids(tmp_path, line, message):
    queries = NumberedTexts(["a dog", "a tiger"], source="q.txt")
    corpus = NumberedTexts(CORPUS.sentences, source="c.txt")
    # A query that is not searched may be judged if the file has it.
    qrels = write(tmp_path, "1 3 1\n2 1 1\n")
    assert read_relevance(qrels, queries.select([1]), corpus) == [{0: 1}]
    write(tmp_path, f"1 3 1\n{line}\n")
    with pytest.raises(DataError, match=message) as caught:
        read_relevance(qrels, queries.select([0]), corpus)
    assert caught.value.hint.endswith("`query_id`), else row numbers")
    with pytest.raises(DataError, match=message) as caught:
        read_relevance(qrels, queries, corpus, id_option="--id-column")
    assert caught.value.hint.endswith("or of --id-column, else row numbers")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 0 d2 1\nq1 0 d2\n", "line 2: 3 columns, need 4"),
        ("one\n", "line 1: 1 columns, need 2, 3 or 4"),
        ("q1 d1 1\nq1 d2 much\n", "line 2: relevance 'much'"),
        ("q1 d1 1\nq1 d2 1e999\n", "line 2: relevance '1e999' is not a finite number"),
    ],
)
def test_relevance_names_the_line_it_cannot_read(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_relevance(write(tmp_path, text), QUERIES, CORPUS)


def test_texts_of_beir_hold_their_title(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "d9", "title": "Dogs", "text": "They bark.", "year": 2001}\n'
        '{"_id": "d7", "title": "", "text": "A cat.", "year": 2004}\n'
    )
    found = NumberedTexts(["Dogs They bark.", "A cat."], ["d9", "d7"])
    told = Told()
    given = Given.of(TableOptions(), progress=told).of_texts(None, None, "_id")
    assert read_texts(tmp_path / "corpus.jsonl", given) == found
    assert told.lines == [f"{tmp_path / 'corpus.jsonl'}: text = title + text; not used: year"]
    assert read_texts(tmp_path / "corpus.jsonl", Given().of_texts("text")).sentences == [
        "They bark.",
        "A cat.",
    ]


def test_files_of_a_folder_keep_their_ids_and_titles(tmp_path):
    for name, first in (("a", "d1"), ("b", "d2")):
        rows = [
            {"_id": first, "title": "T", "text": name},
            {"_id": f"{first}x", "title": "", "text": "more"},
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = read_texts(tmp_path)
    assert list(texts.sentences) == ["T a", "more", "T b", "more"]
    assert texts.ids == ["d1", "d1x", "d2", "d2x"]
