"""Graphs in model folders: what ONNX Runtime and OpenVINO compute from them, and `prepare model`."""

import json

import numpy as np
import pytest
import torch

from helpers import SENTENCES, build_tiny_model
from simcse_cli.errors import CheckpointError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.models.export import save_encoder, verify_export
from simcse_cli.settings.choices import Backend

pytestmark = pytest.mark.upkeep

PACKAGES = {Backend.ONNX: "onnxruntime", Backend.OPENVINO: "openvino"}


def pooled_by_hand(states, mask):
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


@pytest.mark.parametrize("model_type", ["bert", "deberta-v2"])
def test_onnx_graph_gives_the_states(model_type, tmp_path):
    """The graph stands and is called as the backend of sentence-transformers expects it."""
    runtime = pytest.importorskip("onnxruntime")
    encoder = load_encoder(
        build_tiny_model(tmp_path / "m", model_type=model_type), pooler="avg", device="cpu"
    )
    save_encoder(encoder, tmp_path / "out", backends=[Backend.ONNX])
    session = runtime.InferenceSession(tmp_path / "out" / "onnx" / "model.onnx")
    batch = encoder.tokenizer(list(SENTENCES), padding=True, return_tensors="np")
    feed = {each.name: batch[each.name] for each in session.get_inputs()}
    assert list(feed)[:2] == ["input_ids", "attention_mask"]
    (states,) = session.run(["last_hidden_state"], feed)
    found = pooled_by_hand(states, batch["attention_mask"])
    np.testing.assert_allclose(found, encode(encoder, list(SENTENCES)), atol=1e-5)
    assert not (tmp_path / "out" / "openvino").exists()


def test_an_architecture_without_a_graph_is_refused(tmp_path, capfd):
    pytest.importorskip("onnxruntime")
    encoder = load_encoder(
        build_tiny_model(tmp_path / "m", model_type="longformer"), pooler="avg", device="cpu"
    )
    capfd.readouterr()
    with pytest.raises(CheckpointError, match=r"longformer of .* has no graph"):
        save_encoder(encoder, tmp_path / "out", backends=[Backend.ONNX])
    assert "def forward" not in "".join(capfd.readouterr())
    assert not (tmp_path / "out").exists()


def test_openvino_graph_gives_the_states(tiny_encoder, tmp_path):
    openvino = pytest.importorskip("openvino")
    save_encoder(tiny_encoder, tmp_path / "out", backends=[Backend.OPENVINO])
    graph = openvino.compile_model(
        tmp_path / "out/openvino/openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    batch = tiny_encoder.tokenizer(list(SENTENCES), padding=True, return_tensors="np")
    states = graph({each.get_any_name(): batch[each.get_any_name()] for each in graph.inputs})
    found = pooled_by_hand(states["last_hidden_state"], batch["attention_mask"])
    np.testing.assert_allclose(found, encode(tiny_encoder, list(SENTENCES)), atol=1e-5)
    assert not (tmp_path / "out" / "onnx").exists()


@pytest.mark.parametrize("backend", list(Backend))
def test_prepare_model_writes_verifies_and_records_graphs(backend, invoke, tiny_encoder, tmp_path):
    pytest.importorskip(PACKAGES[backend])
    source = tmp_path / "source"
    save_encoder(tiny_encoder, source, card=b"# A card\n", objective="simcse-unsup", step=7)
    before = load_encoder(source, device="cpu")
    outcome = invoke("prepare", "model", source, "-o", source, "--backend", backend, "--force")
    assert outcome.exit_code == 0, outcome.stderr
    assert f"the same vectors by auto_model, {backend}" in outcome.stderr
    record = json.loads((source / "simcse.json").read_text())
    assert (record["objective"], record["step"]) == ("simcse-unsup", 7)
    assert record["probe_max_abs_difference"][backend] < 1e-5
    assert (source / "README.md").read_text() == "# A card\n"
    assert ReadyEncoder(load_encoder(source, device="cpu")).digest == ReadyEncoder(before).digest


@pytest.mark.parametrize("backend", list(Backend))
def test_graphs_of_integers_are_near_and_replaced_with_the_folder(
    backend, invoke, tiny_model_dir, tmp_path
):
    """The second graph is smaller and recorded by its least cosine, not as equal."""
    pytest.importorskip("nncf" if backend is Backend.OPENVINO else PACKAGES[backend])
    command = (
        "prepare",
        "model",
        tiny_model_dir,
        "--pooler",
        "avg",
        "-o",
        tmp_path / "out",
        "--force",
    )
    for graphs in (("--backend", backend), ("--backend", backend, "--quantize", "int8")):
        outcome = invoke(*command, *graphs)
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.stdout == ""
    record = json.loads((tmp_path / "out" / "simcse.json").read_text())
    assert list(record["probe_least_cosine"]) == [f"{backend}_int8"]
    # Processors without VNNI saturate products of bytes.
    assert 0.94 < record["probe_least_cosine"][f"{backend}_int8"] < 1 - 1e-7
    assert record["probe_max_abs_difference"][backend] < 1e-5
    suffix = {Backend.ONNX: "onnx", Backend.OPENVINO: "bin"}[backend]
    small, large = sorted(path.stat().st_size for path in (tmp_path / "out").rglob(f"*.{suffix}"))
    assert small < large


def test_quantize_needs_a_backend(invoke, tiny_model_dir, tmp_path):
    outcome = invoke(
        "prepare", "model", tiny_model_dir, "-o", tmp_path / "out", "--quantize", "int8"
    )
    assert (outcome.exit_code, "--backend" in outcome.stderr) == (2, True)


def test_a_graph_of_other_weights_is_refused(tiny_encoder, tmp_path):
    pytest.importorskip("onnxruntime")
    save_encoder(tiny_encoder, tmp_path / "out", backends=[Backend.ONNX])
    with torch.no_grad():
        next(tiny_encoder.backbone.parameters()).mul_(2.0)
    save_encoder(tiny_encoder, tmp_path / "other")
    (tmp_path / "out" / "onnx").rename(tmp_path / "other" / "onnx")
    with pytest.raises(CheckpointError, match="onnx gives other vectors"):
        verify_export(tmp_path / "other")


def test_pooler_over_several_layers_has_no_graph(invoke, tiny_model_dir, tmp_path):
    pytest.importorskip("onnxruntime")
    outcome = invoke(
        *("prepare", "model", tiny_model_dir, "--pooler", "avg_top2", "--backend", "onnx"),
        *("-o", tmp_path / "out"),
    )
    assert outcome.exit_code == 1
    assert "a graph gives the last layer alone" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_missing_package_is_one_line(invoke, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    outcome = invoke(
        "prepare", "model", tiny_model_dir, "--backend", "onnx", "-o", tmp_path / "out"
    )
    assert outcome.exit_code == 1
    assert "install 'simcse-cli[onnx]'" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_prepared_model_records_what_the_source_did_not(invoke, tiny_model_dir, tmp_path):
    outcome = invoke(
        "prepare", "model", tiny_model_dir, "--pooler", "cls_before_pooler", "-o", tmp_path / "out"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert load_encoder(tmp_path / "out", device="cpu").pooler == "cls_before_pooler"
    refused = invoke("prepare", "model", tiny_model_dir, "-o", tmp_path / "out")
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    "name", ["notes.txt", "1_Pooling/mine.csv", "data", "runs/model.safetensors"]
)
def test_prepare_model_never_deletes_what_is_not_part_of_a_model(
    invoke, tiny_model_dir, tmp_path, name
):
    command = ("prepare", "model", tiny_model_dir, "--pooler", "cls_before_pooler", "--force", "-o")
    assert invoke(*command, tmp_path / "out").exit_code == 0
    assert invoke(*command, tmp_path / "out").exit_code == 0  # its own files are replaced
    path = tmp_path / "out" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("precious")
    before = {each: each.read_bytes() for each in (tmp_path / "out").rglob("*") if each.is_file()}
    refused = invoke(*command, tmp_path / "out")
    assert (refused.exit_code, "is not part of a model" in refused.stderr) == (1, True)
    assert {
        each: each.read_bytes() for each in (tmp_path / "out").rglob("*") if each.is_file()
    } == before


def test_prepare_model_does_not_replace_a_link(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "own")
    command = ("prepare", "model", tiny_model_dir, "--pooler", "cls_before_pooler", "--force", "-o")
    refused = invoke(*command, tmp_path / "link")
    assert refused.exit_code == 1
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "own", tiny_model_dir.name]
