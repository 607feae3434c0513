import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import chisquare

from simcse_cli.augment.synonyms import (
    Inflection,
    Reading,
    inflect,
    inflection_of,
    read_word,
    replace_with_synonyms,
    synonyms_in_place,
)
from simcse_cli.augment.wordnet import Pos, WordNet, find_wordnet

ALMOST_NEVER = 1e-4
BASE, PAST, PARTICIPLE = Inflection.BASE, Inflection.PAST, Inflection.PARTICIPLE


class Lexicon(WordNet):
    """A database of what a test gives, by word and part of speech."""

    def __init__(self, **tables: dict[tuple[str, Pos], Any]) -> None:
        super().__init__(Path("nowhere"))
        self.base_forms = lambda word, pos: tables.get("bases", {}).get((word, pos), ())
        self.synsets = lambda lemma, pos: tables.get("synsets", {}).get((lemma, pos), ())
        self.tables = tables

    def frequency(self, lemma: str, pos: Pos) -> int:
        return self.tables.get("counts", {}).get((lemma, pos), 0)

    def irregular_forms(self, lemma: str, pos: Pos) -> tuple[str, ...]:
        return self.tables.get("irregular", {}).get((lemma, pos), ())


DEBIAN = Path("/usr/share/wordnet")
needs_debian = pytest.mark.skipif(
    not DEBIAN.is_dir(), reason="needs the Debian package wordnet-base"
)


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
    assert synonyms_in_place(["Yes.", "China", "sets"], 1, wordnet) == ["Porcelain", "Cathay"]
    assert synonyms_in_place(["in", "cathay"], 1, wordnet) == ["China"]
    assert synonyms_in_place(["by", "Dog", "himself"], 1, wordnet) == []


@pytest.mark.parametrize(
    ("before", "word", "pos", "form", "n_adjective", "least"),
    [
        # (n + 0.5) share [0.01] against (n_adjective + 0.5) [0.01]: the shares are 0.75, 0.25, 0.3,
        # ..., 1.
        ("", "w", Pos.NOUN, BASE, 10, 14),
        ("", "ws", Pos.NOUN, Inflection.PLURAL, 10, 42),
        ("", "w", Pos.VERB, BASE, 10, 35),
        ("", "ws", Pos.VERB, Inflection.THIRD_PERSON, 10, 105),
        ("", "wed", Pos.VERB, PAST, 10, 42),
        ("was not so", "wed", Pos.VERB, PARTICIPLE, 10, 52),  # a tie: the verb comes first
        ("was not so very", "wed", Pos.VERB, PAST, 10, 42),
        ("", "wing", Pos.VERB, Inflection.GERUND, 10, 70),
        ("", "wer", Pos.ADJECTIVE, Inflection.COMPARATIVE, 10, 210),
        ("", "west", Pos.ADJECTIVE, Inflection.SUPERLATIVE, 10, 210),
        ("", "w", Pos.ADVERB, BASE, 10, 11),
        ("the", "w", Pos.VERB, BASE, 10, 3500),
        ("the", "w", Pos.NOUN, BASE, 10, 14),
        ('("The"', "w", Pos.VERB, BASE, 10, 3500),
        ("--", "w", Pos.VERB, BASE, 10, 35),
        ("in", "w", Pos.VERB, BASE, 10, 3500),
        ("in", "wing", Pos.VERB, Inflection.GERUND, 10, 70),
        ("in", "w", Pos.NOUN, BASE, 10, 14),
        ("was", "w", Pos.VERB, BASE, 10, 3500),
        ("was", "wed", Pos.VERB, PARTICIPLE, 10, 52),
        ("to", "w", Pos.VERB, BASE, 1000, 33),
        ("to", "ws", Pos.VERB, Inflection.THIRD_PERSON, 10, 105),
        ("can", "w", Pos.VERB, BASE, 1000, 33),
        ("can", "w", Pos.NOUN, BASE, 10, 14),
        ("they", "w", Pos.VERB, BASE, 1000, 33),
        ("they", "w", Pos.ADVERB, BASE, 1000, 10),
        ("they", "w", Pos.NOUN, BASE, 10, 14),
    ],
)
def test_read_word_weighs_how_often_lemmas_and_forms_are_and_the_word_before(
    before: str, word: str, pos: Pos, form: Inflection, n_adjective: int, least: int
) -> None:
    words = [*before.split(), word]
    adjective = Reading(word, Pos.ADJECTIVE, BASE)
    bases = {(word, Pos.ADJECTIVE): (word,)}
    bases[word, pos] = (*bases.get((word, pos), ()), "w")
    for count, expected in ((least, Reading("w", pos, form)), (least - 1, adjective)):
        lexicon = Lexicon(
            bases=bases, counts={("w", pos): count, (word, Pos.ADJECTIVE): n_adjective}
        )
        assert read_word(words, len(words) - 1, word, lexicon) == expected


def test_synonyms_of_capitals_are_those_of_letters_but_not_of_abbreviations() -> None:
    both = {("x", Pos.NOUN): ("x",), ("tv", Pos.NOUN): ("tv",)}
    synsets = {("x", Pos.NOUN): (("X", "ten"),), ("tv", Pos.NOUN): (("TV", "telly"),)}
    lexicon = Lexicon(bases=both, synsets=synsets)
    assert synonyms_in_place(["the", "X"], 1, lexicon) == ["Ten"]
    assert synonyms_in_place(["the", "TV"], 1, lexicon) == []
    assert synonyms_in_place(["THE", "TV"], 1, lexicon) == ["TELLY"]


def test_synonyms_without_a_certain_form_are_left_out() -> None:
    irregular = {("rise", Pos.VERB): ("risen", "rose"), ("wake", Pos.VERB): ("waked", "woke")}
    lexicon = Lexicon(
        bases={("rose", Pos.VERB): ("rise",)},
        synsets={("rise", Pos.VERB): (("rise", "wake", "climb"),)},
        irregular=irregular,
    )
    assert synonyms_in_place(["they", "rose"], 1, lexicon) == ["climbed"]


def test_read_word_gives_lemma_part_of_speech_and_form(wordnet: WordNet) -> None:
    assert read_word(["it", "worked"], 1, "worked", wordnet) == Reading(
        "work", Pos.VERB, Inflection.PAST
    )
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
    drawn = Counter(
        replace_with_synonyms(["car"], 1, random.Random(key), wordnet)[0] for key in range(2000)
    )
    assert set(drawn) == {"auto", "motorcar"}
    assert chisquare(list(drawn.values())).pvalue > ALMOST_NEVER


def test_replace_with_synonyms_changes_as_many_as_it_can(wordnet: WordNet) -> None:
    words = ["the", "car", "and", "the", "dogs", "of", "a", "city"]
    for count, changed in ((2, 2), (3, 3), (9, 3)):
        replaced = replace_with_synonyms(words, count, random.Random(0), wordnet)
        assert sum(a != b for a, b in zip(words, replaced, strict=True)) == changed
    assert replace_with_synonyms(["of", "zebras"], 1, random.Random(0), wordnet) == ["of", "zebras"]


@pytest.mark.parametrize(
    ("word", "lemma", "pos", "after_auxiliary", "inflection"),
    [
        ("dog", "dog", Pos.NOUN, False, Inflection.BASE),
        ("children", "child", Pos.NOUN, False, Inflection.PLURAL),
        ("runs", "run", Pos.VERB, False, Inflection.THIRD_PERSON),
        ("running", "run", Pos.VERB, False, Inflection.GERUND),
        ("ate", "eat", Pos.VERB, True, Inflection.PAST),
        ("eaten", "eat", Pos.VERB, False, Inflection.PARTICIPLE),
        ("worked", "work", Pos.VERB, False, Inflection.PAST),
        ("worked", "work", Pos.VERB, True, Inflection.PARTICIPLE),
        ("bigger", "big", Pos.ADJECTIVE, False, Inflection.COMPARATIVE),
        ("biggest", "big", Pos.ADJECTIVE, False, Inflection.SUPERLATIVE),
    ],
)
def test_inflection_of_names_the_form(
    wordnet: WordNet, word: str, lemma: str, pos: Pos, after_auxiliary: bool, inflection: Inflection
) -> None:
    assert inflection_of(word, lemma, pos, wordnet, after_auxiliary=after_auxiliary) is inflection


@pytest.mark.parametrize(
    ("lemma", "pos", "inflection", "form"),
    [
        ("dog", Pos.NOUN, Inflection.BASE, "dog"),
        ("domestic dog", Pos.NOUN, Inflection.PLURAL, "domestic dogs"),
        ("man of the world", Pos.NOUN, Inflection.PLURAL, "men of the world"),
        ("child", Pos.NOUN, Inflection.PLURAL, "children"),
        ("city", Pos.NOUN, Inflection.PLURAL, "cities"),
        ("box", Pos.NOUN, Inflection.PLURAL, "boxes"),
        ("monarch", Pos.NOUN, Inflection.PLURAL, "monarchs"),
        ("torch", Pos.NOUN, Inflection.PLURAL, "torches"),
        ("human", Pos.NOUN, Inflection.PLURAL, "humans"),
        ("sheep", Pos.NOUN, Inflection.PLURAL, "sheep"),
        ("policeman", Pos.NOUN, Inflection.PLURAL, "policemen"),
        ("give up", Pos.VERB, Inflection.THIRD_PERSON, "gives up"),
        ("go", Pos.VERB, Inflection.THIRD_PERSON, "goes"),
        ("jog", Pos.VERB, Inflection.GERUND, "jogging"),
        ("place", Pos.VERB, Inflection.GERUND, "placing"),
        ("lie", Pos.VERB, Inflection.GERUND, "lying"),
        ("see", Pos.VERB, Inflection.GERUND, "seeing"),
        ("work", Pos.VERB, Inflection.GERUND, "working"),
        ("carry", Pos.VERB, Inflection.PAST, "carried"),
        ("place", Pos.VERB, Inflection.PAST, "placed"),
        ("jog", Pos.VERB, Inflection.PAST, "jogged"),
        ("devour", Pos.VERB, Inflection.PAST, "devoured"),
        ("set", Pos.VERB, Inflection.PAST, "set"),
        ("run", Pos.VERB, Inflection.PARTICIPLE, "run"),
        ("eat", Pos.VERB, Inflection.PARTICIPLE, "eaten"),
        ("big", Pos.ADJECTIVE, Inflection.SUPERLATIVE, "biggest"),
        ("large", Pos.ADJECTIVE, Inflection.COMPARATIVE, "larger"),
        ("beautiful", Pos.ADJECTIVE, Inflection.COMPARATIVE, "more beautiful"),
        ("clever", Pos.ADJECTIVE, Inflection.COMPARATIVE, "more clever"),
        ("8-ball", Pos.NOUN, Inflection.PLURAL, None),
    ],
)
def test_inflect_gives_the_form(
    wordnet: WordNet, lemma: str, pos: Pos, inflection: Inflection, form: str | None
) -> None:
    assert inflect(lemma, pos, inflection, wordnet) == form


VERBS = [
    ("bear", "bore", "borne", "bore borne born bearing"),
    ("begin", "began", "begun", "began begun beginning begins"),
    ("bring", "brought", "brought", "brought"),
    ("come", "came", "come", "came"),
    ("drink", "drank", "drunk", "drank drunk"),
    ("fly", "flew", "flown", "flew flown"),
    ("lead", "led", "led", "led"),
    ("ring", "rang", "rung", "rang rung"),
    ("show", "showed", "shown", "shown"),
    ("stop", "stopped", "stopped", "stopped stopping"),
    ("string", "strung", "strung", "strung"),
    ("try", "tried", "tried", "tried tries"),
    ("win", "won", "won", "won winning"),
    ("write", "wrote", "written", "written wrote"),
]


@pytest.mark.parametrize(("lemma", "past", "participle", "exceptions"), VERBS)
def test_inflect_tells_past_and_participle_among_irregular_forms(
    lemma: str, past: str, participle: str, exceptions: str
) -> None:
    lexicon = Lexicon(irregular={(lemma, Pos.VERB): tuple(exceptions.split())})
    assert inflect(lemma, Pos.VERB, PAST, lexicon) == past
    assert inflect(lemma, Pos.VERB, PARTICIPLE, lexicon) == participle


@needs_debian
@pytest.mark.parametrize(("lemma", "past", "participle"), [verb[:3] for verb in VERBS[1:]])
def test_inflect_knows_irregular_verbs_of_the_real_wordnet(
    lemma: str, past: str, participle: str
) -> None:
    wordnet = find_wordnet(DEBIAN)
    assert inflect(lemma, Pos.VERB, PAST, wordnet) == past
    assert inflect(lemma, Pos.VERB, PARTICIPLE, wordnet) == participle


@needs_debian
def test_inflect_is_undone_by_the_base_forms_of_the_real_wordnet() -> None:
    wordnet = find_wordnet(DEBIAN)
    lemmas = [
        line.split()[0]
        for line in (DEBIAN / "index.verb").read_text().splitlines()
        if line[0] != " "
    ]
    single = [lemma for lemma in lemmas if lemma.isalpha()]
    for inflection in (Inflection.THIRD_PERSON, Inflection.GERUND, Inflection.PAST):
        forms = {lemma: inflect(lemma, Pos.VERB, inflection, wordnet) for lemma in single}
        known = {lemma: form for lemma, form in forms.items() if form is not None}
        undone = sum(lemma in wordnet.base_forms(form, Pos.VERB) for lemma, form in known.items())
        assert undone / len(single) > 0.98
