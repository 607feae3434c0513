"""`simcse eval mteb` end to end on local data."""

import json

import numpy as np
import pytest

from helpers import SENTENCES, build_tiny_model
from simcse_cli.models.export import save_encoder

pytest.importorskip("mteb", reason="needs the extra mteb")


def test_two_local_models_get_two_scores_from_one_results_folder(invoke, sts_folder, tmp_path):
    scores = {}
    for seed in (0, 1):
        model = build_tiny_model(tmp_path / f"model{seed}" / "tiny", seed=seed)
        outcome = invoke(
            *("eval", "mteb", "--model", model, "--pooler", "avg", "--tasks", "STSBenchmark,STS12"),
            *("--data-dir", sts_folder, "--results-dir", tmp_path / "results", "--format", "json"),
        )
        assert outcome.exit_code == 0, outcome.stderr
        payload = json.loads(outcome.stdout)
        scores[seed] = {name: task["score"] for name, task in payload["tasks"].items()}
    assert scores[0]["STSBenchmark"] != scores[1]["STSBenchmark"]
    assert scores[0]["STS12"] != scores[1]["STS12"]


def test_score_agrees_with_eval_sts_where_the_protocols_do(
    invoke, sts_folder, tiny_model_dir, tmp_path
):
    pairs = zip(
        SENTENCES, SENTENCES[1:], np.random.default_rng(1).permutation(23) / 5, strict=False
    )
    lines = [
        f"g\tf\ty\t{i}\t{gold}\t{left}\t{right}\n" for i, (left, right, gold) in enumerate(pairs)
    ]
    (sts_folder / "downstream/STS/STSBenchmark/sts-test.csv").write_text("".join(lines))
    common = ("-m", tiny_model_dir, "--pooler", "avg", "--data-dir", sts_folder, "--format", "json")
    common = (*common, "--tasks", "STSBenchmark")
    sts = json.loads(invoke("eval", "sts", *common).stdout)
    mteb = json.loads(invoke("eval", "mteb", *common, "--results-dir", tmp_path / "results").stdout)
    assert mteb["average"] == pytest.approx(sts["average"], abs=2e-6)


def test_precision_and_post_processing_keep_scores_apart(
    invoke, sts_folder, tiny_model_dir, tmp_path
):
    common = (
        *("eval", "mteb", "--model", tiny_model_dir, "--pooler", "avg", "--tasks", "STSBenchmark"),
        *("--data-dir", sts_folder, "--results-dir", tmp_path / "results", "--format", "json"),
    )
    (tmp_path / "fit.txt").write_text(
        "a cat sleeps\na dog runs\nrain falls in the north\nit is cold\n"
    )
    plain = json.loads(invoke(*common).stdout)
    processed = json.loads(
        invoke(*common, "--postprocess", "whitening", "--fit", tmp_path / "fit.txt").stdout
    )
    assert not processed["tasks"]["STSBenchmark"]["cached"]
    assert processed["tasks"]["STSBenchmark"]["score"] != plain["tasks"]["STSBenchmark"]["score"]
    assert json.loads(invoke(*common).stdout)["tasks"]["STSBenchmark"]["cached"]


def test_table_shows_tasks_and_averages(invoke, sts_folder, tiny_model_dir, tmp_path):
    outcome = invoke(
        *("eval", "mteb", "-m", tiny_model_dir, "--pooler", "avg", "--tasks", "STS12,BIOSSES"),
        *("--data-dir", sts_folder, "--results-dir", tmp_path / "results"),
    )
    assert outcome.exit_code == 0
    assert "datasets scored: STS 1/2" in outcome.stdout
    assert "BIOSSES missing" in outcome.stdout
    assert "BIOSSES is left out" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tasks", "BIOSSES"), "hf download mteb/biosses-sts"),
        (("--tasks", "STSBenchmrk"), "Did you mean: 'STSBenchmark"),
        (("--category", "Parsing"), "no category Parsing"),
    ],
)
def test_what_cannot_be_run_is_explained(
    arguments, said, invoke, sts_folder, tiny_model_dir, tmp_path
):
    outcome = invoke(
        *("eval", "mteb", "-m", tiny_model_dir, "--pooler", "avg", *arguments),
        *("--data-dir", sts_folder, "--results-dir", tmp_path / "results"),
    )
    assert outcome.exit_code == 1
    assert said in outcome.stderr
    assert outcome.stdout == ""


def test_fit_target_is_refused(invoke, sts_folder, tiny_model_dir, tmp_path):
    outcome = invoke(
        *("eval", "mteb", "-m", tiny_model_dir, "--pooler", "avg", "--tasks", "STS12"),
        *(
            "--data-dir",
            sts_folder,
            "--postprocess",
            "sif",
            "--fit",
            "target",
            "--results-dir",
            tmp_path,
        ),
    )
    assert outcome.exit_code == 2


@pytest.mark.filterwarnings("ignore:is_cross_encoder")  # of a field that mteb itself writes
def test_leaderboard_tools_read_the_results_of_a_hub_model(
    invoke, sts_folder, tiny_encoder, hub, tmp_path
):
    """Name and commit are the Hub's, the metadata pass mteb's own model, and its loader finds the scores."""
    import mteb
    from mteb.models import ModelMeta

    save_encoder(tiny_encoder, tmp_path / "model")
    hub.put("someone/tiny", tmp_path / "model", commit="d" * 40)
    common = ("eval", "mteb", "--model", "someone/tiny", "--tasks", "STSBenchmark,STS12")
    common = (
        *common,
        "--data-dir",
        sts_folder,
        "--results-dir",
        tmp_path / "results",
        "--format",
        "json",
    )
    payload = json.loads(invoke(*common).stdout)
    cache = mteb.ResultCache(tmp_path / "results")
    loaded = cache.load_results(
        models=["someone/tiny"],
        tasks=mteb.get_tasks(["STSBenchmark", "STS12"]),
        validate_and_filter=True,
    )
    (model,) = loaded.model_results
    assert (model.model_name, model.model_revision) == ("someone/tiny", "d" * 40)
    found = {each.task_name: each.get_score() for each in model.task_results}
    assert found == {name: pytest.approx(task["score"]) for name, task in payload["tasks"].items()}
    written = (
        tmp_path / "results/results/someone__tiny" / ("d" * 40) / "model_meta.json"
    ).read_text()
    meta = ModelMeta.model_validate_json_resolved(written)
    assert (meta.name, meta.revision, meta.embed_dim) == ("someone/tiny", "d" * 40, 32)
    assert json.loads(invoke(*common).stdout)["tasks"]["STS12"]["cached"]
    assert payload["tasks"]["STS12"]["dataset"] == "mteb/sts12-sts"
    # Anything but the model as it is on the Hub goes by a digest.
    invoke(*common, "--truncate-dim", 8)
    assert {name == "d" * 40 for _, name in cache.get_models()} == {True, False}
