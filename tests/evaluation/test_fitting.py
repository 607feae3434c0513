from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from helpers import SENTENCES
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.evaluation.fitting import (
    file_examples,
    fit_postprocessor,
    nli_examples,
    sample_examples,
    target_examples,
)
from simcse_cli.postprocess.flow import BertFlow
from simcse_cli.postprocess.whitening import Whitening
from simcse_cli.progress import SilentProgress


def write_nli(folder: Path, name: str, n_pairs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        f'{{"gold_label": "-", "sentence1": "premise {name} {i}", "sentence2": "hypothesis {i}"}}'
        for i in range(n_pairs)
    ]
    (folder / name).write_text("\n".join(rows) + "\n")


def encode(sentences: Sequence[str]) -> np.ndarray:
    rows = [np.random.default_rng(abs(hash(sentence)) % 2**32).standard_normal(8) for sentence in sentences]
    return np.array(rows, dtype=np.float32)


def test_target_is_every_subset_of_a_year(sts_folder):
    assert len(target_examples(sts_folder, "STS12")) == 5 * 6


@pytest.mark.parametrize(("task", "n_pairs"), [("STSBenchmark", 3 * 8), ("SICKRelatedness", 3 * 6)])
def test_target_is_train_dev_and_test_where_they_exist(task, n_pairs, sts_folder):
    examples = target_examples(sts_folder, task)
    assert len(examples) == n_pairs
    assert all(len(pair) == 2 and set(pair) <= set(SENTENCES) for pair in examples)


def test_target_of_the_real_tasks_has_the_published_sizes(shared_data):
    sizes = {
        name: len(target_examples(shared_data, name)) for name in ("STS12", "STSBenchmark", "SICKRelatedness")
    }
    assert sizes == {"STS12": 3108, "STSBenchmark": 8628, "SICKRelatedness": 9927}


def test_nli_files_are_found_as_json_lines(tmp_path):
    write_nli(tmp_path / "nli", "snli_1.0_train.jsonl", 3)
    write_nli(tmp_path, "multinli_1.0_train.jsonl", 2)
    progress = SilentProgress()
    examples = nli_examples(tmp_path, progress)
    assert len(examples) == 5
    assert examples[0] == ("premise snli_1.0_train.jsonl 0", "hypothesis 0")
    assert progress.warnings == [
        "fitting on SNLI train, MNLI train only; the papers also use SNLI dev, SNLI test"
    ]


def test_nli_files_are_found_in_the_senteval_layout(sts_folder):
    for part, n_lines in (("train", 4), ("dev", 2), ("test", 3)):
        for side in (1, 2):
            path = sts_folder / "downstream" / "SNLI" / f"s{side}.{part}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{part} {side} {i}\n" for i in range(n_lines)))
    examples = nli_examples(sts_folder, SilentProgress())
    assert len(examples) == 9
    assert examples[0] == ("train 1 0", "train 2 0")


def test_all_parts_of_nli_bring_no_warning(tmp_path):
    for name in ("snli_train", "snli_dev", "snli_test", "mnli_train"):
        write_nli(tmp_path, f"{name}.jsonl", 1)
    progress = SilentProgress()
    assert len(nli_examples(tmp_path, progress)) == 4
    assert progress.warnings == []


def test_nli_files_of_different_length_are_refused(sts_folder):
    folder = sts_folder / "downstream" / "SNLI"
    folder.mkdir()
    (folder / "s1.dev").write_text("a\nb\n")
    (folder / "s2.dev").write_text("a\n")
    with pytest.raises(DataError, match=r"s1\.dev has 2 lines, .*s2\.dev has 1"):
        nli_examples(sts_folder, SilentProgress())


def test_no_nli_files_are_reported_with_the_names_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"snli_1\.0_train\.jsonl") as caught:
        nli_examples(tmp_path, SilentProgress())
    assert "--fit FILE" in (caught.value.hint or "")


def test_file_of_sentences_gives_single_sentences(tmp_path):
    (tmp_path / "s.txt").write_text("one\n\ntwo\n")
    assert file_examples(tmp_path / "s.txt") == [("one",), ("two",)]


@pytest.mark.parametrize("header", ["anchor,positive,hard_negative", "sent0,sent1,hard_neg"])
def test_file_of_pairs_gives_both_sides(header, tmp_path):
    (tmp_path / "p.csv").write_text(f"{header}\na,b,c\nd,e,f\n")
    assert file_examples(tmp_path / "p.csv") == [("a", "b"), ("d", "e")]


def test_sample_is_drawn_without_replacement_and_kept_in_order():
    examples = [(str(i),) for i in range(100)]
    drawn = sample_examples(examples, 10, seed=1)
    assert len(set(drawn)) == 10
    assert drawn == sorted(drawn, key=lambda example: int(example[0]))
    assert drawn == sample_examples(examples, 10, seed=1)
    assert drawn != sample_examples(examples, 10, seed=2)
    assert sample_examples(examples, None, seed=1) == examples


def test_fitted_post_processor_records_where_it_comes_from():
    fitted = fit_postprocessor(
        Whitening(2), encode, [("a", "b"), ("c", "d")], encoder="e", encoder_digest="x", source="nli"
    )
    assert fitted.describe()["fit"] == {
        "encoder": "e",
        "encoder_digest": "x",
        "source": "nli",
        "n_vectors": 4,
    }
    expected = Whitening(2).fit(encode(["a", "b", "c", "d"]))
    np.testing.assert_allclose(fitted.apply(encode(["z"])), expected.transform(encode(["z"])))


def test_pairs_are_the_examples_of_the_flow():
    examples = [(f"left {i}", f"right {i}") for i in range(64)]
    fitted = fit_postprocessor(BertFlow(), encode, examples, encoder="e", encoder_digest="x", source="nli")
    assert len(fitted.processor.losses_) == 2


def test_vectors_that_do_not_suffice_are_explained():
    with pytest.raises(
        ConfigError, match="cannot fit whitening on 1 vectors of nli: need at least two"
    ) as caught:
        fit_postprocessor(Whitening(), encode, [("a",)], encoder="e", encoder_digest="x", source="nli")
    assert "--fit" in (caught.value.hint or "")
