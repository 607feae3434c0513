import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from simcse_cli.errors import CheckpointError, DataError
from simcse_cli.models.bilstm_max import BiLstmMax
from simcse_cli.models.word_vectors import WordVectors

WORDS = ["<s>", "</s>", "<p>", "</p>", "a", "dog", "runs"]


@pytest.fixture
def vectors(tmp_path: Path) -> WordVectors:
    rng = np.random.default_rng(0)
    lines = [
        f"{word} " + " ".join(f"{value:.4f}" for value in rng.standard_normal(6)) for word in WORDS
    ]
    (tmp_path / "words.txt").write_text("\n".join(lines) + "\n")
    return WordVectors(tmp_path / "words.txt")


@pytest.fixture
def older_vectors(vectors, tmp_path) -> WordVectors:
    """Return the vectors without the markers of version 2."""
    lines = [line for line in vectors.path.read_text().splitlines() if "p>" not in line]
    (tmp_path / "glove.txt").write_text("\n".join(lines))
    return WordVectors(tmp_path / "glove.txt")


@pytest.fixture
def lstm() -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(6, 4, batch_first=True, bidirectional=True).eval()


@pytest.fixture
def checkpoint(tmp_path: Path, lstm: nn.LSTM) -> Path:
    path = tmp_path / "infersent.pkl"
    torch.save({f"enc_lstm.{name}": value for name, value in lstm.state_dict().items()}, path)
    return path


def states(lstm: nn.LSTM, vectors: WordVectors, tokens: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return lstm(torch.from_numpy(np.stack([vectors[t] for t in tokens]))[None])[0][0]


def test_version_2_is_the_maximum_over_marked_tokens(checkpoint, vectors, lstm):
    expected = states(lstm, vectors, ["<p>", "a", "dog", "</p>"]).amax(dim=0)
    rows = BiLstmMax(checkpoint, vectors).encode(["a dog"])
    np.testing.assert_allclose(rows[0], expected, rtol=1e-5)
    assert rows.min() < 0


def test_version_1_lets_zero_padding_take_part(checkpoint, older_vectors, lstm):
    expected = states(lstm, older_vectors, ["<s>", "a", "dog", "</s>"]).amax(dim=0).clamp(min=0)
    np.testing.assert_allclose(
        BiLstmMax(checkpoint, older_vectors).encode(["a dog"])[0], expected, rtol=1e-5
    )


@pytest.mark.parametrize("fixture", ["older_vectors", "vectors"])
def test_a_vector_does_not_depend_on_the_batch(fixture, checkpoint, request):
    encoder = BiLstmMax(checkpoint, request.getfixturevalue(fixture))
    sentences = ["a", "a dog runs a dog", "", "dog runs"]
    together = encoder.encode(sentences)
    for row, sentence in zip(together, sentences, strict=True):
        np.testing.assert_allclose(encoder.encode([sentence])[0], row, rtol=1e-5)


def test_unknown_words_are_passed_over(checkpoint, vectors):
    encoder = BiLstmMax(checkpoint, vectors)
    np.testing.assert_array_equal(encoder.encode(["a zyzzyva dog"]), encoder.encode(["a dog"]))


def test_version_follows_the_markers_of_the_vectors(checkpoint, vectors, older_vectors):
    assert BiLstmMax(checkpoint, vectors).version == 2
    assert BiLstmMax(checkpoint, older_vectors).version == 1


def test_safetensors_give_the_same_vectors(checkpoint, vectors, lstm, tmp_path):
    save_file(
        {f"enc_lstm.{name}": value for name, value in lstm.state_dict().items()},
        tmp_path / "i.safetensors",
    )
    np.testing.assert_array_equal(
        BiLstmMax(tmp_path / "i.safetensors", vectors).encode(["a dog"]),
        BiLstmMax(checkpoint, vectors).encode(["a dog"]),
    )


def test_vectors_without_markers_are_refused(checkpoint, tmp_path):
    (tmp_path / "v.txt").write_text("a 1 2 3 4 5 6\n")
    with pytest.raises(CheckpointError, match="has no <s> and </s>"):
        BiLstmMax(checkpoint, WordVectors(tmp_path / "v.txt"))


def test_vectors_of_another_dimension_are_refused(checkpoint, tmp_path):
    (tmp_path / "v.txt").write_text("<s> 1 2\n</s> 1 2\n")
    with pytest.raises(CheckpointError, match=r"2 dimensions, .*infersent\.pkl needs 6"):
        BiLstmMax(checkpoint, WordVectors(tmp_path / "v.txt"))


class Malicious:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def test_a_pickle_that_would_run_code_is_refused_unexecuted(tmp_path, vectors, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(Malicious(), protocol=2))
    torch.save({"enc_lstm.weight_ih_l0": Malicious()}, tmp_path / "worse.pkl")
    for name in ("bad.pkl", "worse.pkl"):
        with pytest.raises(
            CheckpointError, match="holds pickled objects, which may run code and are not loaded"
        ):
            BiLstmMax(tmp_path / name, vectors)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"encoder.weight": torch.ones(2, 2)}, "no enc_lstm.weight_ih_l0"),
        ({"enc_lstm.weight_ih_l0": torch.ones(8, 6)}, "not a one-layer BiLSTM"),
        ([1, 2], "no state dict"),
    ],
)
def test_other_checkpoints_are_refused(state, message, tmp_path, vectors):
    torch.save(state, tmp_path / "c.pkl")
    with pytest.raises(CheckpointError, match=message):
        BiLstmMax(tmp_path / "c.pkl", vectors)


def test_a_missing_checkpoint_is_named(tmp_path, vectors):
    with pytest.raises(DataError, match=r"none\.pkl does not exist"):
        BiLstmMax(tmp_path / "none.pkl", vectors)
