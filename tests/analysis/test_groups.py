"""`simcse analyze groups`: groups of known blobs, words counted by hand, and the command."""

import csv
import io
import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from simcse_cli.analysis.groups import (
    agreement,
    assign,
    cosines_to_centres,
    log_likelihood_ratio,
    telling_words,
)
from simcse_cli.errors import UsageError
from simcse_cli.settings.choices import GroupMethod

pytest.importorskip("sklearn")
SIZES = (12, 20, 7)


@pytest.fixture(scope="module")
def blobs():
    """Unit vectors around three axes, 12, 20 and 7 of them in turn."""
    draw = np.random.default_rng(5)
    centres = np.repeat(np.eye(3, 8), SIZES, axis=0)
    vectors = centres + draw.normal(scale=0.05, size=centres.shape)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(
    ("method", "k", "threshold"),
    [
        (GroupMethod.KMEANS, 3, None),
        (GroupMethod.AGGLOMERATIVE, 3, None),
        (GroupMethod.AGGLOMERATIVE, None, 0.5),
        (GroupMethod.HDBSCAN, None, None),
    ],
)
def test_blobs_are_found_and_numbered_by_size(blobs, method, k, threshold):
    groups = assign(blobs, method, k=k, threshold=threshold, seed=1)
    assert groups.tolist() == [1] * 12 + [0] * 20 + [2] * 7
    again = assign(blobs, method, k=k, threshold=threshold, seed=1)
    assert again.tolist() == groups.tolist()


def test_threshold_is_the_mean_cosine_between_groups():
    """Two pairs, at right angles inside of neither: mean cosine between the pairs is 0.5."""
    angles = np.radians([0, 0, 60, 60])
    units = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    for threshold, n_groups in ((0.45, 1), (0.55, 2)):
        groups = assign(units, GroupMethod.AGGLOMERATIVE, k=None, threshold=threshold, seed=1)
        assert groups.max() + 1 == n_groups


@pytest.mark.parametrize(("threshold", "expected"), [(1, [0, 0, 1, 0, 1]), (0.6, [0] * 5)])
def test_texts_at_exactly_the_threshold_are_joined(threshold, expected):
    """The mean cosine of the two groups is 0.6; equal vectors have a rounded cosine."""
    draw = np.random.default_rng(3).normal(size=(2, 7))
    first, other = draw[0], draw[1] - draw[0] * (draw[0] @ draw[1]) / (draw[0] @ draw[0])
    first, other = first / np.linalg.norm(first), other / np.linalg.norm(other)
    both = np.stack([first, 0.6 * first + 0.8 * other]).astype(np.float32)
    groups = assign(
        both[[0, 0, 1, 0, 1]], GroupMethod.AGGLOMERATIVE, k=None, threshold=threshold, seed=1
    )
    assert groups.tolist() == expected


@pytest.mark.parametrize("method", [GroupMethod.KMEANS, GroupMethod.AGGLOMERATIVE])
def test_more_groups_than_different_texts_are_refused(blobs, method):
    units = np.repeat(blobs[:2], 4, axis=0)
    with pytest.raises(UsageError, match="--k: 3 groups of 2 different vectors"):
        assign(units, method, k=3, threshold=None, seed=1)
    assert assign(units, method, k=2, threshold=None, seed=1).tolist() == [0] * 4 + [1] * 4


def test_cosine_with_the_centre():
    units = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    cosines = cosines_to_centres(units, np.array([0, 0, -1]))
    np.testing.assert_allclose(cosines, [math.sqrt(0.5), math.sqrt(0.5), np.nan])


def test_telling_words_of_a_script_without_spaces_are_pairs_of_characters():
    texts = ["配送は？", "配送料", "返品", "返品可"]
    telling = telling_words(texts, np.array([0, 0, 1, 1]), 1)
    assert telling == [["配送"], ["返品"]]


def test_telling_words_by_hand():
    """Of 4 texts, "dog" is in the 2 of group 0 alone; "the" is in all."""
    texts = ["the dog runs", "the dog sleeps", "the car stops", "the car"]
    groups = np.array([0, 0, 1, 1])
    assert telling_words(texts, groups, 2) == [["dog", "runs"], ["car", "stops"]]
    assert telling_words(["a b", "a b"], np.array([0, 1]), 3) == [[], []]


def test_a_rare_word_of_one_group_tells_more_than_a_frequent_word_of_all():
    """Expected are 75 texts with "the" and 10 with "lake" in group 0: 15 more of the one, 10 of the other."""
    first = ["the lake"] * 20 + ["the"] * 70 + ["x"] * 10
    second = ["the"] * 60 + ["x"] * 40
    groups = np.repeat([0, 1], 100)
    assert telling_words(first + second, groups, 2)[0] == ["lake", "the"]


def test_log_likelihood_ratio_in_closed_form_and_against_scipy():
    assert log_likelihood_ratio((2, 0), (0, 2)) == pytest.approx(8 * math.log(2))
    assert log_likelihood_ratio((3, 6), (1, 2)) == pytest.approx(0)
    table = (20, 80), (7, 193)
    expected = chi2_contingency(table, correction=False, lambda_="log-likelihood").statistic
    assert log_likelihood_ratio(*table) == pytest.approx(expected)
    assert log_likelihood_ratio(*table[::-1]) == pytest.approx(expected)


def test_agreement_against_a_count_over_all_pairs():
    draw = np.random.default_rng(2)
    labels = draw.integers(3, size=60).astype(str).tolist()
    groups = np.where(draw.random(60) < 0.6, np.array(labels, dtype=int), draw.integers(3, size=60))
    found = agreement(labels, groups, seed=1)
    pairs = list(combinations(range(60), 2))
    same_label = np.array([labels[a] == labels[b] for a, b in pairs])
    same_group = np.array([groups[a] == groups[b] for a, b in pairs])
    both, n = (same_label & same_group).sum(), len(pairs)
    expected = same_label.sum() * same_group.sum() / n
    most = (same_label.sum() + same_group.sum()) / 2
    assert found["ari"] == pytest.approx((both - expected) / (most - expected))
    v = 2 / (1 / found["homogeneity"] + 1 / found["completeness"])
    assert found["v_measure"] == pytest.approx(v)
    assert 0 < found["v_measure_by_chance"] < found["v_measure"]
    assert agreement(labels, np.array(labels, dtype=int), seed=1)["ari"] == 1


# ------------------------------------------------------------------ the command
@pytest.fixture
def tickets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [(f"T{n}", f"A man plays a guitar {n}.", "music") for n in range(6)]
    rows += [("blank", " ", "music")]
    rows += [(f"D{n}", f"The dog sleeps in the garden, number {n}!", "animals") for n in range(4)]
    with (tmp_path / "tickets.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "body", "topic"), *rows])
    return "tickets.csv"


@pytest.fixture
def group(invoke, tickets, tiny_model_dir):
    def run(*words):
        model = ("-m", tiny_model_dir, "--pooler", "avg", "--device", "cpu")
        return invoke("analyze", "groups", tickets, *model, *words)

    return run


def test_groups_are_shown_with_size_words_and_agreement(group):
    outcome = group("--k", "2", "--labels", "topic", "--id-column", "id", "-f", "json")
    assert outcome.exit_code == 0, outcome.stderr
    assert "left out, since without text: 1 rows" in outcome.stderr
    found = json.loads(outcome.stdout)
    first, second = found["groups"]
    assert (first["n_texts"], second["n_texts"]) == (6, 4)
    assert all(isinstance(row["words"], list) for row in found["groups"])
    assert "guitar" in first["words"]
    assert "garden" in second["words"]
    assert all("guitar" in text for text in first["typical"])
    assert found["agreement"]["ari"] == found["agreement"]["v_measure"] == 1
    assert [row["row"] for row in found["texts"]] == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert [row["id"] for row in found["texts"]][-1] == "D3"


def test_texts_without_a_label_are_no_class_of_their_own(group, tickets):
    blank = [*" ", "NaN", "None"]
    with Path(tickets).open("a") as table:
        table.writelines(f"N{n},A man plays a guitar {n},{cell}\n" for n, cell in enumerate(blank))
    outcome = group("--k", "2", "--labels", "topic", "-f", "json")
    found = json.loads(outcome.stdout)
    assert (found["n_texts"], found["n_labelled"]) == (13, 10)
    assert found["agreement"]["ari"] == found["agreement"]["v_measure"] == 1
    assert [row["label"] for row in found["texts"]][-4:] == ["animals", None, None, None]
    shown = group("--k", "2", "--labels", "topic").stdout
    assert "10 of 13 texts have a label in topic; the others are left out" in shown


def test_one_label_has_no_agreement(group, tickets):
    rows = "a dog,pet\na cat,\nthe house,\na car,\n"
    Path(tickets).write_text(f"text,kind\n{rows}")
    outcome = group("--k", "2", "--labels", "kind", "-f", "json")
    assert json.loads(outcome.stdout)["agreement"] is None
    said = "no agreement, which needs 2 labels: 1 of 4 texts have a label in kind"
    assert said in group("--k", "2", "--labels", "kind").stdout


def test_csv_has_a_row_for_each_text(group):
    outcome = group("--k", "2", "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout)))
    assert [row["group"] for row in rows] == ["1"] * 6 + ["2"] * 4


def test_the_table_cuts_long_typical_texts_and_json_keeps_them(group, tickets):
    long = "Refund" + " and more" * 100
    with Path(tickets).open("a") as table:
        table.write(f"R1,{long},billing\n")
    assert f"{long[:119]}…" in group("--k", 2, "--typical", 20).stdout
    assert long not in group("--k", 2, "--typical", 20).stdout
    assert long in group("--k", 2, "-f", "json").stdout


def test_figure_and_page_are_written(group, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = group("--k", "2", "--plot", "g.png", "--html", "g.html")
    assert outcome.exit_code == 0, outcome.stderr
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert "typical texts" in (tmp_path / "g.html").read_text(encoding="utf-8")


def test_vectors_of_one_component_are_drawn_on_a_line(group, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = group("--k", "2", "--truncate-dim", "1", "--plot", "g.png")
    assert outcome.exit_code == 0, outcome.stderr


def test_hdbscan_needs_the_texts_of_one_group(group, tickets):
    Path(tickets).write_text("a dog\na cat\nthe house\n")
    outcome = group("--by", "hdbscan", "--no-header")
    assert "tickets.csv: 3 texts, need at least 5" in outcome.stderr


def test_equal_texts_cannot_be_in_more_groups_than_there_are_texts(group, tickets):
    Path(tickets).write_text("a dog\na cat\na dog\na cat\n")
    outcome = group("--k", "3", "--no-header")
    assert "--k: 3 groups of 2 different vectors" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--k: how many groups?"),
        (("--by", "agglomerative"), "--k: how many groups?"),
        (("--by", "kmeans"), "kmeans needs the number of groups"),
        (("--by", "hdbscan", "--k", "3"), "--k: has no use with --by hdbscan"),
        (("--by", "hdbscan", "--threshold", "0"), "--threshold: has no use with --by hdbscan"),
        (("--by", "kmeans", "--k", "3", "--threshold", "0.5"), "--threshold"),
        (("--k", "11"), "11 groups of 10 texts"),
        (("--k", "2", "--labels", "nothing"), "no column nothing; there are id, body, topic"),
    ],
)
def test_faults_are_named(group, words, message):
    outcome = group(*words)
    assert outcome.exit_code in (1, 2)
    assert message in outcome.stderr
