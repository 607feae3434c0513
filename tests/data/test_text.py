import pytest

from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.data.text import (
    OverlapMean,
    are_lines,
    clean_text,
    has_control_characters,
    key_words,
    match_key,
    one_line,
    overlap_f1,
    words,
)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (" a  b\tc\n", "a b c"),
        ("a\x07b", "ab"),
        ("a\u2028b\u00a0c\x85d", "a b c d"),
        ("half \ud83d pair", "half pair"),
        ("\u0928\u0940", "\u0928\u0940"),
        ("\u200b \u00ad\ufeff", ""),
        ("a\u00adb", "a\u00adb"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
    ],
)
def test_clean_text_keeps_one_line_of_printable_text(text, cleaned):
    assert clean_text(text) == cleaned
    cleaned.encode()


@pytest.mark.parametrize("text", ["a ", "a\tb", " ", "a\u00a0b", "\u200b", "\u00ad\ufe0f"])
def test_are_lines_finds_each_text_that_one_line_changes(text):
    assert are_lines(["one", "zwei für"])
    assert one_line(text) != text
    assert not are_lines(["one", text])


def test_has_control_characters_ignores_white_space():
    assert has_control_characters("a\x00b")
    assert not has_control_characters("a\tb\u00a0c\nd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's 5 p.m.", ["it", "s", "5", "p", "m"]),
        ("Ça va_bien", ["ça", "va", "bien"]),
        ("我喜欢 cats", ["我", "喜", "欢", "cats"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("...", []),
        ("I ❤\ufe0f you", ["i", "you"]),
        ("Donau\u00addampf\u00adschiff", ["donaudampfschiff"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("one\u200btwo", ["one", "two"]),
        ("İZMİR", ["izmir"]),
    ],
)
def test_words_splits_by_script(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It is n't so .", "It isn't so!"),
        ("A DOG", "a  dog"),
        ("ﬁne café", "fine cafe\u0301"),
        ("Straße", "STRASSE"),
        ("covid-19", "Covid 19"),
        ("$ 5", "$5"),
        ("On May 1 , 2001 , 10 , 000 came .", "On May 1, 2001, 10,000 came."),
        (r"3\/4 of it", "¾ of it"),
        ("2010–12", "2010-12"),
        ("−1 °C", "-1 °C"),
        ("C＋＋", "C++."),
        ("2 1\\/2 cups", "2½ cups"),
        ("10² m²", "10^2 m2"),
        ("H₂O", "H2O"),
        ("50 %", "50％"),
        ("👍!", "👍"),
        ("I ❤\ufe0f you", "I ❤ you"),
        ("Donau\u00addampf\u00adschiff", "Donaudampfschiff"),
        ("10\u200b000", "10 000"),
        ("İZMİR", "izmir"),
        ("``Yes''", '"Yes"'),
    ],
)
def test_match_key_sets_spelling_details_aside(first, second):
    assert match_key(first) == match_key(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a dog", "a dot"),
        (":)", ":("),
        ("कि", "की"),
        ("C++", "C#"),
        ("C", "C#"),
        ("4.95", "495"),
        ("It was +1 °C", "It was -1 °C"),
        ("(-1)", "(1)"),
        ("1/2 Liter", "12 Liter"),
        ("Größe 5,5", "Größe 55"),
        ("٣٫٥", "٣٥"),
        ("10² metres", "102 metres"),
        ("10⁻² metres", "10-2 metres"),
        ("10₂", "10²"),
        ("1½ cups", "11/2 cups"),
        ("1 1/2 cups", "11/2 cups"),
        ("50% off", "50 off"),
        ("x ≠ 5", "x = 5"),
        ("a<b", "a>b"),
        ("F♯", "F♭"),
        ("$5", "€5"),
        ("My exam 😀", "My exam 😭"),
        ("Stock ↑", "Stock ↓"),
        ("👍", "👎"),
        ("👍🏻", "👍🏿"),
        ("❤", "💔"),
        ("🇩🇪", "🇫🇷"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4\U000e0075\U000e0073\U000e007f"),
        ("=)", "=("),
    ],
)
def test_match_key_keeps_different_texts_apart(first, second):
    assert match_key(first) != match_key(second)


def test_match_key_is_the_same_for_ascii_and_with_other_letters():
    ascii_text = "".join(map(chr, range(128)))
    assert match_key(f"{ascii_text} é") == match_key(ascii_text) + "é"


@pytest.mark.parametrize(
    "text",
    [
        "".join(map(chr, range(128))),
        "Half: 1 / 2 of C#'s, -1 and 4.95 (50% off)",
        "1½ 猫が好き 😀 10² − 5 é",
        "...",
        "",
    ],
)
def test_key_words_are_the_parts_of_the_match_key(text):
    assert "".join(key_words(text)) == match_key(text)


def slow_f1(first, second):
    """Cross off each word of one side in the other, one by one."""
    left, right = first.lower().split(), second.lower().split()
    n_words = len(left) + len(right)
    shared = 0
    for word in left:
        if word in right:
            right.remove(word)
            shared += 1
    return 2 * shared / n_words


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a dog runs", "a dog sleeps here", 4 / 7),
        ("A dog runs.", "runs a dog", 1.0),
        ("yes", "no", 0.0),
        ("...", "a word", 0.0),
        (".", ".", None),
        ("a a a", "a", 0.5),
        ("Le caf\u00e9 est ferm\u00e9.", "Le cafe\u0301 est ferme\u0301.", 1.0),  # NFC and NFD
        ("\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165", 1.0),
        ("\uff21\uff22\uff23 \uff11", "abc 1", 1.0),  # full-width letters
        ("❤\ufe0f Liebe", "☀\ufe0f Sonne", 0.0),
        ("می\u200cخواهم", "میخواهم", 1.0),
    ],
)
def test_overlap_f1_of_known_pairs(first, second, expected):
    assert overlap_f1(first, second) == pytest.approx(expected)


def test_overlap_f1_of_sets_counts_each_word_once():
    assert overlap_f1("a a a", "a", multiset=False) == 1.0


def test_overlap_f1_agrees_with_crossing_off_and_is_symmetric(sentences):
    for first in sentences[:8]:
        for second in sentences:
            first, second = first.strip(".?"), second.strip(".?")
            assert overlap_f1(first, second) == pytest.approx(slow_f1(first, second))
            assert overlap_f1(first, second) == overlap_f1(second, first)


def test_overlap_mean_has_no_value_before_the_first_pair():
    mean = OverlapMean()
    assert mean.value is None
    mean.add("a b", "a b")
    mean.add("a", "b")
    mean.add("!", "\U0001f600")  # no word on either side
    assert (mean.value, mean.n_pairs) == (0.5, 2)


def test_overlap_f1_of_snli_entailments_is_near_the_papers_39_percent(shared_data):
    mean = OverlapMean()
    for split in ("dev", "test"):
        for _, record in Table(shared_data / "nli" / f"snli_{split}.jsonl", Job.NLI).records():
            if record["gold_label"] == "entailment":
                mean.add(record["sentence1"], record["sentence2"])
    assert mean.value == pytest.approx(0.39, abs=0.01)
