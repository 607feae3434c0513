"""Opening a folder without transformers' modelling code gives what transformers gives, or nothing."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from helpers import SENTENCES, build_tiny_model
from simcse_cli.errors import CheckpointError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.models.export import save_encoder
from simcse_cli.models.fast_load import EncodingBackbone, plain_backbone, plain_tokenizer
from simcse_cli.models.heads import TokenCnn
from simcse_cli.models.resolve import bundled_minilm

TEXTS = (
    *SENTENCES,
    "[CLS] naïve  [SEP]x[MASK] Überraschung 東京 \x00 \u200b…",
    "",
    "[UNK]",
    "a" * 150,
)


@pytest.fixture(params=["bert", "roberta", "xlm-roberta", "camembert", "data2vec-text"])
def folder(request, tmp_path):
    return build_tiny_model(tmp_path / "model", model_type=request.param)


@pytest.mark.parametrize("pooler", ["avg", "cls", "cls_before_pooler"])
def test_vectors_and_digest_equal_those_of_the_full_model(folder, pooler):
    full = load_encoder(folder, pooler=pooler, device="cpu")
    light = load_encoder(folder, pooler=pooler, device="cpu", encode_only=True)
    assert isinstance(light.backbone, EncodingBackbone)
    assert ReadyEncoder(light).digest == ReadyEncoder(full).digest
    np.testing.assert_array_equal(encode(light, TEXTS), encode(full, TEXTS))


def test_the_bundled_model_is_read_alike():
    folder = bundled_minilm()
    if folder is None:
        pytest.skip("the demo extra is not installed")
    full, light = (load_encoder("minilm", device="cpu", encode_only=only) for only in (False, True))
    assert isinstance(light.backbone, EncodingBackbone)
    assert ReadyEncoder(light).digest == ReadyEncoder(full).digest
    assert light.tokenize(TEXTS) == full.tokenize(TEXTS)
    np.testing.assert_array_equal(encode(light, TEXTS), encode(full, TEXTS))


def test_a_saved_head_is_read(tmp_path):
    encoder = load_encoder(build_tiny_model(tmp_path / "base"), pooler="cls", device="cpu")
    save_encoder(encoder, tmp_path / "saved")
    light = load_encoder(tmp_path / "saved", device="cpu", encode_only=True)
    assert isinstance(light.backbone, EncodingBackbone)
    np.testing.assert_array_equal(encode(light, SENTENCES), encode(encoder, SENTENCES))


def test_a_model_with_a_further_head_is_read_below_its_prefix(folder, tmp_path):
    base = folder
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(base))
    model.save_pretrained(tmp_path / "mlm")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, tmp_path / "mlm" / name)
    assert "embeddings.LayerNorm.bias" not in load_file(tmp_path / "mlm/model.safetensors")
    full, light = (
        load_encoder(tmp_path / "mlm", pooler="avg", device="cpu", encode_only=only)
        for only in (False, True)
    )
    assert isinstance(light.backbone, EncodingBackbone)
    assert ReadyEncoder(light).digest == ReadyEncoder(full).digest
    np.testing.assert_array_equal(encode(light, SENTENCES), encode(full, SENTENCES))


def test_a_weight_beside_the_transformer_changes_nothing(tmp_path):
    """Such as the learned temperature of a contrastive training, whose name has no dot."""
    folder = build_tiny_model(tmp_path / "model")
    vectors = encode(load_encoder(folder, pooler="avg", device="cpu"), SENTENCES)
    tensors = load_file(folder / "model.safetensors") | {"logit_scale": torch.ones(1)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for only in (False, True):
        encoder = load_encoder(folder, pooler="avg", device="cpu", encode_only=only)
        np.testing.assert_allclose(encode(encoder, SENTENCES), vectors, atol=1e-6)


def test_a_head_without_weights_is_refused_as_by_the_full_path(tmp_path):
    folder = build_tiny_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert plain_backbone(folder) is not None
    for only in (False, True):
        with pytest.raises(CheckpointError, match="no weights for the head"):
            load_encoder(folder, pooler="cls", device="cpu", encode_only=only)


def test_a_model_with_convolutions_over_tokens_is_opened_whole(tmp_path):
    encoder = load_encoder(build_tiny_model(tmp_path / "base"), pooler="avg", device="cpu")
    encoder.token_cnn = TokenCnn(32, 8)
    save_encoder(encoder.eval(), tmp_path / "saved")
    opened = load_encoder(tmp_path / "saved", device="cpu", encode_only=True)
    np.testing.assert_allclose(encode(opened, SENTENCES), encode(encoder, SENTENCES), atol=1e-6)


def test_the_padded_forward_pass_is_refused(tmp_path):
    light = load_encoder(
        build_tiny_model(tmp_path / "m"), pooler="avg", device="cpu", encode_only=True
    )
    with pytest.raises(RuntimeError, match="for encoding only"):
        light.embed_with_states([[2, 5, 3]])


def edit_json(path, **entries):
    values = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (values | entries).items() if v is not ...}))


@pytest.mark.parametrize(
    "entries",
    [
        {"model_type": "mpnet"},
        {"layer_norm_eps": ...},
        {"is_decoder": True},
        {"auto_map": {"AutoModel": "other.Model"}},
        {"position_embedding_type": "relative_key"},
        {"hidden_act": "silu"},
        {"num_hidden_layers": 3},
        {"vocab_size": 7},
        {"intermediate_size": 65},
        {"pad_token_id": None},
        {"pad_token_id": True},
        {"layer_norm_eps": "1e-12"},
        {"layer_norm_eps": None},
        {"hidden_act": ["gelu"]},
        {"num_attention_heads": 4.0},
        {"num_attention_heads": -4},
    ],
    ids=str,
)
def test_another_configuration_is_left_to_transformers(tmp_path, entries):
    folder = build_tiny_model(tmp_path / "model")
    assert plain_backbone(folder) is not None
    edit_json(folder / "config.json", **entries)
    assert plain_backbone(folder) is None


def test_incomplete_or_corrupt_weights_are_left_to_transformers_which_names_them(tmp_path):
    folder = build_tiny_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert plain_backbone(folder) is None
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        load_encoder(folder, pooler="avg", device="cpu", encode_only=True)
    (folder / "model.safetensors").write_bytes(b"\x00" * 64)
    assert plain_backbone(folder) is None
    (folder / "config.json").write_text("{")
    assert plain_backbone(folder) is None


def test_half_precision_weights_become_float32_as_in_the_full_path(tmp_path):
    folder = build_tiny_model(tmp_path / "model")
    halves = {
        name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    full, light = (
        load_encoder(folder, pooler="avg", device="cpu", encode_only=only) for only in (False, True)
    )
    assert {parameter.dtype for parameter in light.parameters()} == {torch.float32}
    assert ReadyEncoder(light).digest == ReadyEncoder(full).digest


def bert_tokenizer(folder):
    """Rewrite a tiny model's tokenizer as a ``BertTokenizer``."""
    edit_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    edit_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    return folder


@pytest.mark.parametrize("as_bert", [False, True])
def test_the_tokenizer_equals_the_one_of_transformers(tmp_path, as_bert):
    folder = build_tiny_model(tmp_path / "model")
    if as_bert:
        bert_tokenizer(folder)
    light, full = plain_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert light is not None
    assert json.loads(light.backend_tokenizer.to_str()) == json.loads(
        full.backend_tokenizer.to_str()
    )
    assert light.pad_token_id == full.pad_token_id


@pytest.mark.parametrize(
    ("as_bert", "entries"),
    [
        (True, {"do_lower_case": False}),
        (True, {"strip_accents": True}),
        (True, {"tokenize_chinese_chars": False}),
        (True, {"cls_token": "[SEP]"}),
        (False, {"tokenizer_class": "RobertaTokenizer"}),
        (False, {"tokenizer_class": ...}),
        (False, {"additional_special_tokens": ["<x>"]}),
        (False, {"mask_token": "<mask>"}),
        (False, {"add_eos_token": True}),
    ],
    ids=str,
)
def test_a_tokenizer_that_says_more_is_left_to_transformers(tmp_path, as_bert, entries):
    folder = build_tiny_model(tmp_path / "model")
    if as_bert:
        bert_tokenizer(folder)
    assert plain_tokenizer(folder) is not None
    edit_json(folder / "tokenizer_config.json", **entries)
    assert plain_tokenizer(folder) is None


def test_encoding_needs_no_modelling_code(tmp_path):
    folder = build_tiny_model(tmp_path / "model")
    program = (
        "import sys\nfrom simcse_cli.models.checkpoint import load_encoder\nfrom "
        "simcse_cli.models.encode import encode\nvectors = "
        f"encode(load_encoder({str(folder)!r}, pooler='avg', device='cpu', encode_only=True), "
        "['a b'])\nassert vectors.shape == (1, 32)\nassert not {'transformers', 'numba', "
        "'torch._dynamo'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_weights_under_other_names_are_not_read(tmp_path):
    folder = build_tiny_model(tmp_path / "model")
    other = build_tiny_model(tmp_path / "other", seed=1)
    expected = encode(load_encoder(folder, pooler="avg", device="cpu"), SENTENCES)
    shutil.copy(other / "model.safetensors", folder / "model_before.safetensors")
    light = load_encoder(folder, pooler="avg", device="cpu", encode_only=True)
    assert isinstance(light.backbone, EncodingBackbone)
    np.testing.assert_array_equal(encode(light, SENTENCES), expected)


@pytest.mark.parametrize(
    ("name", "content"),
    [("special_tokens_map.json", {"cls_token": "the"}), ("added_tokens.json", {"dog": 7})],
)
@pytest.mark.parametrize("as_bert", [False, True])
def test_a_tokenizer_with_more_in_its_older_files_is_left_to_transformers(
    tmp_path, as_bert, name, content
):
    folder = build_tiny_model(tmp_path / "model")
    if as_bert:
        bert_tokenizer(folder)
    (folder / "special_tokens_map.json").write_text(json.dumps({"cls_token": "[CLS]"}))
    assert plain_tokenizer(folder) is not None
    (folder / name).write_text(json.dumps(content))
    assert plain_tokenizer(folder) is None


def test_a_bert_tokenizer_that_adds_other_ids_is_left_to_transformers(tmp_path):
    folder = bert_tokenizer(build_tiny_model(tmp_path / "model"))
    processor = {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}
    edit_json(folder / "tokenizer.json", post_processor=processor)
    assert plain_tokenizer(folder) is not None
    edit_json(folder / "tokenizer.json", post_processor=processor | {"sep": ["[SEP]", 7]})
    assert plain_tokenizer(folder) is None


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize("length", [-1, 0, 2, "20", True, [3]], ids=str)
def test_a_length_without_room_for_a_text_is_refused(tmp_path, length, encode_only):
    folder = build_tiny_model(tmp_path / "model")
    edit_json(folder / "tokenizer_config.json", model_max_length=length)
    with pytest.raises(CheckpointError, match=r"model_max_length .* need a number of at least 3"):
        load_encoder(folder, pooler="avg", device="cpu", encode_only=encode_only)
