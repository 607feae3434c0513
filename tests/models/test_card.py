"""The model card of a run: what the Hub reads, what people read, what runs, and what `eval` adds."""

import json
import re
import warnings

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from helpers import SENTENCES, put_on_hub
from simcse_cli.models.checkpoint import load_encoder

COMMIT = "c" * 40


@pytest.fixture
def train(invoke, tiny_model_dir, sts_folder, tmp_path):
    """Return a function that trains the tiny model for two steps into ``run`` and returns the folder."""
    source, run = tmp_path / "private" / "sentences.txt", tmp_path / "runs" / "first"
    source.parent.mkdir()
    source.write_text("\n".join(SENTENCES) + "\n")

    def call(*arguments, model=tiny_model_dir):
        outcome = invoke(
            *("train", "--model", model, "--train-file", source, "-o", run, "--batch-size", 8),
            *("--dev-file", sts_folder / "downstream/STS/STSBenchmark/sts-dev.csv"),
            *("--max-steps", 2, "--eval-every", 1, "--device", "cpu", *arguments),
        )
        assert outcome.exit_code == 0, outcome.stderr
        return run

    return call


def index_of(folder):
    """Return the results of a card by data and metric, after a round trip through the classes of the Hub."""
    card = ModelCard.load(folder / "README.md")
    name, results = card.data.model_name, card.data.eval_results
    written = metadata_load(folder / "README.md")["model-index"]
    assert eval_results_to_model_index(name, results) == written
    assert model_index_to_eval_results(written) == (name, results)
    return {(each.dataset_name, each.metric_type): each.metric_value for each in results}


def test_metadata_is_what_the_run_knows(train, tiny_model_dir, hub_cache):
    (tiny_model_dir / "README.md").write_text("---\nlicense: apache-2.0\nlanguage:\n- en\n---\n# Tiny\n")
    put_on_hub(tiny_model_dir, hub_cache, "someone/tiny", commit=COMMIT)
    run = train(model="someone/tiny")
    found = metadata_load(run / "model" / "README.md")
    assert ModelCard.load(run / "model" / "README.md").data.to_dict() == found
    record = json.loads((run / "run.json").read_text())
    (model,) = found.pop("model-index")
    assert found == {
        "language": "en",
        "license": "apache-2.0",
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [
            "sentence-transformers",
            "sentence-similarity",
            "feature-extraction",
            "simcse",
            "simcse-unsup",
        ],
        "base_model": "someone/tiny",
    }
    assert model["name"] == "first"
    assert index_of(run / "model") == {("sts-dev.csv", "spearman_cosine"): record["best_score"]}
    text = (run / "model" / "README.md").read_text()
    assert f"commit {COMMIT}" in text
    assert f"24 examples, SHA-256 {record['data']['train_sha256'][:12]}" in text


def test_nothing_is_made_up_and_no_path_is_told(train, tmp_path):
    run = train()
    for folder in (run, run / "model"):
        text = (folder / "README.md").read_text()
        assert str(tmp_path) not in text
        assert "private" not in text
        found = metadata_load(folder / "README.md")
        assert not {"license", "language", "base_model", "datasets"} & set(found)


def test_hub_datasets_are_named(train, tmp_path):
    from simcse_cli.models.card import write_cards
    from simcse_cli.runs import read_run_record

    run = train()
    record = read_run_record(run)
    record.config["train_file"] = ["hf://nyu-mll/glue@qqp:train", f"hf://{tmp_path}/saved", "a.csv:2"]
    write_cards(run, record, load_encoder(run, device="cpu"))
    assert metadata_load(run / "README.md")["datasets"] == ["nyu-mll/glue"]
    assert str(tmp_path) not in (run / "README.md").read_text()


def test_usage_block_runs_as_printed(train, monkeypatch, capsys):
    pytest.importorskip("sentence_transformers")
    run = train("--similarity", "dot")
    vectors = load_encoder(run, device="cpu").encode(
        ["A man is playing a guitar.", "Someone plays an instrument."]
    )
    for folder in (run / "model", run):
        (block,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        monkeypatch.chdir(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = {}
            exec(compile(block, "card", "exec"), names)
        np.testing.assert_allclose(names["vectors"], vectors, atol=1e-5)
        shown = names["model"].similarity(names["vectors"], names["vectors"])
        np.testing.assert_allclose(shown, vectors @ vectors.T, rtol=1e-4)  # dot, as trained
    assert "tensor" in capsys.readouterr().out


def test_settings_of_the_card_repeat_the_run(train, invoke, sts_folder, tmp_path, monkeypatch):
    run = train("--lr", "1e-3")
    (block,) = re.findall(r"```yaml\n(.*?)```", (run / "README.md").read_text(), re.DOTALL)
    settings = yaml.safe_load(block)
    assert (settings["train_file"], settings["dev_file"]) == ("sentences.txt", "sts-dev.csv")
    (tmp_path / "again.yaml").write_text(block)
    for path in (tmp_path / "private/sentences.txt", sts_folder / "downstream/STS/STSBenchmark/sts-dev.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)  # the tiny model is here too
    outcome = invoke("train", "--config", "again.yaml", "-o", "again")
    assert outcome.exit_code == 0, outcome.stderr
    digests = [
        json.loads((each / "run.json").read_text())["model_digest"] for each in (run, tmp_path / "again")
    ]
    assert digests[0] == digests[1]


def test_eval_keeps_the_scores_current_and_the_rest_as_it_is(train, invoke, sts_folder):
    run = train()
    card = run / "model" / "README.md"
    card.write_text(
        card.read_text().replace("## Limits\n", "## Limits\n\n- Mine.\n").replace("simcse\n", "mine\n", 1)
    )
    common = ("--model", run, "--data-dir", sts_folder, "--format", "json")
    sts = json.loads(invoke("eval", "sts", *common).stdout)
    invoke("eval", "sts", *common, "--truncate-dim", 8)  # of another model, so to say
    dev = json.loads((run / "run.json").read_text())["best_score"]
    expected = {("sts-dev.csv", "spearman_cosine"): dev}
    names = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
    expected |= {(names.get(n, n), "spearman_cosine"): task["score"] for n, task in sts["tasks"].items()}
    assert index_of(run / "model") == expected == index_of(run)
    text = card.read_text()
    assert "- Mine.\n" in text
    assert "- mine\n" in text
    assert (
        f"| STS-B | test | spearman_cosine | spearman | {100 * sts['tasks']['STSBenchmark']['score']:.2f} |"
        in text
    )
    assert text.count("| STS-B |") == 1
    invoke("eval", "sts", *common, "--metric", "pearson", "--tasks", "STS12")
    assert index_of(run)["STS12", "pearson_cosine"] == pytest.approx(sts["tasks"]["STS12"]["pearson"]["all"])


def test_a_card_of_ones_own_is_left_alone(train, invoke, sts_folder):
    run = train()
    (run / "model" / "README.md").write_text("# Mine\n")
    (run / "README.md").unlink()
    outcome = invoke("eval", "sts", "--model", run, "--data-dir", sts_folder, "--tasks", "STSBenchmark")
    assert outcome.exit_code == 0, outcome.stderr
    assert (run / "model" / "README.md").read_text() == "# Mine\n"
    assert not (run / "README.md").exists()


def test_published_model_opens_by_name(train, invoke, hub_cache, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    run = train()
    put_on_hub(run / "model", hub_cache, "someone/first", commit=COMMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = st.SentenceTransformer("someone/first", revision=COMMIT, device="cpu")
    assert model.similarity_fn_name == "cosine"
    by_name = model.encode(list(SENTENCES), show_progress_bar=False)
    np.testing.assert_allclose(by_name, load_encoder(run, device="cpu").encode(list(SENTENCES)), atol=1e-5)
    np.testing.assert_array_equal(
        load_encoder("someone/first", device="cpu").encode(list(SENTENCES)),
        load_encoder(run, device="cpu").encode(list(SENTENCES)),
    )
