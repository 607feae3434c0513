"""The packed pass with capabilities of the processor switched off: other operators, the same vectors and gradients."""

import numpy as np
import pytest
import torch

from simcse_cli.machine import processor
from simcse_cli.machine.precision import resolve_precision
from simcse_cli.models.checkpoint import load_encoder, load_for_encoding
from simcse_cli.models.encode import encode
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.packed import backbone, kernels
from simcse_cli.packed.backbone import packed_backbone
from simcse_cli.packed.operators import (
    NumpyOperators,
    Operators,
    PrepackedOperators,
    inference_operators,
)
from simcse_cli.packed.products import multiply
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Attention, Precision
from simcse_cli.settings.config import ModelOptions


@pytest.fixture(autouse=True)
def kind_of_this_test():
    processor.cpu_kind.cache_clear()
    yield
    processor.cpu_kind.cache_clear()


def no_bf16(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    for check in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: False)


def avx2(monkeypatch):
    no_bf16(monkeypatch)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(processor, "_processor_name", lambda: "AMD EPYC 7763")


def avx2_intel(monkeypatch):
    avx2(monkeypatch)
    monkeypatch.setattr(processor, "_processor_name", lambda: "Intel(R) Core(TM) i5")


def arm(monkeypatch):
    no_bf16(monkeypatch)
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")


def no_onednn(monkeypatch):
    no_bf16(monkeypatch)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)


# What is switched off, and the operators of inference that are left for float32 and bfloat16.
BY_PRODUCT = {"prepacked": PrepackedOperators, "linear": Operators, "numpy": NumpyOperators}
LEFT = Operators
if processor.cpu_kind() != "other":
    LEFT = BY_PRODUCT[processor.CPU_CONSTANTS[processor.cpu_kind()].inference_product]
if "avx512" in processor.capability():
    LEFT = PrepackedOperators
SWITCHES = {
    no_bf16: (LEFT, Operators),
    avx2: (NumpyOperators, Operators),
    avx2_intel: (Operators, Operators),
    arm: (Operators, Operators),
    no_onednn: (Operators, Operators),
}
every_switch = pytest.mark.parametrize("switch_off", SWITCHES, ids=lambda each: each.__name__)


@every_switch
def test_inference_takes_the_operators_that_are_left(
    switch_off, tiny_model_dir, sentences, monkeypatch
):
    switch_off(monkeypatch)
    for dtype, expected in zip((torch.float32, torch.bfloat16), SWITCHES[switch_off], strict=True):
        encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
        operators, _ = inference_operators(packed_backbone(encoder.backbone).parts, dtype)
        assert type(operators) is expected
        encoder.compute_in(dtype)
        packed = encode(encoder, sentences)
        with monkeypatch.context() as patch:
            patch.setattr(SentenceEncoder, "_packed", lambda self: None)
            padded = encode(load_encoder(tiny_model_dir, pooler="avg", device="cpu"), sentences)
        cosines = (
            (packed * padded).sum(1)
            / np.linalg.norm(packed, axis=1)
            / np.linalg.norm(padded, axis=1)
        )
        assert cosines.min() > (1 - 1e-6 if dtype is torch.float32 else 0.995)


def test_fused_attention_gives_the_vectors_of_batched_products(
    tiny_model_dir, sentences, monkeypatch
):
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    found = []
    for start in (1, 1 << 30):
        constants = processor.CPU_CONSTANTS[processor.cpu_kind()]._replace(fused_from=start)
        monkeypatch.setitem(processor.CPU_CONSTANTS, processor.cpu_kind(), constants)
        found.append(encode(encoder, sentences))
    assert (found[0] != found[1]).any()
    np.testing.assert_allclose(*found, rtol=0, atol=2e-6)


@pytest.mark.parametrize("product", ["linear", "numpy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_float64_in_the_given_memory(product, dtype, monkeypatch):
    constants = processor.CPU_CONSTANTS[processor.cpu_kind()]._replace(product=product)
    monkeypatch.setitem(processor.CPU_CONSTANTS, processor.cpu_kind(), constants)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, generator=generator).to(dtype) for size in ((7, 20), (5, 20)))
    out = torch.full((7, 5), torch.nan, dtype=dtype)
    with torch.no_grad():
        assert multiply(a, b.requires_grad_().t(), out).data_ptr() == out.data_ptr()
    expected = a.double() @ b.detach().double().t()
    torch.testing.assert_close(
        out.double(), expected, rtol=0, atol=0.05 if dtype is torch.bfloat16 else 1e-5
    )


@every_switch
def test_a_split_training_pass_gives_the_gradient_of_the_padded_one(
    switch_off, tiny_model_dir, sentences, monkeypatch
):
    switch_off(monkeypatch)
    gradients = []
    for is_packed in (True, False):
        encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu", dropout=0.0).train()
        rows = encoder.tokenize(sentences * 6)
        assert sum(map(len, rows)) > 1024
        encoder.trains_padded = not is_packed
        encoder.embed_rows(rows).square().mean().backward()
        gradients.append(
            {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("machine", "pays"), [("x86_64", True), ("AMD64", True), ("aarch64", False)]
)
def test_compiled_kernels_are_taken_where_they_were_measured(
    machine, pays, tiny_model_dir, monkeypatch
):
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    monkeypatch.setattr(kernels, "is_installed", lambda: True)
    monkeypatch.setattr(kernels, "why_not_loaded", lambda: None)
    monkeypatch.setattr(backbone, "can_compile", lambda *_: True)
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    assert packed_backbone(encoder.backbone).compiles(torch.float32) is pays
    monkeypatch.setattr(kernels, "is_installed", lambda: False)
    assert (encoder.training_note(5000) is not None) is pays
    encoder.attend_by(Attention.PACKED)  # which uses none of them
    assert encoder.training_note(5000) is None


@every_switch
def test_auto_takes_float32_where_bfloat16_is_slow_and_bf16_says_so(
    switch_off, tiny_model_dir, monkeypatch
):
    switch_off(monkeypatch)
    assert resolve_precision("auto", torch.device("cpu")) is Precision.FP32

    class Told(SilentProgress):
        hints: list[str] = []  # noqa: RUF012 - of this test

        def hint(self, message):
            self.hints.append(message)

    options = ModelOptions(model=str(tiny_model_dir), device="cpu", precision=Precision.BF16)
    load_for_encoding(str(tiny_model_dir), options, Told())
    assert any("slower than fp32" in hint for hint in Told.hints)


@pytest.mark.parametrize(
    ("name", "instructions", "kind", "precision"),
    [
        ("AMD EPYC 9R14", "avx512, avx512_bf16", "avx512_bf16", Precision.BF16),
        ("Intel(R) Xeon(R) Processor", "avx512, avx512_bf16", "avx512", Precision.FP32),
        ("Intel(R) Xeon(R) Platinum 8488C", "avx512, avx512_bf16, amx", "amx", Precision.BF16),
        ("Intel(R) Xeon(R) Gold 6230", "avx512", "avx512", Precision.FP32),
        ("AMD EPYC 7763", "avx2", "avx2", Precision.FP32),
        ("Intel(R) Core(TM) i5", "default", "avx2_intel", Precision.FP32),
    ],
)
def test_intel_s_bfloat16_counts_with_amx_only(name, instructions, kind, precision, monkeypatch):
    """On Intel's AVX-512 a bfloat16 instruction takes 0.72 ns and a float32 one of half its work 0.18."""
    monkeypatch.setattr(processor, "capability", lambda: instructions)
    monkeypatch.setattr(processor, "_processor_name", lambda: name)
    monkeypatch.setattr(processor, "is_x86", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert processor.cpu_kind() == kind
    assert resolve_precision("auto", torch.device("cpu")) is precision
