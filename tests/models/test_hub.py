"""Models of the Hub: what is fetched and checked, and what is said when they cannot be had."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hub as small_hub
from hub import Fault
from simcse_cli import load
from simcse_cli.errors import CheckpointError
from simcse_cli.models.resolve import ALIASES, commit_of, resolve_model

WEIGHTS = "/model.safetensors"
PAGE = "/api/models/someone/tiny/revision/main"


@pytest.fixture
def published(hub, tiny_model_dir):
    hub.put("someone/tiny", tiny_model_dir)
    return hub


def test_only_needed_files_are_fetched_and_only_once(published, tiny_model_dir):
    for name in (
        "pytorch_model.bin",
        "tf_model.h5",
        "model.fp16.safetensors",
        "onnx/model.onnx",
        "x/model.safetensors",
    ):
        (tiny_model_dir / name).parent.mkdir(exist_ok=True)
        (tiny_model_dir / name).write_bytes(b"not needed")
    (tiny_model_dir / "2_Dense").mkdir()
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (tiny_model_dir / "2_Dense" / name).write_bytes(name.encode())
    folder = resolve_model("someone/tiny")
    own = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert published.fetched == ["2_Dense/config.json", "2_Dense/model.safetensors", *own]
    published.asked.clear()
    assert resolve_model("someone/tiny") == folder
    assert published.fetched == []


def test_weights_without_safetensors_are_fetched_as_bin(published, tiny_model_dir):
    (tiny_model_dir / "model.safetensors").rename(tiny_model_dir / "pytorch_model.bin")
    assert (resolve_model("someone/tiny") / "pytorch_model.bin").is_file()


@pytest.mark.parametrize("place", ["Dense", "2_Dense"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_published_head_is_fetched_wherever_it_lies(published, tiny_model_dir, place, name):
    kinds = {"": "Transformer", "1_Pooling": "Pooling", place: "Dense"}
    rows = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    (tiny_model_dir / "modules.json").write_text(json.dumps(rows))
    dense = {
        "in_features": 32,
        "out_features": 8,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    for path, config in {"1_Pooling": {"pooling_mode": "mean"}, place: dense}.items():
        (tiny_model_dir / path).mkdir()
        (tiny_model_dir / path / "config.json").write_text(json.dumps(config))
    weights = {"linear.weight": torch.randn(8, 32), "linear.bias": torch.randn(8)}
    write = save_file if name.endswith("safetensors") else torch.save
    write(weights, tiny_model_dir / place / name)
    expected = load(tiny_model_dir).encode("the dog sleeps")
    assert load("someone/tiny").encode("the dog sleeps").tolist() == expected.tolist()
    assert expected.shape == (8,)


def test_the_cache_of_a_hub_model_names_its_snapshot(published):
    folder = resolve_model("someone/tiny")
    with pytest.raises(CheckpointError, match="need one of its snapshots") as refused:
        resolve_model(folder.parents[1])
    assert str(folder) in refused.value.hint


def test_an_alias_is_fetched_by_its_name(hub, tiny_model_dir):
    hub.put(ALIASES["bert-base"], tiny_model_dir)
    assert commit_of(resolve_model("bert-base")) == "c" * 40


def test_a_download_that_is_cut_goes_on_from_there(published, tiny_model_dir, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    published.faults.append(Fault(WEIGHTS, n_bytes=1000, times=1))
    folder = resolve_model("someone/tiny")
    assert published.ranges == ["bytes=1000-"]
    assert (folder / "model.safetensors").read_bytes() == (
        tiny_model_dir / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("name", "fault", "message", "hint"),
    [
        ("someone/none", None, "no such folder, and the Hub has no model someone/none, or it is "
"private", "HF_TOKEN"),
        ("someone/tiny@v9", None, "the model someone/tiny has no revision v9 on the Hub", "a tag"),
        (f"someone/tiny@{'a' * 40}", None, f"has no revision {'a' * 40} on the Hub", "a full commit"),
        ("someone/tiny", Fault(PAGE, 404), "the Hub has no model someone/tiny, or it is private", "HF_TOKEN"),
        ("someone/tiny", Fault(PAGE, 401), "the Hub has no model someone/tiny, or it is private", "HF_TOKEN"),
        ("someone/tiny", Fault(PAGE, 401, {"X-Error-Message": "Invalid credentials"}), "answered 401", "expired"),
        ("someone/tiny", Fault(PAGE, 403, {"X-Error-Code": "GatedRepo"}), "granted on request", "ask on its page"),
        ("someone/tiny", Fault(PAGE, 403), "the Hub answered 403 (Forbidden) when", "does not allow"),
        ("someone/tiny", Fault(PAGE, 429), "the Hub answered 429 (Too Many Requests) when", "wait a few minutes"),
        ("someone/tiny", Fault(PAGE, 500), "the Hub answered 500 (Internal Server Error) when", "try again later"),
        ("someone/tiny", Fault(PAGE, -1), "the Hub cannot be reached (", "use a local folder"),
        ("someone/tiny", Fault(WEIGHTS, 500), "the Hub answered 500 (Internal Server Error) when", "try again later"),
        ("someone/tiny", Fault(WEIGHTS, -1), "the Hub cannot be reached (", "use a local folder"),
        ("someone/tiny", Fault(WEIGHTS, n_bytes=1000), "the Hub cannot be reached (peer closed", "use a local folder"),
        ("someone/tiny", Fault(WEIGHTS, content=b"short"), "has size 5 ", "repeat the command"),
        ("someone/tiny", Fault(WEIGHTS, content=b"long" * 10**6), "has size 4000000 ", "repeat the command"),
        ("someone/tiny", Fault(WEIGHTS, content=b""), "should be of size", "repeat the command"),
    ],
)  # fmt: skip
def test_each_failure_is_one_line_and_leaves_nothing_in_the_way(
    published, name, fault, message, hint
):
    published.faults += [fault] if fault else []
    with pytest.raises(CheckpointError) as caught:
        resolve_model(name)
    assert message.replace("the Hub", "the Hugging Face Hub") in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint
    published.faults.clear()
    load("someone/tiny", pooler="avg")


def test_damaged_weights_are_refused_and_fetched_again(published, tiny_model_dir):
    whole = (tiny_model_dir / "model.safetensors").read_bytes()
    published.faults.append(Fault(WEIGHTS, content=whole[:-1] + bytes([whole[-1] ^ 1])))
    with pytest.raises(
        CheckpointError, match=r"a file of someone/tiny was damaged .* SHA-256"
    ) as caught:
        resolve_model("someone/tiny")
    assert "repeat the command" in caught.value.hint
    published.faults.clear()
    assert (resolve_model("someone/tiny") / "model.safetensors").read_bytes() == whole


def test_offline_the_cache_serves_what_it_has_whole(published, monkeypatch):
    published.faults.append(Fault(WEIGHTS, 500))
    with pytest.raises(CheckpointError):
        resolve_model("someone/tiny")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("someone/tiny", "someone/else"):  # one in part, the other not at all
        with pytest.raises(
            CheckpointError, match=f"{name} is not in the local cache, and HF_HUB_OFFLINE forbids"
        ):
            resolve_model(name)
    published.faults.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    folder = resolve_model("someone/tiny")
    published.faults.append(Fault("", 500))  # a Hub that does not work is as good as none
    assert resolve_model("someone/tiny") == folder
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model("someone/tiny") == folder


def test_the_program_takes_the_hub_of_its_environment(published, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.csv").write_text("text\nA cat.\n")
    published.put("someone/rows", tmp_path / "rows")
    variables = {
        "HF_ENDPOINT": small_hub.ADDRESS,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-m", "simcse_cli", "encode", "hf://someone/rows", "-o", "-"]
    done = subprocess.run(
        [*command, "--model", "someone/tiny", "--pooler", "avg"],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fetching someone/tiny from the Hugging Face Hub" in done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    np.testing.assert_allclose(
        row["vector"], load("someone/tiny", pooler="avg").encode(["A cat."])[0], atol=1e-6
    )
