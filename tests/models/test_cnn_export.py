import numpy as np
import torch

from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.models.export import save_encoder, verify_export
from simcse_cli.models.heads import TokenCnn


def test_encoder_with_convolutions_survives_saving_and_loading(tiny_encoder, tmp_path, sentences):
    torch.manual_seed(0)
    tiny_encoder.token_cnn = TokenCnn(32, 8)
    vectors = encode(tiny_encoder, sentences)
    assert vectors.shape == (len(sentences), 24)
    save_encoder(tiny_encoder, tmp_path / "model")
    loaded = load_encoder(tmp_path / "model", device="cpu")
    np.testing.assert_allclose(encode(loaded, sentences), vectors, atol=1e-6)
    assert ReadyEncoder(loaded).digest == ReadyEncoder(tiny_encoder).digest
    differences = verify_export(tmp_path / "model")
    assert all(difference is None or difference < 1e-5 for difference in differences.values())


def test_encoder_with_convolutions_does_not_see_padding(tiny_encoder, sentences):
    tiny_encoder.token_cnn = TokenCnn(32, 8)
    together = encode(tiny_encoder, sentences)
    alone = np.concatenate([encode(tiny_encoder, [sentence]) for sentence in sentences])
    np.testing.assert_allclose(together, alone, atol=1e-5)
