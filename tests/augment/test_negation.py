"""What each rule of negation does, and the file that ``augment`` writes with it."""

import csv

import pytest

from simcse_cli.augment.augment_file import augment_file
from simcse_cli.augment.augmentations import word_augmenter
from simcse_cli.augment.negation import negate
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.errors import ConfigError
from simcse_cli.progress import SILENT
from simcse_cli.settings.choices import Sides


@pytest.mark.parametrize(
    ("sentence", "negated"),
    [
        # One "not" goes, the first.
        ("He is not here, is he not?", "He is here, is he not?"),
        ("They don't care.", "They do care."),
        ("He can’t go.", "He can go."),
        ("Can't you come?", "Can you come?"),
        ("DON'T GO!", "DO GO!"),
        ("It cannot be", "It can be"),
        # After an auxiliary, wherever it is.
        ("A man is playing a guitar.", "A man is not playing a guitar."),
        ("The man who sleeps will wake.", "The man who sleeps will not wake."),
        ("She's late.", "She's not late."),
        ("We'll see.", "We'll not see."),
        ("It has been closed.", "It has not been closed."),
        ("They have them.", "They have not them."),
        # A "have" before a determiner is no auxiliary.
        ("The house has a roof.", "The house does not have a roof."),
        ("They had their reasons.", "They did not have their reasons."),
        # A verb of the list.
        ("Stocks fell sharply.", "Stocks did not fall sharply."),
        ("The committee postponed it.", "The committee did not postpone it."),
        ("The cat sleeps.", "The cat does not sleep."),
        ("They found a house.", "They did not find a house."),
        ("He carries (and studies) it.", "He does not carry (and studies) it."),
        ("They play.", "They do not play."),
        # No verb: behind a determiner, without a subject, unknown.
        ("Children near the play.", "Not Children near the play."),
        ("The opened letter", "Not The opened letter"),
        ("Birds play.", "Not Birds play."),
        ("...", "Not ..."),
    ],
)
def test_negation(sentence, negated):
    assert negate(sentence) == negated


def test_negations_are_hard_negatives_of_a_sentence_and_itself(tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.csv"
    source.write_text("The cat sleeps.\n\nIt is cold.\n")
    options = AugmentOptions("negate", target)
    augment_file(str(source), options, word_augmenter, show=print, progress=SILENT)
    with target.open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [
        ["anchor", "positive", "hard_negative"],
        ["The cat sleeps.", "The cat sleeps.", "The cat does not sleep."],
        ["It is cold.", "It is cold.", "It is not cold."],
    ]
    both = AugmentOptions("negate", tmp_path / "other.csv", sides=Sides.BOTH)
    with pytest.raises(ConfigError, match="--sides both"):
        augment_file(str(source), both, word_augmenter, show=print, progress=SILENT)
