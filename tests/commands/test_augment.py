import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simcse_cli.augment.augmentations import make_augmenter, sentence_key
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.settings.choices import Augmentation
from tiny_wordnet import write_wordnet


@pytest.fixture
def corpus(tmp_path: Path, sentences: list[str]) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(["", *sentences]) + "\n", encoding="utf-8")
    return path


def rows_of(text: str) -> list[list[str]]:
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["anchor", "positive"]
    return rows


def test_augment_writes_pairs_and_a_manifest(
    invoke: Callable[..., Any], corpus: Path, sentences: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "pairs.csv"
    result = invoke(
        "augment", corpus, "--method", "delete", "--rate", "0.2", "--seed", 7, "-o", output
    )
    assert result.exit_code == 0
    assert result.stdout == ""
    delete = make_augmenter(Augmentation.DELETE, 0.2)
    assert rows_of(output.read_text()) == [
        [text, delete(text, sentence_key(7, line))] for line, text in enumerate(sentences, start=1)
    ]
    record = json.loads((tmp_path / "pairs.csv.manifest.json").read_text())
    assert record["settings"]["method"] == "delete"
    assert record["seed"] == 7
    assert record["counts"] == {"sentences": len(sentences), "blank": 1, "unchanged": 0}
    assert f"{len(sentences)} pairs" in result.stderr


def test_augment_reads_stdin_and_writes_stdout(invoke: Callable[..., Any]) -> None:
    result = invoke("augment", "-", "--method", "delete-one", "-o", "-", input="one two\n")
    assert result.exit_code == 0
    ((anchor, positive),) = rows_of(result.stdout)
    assert anchor == "one two"
    assert positive in {"one", "two"}


def test_augment_takes_a_column_of_a_table(invoke: Callable[..., Any], tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("id,title,body\n1,short one,the long one here\n")
    result = invoke("augment", table, "--column", "body", "--method", "crop", "-o", "-")
    assert rows_of(result.stdout)[0][0] == "the long one here"


def test_augment_both_sides_and_copies(invoke: Callable[..., Any]) -> None:
    text = "one two three four five six seven eight\n"
    arguments = (
        "--method",
        "delete",
        "--rate",
        "0.5",
        "--sides",
        "both",
        "--copies",
        "3",
        "-o",
        "-",
    )
    rows = rows_of(invoke("augment", "-", *arguments, input=text).stdout)
    assert len(rows) == 3
    assert all(len(cell.split()) == 4 for row in rows for cell in row)


def test_augment_synonym_uses_the_wordnet_given(invoke: Callable[..., Any], tmp_path: Path) -> None:
    folder = write_wordnet(tmp_path / "dict")
    arguments = ("--method", "synonym", "--wordnet-dir", folder, "-o", "-")
    result = invoke("augment", "-", *arguments, input="The dogs ran.\n")
    assert rows_of(result.stdout)[0][1] in {"The domestic dogs ran.", "The dogs jogged."}


def test_augment_synonym_says_how_to_get_wordnet(
    invoke: Callable[..., Any], tmp_path: Path
) -> None:
    arguments = ("--method", "synonym", "--wordnet-dir", tmp_path, "-o", "-")
    result = invoke("augment", "-", *arguments, input="The dogs ran.\n")
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
    assert "apt install wordnet-base" in result.stderr


def test_augment_mlm_fills_with_the_model_given(
    invoke: Callable[..., Any], tiny_model_dir: Path, corpus: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tiny_model_dir))
    model.save_pretrained(tiny_model_dir)
    output = tmp_path / "pairs.csv"
    result = invoke(
        "augment",
        corpus,
        "--method",
        "mlm",
        "--model",
        tiny_model_dir,
        "--device",
        "cpu",
        "-o",
        output,
    )
    assert result.exit_code == 0, result.stderr
    for anchor, positive in rows_of(output.read_text()):
        changed = [a != b for a, b in zip(anchor.split(), positive.split(), strict=True)]
        assert sum(changed) == max(1, round(0.15 * len(changed)))

    crop = make_augmenter(Augmentation.CROP, 0.5)
    both = tmp_path / "both.csv"
    method = f"crop:0.5+mlm:0.15:{tiny_model_dir}"
    result = invoke("augment", corpus, "--method", method, "--device", "cpu", "-o", both)
    assert result.exit_code == 0, result.stderr
    combined = rows_of(both.read_text())
    for line, (anchor, positive) in enumerate(combined, start=1):
        cropped = crop(anchor, sentence_key(42, line)).split()
        changed = [a != b for a, b in zip(cropped, positive.split(), strict=True)]
        assert sum(changed) == max(1, round(0.15 * len(cropped)))
    record = json.loads((tmp_path / "both.csv.manifest.json").read_text())
    assert record["settings"]["method"].startswith("crop:0.5+mlm:0.15:")


def test_augment_shuffle_moves_subwords_of_a_model(
    invoke: Callable[..., Any], tiny_model_dir: Path
) -> None:
    arguments = ("--method", "shuffle", "--rate", "1", "--model", tiny_model_dir, "-o", "-")
    result = invoke("augment", "-", *arguments, input="cat qzx\n")
    assert result.exit_code == 0
    assert sorted(rows_of(result.stdout)[0][1].replace(" ", "")) == sorted("catqzx")


def test_augment_refuses_a_model_it_would_not_use(
    invoke: Callable[..., Any], tiny_model_dir: Path
) -> None:
    result = invoke(
        "augment", "-", "--method", "crop", "--model", tiny_model_dir, "-o", "-", input="a b\n"
    )
    assert result.exit_code == 1
    assert "--model is for mlm and for shuffle" in result.stderr


def test_augment_preview_only_looks(invoke: Callable[..., Any], corpus: Path) -> None:
    result = invoke("augment", corpus, "--method", "delete-one", "--preview", 2)
    assert result.exit_code == 0
    labels = [line for line in result.stdout.splitlines() if line.startswith("line ")]
    assert labels == ["line 2: distance 1, 6 words", "line 3: distance 1, 9 words"]
    assert result.stdout.count("[-") == 2


def test_augment_preview_shows_the_rows_that_are_written(
    invoke: Callable[..., Any], corpus: Path, tmp_path: Path
) -> None:
    output = tmp_path / "pairs.csv"
    result = invoke(
        "augment", corpus, "--method", "crop", "--rate", "0.4", "--preview", 3, "-o", output
    )
    shown = [line[2:] for line in result.stdout.splitlines() if line.startswith("+ ")]
    assert shown == [row[1] for row in rows_of(output.read_text())[:3]]
    assert len(rows_of(output.read_text())) == 24


def test_augment_preview_keeps_stdout_clean(invoke: Callable[..., Any]) -> None:
    arguments = ("--method", "delete", "--rate", "0.3", "--unit", "char", "--preview", 1, "-o", "-")
    result = invoke("augment", "-", *arguments, input="今天天气很好我们去公园\n")
    assert len(rows_of(result.stdout)) == 1
    assert "line 1: distance 4, 11 chars" in result.stderr


def test_augment_needs_an_output_or_a_preview(invoke: Callable[..., Any], corpus: Path) -> None:
    result = invoke("augment", corpus, "--method", "crop")
    assert result.exit_code == 2
    assert "--preview" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "delete", "--rate", "10"), "above 0 and at most 1"),
        (("--method", "delete-one", "--rate", "0.1"), "takes no rate"),
        (("--method", "eda", "--unit", "char"), "works on whole words"),
    ],
)
def test_augment_refuses_settings_that_do_not_go_together(
    invoke: Callable[..., Any],
    corpus: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    result = invoke("augment", corpus, *arguments, "-o", tmp_path / "pairs.csv")
    assert result.exit_code == 1
    assert message in result.stderr
    assert not (tmp_path / "pairs.csv").exists()


def test_augment_does_not_overwrite_without_force(
    invoke: Callable[..., Any], corpus: Path, tmp_path: Path
) -> None:
    output = tmp_path / "pairs.csv"
    output.write_text("mine")
    assert invoke("augment", corpus, "--method", "crop", "-o", output).exit_code == 1
    assert output.read_text() == "mine"
    assert invoke("augment", corpus, "--method", "crop", "-o", output, "--force").exit_code == 0


def test_augment_of_blank_input_leaves_no_file(invoke: Callable[..., Any], tmp_path: Path) -> None:
    output = tmp_path / "pairs.csv"
    result = invoke("augment", "-", "--method", "crop", "-o", output, input="\n \n")
    assert result.exit_code == 1
    assert "standard input has no sentences, only 2 blank lines" in result.stderr
    assert not output.exists()


def test_augment_warns_of_text_without_spaces_and_short_sentences(
    invoke: Callable[..., Any],
) -> None:
    result = invoke(
        "augment", "-", "--method", "delete", "-o", "-", input="今天天气很好我们去公园\n"
    )
    assert "--unit char" in result.stderr
    assert "more than half of the positives equal their anchor" in result.stderr


@pytest.mark.parametrize("method", ["negate", "mask-span", "crop-prefix-chars", "crop+negate"])
def test_augment_names_unit_char_only_where_all_methods_take_it(
    invoke: Callable[..., Any], method: str
) -> None:
    text = "今天天气很好我们去公园\n"
    result = invoke("augment", "-", "--method", method, "-o", "-", input=text)
    assert result.exit_code == 0
    assert "--unit" not in result.stderr
    assert ("a phrase counts as one word" in result.stderr) == ("+" in method)


@pytest.mark.parametrize("text", ["我不喜欢这个。", "Ich mag das nicht."])
def test_negate_warns_if_its_rules_fit_few_sentences(invoke: Callable[..., Any], text: str) -> None:
    result = invoke("augment", "-", "--method", "negate", "-o", "-", input=f"{text}\n" * 3)
    assert '3 hard negatives are the sentence behind "Not"' in result.stderr
    result = invoke("augment", "-", "--method", "negate", "-o", "-", input="I am here.\n" + text)
    assert "behind" not in result.stderr


@pytest.mark.parametrize("method", ["eda", "synonym"])
def test_augment_warns_if_wordnet_has_no_words_of_the_language(
    invoke: Callable[..., Any], tmp_path: Path, method: str
) -> None:
    folder = write_wordnet(tmp_path / "dict")
    arguments = ("--method", method, "--wordnet-dir", folder, "-o", "-")
    result = invoke("augment", "-", *arguments, input="Я дома.\nОн дома.\n")
    assert "2 sentences have no English letters (a to z)" in result.stderr
    assert "too short" not in result.stderr
    assert "letters" not in invoke("augment", "-", *arguments, input="I am at home.\n").stderr


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.jsonl", "pairs.csv.gz"])
def test_augment_writes_every_format_that_train_reads(
    invoke: Callable[..., Any], corpus: Path, sentences: list[str], tmp_path: Path, name: str
) -> None:
    assert invoke("augment", corpus, "--method", "crop", "-o", tmp_path / name).exit_code == 0
    crop = make_augmenter(Augmentation.CROP)
    expected = [
        (text, crop(text, sentence_key(42, line))) for line, text in enumerate(sentences, start=1)
    ]
    assert [
        tuple(record.values()) for _, record in Table(tmp_path / name, Job.LINT).records()
    ] == expected
