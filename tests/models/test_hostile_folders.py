"""Model folders that are damaged, or made by somebody who means harm: a clear error, and nothing run or fetched."""

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from helpers import Told, build_tiny_model
from simcse_cli.errors import CheckpointError, DataError, SimcseError
from simcse_cli.models import pretrained
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.models.export import save_encoder
from simcse_cli.models.heads import MlpHead
from simcse_cli.settings.choices import HeadUse


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"a look-up: {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def change(path: Path, **values) -> Path:
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return path


def change_weights(folder, function):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    function(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def wrap_weights(folder, prefix):
    path = folder / "model.safetensors"
    tensors = {prefix + name: tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def exported(tiny_encoder, folder):
    tiny_encoder.change(head=MlpHead(32), head_use=HeadUse.KEPT)
    return save_encoder(tiny_encoder, folder) or folder


def test_weights_that_are_not_finite_are_named(tiny_model_dir):
    change_weights(
        tiny_model_dir, lambda t: t["encoder.layer.0.output.dense.bias"].__setitem__(3, np.nan)
    )
    with pytest.raises(CheckpointError, match=r"encoder.layer.0.output.dense.bias are not finite"):
        load_encoder(tiny_model_dir, device="cpu")


@pytest.mark.parametrize(
    "name", ["embeddings.word_embeddings.weight", "encoder.layer.1.output.LayerNorm.weight"]
)
def test_weights_that_a_damaged_file_has_as_zeros_are_named(name, tiny_model_dir):
    change_weights(tiny_model_dir, lambda t: t[name].fill(0))
    with pytest.raises(CheckpointError, match=f"{name} are all zero"):
        load_encoder(tiny_model_dir, device="cpu")


def test_a_head_that_a_damaged_file_has_as_zeros_is_named(tiny_encoder, tmp_path):
    folder = exported(tiny_encoder, tmp_path / "model")
    (dense,) = {path.parent for path in folder.glob("*/model.safetensors")}
    change_weights(dense, lambda t: [tensor.fill(0) for tensor in t.values()])
    with pytest.raises(CheckpointError, match=r"head\.dense\.weight are all zero"):
        load_encoder(tmp_path / "model", device="cpu")


def as_integers(name, dtype):
    return lambda tensors: tensors.update({name: (tensors[name] * 10).astype(dtype)})


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize("prefix", ["", "bert.", "module."])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integer_weights_without_a_quantisation_are_named(
    tiny_model_dir, dtype, prefix, encode_only
):
    name = "encoder.layer.1.output.dense.weight"
    change_weights(tiny_model_dir, as_integers(name, dtype))
    wrap_weights(tiny_model_dir, prefix)
    with pytest.raises(CheckpointError, match=rf"weights \S*{name} are {dtype} without"):
        load_encoder(tiny_model_dir, pooler="avg", device="cpu", encode_only=encode_only)


@pytest.mark.parametrize("encode_only", [False, True])
def test_integer_buffers_are_no_weights(tiny_model_dir, encode_only):
    positions = np.arange(64)[None]
    change_weights(tiny_model_dir, lambda t: t.__setitem__("embeddings.position_ids", positions))
    load_encoder(tiny_model_dir, pooler="avg", device="cpu", encode_only=encode_only)


@pytest.mark.parametrize("encode_only", [False, True])
def test_integer_weights_of_an_older_file_of_pytorch_are_named(tiny_model_dir, encode_only):
    path = tiny_model_dir / "model.safetensors"
    weights = {name: torch.from_numpy(array) for name, array in load_file(path).items()}
    path.unlink()
    old_path = tiny_model_dir / "pytorch_model.bin"
    how = {"device": "cpu", "encode_only": encode_only}
    torch.save(weights, old_path, _use_new_zipfile_serialization=False)
    load_encoder(tiny_model_dir, **how)
    name = "encoder.layer.0.output.dense.weight"
    torch.save(weights | {name: weights[name].char()}, old_path)
    with pytest.raises(CheckpointError, match=f"the weights {name} are int8 without"):
        load_encoder(tiny_model_dir, **how)


def test_an_integer_head_is_named(tiny_encoder, tmp_path):
    folder = exported(tiny_encoder, tmp_path / "model")
    change_weights(folder / "Dense", as_integers("linear.weight", "int8"))
    with pytest.raises(CheckpointError, match=r"Dense: the weights head.dense.weight are int8"):
        load_encoder(folder, device="cpu")


def test_a_tokenizer_without_words_is_refused(tiny_model_dir):
    path = tiny_model_dir / "tokenizer.json"
    content = json.loads(path.read_text())
    special = {token["content"] for token in content["added_tokens"]}
    content["model"]["vocab"] = {
        word: i for word, i in content["model"]["vocab"].items() if word in special
    }
    path.write_text(json.dumps(content))
    for name in ("vocab.txt", "special_tokens_map.json"):
        (tiny_model_dir / name).unlink(missing_ok=True)
    for encode_only in (False, True):
        with pytest.raises(CheckpointError, match="no vocabulary"):
            load_encoder(tiny_model_dir, device="cpu", encode_only=encode_only)


def test_a_folder_without_a_vocabulary_is_refused(tiny_model_dir):
    for path in tiny_model_dir.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    with pytest.raises(CheckpointError, match="tiny-bert holds no vocabulary"):
        load_encoder(tiny_model_dir, device="cpu")


def test_the_first_sentence_without_a_finite_vector_is_named(tiny_encoder, sentences):
    word = tiny_encoder.tokenizer.convert_tokens_to_ids("guitar")
    with torch.no_grad():
        tiny_encoder.backbone.embeddings.word_embeddings.weight[word] = torch.inf
    tiny_encoder.train().eval()  # weights prepared before are dropped
    first = "the vectors of 2 of 25 sentences are not finite, first that of 'My guitar"
    with pytest.raises(CheckpointError, match=first):
        encode(tiny_encoder, ["My guitar is old.", *sentences])
    assert np.isnan(encode(tiny_encoder, ["guitar"], check_finite=False)).all()
    assert np.isfinite(encode(tiny_encoder, ["no such word"])).all()


def test_sentences_with_half_a_character_are_named(tiny_encoder):
    with pytest.raises(DataError, match=r"'x\\ud800' holds half of a character"):
        encode(tiny_encoder, ["fine", "x\ud800"])


def test_a_tokenizer_of_another_model_is_refused(tiny_model_dir):
    table = "embeddings.word_embeddings.weight"
    change_weights(tiny_model_dir, lambda t: t.update({table: t[table][:20].copy()}))
    change(tiny_model_dir / "config.json", vocab_size=20)
    with pytest.raises(
        CheckpointError,
        match=r"its tokenizer knows 199 sub-words, its weights have embeddings for 20",
    ):
        encode(load_encoder(tiny_model_dir, device="cpu"), ["A man is playing a guitar."])


def test_an_empty_sentence_is_a_padding_token_where_no_special_tokens_are_added(tiny_model_dir):
    change(tiny_model_dir / "tokenizer.json", post_processor=None)
    encoder = load_encoder(tiny_model_dir, device="cpu")
    vectors = encode(encoder, ["", "rain", ""])
    assert np.isfinite(vectors).all()
    np.testing.assert_array_equal(vectors[0], vectors[2])


@pytest.mark.parametrize("model_type", ["t5", "bart"])
def test_encoder_decoder_models_are_told_apart(tmp_path, model_type):
    from transformers import AutoConfig, AutoModel

    small = {
        "d_model": 32,
        "vocab_size": 64,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
    }
    small |= {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    }
    small |= {
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    AutoModel.from_config(AutoConfig.for_model(model_type, **small)).save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match="has an encoder and a decoder, need an encoder alone"
    ) as caught:
        load_encoder(tmp_path, pooler="avg", device="cpu")
    assert "BERT" in str(caught.value.hint)


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_decoders_are_refused_before_anything_is_trained(tmp_path, invoke, model_type):
    import torch
    from transformers import AutoConfig, AutoModel

    small = {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"max_position_embeddings": 64, "intermediate_size": 32, "num_key_value_heads": 2}
    small |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **small)).eval()
    first, other = torch.tensor([[3, 4, 5]]), torch.tensor([[3, 4, 9]])
    with torch.no_grad():  # why: the first token's state is blind to the rest
        states = [model(input_ids=ids).last_hidden_state for ids in (first, other)]
    assert torch.allclose(states[0][:, 0], states[1][:, 0])
    assert not torch.allclose(states[0][:, 2], states[1][:, 2])
    model.save_pretrained(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("a\nb\n")
    outcome = invoke(
        "train", "--model", tmp_path / "model", "--train-file", text, "-o", tmp_path / "run"
    )
    assert outcome.exit_code == 1
    assert f"{model_type} is a decoder" in " ".join(outcome.stderr.split())
    assert not (tmp_path / "run").exists()
    with pytest.raises(CheckpointError, match=f"{model_type} is a decoder") as caught:
        load_encoder(tmp_path / "model", pooler="avg", device="cpu")
    assert "BERT" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("clip_text_model", {"intermediate_size": 32, "eos_token_id": 2, "bos_token_id": 0}),
        ("xlm", {"causal": True, "emb_dim": 32, "n_layers": 1, "n_heads": 2}),
        ("xlnet", {"attn_type": "uni", "d_inner": 32, "d_head": 16}),
    ],
)
def test_causal_models_are_refused_as_decoders_are(tmp_path, model_type, settings):
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    if model_type == "xlm":
        sizes = {"vocab_size": 64}
    config = AutoConfig.for_model(model_type, **(sizes | settings))
    AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"{model_type} is a causal model, whose tokens"):
        load_encoder(tmp_path, pooler="avg", device="cpu")


def test_vision_models_are_told_apart(tmp_path):
    from transformers import AutoConfig, AutoModel

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    AutoModel.from_config(AutoConfig.for_model("vit", image_size=32, **sizes)).save_pretrained(
        tmp_path
    )
    with pytest.raises(CheckpointError, match="vit is no text encoder"):
        load_encoder(tmp_path, pooler="avg", device="cpu")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 1001),
        ("vocab_size", 10**12),
        ("max_position_embeddings", 10**10),
        ("hidden_size", 10**9),
        ("hidden_size", 2 * 10**6),
        ("intermediate_size", 10**11),
    ],
)
def test_absurd_configurations_are_refused_before_a_model_is_built(
    tiny_model_dir, monkeypatch, key, value
):
    change(tiny_model_dir / "config.json", **{key: value})
    monkeypatch.setattr(pretrained, "_transformers", lambda: pytest.fail("a model was built"))
    for encode_only in (True, False):
        with pytest.raises(
            CheckpointError,
            match=rf"config\.json: {key} {value:,} (with hidden_size 32 )?does not go with",
        ):
            load_encoder(tiny_model_dir, pooler="avg", device="cpu", encode_only=encode_only)


@pytest.mark.parametrize(
    "part",
    ["modules.json", "head_folder", "transformer_folder", "model.safetensors.index.json"],
)
def test_paths_out_of_the_folder_are_refused(tiny_encoder, tmp_path, part):
    folder = exported(tiny_encoder, tmp_path / "model")
    outside = f"../{folder.name}/Dense"
    if part == "modules.json":
        (folder / "simcse.json").unlink()
        modules = json.loads((folder / part).read_text())
        modules[-1]["path"] = outside
        (folder / part).write_text(json.dumps(modules))
    elif part.endswith("_folder"):
        change(folder / "simcse.json", **{part: outside})
    else:
        (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
        (folder / part).write_text(
            json.dumps({"metadata": {}, "weight_map": {"x": "../model.safetensors"}})
        )
    with pytest.raises(CheckpointError, match="which is outside the model folder"):
        load_encoder(folder, pooler="cls", device="cpu")


def test_attention_named_by_a_folder_is_not_looked_up(tmp_path, sentences):
    folder = build_tiny_model(tmp_path / "m", model_type="modernbert")
    expected = encode(load_encoder(folder, pooler="avg", device="cpu"), sentences)
    change(
        folder / "config.json",
        attn_implementation="somebody/kernel",
        _attn_implementation="somebody/kernel",
    )
    encoder = load_encoder(folder, pooler="avg", device="cpu")
    assert encoder.config._attn_implementation in ("sdpa", "eager")
    np.testing.assert_array_equal(encode(encoder, sentences), expected)


def test_remote_code_is_not_run(tmp_path):
    folder = build_tiny_model(tmp_path / "m")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'boom')!r}, 'w')")
    remote = {
        "AutoConfig": "evil.Config",
        "AutoModel": "evil.Model",
        "AutoTokenizer": ["evil.T", "evil.T"],
    }
    change(folder / "config.json", auto_map=remote)
    change(folder / "tokenizer_config.json", auto_map=remote)
    progress = Told()
    encoder = load_encoder(folder, pooler="avg", device="cpu", encode_only=True, progress=progress)
    encode(encoder, ["x"])  # BERT is known: the map is passed over
    assert progress.warnings == [
        f"{folder / 'config.json'}: auto_map names code of the folder, which is not run; the "
        "model is computed as bert of transformers"
    ]
    change(folder / "config.json", model_type="evil")
    with pytest.raises(CheckpointError):
        load_encoder(folder, pooler="avg", device="cpu")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize("kind", ["relative_key", "alibi"])
def test_positions_that_transformers_does_not_compute_are_refused(
    tiny_model_dir, kind, encode_only
):
    change(tiny_model_dir / "config.json", position_embedding_type=kind)
    with pytest.raises(
        CheckpointError,
        match=rf"config\.json: position_embedding_type '{kind}' is not computed by bert",
    ):
        load_encoder(tiny_model_dir, pooler="avg", device="cpu", encode_only=encode_only)


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_weights_inside_the_transformer_that_it_leaves_out_are_told(
    tiny_model_dir, prefix, encode_only
):
    extra = [
        "encoder.layer.0.output.adapter_down.weight",
        "encoder.layer.0.output.adapter_up.weight",
        "embeddings.position_ids",
    ]

    def add(tensors):
        for name in [*tensors]:
            tensors[prefix + name] = tensors.pop(name)
        for name in extra:
            tensors[prefix + name] = np.ones((1, 8), np.float32)
        tensors["cls.predictions.bias"] = np.ones(8, np.float32)  # of a head

    change_weights(tiny_model_dir, add)
    progress = Told()
    load_encoder(
        tiny_model_dir, pooler="avg", device="cpu", encode_only=encode_only, progress=progress
    )
    assert progress.warnings == [
        f"{tiny_model_dir}: 2 weights have no place in bert of transformers, so the vectors do "
        f"not depend on them (first: {extra[0]})"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
        "modules.json",
        "1_Pooling/config.json",
        "Dense/config.json",
        "simcse.json",
    ],
)
@pytest.mark.parametrize(
    "content", ["[]", "3", '"x"', "{", "[" * 5000, "9" * 5000, '{"a": NaN}', "{}", "null", ""]
)
def test_damaged_side_files_are_errors_or_do_not_matter(tiny_encoder, tmp_path, name, content):
    folder = exported(tiny_encoder, tmp_path / "model")
    if name != "simcse.json":
        (folder / "simcse.json").unlink()
    (folder / name).write_text(content)
    for encode_only in (True, False):
        try:
            vectors = encode(
                load_encoder(folder, pooler="cls", device="cpu", encode_only=encode_only),
                ["rain", ""],
            )
        except SimcseError:
            continue
        assert np.isfinite(vectors).all()


def test_a_head_of_another_width_is_refused(tiny_encoder, tmp_path):
    folder = exported(tiny_encoder, tmp_path / "model")
    path = next(folder.glob("Dense/*.safetensors"))
    save_file({"linear.weight": np.zeros((5, 7), np.float32)}, path)
    with pytest.raises(
        CheckpointError,
        match=r"its head takes vectors of width 7.* need a head over vectors of width 32",
    ):
        load_encoder(folder, device="cpu")


def test_heads_that_do_not_divide_the_width_are_refused(tiny_model_dir):
    change(tiny_model_dir / "config.json", num_attention_heads=3)
    with pytest.raises(CheckpointError):
        load_encoder(tiny_model_dir, pooler="avg", device="cpu", encode_only=True)


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json", "a/b/c.json"],
)
def test_pipes_and_devices_are_no_files_of_a_model(tiny_encoder, tmp_path, name):
    folder = exported(tiny_encoder, tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(
        CheckpointError, match=r"is a pipe or a device, need a file|holds no config"
    ):
        load_encoder(folder, device="cpu", encode_only=True)
