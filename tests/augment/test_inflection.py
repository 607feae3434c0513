from pathlib import Path

import pytest

from simcse_cli.augment.inflection import Inflection, inflect, inflection_of
from simcse_cli.augment.wordnet import Pos, WordNet, find_wordnet
from tiny_wordnet import write_wordnet

DEBIAN = Path("/usr/share/wordnet")


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    return find_wordnet(write_wordnet(tmp_path / "dict"))


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
        ("human", Pos.NOUN, Inflection.PLURAL, "humans"),
        ("sheep", Pos.NOUN, Inflection.PLURAL, "sheep"),
        ("give up", Pos.VERB, Inflection.THIRD_PERSON, "gives up"),
        ("go", Pos.VERB, Inflection.THIRD_PERSON, "goes"),
        ("jog", Pos.VERB, Inflection.GERUND, "jogging"),
        ("place", Pos.VERB, Inflection.GERUND, "placing"),
        ("lie", Pos.VERB, Inflection.GERUND, "lying"),
        ("jog", Pos.VERB, Inflection.PAST, "jogged"),
        ("devour", Pos.VERB, Inflection.PAST, "devoured"),
        ("set", Pos.VERB, Inflection.PAST, "set"),
        ("run", Pos.VERB, Inflection.PARTICIPLE, "run"),
        ("eat", Pos.VERB, Inflection.PARTICIPLE, "eaten"),
        ("big", Pos.ADJECTIVE, Inflection.SUPERLATIVE, "biggest"),
        ("large", Pos.ADJECTIVE, Inflection.COMPARATIVE, "larger"),
        ("beautiful", Pos.ADJECTIVE, Inflection.COMPARATIVE, "more beautiful"),
        ("8-ball", Pos.NOUN, Inflection.PLURAL, None),
    ],
)
def test_inflect_gives_the_form(
    wordnet: WordNet, lemma: str, pos: Pos, inflection: Inflection, form: str | None
) -> None:
    assert inflect(lemma, pos, inflection, wordnet) == form


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the Debian package wordnet-base")
@pytest.mark.parametrize(
    ("lemma", "past", "participle"),
    [
        ("begin", "began", "begun"),
        ("bring", "brought", "brought"),
        ("come", "came", "come"),
        ("drink", "drank", "drunk"),
        ("fly", "flew", "flown"),
        ("lead", "led", "led"),
        ("ring", "rang", "rung"),
        ("show", "showed", "shown"),
        ("stop", "stopped", "stopped"),
        ("string", "strung", "strung"),
        ("try", "tried", "tried"),
        ("win", "won", "won"),
        ("write", "wrote", "written"),
    ],
)
def test_inflect_knows_irregular_verbs_of_the_real_wordnet(lemma: str, past: str, participle: str) -> None:
    wordnet = find_wordnet(DEBIAN)
    assert inflect(lemma, Pos.VERB, Inflection.PAST, wordnet) == past
    assert inflect(lemma, Pos.VERB, Inflection.PARTICIPLE, wordnet) == participle


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the Debian package wordnet-base")
def test_inflect_is_undone_by_the_base_forms_of_the_real_wordnet() -> None:
    wordnet = find_wordnet(DEBIAN)
    lemmas = [line.split()[0] for line in (DEBIAN / "index.verb").read_text().splitlines() if line[0] != " "]
    single = [lemma for lemma in lemmas if lemma.isalpha()]
    for inflection in (Inflection.THIRD_PERSON, Inflection.GERUND, Inflection.PAST):
        forms = {lemma: inflect(lemma, Pos.VERB, inflection, wordnet) for lemma in single}
        known = {lemma: form for lemma, form in forms.items() if form is not None}
        undone = sum(lemma in wordnet.base_forms(form, Pos.VERB) for lemma, form in known.items())
        assert undone / len(single) > 0.98
