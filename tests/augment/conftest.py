from pathlib import Path

import pytest

from simcse_cli.augment.wordnet import WordNet, find_wordnet
from tiny_wordnet import write_wordnet


@pytest.fixture
def wordnet_dir(tmp_path: Path) -> Path:
    return write_wordnet(tmp_path / "dict")


@pytest.fixture
def wordnet(wordnet_dir: Path) -> WordNet:
    return find_wordnet(wordnet_dir)
