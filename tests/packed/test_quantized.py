"""Products of 8-bit integers: exact sums, the bound on their rounding, and vectors near those of float32."""

import json

import numpy as np
import pytest
import torch

from helpers import SENTENCES, build_tiny_model
from simcse_cli.errors import ConfigError
from simcse_cli.machine.processor import is_x86
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.packed import quantized
from simcse_cli.packed.layers import LinearWeights
from simcse_cli.packed.quantized import MOST_LEVELS, IntegerProduct, weight_levels

pytestmark = pytest.mark.skipif(not is_x86(), reason="int8 products are for x86 processors")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_sums_of_integers_are_exact() -> None:
    q = torch.randint(256, (70, 384), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    levels = weight_levels()
    weight = torch.randint(
        -levels, levels + 1, (48, 384), generator=torch.Generator().manual_seed(2)
    )
    weight[:, 0] = levels  # every row has the largest weight, so that every scale is 1
    product = IntegerProduct.of(weight.float())
    assert torch.equal(product.scale, torch.ones(48))
    assert torch.equal(product(q).long(), q.long() @ weight.t())
    assert torch.equal(product.sums.long(), weight.sum(1))


@pytest.mark.parametrize("n_groups", [1, 4])
def test_layer_is_its_formula_in_float64(n_groups: int) -> None:
    linear = LinearWeights(normal(24, 64), normal(24, seed=1))
    x = 3 * normal(50, 64, seed=2) + 1
    expected = linear.bias.double().repeat(50, 1)
    for rows, weight in zip(
        x.split(64 // n_groups, 1), linear.weight.split(64 // n_groups, 1), strict=True
    ):
        scale = weight.abs().amax(1) / weight_levels()
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        step = (high - low) / 255
        q = ((rows - low) / step).round().double()
        w = (weight / scale[:, None]).round().double()
        expected += (step.double() * (q @ w.t()) + low.double() * w.sum(1)) * scale.double()
    found = quantized._grouped(linear, n_groups)(x)
    # A value half-way between two levels may be rounded either way: then a product differs by one
    # level.
    one_level = (6 / 255) * linear.weight.abs().amax()
    assert (found - expected).abs().max() < one_level
    assert (found - expected).abs().median() < 1e-5


def test_smoothing_changes_no_value_but_by_rounding() -> None:
    sizes = torch.logspace(-2, 2, 64)
    linear, x = LinearWeights(normal(24, 64) / sizes, None), sizes * (normal(200, 64, seed=2) + 2)
    exact = x @ linear.weight.t()

    def error(layer: quantized.QuantizedLinear) -> float:
        return float((layer(x) - exact).norm() / exact.norm())

    assert error(quantized._smoothed(linear, quantized.Channels.of(x))) < 0.01
    assert error(quantized._grouped(linear, 1)) > 0.1  # one channel in a hundred keeps its levels


def test_rows_of_zeros_and_constant_tokens_stay_what_they_are() -> None:
    weight, bias = normal(8, 16), torch.arange(8.0)
    weight[3] = 0
    layer = quantized._grouped(LinearWeights(weight, bias), 1)
    x = torch.full((2, 16), 5.0)
    x[1] = 0
    found = layer(x)
    assert found[0, 3] == 3
    assert torch.equal(found[1], bias)
    half_levels = 16 * 5 * float(weight.abs().max()) / weight_levels() / 2
    torch.testing.assert_close(found[0], weight.sum(1) * 5 + bias, atol=half_levels, rtol=0)
    x[0, 2] = torch.nan
    assert found.isfinite().all()
    assert layer(x)[0].isnan().all()


@pytest.mark.parametrize("model_type", ["bert", "roberta", "mpnet", "distilbert", "electra"])
def test_vectors_are_near_those_of_float32(model_type: str, tmp_path) -> None:
    folder = build_tiny_model(tmp_path / "m", model_type=model_type)
    exact = encode(load_encoder(folder, pooler="avg"), SENTENCES)
    model = load_encoder(folder, pooler="avg", precision="int8")
    found = encode(model, SENTENCES)
    cosines = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
    assert cosines.min() > (0.999 if weight_levels() == MOST_LEVELS else 0.99)
    assert not np.array_equal(exact, found)
    assert np.array_equal(
        found, encode(load_encoder(folder, pooler="avg", precision="int8"), SENTENCES)
    )


def test_older_processors_have_fewer_levels_and_the_vectors_say_so(
    tiny_model_dir, monkeypatch
) -> None:
    model = load_encoder(tiny_model_dir, pooler="avg", precision="int8")
    before = ReadyEncoder(model)
    monkeypatch.setattr("simcse_cli.models.encode.weight_levels", lambda: 64)
    assert before.variations == {"weight_levels": 64}
    monkeypatch.setattr("simcse_cli.models.encode.weight_levels", lambda: MOST_LEVELS)
    assert before.variations == {}


def test_precision_is_recorded_and_never_mixed(tiny_model_dir, tmp_path, invoke) -> None:
    text, out = tmp_path / "t.txt", tmp_path / "v.npy"
    text.write_text("\n".join(SENTENCES), encoding="utf-8")
    command = [
        "encode",
        str(text),
        "-o",
        str(out),
        "--model",
        str(tiny_model_dir),
        "--pooler",
        "avg",
    ]
    assert invoke(*command, "--precision", "int8").exit_code == 0
    assert json.loads((tmp_path / "v.npy.json").read_text())["precision"] == "int8"
    other = invoke(*command, "--precision", "fp32", "--resume")
    assert other.exit_code == 1
    assert "precision" in other.stderr


def test_int8_is_refused_where_it_has_no_meaning(tmp_path) -> None:
    folder = build_tiny_model(tmp_path / "m", model_type="modernbert")
    with pytest.raises(ConfigError, match="architecture without it"):
        load_encoder(folder, pooler="avg", precision="int8")


def test_training_has_no_int8(tiny_model_dir, tmp_path, invoke) -> None:
    text = tmp_path / "t.txt"
    text.write_text("\n".join(SENTENCES), encoding="utf-8")
    out = tmp_path / "run"
    found = invoke(
        "train", "--model", tiny_model_dir, "--train-file", text, "-o", out, "--precision", "int8"
    )
    assert found.exit_code == 1
    assert "--precision int8 is for inference" in found.stderr
    assert not out.exists()
