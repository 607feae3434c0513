import json
from collections import Counter
from itertools import pairwise

import pytest

from simcse_cli.data.given import NOTHING_GIVEN
from simcse_cli.prepare.neighbours import (
    DocumentCounts,
    iter_documents,
    neighbour_pairs,
    prepare_neighbours,
)
from simcse_cli.prepare.options import NeighbourOptions
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.progress import SilentProgress

DOCUMENTS = [["a1", "a2", "a3", "a4"], ["b1"], ["c1", "c2"]]
TEXT = "\n\na1\na2\na3\na4\n\n \nb1\n\nc1\nc2"


def documents_of(sources, *, split=False, counts=None):
    return iter_documents(sources, NOTHING_GIVEN, split=split, counts=counts or DocumentCounts())


def read(sources, **settings):
    return [list(document) for document in documents_of(sources, **settings)]


def test_iter_documents_splits_text_at_blank_lines(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    counts = DocumentCounts()
    assert read([tmp_path / "a.txt"], counts=counts) == DOCUMENTS
    assert (counts.n_documents, counts.n_sentences) == (3, 7)


def test_iter_documents_never_joins_two_sources(tmp_path):
    (tmp_path / "a.txt").write_text("a1\na2")
    (tmp_path / "b.txt").write_text("b1\n")
    assert read([tmp_path / "a.txt", tmp_path / "b.txt"]) == [["a1", "a2"], ["b1"]]


def test_iter_documents_takes_each_table_row_as_one(tmp_path):
    rows = [{"text": "One here. Two there."}, {"text": "x\n\ny"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read([tmp_path / "a.jsonl"]) == [["One here. Two there."], ["x", "y"]]
    assert read([tmp_path / "a.jsonl"], split=True) == [["One here.", "Two there."], ["x", "y"]]


@pytest.mark.parametrize(
    ("name", "text", "options", "expected", "n_warnings"),
    [
        ("a.txt", "a\nb\n", {}, "a,b\n", 0),
        ("a.txt", "a\nb\nc\n", {}, "a,b\nb,c\n", 1),
        ("a.txt", "a\nb\n\nc\nd\n", {}, "a,b\nc,d\n", 0),
        ("a.csv", "id,body\n1,One. Two. Three.\n2,Four.\n",
         {"column": "body", "reach": 2, "every": True, "split_sentences": True},
         "One.,Two.\nOne.,Three.\nTwo.,Three.\n", 0),
    ],
)  # fmt: skip
def test_prepare_neighbours_warns_if_all_lines_seem_to_be_one_document(
    tmp_path, name, text, options, expected, n_warnings
):
    (tmp_path / name).write_text(text)
    chosen = NeighbourOptions(output=tmp_path / "o.csv", **options)
    progress = SilentProgress()
    prepare_neighbours([str(tmp_path / name)], chosen, RowWriter(chosen, progress))
    assert chosen.output.read_text() == f"anchor,positive\n{expected}"
    assert len(progress.warnings) == n_warnings
    settings = json.loads((tmp_path / "o.csv.manifest.json").read_text())["settings"]
    assert {"next": chosen.reach, "every": chosen.every, "column": chosen.column,
            "split_sentences": chosen.split_sentences}.items() <= settings.items()  # fmt: skip


def test_neighbour_pairs_pairs_each_sentence_with_the_next():
    assert list(neighbour_pairs(DOCUMENTS, seed=0)) == [
        ("a1", "a2"),
        ("a2", "a3"),
        ("a3", "a4"),
        ("c1", "c2"),
    ]


@pytest.mark.parametrize("reach", [1, 2, 3, 10])
def test_neighbour_pairs_with_every_gives_all_pairs_within_reach(reach):
    expected = [
        (document[i], document[j])
        for document in DOCUMENTS
        for i in range(len(document))
        for j in range(i + 1, min(i + reach + 1, len(document)))
    ]
    assert list(neighbour_pairs(DOCUMENTS, reach=reach, every=True, seed=0)) == expected


def test_neighbour_pairs_draws_uniformly_from_those_in_reach():
    document = [str(i) for i in range(6001)]
    rows = list(neighbour_pairs([document], reach=3, seed=5))
    assert [anchor for anchor, _ in rows] == document[:-1]
    distances = Counter(int(positive) - int(anchor) for anchor, positive in rows)
    assert set(distances) == {1, 2, 3}
    assert all(abs(count - 2000) < 5 * 36.5 for count in distances.values())
    assert rows == list(neighbour_pairs([document], reach=3, seed=5))


def test_neighbour_pairs_of_brown_keep_document_borders(shared_data):
    path = shared_data / "brown" / "brown.txt"
    documents = [block.split("\n") for block in path.read_text().strip("\n").split("\n\n")]
    counts = DocumentCounts()
    rows = list(neighbour_pairs(documents_of([path], counts=counts), seed=0))
    assert (counts.n_documents, counts.n_sentences) == (500, 57340)
    expected = [pair for lines in documents for pair in pairwise(lines)]
    assert rows == expected
    assert len(rows) == 57340 - 500
