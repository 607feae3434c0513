import pickle
import random
from pathlib import Path

import pytest

from simcse_cli.augment.subwords import SubwordSplitter, cut_pieces, join_pieces, make_subword_shuffler
from simcse_cli.augment.text_units import split_graphemes


@pytest.mark.parametrize(
    ("text", "starts", "pieces", "gaps"),
    [
        ("unhappy cat", [0, 2, 8], ["un", "happy", "cat"], ["", "", " ", ""]),
        ("  a b ", [2, 4], ["a", "b"], ["  ", " ", " "]),
        ("e\u0301t", [0, 1, 2], ["e\u0301", "t"], ["", "", ""]),  # offset 1 is inside a grapheme
        ("ab c", [0, 1, 2], ["a", "b", "c"], ["", "", " ", ""]),  # a piece that begins with its space
        ("", [], [], [""]),
    ],
)
def test_cut_pieces_and_join_pieces_are_inverse(
    text: str, starts: list[int], pieces: list[str], gaps: list[str]
) -> None:
    assert cut_pieces(text, starts) == (pieces, gaps)
    assert join_pieces(pieces, gaps) == text


def test_splitter_cuts_where_the_tokenizer_does(tiny_model_dir: Path) -> None:
    pieces, gaps = SubwordSplitter(tiny_model_dir).split("The cat sqz!")
    assert pieces == ["The", "cat", "s", "q", "z", "!"]
    assert gaps == ["", " ", " ", "", "", "", ""]


def test_subword_shuffler_permutes_pieces_between_fixed_gaps(tiny_model_dir: Path) -> None:
    shuffler = make_subword_shuffler(tiny_model_dir, 1.0)
    outcomes = {shuffler("cat qz", key) for key in range(60)}
    assert outcomes == {"cat qz", "cat zq", "q catz", "q zcat", "z catq", "z qcat"}
    copy = pickle.loads(pickle.dumps(shuffler))  # noqa: S301 - our own bytes
    assert copy("cat qz", 5) == shuffler("cat qz", 5)


def test_subword_shuffler_never_splits_a_grapheme(tiny_model_dir: Path) -> None:
    shuffler = make_subword_shuffler(tiny_model_dir, 1.0)
    rng = random.Random(0)
    for _ in range(50):
        text = " ".join("".join(rng.choices(["e\u0301", "a", "👨‍👩‍👧", "7"], k=3)) for _ in range(4))
        changed = shuffler(text, rng.randrange(1000))
        count = sorted(grapheme.strip() for grapheme in split_graphemes(changed))
        assert count == sorted(grapheme.strip() for grapheme in split_graphemes(text))
