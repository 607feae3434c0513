"""A missing input file is told before PyTorch is imported, whichever option or argument names it."""

import sys

import pytest

from processes import start_command
from simcse_cli.errors import DataError
from simcse_cli.files.inputs import require_present

COMMANDS = [
    "encode missing.txt -o out.npy",
    "encode rows.txt -o out.npy --postprocess missing.safetensors",
    "train --train-file rows.txt --train-file missing.txt -o run",
    "train --train-file rows.txt --dev-file missing.csv -o run",
    "eval sts --pair-file missing.csv",
    "eval transfer --task-file missing.csv",
    "eval sts --embeddings missing.npy --sentences rows.txt",
    "augment missing.txt -o out.csv --method delete",
    "analyze groups missing.csv --k 2",
    "analyze search --corpus missing.txt --query dog",
    "analyze search rows.txt --queries missing.txt",
    "analyze search missing.txt dog",
    "analyze overlap rows.csv missing.csv",
    "analyze spectrum --pair-file missing.csv",
    "prepare duplicates missing.csv -o out.csv",
    "prepare duplicates rows.csv --against missing.csv -o out.csv",
    "prepare hard-negatives missing.csv -o out.csv",
    "prepare lint missing.csv",
]


def forbid_torch() -> None:
    """Start over without what is imported, and let an import of what is slow fail."""
    for name in list(sys.modules):
        package = name.split(".")[0]
        if package == "simcse_cli":
            del sys.modules[name]
        elif package in ("torch", "transformers"):
            sys.modules[name] = None  # type: ignore[assignment]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_is_told_first(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("rows.txt", "rows.csv"):
        (tmp_path / name).write_text("A man.\n")
    process = start_command(*command.split(), stderr=tmp_path / "said", prepare=forbid_torch)
    process.join()
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 1, said
    (missing,) = [word for word in command.split() if word.startswith("missing")]
    assert said == f"error: {missing} does not exist\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.txt", "said"]


def test_encode_without_an_input_says_so_first(tmp_path):
    process = start_command("encode", stderr=tmp_path / "said", prepare=forbid_torch)
    process.join()
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 2, said
    assert said.startswith("error: INPUT: need an input: a file, a folder, a glob in quotes, or -")


def forbid_numpy() -> None:
    forbid_torch()
    sys.modules["numpy"] = None  # type: ignore[assignment]


def test_compare_says_at_once_that_a_result_is_missing(tmp_path):
    process = start_command("compare", "no.json", stderr=tmp_path / "said", prepare=forbid_numpy)
    process.join()
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 1, said
    assert said.startswith("error: no.json does not exist\n   fix: write one with `simcse eval sts")


@pytest.mark.parametrize(
    "name", ["-", "hf://a/b", "s3://a/b.csv", "file:///a.txt", "*.txt", "a?.txt", "[ab].txt", "a:2"]
)
def test_what_may_be_no_local_file_is_left_to_its_reader(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_present(name)
    with pytest.raises(DataError, match=r"^a\.txt does not exist"):
        require_present("a.txt")
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        require_present("a" * 300)
    (tmp_path / "a.txt").mkdir()  # some commands read folders
    require_present("a.txt")


def test_a_setting_without_a_value_is_no_file(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "rows.txt").write_text("A man.\nA dog.\n")
    source = ("-m", tiny_model_dir, "--train-file", tmp_path / "rows.txt", "--batch-size", "2")
    run = ("--dev-file", "none", "--max-steps", "1", "-o", tmp_path / "run", "--device", "cpu")
    outcome = invoke("train", *source, *run)
    assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["encode", "", "-o", "v.npy"], "INPUT"),
        (["augment", "", "-o", "a.csv", "--method", "delete"], "INPUT"),
        (["analyze", "groups", "", "--k", "2"], "FILE"),
        (["analyze", "search", "", "dog"], "CORPUS"),
        (["prepare", "duplicates", "", "-o", "d.csv"], "FILE"),
        (["prepare", "sentences", "rows.txt", "", "-o", "d.txt"], "INPUT"),
        (["prepare", "lint", ""], "INPUT"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(invoke, tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.txt").write_text("A man.\n")
    refused = invoke(*command)
    assert refused.exit_code == 2
    assert f"{name} is empty" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.txt"]


def test_an_empty_name_of_a_model_is_told(invoke, tmp_path):
    (tmp_path / "rows.txt").write_text("A man.\n")
    refused = invoke("encode", tmp_path / "rows.txt", "-o", tmp_path / "v.npy", "--model", "")
    assert refused.exit_code == 1
    assert "the name of the model is empty" in refused.stderr
