import os
import pickle
from pathlib import Path

import pytest

from simcse_cli.augment.wordnet import Pos, WordNet, find_wordnet
from simcse_cli.errors import DataError
from tiny_wordnet import SYNSETS, write_wordnet

DEBIAN = Path("/usr/share/wordnet")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away every place in which a database could be found."""
    for name in ("WNSEARCHDIR", "WNHOME", "NLTK_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("simcse_cli.augment.wordnet._STANDARD_PLACES", ())


def test_synsets_come_in_order_with_spaces_and_without_markers(wordnet: WordNet) -> None:
    assert wordnet.synsets("car", Pos.NOUN) == (("car", "auto", "motorcar"),)
    assert wordnet.synsets("domestic dog", Pos.NOUN) == (("dog", "domestic dog"),)
    assert wordnet.synsets("galore", Pos.ADJECTIVE) == (("galore", "abundant"),)
    assert wordnet.synsets("china", Pos.NOUN) == (("china", "porcelain"), ("China", "Cathay"))


def test_synsets_have_their_number_of_words_in_hexadecimal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tuple(f"w{number}" for number in range(26))  # 1a
    monkeypatch.setitem(SYNSETS, "r", [words])
    assert find_wordnet(write_wordnet(tmp_path)).synsets("w0", Pos.ADVERB) == (words,)


def test_synsets_of_an_unknown_word_are_none(wordnet: WordNet) -> None:
    assert wordnet.synsets("zebra", Pos.NOUN) == ()
    assert wordnet.synsets("this", Pos.NOUN) == ()  # a word of the licence


@pytest.mark.parametrize(
    ("word", "pos", "bases"),
    [
        ("dogs", Pos.NOUN, ("dog",)),
        ("children", Pos.NOUN, ("child",)),
        ("cities", Pos.NOUN, ("city",)),
        ("dog", Pos.NOUN, ("dog",)),
        ("ran", Pos.VERB, ("run",)),
        ("working", Pos.VERB, ("work",)),
        ("places", Pos.VERB, ("place",)),
        ("setting", Pos.NOUN, ("setting",)),
        ("setting", Pos.VERB, ("set",)),
        ("larger", Pos.ADJECTIVE, ("large",)),
        ("quickly", Pos.ADVERB, ("quickly",)),
        ("dogs", Pos.VERB, ()),
    ],
)
def test_base_forms_undo_inflection(
    wordnet: WordNet, word: str, pos: Pos, bases: tuple[str, ...]
) -> None:
    assert wordnet.base_forms(word, pos) == bases


def test_all_synsets_joins_the_parts_of_speech(wordnet: WordNet) -> None:
    assert list(wordnet.all_synsets("works")) == [("work", "labor"), ("work", "toil")]


def test_frequency_sums_the_tagged_senses(wordnet: WordNet) -> None:
    assert wordnet.frequency("work", Pos.NOUN) == 20
    assert wordnet.frequency("work", Pos.VERB) == 10
    assert wordnet.frequency("light", Pos.ADJECTIVE) == 9
    assert wordnet.frequency("beautiful", Pos.ADJECTIVE) == 4
    assert wordnet.frequency("quickly", Pos.ADVERB) == 7
    assert wordnet.frequency("car", Pos.NOUN) == 0


def test_irregular_forms_invert_the_exception_list(wordnet: WordNet) -> None:
    assert wordnet.irregular_forms("run", Pos.VERB) == ("ran", "running")


def test_wordnet_survives_pickling_by_its_folder(wordnet: WordNet) -> None:
    copy = pickle.loads(pickle.dumps(wordnet))  # noqa: S301 - our own bytes
    assert copy.synsets("dog", Pos.NOUN) == wordnet.synsets("dog", Pos.NOUN)


def test_wordnet_works_without_exceptions_and_counts(wordnet: WordNet) -> None:
    for name in ("noun.exc", "verb.exc", "adj.exc", "adv.exc", "cntlist.rev"):
        (wordnet.directory / name).unlink()
    assert wordnet.base_forms("dogs", Pos.NOUN) == ("dog",)
    assert wordnet.frequency("work", Pos.NOUN) == 0


@pytest.mark.parametrize("below", ["dict", "corpora/wordnet"])
def test_find_wordnet_looks_inside_the_folder_given(tmp_path: Path, below: str) -> None:
    write_wordnet(tmp_path / below)
    assert find_wordnet(tmp_path).directory == tmp_path / below


def test_find_wordnet_names_the_missing_files(tmp_path: Path) -> None:
    write_wordnet(tmp_path)
    (tmp_path / "data.verb").unlink()
    (tmp_path / "data.adv").write_text("")
    with pytest.raises(
        DataError, match=r"database: data\.verb, data\.adv missing or empty"
    ) as caught:
        find_wordnet(tmp_path)
    assert "apt install wordnet-base" in str(caught.value.hint)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        find_wordnet(tmp_path / "nowhere")


def test_find_wordnet_says_where_to_get_one(nowhere: None) -> None:
    with pytest.raises(DataError, match="no WordNet database") as caught:
        find_wordnet()
    assert "--wordnet-dir" in str(caught.value.hint)


def test_find_wordnet_takes_the_variable_of_simcse_unless_a_folder_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write_wordnet(tmp_path / name)
    monkeypatch.setenv("SIMCSE_WORDNET", str(tmp_path / "a"))
    assert find_wordnet().directory == tmp_path / "a"
    assert find_wordnet(tmp_path / "b").directory == tmp_path / "b"


@pytest.mark.parametrize(
    ("variable", "below"),
    [("WNSEARCHDIR", "."), ("WNHOME", "dict"), ("NLTK_DATA", "corpora/wordnet")],
)
def test_find_wordnet_follows_the_usual_variables(
    nowhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, below: str
) -> None:
    write_wordnet(tmp_path / below)
    monkeypatch.setenv(variable, str(tmp_path))
    assert find_wordnet().directory == tmp_path / below


def test_find_wordnet_finds_a_package_that_carries_the_files(
    nowhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_wordnet(tmp_path / "words_of_the_world" / "data")
    information = tmp_path / "words_of_the_world-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: words-of-the-world\nVersion: 1.0\n"
    )
    (information / "RECORD").write_text(f"{folder.relative_to(tmp_path) / 'index.noun'},,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_wordnet().directory == folder


def test_synsets_refuse_an_index_that_does_not_match_the_data(wordnet: WordNet) -> None:
    path = wordnet.directory / "data.noun"
    path.write_bytes(b" " + path.read_bytes())
    with pytest.raises(DataError, match=r"data\.noun, byte \d+: no synset starts here"):
        wordnet.synsets("car", Pos.NOUN)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("index.noun", "car n 1", "car n one"),
        ("cntlist.rev", "%", " a b c%"),
        ("data.noun", " n ", " "),
    ],
)
def test_damaged_files_are_told_with_their_folder(
    wordnet: WordNet, name: str, old: str, new: str
) -> None:
    path = wordnet.directory / name
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=r"cannot be read .*need the files of a WordNet release"):
        _ = wordnet.synsets("car", Pos.NOUN), wordnet.frequency("car", Pos.NOUN)


def test_a_blank_line_among_the_exceptions_is_passed_over(wordnet: WordNet) -> None:
    path = wordnet.directory / "noun.exc"
    path.write_text("\n" + path.read_text())
    assert wordnet.base_forms("children", Pos.NOUN) == ("child",)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the Debian package wordnet-base")
def test_real_wordnet_gives_documented_values() -> None:
    wordnet = find_wordnet(DEBIAN)
    assert wordnet.synsets("car", Pos.NOUN)[0] == (
        "car",
        "auto",
        "automobile",
        "machine",
        "motorcar",
    )
    assert wordnet.base_forms("axes", Pos.NOUN) == ("ax", "axis")
    # The counts of WordNet 3.0 (wnstats): synsets of each part of speech.
    offsets = {pos: set() for pos in Pos}  # type: dict[Pos, set[tuple[str, ...]]]
    for name, pos in (
        ("noun", Pos.NOUN),
        ("verb", Pos.VERB),
        ("adj", Pos.ADJECTIVE),
        ("adv", Pos.ADVERB),
    ):
        for line in (DEBIAN / f"index.{name}").read_text().splitlines():
            if not line.startswith(" "):
                fields = line.split()
                offsets[pos].update(fields[-int(fields[2]) :])
    assert [len(offsets[pos]) for pos in Pos] == [82115, 13767, 18156, 3621]


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the Debian package wordnet-base")
def test_real_wordnet_lists_every_lemma_in_its_own_synsets() -> None:
    wordnet = find_wordnet(DEBIAN)
    for pos, name in ((Pos.VERB, "verb"), (Pos.ADVERB, "adv")):
        for line in (DEBIAN / f"index.{name}").read_text().splitlines():
            if not line.startswith(" "):
                lemma = line.split()[0].replace("_", " ")
                synsets = wordnet.synsets(lemma, pos)
                assert all(lemma in map(str.lower, synset) for synset in synsets)
                assert len(synsets) == int(line.split()[2])


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the Debian package wordnet-base")
def test_find_wordnet_detects_the_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WNSEARCHDIR", "WNHOME"):
        monkeypatch.delenv(name, raising=False)
    assert os.fspath(find_wordnet().directory) == "/usr/share/wordnet"
