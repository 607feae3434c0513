import random
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import chisquare

from simcse_cli.augment.inflection import Inflection
from simcse_cli.augment.synonyms import Reading, read_word, replace_with_synonyms, synonyms_in_place
from simcse_cli.augment.wordnet import Pos, WordNet, find_wordnet
from tiny_wordnet import write_wordnet

ALMOST_NEVER = 1e-4


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    return find_wordnet(write_wordnet(tmp_path / "dict"))


@pytest.mark.parametrize(
    ("sentence", "position", "synonyms"),
    [
        ("a car stops", 1, ["auto", "motorcar"]),
        ("(Cars!)", 0, ["(Autos!)", "(Motorcars!)"]),
        ("THE DOGS BARK", 1, ["DOMESTIC DOGS"]),
        ("the dog's tail", 1, ["domestic dog's"]),
        ("children run", 0, ["kids"]),
        ("they ran home", 1, ["jogged"]),
        ("they are running", 2, ["jogging"]),
        ("it was eaten", 2, ["devoured"]),
        ("a bigger house", 1, ["larger"]),
        ("Quickly now", 0, ["Rapidly"]),
        ("the prettiest one", 1, ["most beautiful"]),
        ("zebras sleep", 0, []),
        ("the CAR treaty", 1, []),
        ("1984 -- !", 1, []),
        ("of the", 0, []),
    ],
)
def test_synonyms_keep_form_case_and_punctuation(
    wordnet: WordNet, sentence: str, position: int, synonyms: list[str]
) -> None:
    assert synonyms_in_place(sentence.split(), position, wordnet) == synonyms


@pytest.mark.parametrize(
    ("sentence", "position", "synonyms"),
    [
        ("the work", 1, ["labor"]),
        ("to work", 1, ["toil"]),
        ("they work", 1, ["toil"]),
        ("hard work", 1, ["labor"]),  # the noun is oftener tagged
        ("light rain", 0, ["weightless"]),
        ("the setting", 1, ["scene"]),
        ("was setting", 1, ["placing"]),
    ],
)
def test_synonyms_have_the_part_of_speech_that_fits(
    wordnet: WordNet, sentence: str, position: int, synonyms: list[str]
) -> None:
    assert synonyms_in_place(sentence.split(), position, wordnet) == synonyms


def test_synonyms_tell_names_from_common_nouns(wordnet: WordNet) -> None:
    assert synonyms_in_place(["made", "of", "china"], 2, wordnet) == ["porcelain"]
    assert synonyms_in_place(["made", "in", "China"], 2, wordnet) == ["Cathay"]
    assert synonyms_in_place(["China", "sets"], 0, wordnet) == ["Porcelain", "Cathay"]
    assert synonyms_in_place(["in", "cathay"], 1, wordnet) == ["China"]
    assert synonyms_in_place(["by", "Dog", "himself"], 1, wordnet) == []


def test_read_word_gives_lemma_part_of_speech_and_form(wordnet: WordNet) -> None:
    assert read_word(["it", "worked"], 1, "worked", wordnet) == Reading("work", Pos.VERB, Inflection.PAST)
    assert read_word(["zebra"], 0, "zebra", wordnet) is None


def test_replace_with_synonyms_changes_one_word_drawn_uniformly(wordnet: WordNet) -> None:
    words = ["the", "car", "and", "the", "dogs", "of", "a", "city"]
    changed: Counter[int] = Counter()
    for key in range(3000):
        replaced = replace_with_synonyms(words, 1, random.Random(key), wordnet)
        (position,) = [i for i, word in enumerate(replaced) if word != words[i]]
        changed[position] += 1
    assert set(changed) == {1, 4, 7}
    assert chisquare(list(changed.values())).pvalue > ALMOST_NEVER


def test_replace_with_synonyms_draws_the_synonym_uniformly(wordnet: WordNet) -> None:
    drawn = Counter(replace_with_synonyms(["car"], 1, random.Random(key), wordnet)[0] for key in range(2000))
    assert set(drawn) == {"auto", "motorcar"}
    assert chisquare(list(drawn.values())).pvalue > ALMOST_NEVER


def test_replace_with_synonyms_changes_as_many_as_it_can(wordnet: WordNet) -> None:
    words = ["the", "car", "and", "the", "dogs", "of", "a", "city"]
    for count, changed in ((2, 2), (3, 3), (9, 3)):
        replaced = replace_with_synonyms(words, count, random.Random(0), wordnet)
        assert sum(a != b for a, b in zip(words, replaced, strict=True)) == changed
    assert replace_with_synonyms(["of", "zebras"], 1, random.Random(0), wordnet) == ["of", "zebras"]
