from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import SENTENCES, Told
from simcse_cli.errors import ConfigError, DataError, OutputError, UsageError
from simcse_cli.evaluation.eval_encoder import EvalEncoder
from simcse_cli.evaluation.fit_postprocess import (
    PostprocessPlan,
    described_per_task,
    file_examples,
    fit_postprocessor,
    nli_examples,
    open_with_postprocess,
    per_task_postprocess,
    plan_postprocess,
    sample_examples,
    target_examples,
    with_postprocess,
)
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.evaluation.sts import StsSuite
from simcse_cli.postprocess.whitening import Whitening
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Postprocess, Precision


def write_nli(folder: Path, name: str, n_pairs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        f'{{"gold_label": "-", "sentence1": "premise {name} {i}", "sentence2": "hypothesis {i}"}}'
        for i in range(n_pairs)
    ]
    (folder / name).write_text("\n".join(rows) + "\n")


def encode(sentences: Sequence[str]) -> np.ndarray:
    rows = [
        np.random.default_rng(abs(hash(sentence)) % 2**32).standard_normal(8)
        for sentence in sentences
    ]
    return np.array(rows, dtype=np.float32)


def test_target_is_every_subset_of_a_year(sts_folder):
    assert len(target_examples(StsSuite(sts_folder), "STS12")) == 5 * 6


@pytest.mark.parametrize(("task", "n_pairs"), [("STSBenchmark", 3 * 8), ("SICKRelatedness", 3 * 6)])
def test_target_is_train_dev_and_test_where_they_exist(task, n_pairs, sts_folder):
    examples = target_examples(StsSuite(sts_folder), task)
    assert len(examples) == n_pairs
    assert all(len(pair) == 2 and set(pair) <= set(SENTENCES) for pair in examples)


def test_target_of_the_real_tasks_has_the_published_sizes(shared_data):
    sizes = {
        name: len(target_examples(StsSuite(shared_data), name))
        for name in ("STS12", "STSBenchmark", "SICKRelatedness")
    }
    assert sizes == {"STS12": 3108, "STSBenchmark": 8628, "SICKRelatedness": 9927}


def test_nli_files_are_found_as_json_lines(tmp_path):
    (tmp_path / "SNLI").mkdir()
    (tmp_path / "SNLI" / "s1.train").write_text("a side alone is no corpus\n")
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


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("p.csv", "anchor,positive\na,b\nd,\n,e\n", [("a", "b")]),
        ("s.csv", "text\none\n" + '""\nNaN\n', [("one",)]),
        ("s.txt", "one\n\n \n", [("one",)]),
    ],
)
def test_empty_texts_are_left_out_and_counted(name, text, kept, tmp_path):
    (tmp_path / name).write_text(text)
    told = Told()
    assert file_examples(tmp_path / name, told) == kept
    assert told.lines == [f"{tmp_path / name}: left out 2 rows with an empty text"]


def test_empty_texts_of_nli_are_left_out_and_counted(tmp_path):
    (tmp_path / "SNLI").mkdir()
    (tmp_path / "SNLI/s1.train").write_text("a\n\nb\n")
    (tmp_path / "SNLI/s2.train").write_text("c\nd\ne\n")
    told = Told()
    assert nli_examples(tmp_path, told) == [("a", "c"), ("b", "e")]
    left = tmp_path / "SNLI/s1.train"
    assert told.lines == [f"{left}: left out 1 row with an empty text"]


@pytest.mark.parametrize(("name", "text"), [("s.txt", "\n \n"), ("p.csv", "anchor,positive\n")])
def test_file_without_a_sentence_is_refused(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name} holds no sentence"):
        file_examples(tmp_path / name)


def test_sample_is_drawn_without_replacement_and_kept_in_order():
    examples = [(str(i),) for i in range(100)]
    drawn = sample_examples(examples, 90, seed=1)
    assert len(set(drawn)) == 90
    assert drawn == sorted(drawn, key=lambda example: int(example[0]))
    assert drawn == sample_examples(examples, 90, seed=1)
    assert drawn != sample_examples(examples, 90, seed=2)
    assert sample_examples(examples, None, seed=1) == examples


def test_fitted_post_processor_records_where_it_comes_from():
    fitted = fit_postprocessor(ENCODER, WHITENING, [("a", "b"), ("c", "d")], SilentProgress())
    assert fitted.describe()["fit"] == {
        "encoder": "e",
        "encoder_digest": "digest",
        "source": "nli",
        "n_vectors": 4,
    }
    expected = Whitening(2).fit(encode(["a", "b", "c", "d"]))
    np.testing.assert_allclose(fitted.apply(encode(["z"])), expected.transform(encode(["z"])))


def test_pairs_are_the_examples_of_the_flow():
    examples = [(f"left {i}", f"right {i}") for i in range(64)]
    flow = replace(WHITENING, name=Postprocess.FLOW, settings={})
    fitted = fit_postprocessor(ENCODER, flow, examples, SilentProgress())
    assert len(fitted.processor.losses_) == 2


def test_vectors_that_do_not_suffice_are_explained():
    with pytest.raises(
        ConfigError, match="cannot fit whitening on 1 vectors of nli: need at least two"
    ) as caught:
        fit_postprocessor(ENCODER, replace(WHITENING, settings={}), [("a",)], SilentProgress())
    assert "--fit" in (caught.value.hint or "")


def plan(
    postprocess: str | None, *, force: bool = False, **options: object
) -> PostprocessPlan | None:
    return plan_postprocess(EncoderOptions(postprocess=postprocess, **options), force=force)


@pytest.mark.parametrize(
    ("asked", "settings"),
    [
        ("whitening:4", {"k": 4}),
        ("flow:3", {"seed": 7, "epochs": 3}),
        ("all-but-the-top:2", {"n_directions": 2}),
        ("sif:1", {"n_directions": 1}),
        ("whitening", {}),
        ("flow", {"seed": 7}),
    ],
)
def test_number_after_a_name_is_the_setting_of_its_post_processor(asked, settings, tmp_path):
    (tmp_path / "fit.txt").write_text("a\n")
    source, saved = str(tmp_path / "fit.txt"), tmp_path / "new.safetensors"
    found = plan(asked, fit=source, fit_sample=9, fit_seed=7, save_postprocess=saved)
    assert found == PostprocessPlan(
        f"{asked} (fit.txt)",
        name=Postprocess(asked.partition(":")[0]),
        settings=settings,
        source=source,
        sample=9,
        seed=7,
        save_to=saved,
    )


def test_no_post_processor_is_planned_without_a_name():
    assert plan(None) is None


@pytest.mark.parametrize(
    ("asked", "options", "message", "option"),
    [
        ("whitening", {}, "whitening needs --fit nli, --fit target or --fit FILE", "--postprocess"),
        ("whitening:many", {"fit": "nli"}, "'many' is not a whole number", "--postprocess"),
        (
            "whitenning",
            {},
            "neither a file nor one of whitening, flow, all-but-the-top, sif",
            "--postprocess",
        ),
        ("w.safetensors", {"fit": "nli"}, "is fitted already: leave this out", "--fit"),
        ("w.safetensors", {"fit_sample": 5}, "is fitted already", "--fit-sample"),
        ("w.safetensors", {"save_postprocess": "x"}, "is fitted already", "--save-postprocess"),
    ],
)
def test_contradictory_plans_are_refused(asked, options, message, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("w.safetensors").touch()
    with pytest.raises(UsageError, match=message) as caught:
        plan(asked, **options)
    assert caught.value.option == option


def test_files_of_a_plan_are_looked_at_first(tmp_path):
    saved = tmp_path / "w.safetensors"
    assert plan("sif", fit="nli", save_postprocess=saved).save_to == saved
    with pytest.raises(DataError, match=r"nowhere\.txt does not exist"):
        plan("sif", fit=str(tmp_path / "nowhere.txt"))
    saved.touch()
    assert plan(str(saved)) == PostprocessPlan("w.safetensors", saved)
    options = EncoderOptions(postprocess="sif", fit="nli", save_postprocess=saved)
    for refuse in (
        lambda: plan_postprocess(options, force=False),
        lambda: open_with_postprocess(options, None, SilentProgress()),
    ):
        with pytest.raises(OutputError, match="exists"):
            refuse()
    assert plan("sif", fit="target", save_postprocess=saved, force=True).is_per_task
    assert not plan("sif", fit="nli").is_per_task


ENCODER = EvalEncoder("e", "avg", "digest", 8, Precision.FP32, encode)
WHITENING = PostprocessPlan("whitening:2 (x)", settings={"k": 2}, source="nli")


def assert_whitened(encoder: EvalEncoder, sentences: Sequence[str]) -> None:
    """Assert that the encoder whitens, fitted on the vectors of these sentences."""
    expected = Whitening(2).fit(encode(sentences)).transform(encode(["z", "y"]))
    np.testing.assert_allclose(encoder.encode(["z", "y"]), expected)
    assert encoder.postprocess["fit"]["n_vectors"] == len(sentences)


def test_one_post_processor_serves_all_tasks_and_is_kept(tmp_path):
    saved = tmp_path / "w.safetensors"
    (tmp_path / "fit.csv").write_text("anchor,positive\na,b\nc,d\ne,f\n")
    write_nli(tmp_path, "snli_train.jsonl", 3)
    nli = [side for i in range(3) for side in (f"premise snli_train.jsonl {i}", f"hypothesis {i}")]
    pairs, progress = [("l", "r"), ("m", "s")], SilentProgress()
    for fit_on, target, sentences in (
        ("nli", None, nli),
        (str(tmp_path / "fit.csv"), pairs, list("abcdef")),
        ("target", pairs, list("lrms")),
    ):
        chosen = replace(WHITENING, source=fit_on, save_to=saved)
        found = with_postprocess(ENCODER, chosen, tmp_path, progress, target=target, force=True)
        assert found.name == "e + whitening:2 (x)"
        assert_whitened(found, sentences)
        loaded = with_postprocess(ENCODER, PostprocessPlan("w", saved), None, progress)
        assert_whitened(loaded, sentences)
    drawn = replace(WHITENING, source=fit_on, sample=2, seed=3)
    several = [(name,) for name in "abcdefgh"]
    left = [name for (name,) in sample_examples(several, 2, seed=3)]
    assert_whitened(with_postprocess(ENCODER, drawn, None, progress, target=several), left)
    with pytest.raises(OutputError, match="exists"):
        with_postprocess(ENCODER, replace(WHITENING, save_to=saved), tmp_path, progress)
    assert with_postprocess(ENCODER, None, None, progress) is ENCODER


def test_sources_that_a_command_has_not_are_refused():
    for source, message in (
        ("target", "target is for `simcse eval sts`"),
        ("nli", "nli needs --data-dir"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            with_postprocess(ENCODER, replace(WHITENING, source=source), None, SilentProgress())
        assert caught.value.option == "--fit"


def test_each_task_is_fitted_on_its_own_pairs_and_each_sentence_encoded_once(sts_folder, tmp_path):
    asked = []

    def counted(sentences: Sequence[str]) -> np.ndarray:
        asked.extend(sentences)
        return encode(sentences)

    chosen, progress = replace(WHITENING, source="target"), SilentProgress()
    for_task = per_task_postprocess(
        replace(ENCODER, encode=counted), chosen, StsSuite(sts_folder), progress
    )
    for task in ("STS12", "STSBenchmark"):
        sentences = [side for pair in target_examples(StsSuite(sts_folder), task) for side in pair]
        expected = Whitening(2).fit(encode(sentences)).transform(encode(["z"]))
        np.testing.assert_allclose(for_task(task)(["z"]), expected)
    assert len(set(asked)) == len(asked)
    with pytest.raises(UsageError, match="none to save") as caught:
        per_task_postprocess(
            ENCODER, replace(chosen, save_to=tmp_path / "w"), StsSuite(sts_folder), progress
        )
    assert caught.value.option == "--save-postprocess"


def test_results_name_a_post_processor_of_each_task():
    named = described_per_task(ENCODER, replace(WHITENING, source="target"))
    assert named.name == "e + whitening:2 (x)"
    assert named.postprocess == {
        "name": "whitening",
        "settings": {"k": 2},
        "fit": {"source": "target"},
    }
