"""The measured part of docs/family.md: what its measures are, and that it is what the script writes."""

import json
import re

import numpy as np
import pytest
import yaml
from scipy import stats

from simcse_cli.results.examples import SubsetPairs
from test_findings import DOCS, RECIPES, load


@pytest.fixture(scope="module")
def family():
    return load(DOCS / "make_family.py")


@pytest.fixture(scope="module")
def rows():
    return yaml.safe_load((DOCS / "family.yaml").read_text())


def pairs(left, right, gold, cosine):
    return SubsetPairs(np.array(gold), np.array(cosine), tuple(left), tuple(right))


def test_the_page_is_what_the_script_writes(family, rows):
    results = json.loads((DOCS / "family.json").read_text())
    page = (DOCS / "family.md").read_text()
    assert page == family.with_measured(page, family.measured(rows, results))


def test_a_task_is_scored_over_the_pairs_of_all_subsets_together(family):
    """Each subset alone has a correlation of 1; together the ranks differ by 1, 1, 2 and 0."""
    low, high = (
        SubsetPairs(np.array([1.0, 2]), np.array([0.1, 0.2])),
        SubsetPairs(np.array([3.0, 4]), np.array([0.0, 0.3])),
    )
    assert family.task_score({"low": low, "high": high}) == pytest.approx(1 - 6 * 6 / (4 * 15))


def test_gains_are_the_differences_of_the_scores_beside_them():
    results = json.loads((DOCS / "family.json").read_text())
    for names, test in results["tests"].items():
        greater, less = (np.mean(results["values"][name]["sts"]) for name in names.split(" > "))
        assert test["difference"] == pytest.approx(greater - less, abs=1e-6)


def test_rows_are_those_of_the_recipe(rows):
    script = (RECIPES / "family.sh").read_text()
    trained = re.findall(r"^ *(?:row|method|prompted|taught) ([a-z-]+)\b", script, re.MULTILINE)
    assert trained == [rows["baseline"], *rows["methods"], *rows["parts"]]
    named = {name for claim in rows["claims"] for name in claim["rows"]}
    assert named <= set(trained)


def test_transfer_has_one_average_a_seed(family, tmp_path):
    runs = [{"seed": 1, "average": 0.6}, {"seed": 2, "average": 0.7}]
    for content, averages in (({"average": 0.65, "runs": runs}, [0.6, 0.7]), (runs[0], [0.6])):
        (tmp_path / "r.json").write_text(json.dumps(content))
        assert family.transfer_averages(tmp_path / "r.json") == averages


def test_length_bias_is_0_where_cosines_order_pairs_as_ratings_do(family):
    left = ["a", "a b", "a b c", "a b c d"]
    right = ["a", "a", "a", "a"]  # differences of 0 to 3 words
    ratings = [4.0, 3.0, 2.0, 1.0]
    assert family.length_bias(pairs(left, right, ratings, [0.9, 0.8, 0.7, 0.6])) == 0
    # Ratings fall with the difference (-1), cosines rise with it (1).
    assert family.length_bias(pairs(left, right, ratings, [0.1, 0.2, 0.3, 0.4])) == pytest.approx(2)


def test_overlap_bias_compares_the_correlations_with_the_jaccard_index(family):
    left = ["the cat", "The cat.", "a cat", "a b c"]
    right = ["the cat", "the dog", "the dog", "a b d"]
    jaccard = [1, 1 / 3, 0, 1 / 2]
    gold, cosine = [1.0, 2.0, 3.0, 4.0], [0.9, 0.2, 0.1, 0.3]
    expected = 1 - stats.spearmanr(gold, jaccard).statistic
    assert family.overlap_bias(pairs(left, right, gold, cosine)) == pytest.approx(expected)


def test_negation_pairs_alternate_paraphrase_and_negation(family, sts_folder):
    found = list(family.negation_pairs(sts_folder))
    assert found
    assert [score for *_, score in found] == [1.0, 0.0] * (len(found) // 2)
    for (left, right, _), (same, negated, _) in zip(found[::2], found[1::2], strict=True):
        assert left == same != right
        assert ("not" in negated.split()) != ("not" in left.split())


def test_methods_and_claims_are_corrected_together(family, rows):
    """The smallest of n p-values, all others being 1, is multiplied by n (Holm 1979)."""
    values = {
        name: {"length_bias": [0.3, 0.32, 0.31]} for name in (rows["baseline"], *rows["parts"])
    }
    values["repeat"] = {"length_bias": [0.1, 0.13, 0.1]}
    equal = {"difference": 0.0, "low": -1.0, "high": 1.0, "p": 1.0}
    tests = {f"{name} > simcse": equal for name in rows["methods"]}
    found = family.tests_of(rows, {"values": values, "tests": tests})
    there = [test for test in found if test]
    single = stats.ttest_rel([0.3, 0.32, 0.31], [0.1, 0.13, 0.1]).pvalue
    assert min(test.p for test in there) == pytest.approx(single * len(there))
    assert len(found) == len(rows["methods"]) + len(rows["claims"])
