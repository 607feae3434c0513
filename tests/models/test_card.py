"""The model card of a run: what the Hub reads, what people read, what runs, and what `eval` adds."""

import copy
import json
import re
import shutil
import warnings

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from helpers import SENTENCES, build_tiny_model, write_sts_folder
from simcse_cli.models.card import write_cards
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import read_run_record
from simcse_cli.settings.choices import Device, Similarity
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.run import train_run
from simcse_cli.training.setup import with_model_defaults

COMMIT = "c" * 40


def train_tiny(folder, model, sts_folder, **changed):
    """Train a tiny model for two steps into ``runs/first`` and return the run."""
    source = folder / "private" / "sentences.txt"
    source.parent.mkdir()
    source.write_text("\n".join(SENTENCES) + "\n")
    config = TrainConfig(
        train_file=[str(source)],
        model=str(model),
        dev_file=str(sts_folder / "downstream/STS/STSBenchmark/sts-dev.csv"),
        similarity=Similarity.DOT,
        batch_size=8,
        max_steps=2,
        eval_every=1,
        lr=1e-3,
        device=Device.CPU,
        **changed,
    )
    train_run(
        with_model_defaults(config, SilentProgress()), folder / "runs" / "first", SilentProgress()
    )
    return folder / "runs" / "first"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    return train_tiny(
        folder, build_tiny_model(folder / "tiny-bert"), write_sts_folder(folder / "senteval")
    )


@pytest.fixture
def run(trained, tmp_path):
    """Return a copy of a run from a local model, beside copies of its model and its data."""
    shutil.copytree(trained.parent.parent, tmp_path / "all")
    return tmp_path / "all" / "runs" / "first"


def index_of(folder):
    """Return the results of a card by data and metric, after a round trip through the classes of the Hub."""
    card = ModelCard.load(folder / "README.md")
    name, results = card.data.model_name, card.data.eval_results
    written = metadata_load(folder / "README.md")["model-index"]
    assert eval_results_to_model_index(name, results) == written
    assert model_index_to_eval_results(written) == (name, results)
    return {(each.dataset_name, each.metric_type): each.metric_value for each in results}


def test_metadata_is_what_the_run_knows(tiny_model_dir, sts_folder, hub, tmp_path):
    (tiny_model_dir / "README.md").write_text(
        "---\nlicense: apache-2.0\nlanguage:\n- en\n---\n# Tiny\n"
    )
    hub.put("someone/tiny", tiny_model_dir, commit=COMMIT)
    run = train_tiny(tmp_path, "someone/tiny", sts_folder)
    found = metadata_load(run / "model" / "README.md")
    assert ModelCard.load(run / "model" / "README.md").data.to_dict() == found
    record = json.loads((run / "run.json").read_text())
    assert found == {
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
    text = (run / "model" / "README.md").read_text()
    assert f"| base model | someone/tiny, commit {COMMIT}, under its license apache-2.0 |" in text
    assert f"| dev score of this model | {100 * record['best_score']:.2f} (step" in text
    assert "Nothing was measured yet." in text  # the dev score has chosen the model
    assert f"24 examples, SHA-256 {record['data']['train_sha256'][:12]}" in text


def test_nothing_is_made_up_and_no_path_is_told(run, trained):
    for folder in (run, run / "model"):
        text = (folder / "README.md").read_text()
        assert str(trained.parent.parent) not in text
        assert "private" not in text
        found = metadata_load(folder / "README.md")
        assert not {"license", "language", "base_model", "datasets"} & set(found)


def test_a_card_says_that_its_model_is_untrained(run):
    record = read_run_record(run)
    record.start_score, record.trained_score = 0.8, 0.7925
    for step, words, told in ((1, "after training", False), (0, "before training", True)):
        record.best_step = step
        write_cards(run, record, load_encoder(run, device="cpu"))
        text = (run / "model" / "README.md").read_text()
        assert f" {words} with the objective simcse-unsup of" in text
        assert (
            "dev score 80.00 before, at most 79.25 after; this is the untrained" in text
        ) == told
        assert "\n\n\n" not in text


def test_hub_datasets_are_named(run, tmp_path):
    record = read_run_record(run)
    record.config["train_file"] = [
        "hf://nyu-mll/glue@qqp:train",
        f"hf://{tmp_path}/saved",
        "a.csv:2",
    ]
    write_cards(run, record, load_encoder(run, device="cpu"))
    assert metadata_load(run / "README.md")["datasets"] == ["nyu-mll/glue"]
    assert str(tmp_path) not in (run / "README.md").read_text()


def test_settings_tell_no_folder_of_this_machine(run):
    record = read_run_record(run)
    record.config |= {
        "objective": "/home/me/own.py:Mine",
        "corpus": "/home/me/corpus.jsonl",
        "queries": "/home/me/queries.jsonl",
        "qrels": "/home/me/qrels.tsv",
        "teacher": ["/home/me/teacher:0.5", "someone/teacher:0.5"],
        "generator": "/home/me/generator",
    }
    write_cards(run, record, load_encoder(run, device="cpu"))
    text = (run / "README.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert "/home/me" not in text
    settings = yaml.safe_load(block)
    assert settings["objective"] == "own.py:Mine"
    assert settings["teacher"] == ["teacher:0.5", "someone/teacher:0.5"]
    assert settings["qrels"] == "qrels.tsv"


def test_usage_block_runs_as_printed(run, monkeypatch, capsys):
    pytest.importorskip("sentence_transformers")
    vectors = encode(
        load_encoder(run, device="cpu"),
        ["A man is playing a guitar.", "Someone plays an instrument."],
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


def test_settings_of_the_card_repeat_the_run(run, invoke, monkeypatch):
    folder = run.parent.parent
    (block,) = re.findall(r"```yaml\n(.*?)```", (run / "README.md").read_text(), re.DOTALL)
    settings = yaml.safe_load(block)
    assert (settings["train_file"], settings["dev_file"]) == ("sentences.txt", "sts-dev.csv")
    (folder / "again.yaml").write_text(block)
    for path in (
        folder / "private/sentences.txt",
        folder / "senteval/downstream/STS/STSBenchmark/sts-dev.csv",
    ):
        shutil.copy(path, folder)
    monkeypatch.chdir(folder)  # the tiny model is here too
    outcome = invoke("train", "--config", "again.yaml", "-o", "again")
    assert outcome.exit_code == 0, outcome.stderr
    digests = [
        json.loads((each / "run.json").read_text())["model_digest"]
        for each in (run, folder / "again")
    ]
    assert digests[0] == digests[1]


def test_eval_keeps_the_scores_current_and_the_rest_as_it_is(run, invoke, sts_folder):
    card = run / "model" / "README.md"
    card.write_text(
        card.read_text()
        .replace("## Limits\n", "## Limits\n\n- Mine.\n")
        .replace("simcse\n", "mine\n", 1)
    )
    common = ("--model", run, "--data-dir", sts_folder, "--format", "json")
    sts = json.loads(invoke("eval", "sts", *common).stdout)
    invoke("eval", "sts", *common, "--truncate-dim", 8)  # of another model, so to say
    names = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
    expected = {
        (names.get(n, n), "spearman_cosine"): task["score"] for n, task in sts["tasks"].items()
    }
    assert index_of(run / "model") == expected == index_of(run)
    text = card.read_text()
    assert "- Mine.\n" in text
    assert "- mine\n" in text
    assert (
        "| STS-B | test | spearman_cosine | spearman | "
        f"{100 * sts['tasks']['STSBenchmark']['score']:.2f} |" in text
    )
    assert text.count("| STS-B |") == 1
    invoke("eval", "sts", *common, "--metric", "pearson", "--tasks", "STS12")
    assert index_of(run)["STS12", "pearson_cosine"] == pytest.approx(
        sts["tasks"]["STS12"]["pearson"]["all"]
    )


def test_a_score_in_other_arithmetic_is_named_and_not_put_on_the_card(run, invoke, sts_folder):
    words = ("--data-dir", sts_folder, "--tasks", "STSBenchmark", "--device", "cpu")
    before = (run / "model" / "README.md").read_text()
    done = invoke("eval", "sts", "--model", run, *words, "--precision", "bf16")
    assert done.exit_code == 0, done.stderr
    assert "the model card has scores in fp32, and leaves out" in " ".join(done.stderr.split())
    assert (run / "model" / "README.md").read_text() == before


def test_a_run_of_version_1_0_0_says_why_its_card_gets_no_scores(run, invoke, sts_folder, tmp_path):
    older = shutil.copytree(run, tmp_path / "older")
    record = json.loads((older / "run.json").read_text())
    record["model_digest"] = record["model_digest"].removeprefix("2-")
    (older / "run.json").write_text(json.dumps(record))
    outcome = invoke("eval", "sts", "-m", older, "--data-dir", sts_folder, "--tasks", "STS12")
    assert outcome.exit_code == 0, outcome.stderr
    said = " ".join(outcome.stderr.split())
    assert f"the model card leaves out a result: {older} is of simcse 1.0.0" in said
    assert said.count("is of simcse 1.0.0") == 1
    assert "model-index" not in (older / "model" / "README.md").read_text()


def test_a_card_of_ones_own_is_left_alone(run, invoke, sts_folder):
    (run / "model" / "README.md").write_text("# Mine\n")
    (run / "README.md").unlink()
    outcome = invoke(
        "eval", "sts", "--model", run, "--data-dir", sts_folder, "--tasks", "STSBenchmark"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert (run / "model" / "README.md").read_text() == "# Mine\n"
    assert not (run / "README.md").exists()


def test_published_model_opens_by_name(run, hub):
    st = pytest.importorskip("sentence_transformers")
    hub.put("someone/first", run / "model", commit=COMMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = st.SentenceTransformer("someone/first", revision=COMMIT, device="cpu")
    assert model.similarity_fn_name == "dot"
    by_name = model.encode(list(SENTENCES), show_progress_bar=False)
    np.testing.assert_allclose(
        by_name, encode(load_encoder(run, device="cpu"), list(SENTENCES)), atol=1e-5
    )
    np.testing.assert_array_equal(
        encode(load_encoder("someone/first", device="cpu"), list(SENTENCES)),
        encode(load_encoder(run, device="cpu"), list(SENTENCES)),
    )


def evaluate(invoke, run, sts_folder, *more):
    tasks = () if "--tasks" in more else ("--tasks", "STSBenchmark")
    outcome = invoke("eval", "sts", "--model", run, "--data-dir", sts_folder, *tasks, *more)
    assert outcome.exit_code == 0, outcome.stderr
    return outcome


OWN_RESULT = {
    "task": {"type": "retrieval"},
    "dataset": {"name": "Mine", "type": "mine", "split": "test"},
    "metrics": [{"type": "ndcg", "value": 0.5, "name": "by hand"}],
}


@pytest.fixture
def scored(run, invoke, sts_folder):
    """Return a run whose card has the score of one task."""
    evaluate(invoke, run, sts_folder, "--tasks", "STS12")
    return run


def test_eval_keeps_results_and_models_that_are_not_its_own(scored, invoke, sts_folder):
    run, card = scored, scored / "model" / "README.md"
    metadata = metadata_load(card)
    metadata["model-index"][0]["name"] = "published as"
    metadata["model-index"][0]["results"].append(OWN_RESULT)
    other = {"name": "other", "results": [copy.deepcopy(OWN_RESULT)]}
    metadata["model-index"].insert(1, other)
    body = card.read_text().split("---\n", 2)[2]
    front = (
        "# mine\n\n" + yaml.safe_dump({"model-index": metadata.pop("model-index")}) + "\n# more\n"
    )
    card.write_text(f"---\n{front}{yaml.safe_dump(metadata)}---\n{body}")
    for _ in range(2):
        evaluate(invoke, run, sts_folder)
    found = metadata_load(card)
    first, second = found.pop("model-index")
    assert (found, second, first["name"]) == (metadata, other, "published as")
    names = [result["dataset"]["name"] for result in first["results"]]
    assert sorted(names) == ["Mine", "STS-B", "STS12"]
    assert first["results"][names.index("Mine")] == OWN_RESULT
    text = card.read_text()
    assert text.startswith("---\n# mine\n\nmodel-index:\n")
    assert "\n\n# more\nlibrary_name" in text


def test_eval_keeps_the_line_ends_of_a_card(run, invoke, sts_folder):
    card = run / "model" / "README.md"
    card.write_bytes(card.read_bytes().replace(b"\n", b"\r\n"))
    evaluate(invoke, run, sts_folder)
    content = card.read_bytes()
    assert content.replace(b"\r\n", b"\n") == (run / "README.md").read_bytes().replace(
        b"`model`", b"`.`"
    ).replace(b'("model")', b'(".")').replace(b"--model model", b"--model .")
    assert content.count(b"\n") == content.count(b"\r\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("- name: first\n", "- name: first  # mine\n"),
        ("library_name: sentence-transformers\n", "{library_name: x,\n"),
        ("model-index:\n", "model-index: 3\nmodel-index:\n"),
        ("<!-- end of scores -->", "My text.\n<!-- end of scores -->"),
        (
            "<!-- end of scores -->",
            "| Mine | test | ndcg | by hand | 50.00 |\n<!-- end of scores -->",
        ),
        ("<!-- end of scores -->\n", ""),
        ("model-index:\n- name: first\n", "model-index:\n- first\n- name: first\n"),
        ("  - task:\n", "  - metrics: mine\n  - task:\n"),
        ("## Limits\n", "## Limits\r\n"),
    ],
)
def test_a_card_that_would_lose_something_is_left_with_a_warning(
    before, after, scored, invoke, sts_folder
):
    run, card = scored, scored / "model" / "README.md"
    changed = card.read_bytes().replace(before.encode(), after.encode())
    assert changed != card.read_bytes()
    card.write_bytes(changed)
    outcome = evaluate(invoke, run, sts_folder)
    assert "the model card was not updated: " in outcome.stderr
    assert card.read_bytes() == changed
    assert "STS-B" in (run / "README.md").read_text()  # which is as it was written


def test_a_task_measured_alone_and_in_the_suite_is_listed_once(run, invoke, sts_folder):
    evaluate(invoke, run, sts_folder)
    invoke("eval", "sts", "--model", run, "--data-dir", sts_folder)
    for folder in (run, run / "model"):
        assert (folder / "README.md").read_text().count("| STS-B |") == 1
        assert len(index_of(folder)) == 7


def test_prepare_model_replaces_its_own_card_and_keeps_a_changed_one(run, invoke, tmp_path):
    def publish():
        outcome = invoke("prepare", "model", run, "-o", tmp_path / "public", "--force")
        assert outcome.exit_code == 0, outcome.stderr
        return card.read_text()

    card, source = tmp_path / "public" / "README.md", run / "model" / "README.md"
    assert publish() == source.read_text()
    source.write_text("# Two\n")
    assert publish() == "# Two\n"
    card.write_text("# Mine\n")
    source.write_text("# Three\n")
    assert publish() == publish() == "# Mine\n"


def test_a_card_that_links_out_of_its_folder_is_not_copied(tiny_model_dir, invoke, tmp_path):
    def copy_of(folder, card):
        shutil.copytree(tiny_model_dir, folder)
        (folder / "README.md").symlink_to(card)
        words = ("--pooler", "avg", "-o", folder.parent / "copy")
        outcome = invoke("prepare", "model", folder, *words)
        assert outcome.exit_code == 0, outcome.stderr
        return folder.parent / "copy" / "README.md", outcome.stderr

    (tmp_path / "private").write_text("my key")
    copied, told = copy_of(tmp_path / "model", tmp_path / "private")
    assert not copied.exists()
    assert "is a link to a file outside the model folder" in " ".join(told.split())

    # In the Hub's cache, all files are such links.
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "card").write_text("# A card")
    copied, _ = copy_of(tmp_path / "models--a--b" / "snapshots" / "c", blobs / "card")
    assert copied.read_text() == "# A card"


def test_a_training_length_beyond_that_of_the_model_is_not_in_the_card(
    tiny_model_dir, sts_folder, tmp_path
):
    run = train_tiny(tmp_path, tiny_model_dir, sts_folder, max_length=1000)
    card = (run / "README.md").read_text()
    assert "Texts beyond 64 sub-words are cut; in training they were cut after 64." in card
