"""`--prompt`, `--truncate-dim` and `--long` in the commands that make vectors."""

import json

import numpy as np
import pytest

from helpers import SENTENCES
from simcse_cli.data.senteval import read_sts_task
from simcse_cli.evaluation.correlation import cosine_rows
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import Use, encode, with_use
from simcse_cli.models.export import save_encoder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("\n".join(SENTENCES))
    return path


@pytest.fixture
def prompted_model(tiny_model_dir, tmp_path):
    """Return the tiny model with average pooling and prompts for queries and passages."""
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    encoder.change(head=None, prompts={"query": "someone reads: ", "passage": "the film: "})
    save_encoder(encoder, tmp_path / "prompted")
    return tmp_path / "prompted"


def test_prompt_dimensions_and_long_texts_shape_the_vectors(invoke, prompted_model, tmp_path):
    long = " ".join(["dogs cats"] * 60)
    (tmp_path / "t.txt").write_text(f"a man\n{long}\n")
    command = ("encode", tmp_path / "t.txt", "-m", prompted_model, "-o")
    outcome = invoke(*command, tmp_path / "plain.npy")
    assert "cut 1 text at 64 sub-words" in outcome.stderr
    outcome = invoke(
        *command, tmp_path / "v.npy", "--prompt", "query", "--truncate-dim", 8, "--long", "mean"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "cut" not in outcome.stderr
    model = load_encoder(prompted_model, device="cpu")
    encoder = with_use(model, prompt="query", truncate_dim=8, long="mean")
    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"), encoder.encode(["a man", long]), atol=1e-6
    )
    side = json.loads((tmp_path / "v.npy.json").read_text())
    assert (side["prompt"], side["truncate_dim"], side["long"]) == ("someone reads: ", 8, "mean")
    assert side["model_digest"] == encoder.digest
    assert "prompt" not in json.loads((tmp_path / "plain.npy.json").read_text())
    refused = invoke(*command, tmp_path / "w.npy", "--prompt", "qurey")
    assert refused.exit_code == 1
    assert "there are query, passage" in refused.stderr


def test_search_puts_the_prompts_of_queries_and_passages(invoke, prompted_model, source, tmp_path):
    encoder = load_encoder(prompted_model, device="cpu")
    corpus = encode(encoder, list(SENTENCES), normalize=True, use=Use(prompt="the film: "))
    query = encode(encoder, ["a cat"], normalize=True, use=Use(prompt="someone reads: "))[0]
    best = np.sort(corpus @ query)[::-1][:3]
    index, flags = tmp_path / "i.index", ("-m", prompted_model, "-f", "json")
    made = ("encode", source, "-o", tmp_path / "v.npy", "-m", prompted_model, "--index", index)
    assert invoke(*made, "--prompt", "passage").exit_code == 0
    for words in ((source, "a cat"), ("a cat", "--index", index)):
        found = invoke("analyze", "search", *words, *flags)
        assert "warning" not in found.stderr
        cosines = [each["cosine"] for each in json.loads(found.stdout)["neighbours"]]
        assert cosines == pytest.approx(best.tolist(), abs=1e-5)
    other = invoke(
        "analyze", "search", source, "a cat", *flags, "--prompt", "", "--corpus-prompt", ""
    )
    plain = np.sort(encode(encoder, list(SENTENCES), normalize=True, use=Use(prompt=""))
                    @ encode(encoder, ["a cat"], normalize=True, use=Use(prompt=""))[0])[::-1]  # fmt: skip
    assert json.loads(other.stdout)["neighbours"][0]["cosine"] == pytest.approx(
        float(plain[0]), abs=1e-5
    )


def test_evaluation_puts_the_prompt_and_refuses_it_for_files(
    invoke, prompted_model, sts_folder, tmp_path
):
    command = ("eval", "sts", "--data-dir", sts_folder, "--tasks", "STSBenchmark", "-f", "json")
    command += ("--metric", "pearson")  # ranks of equal pairs would depend on the last bits
    asked = json.loads(invoke(*command, "-m", prompted_model, "--prompt", "query").stdout)
    plain = json.loads(invoke(*command, "-m", prompted_model).stdout)
    assert asked["prompt"] == "someone reads: "
    assert asked["model_digest"] != plain["model_digest"]
    encoder = load_encoder(prompted_model, device="cpu")
    (pairs,) = read_sts_task(sts_folder, "STSBenchmark").subsets.values()
    left, right = (
        encode(encoder, side, use=Use(prompt="someone reads: "))
        for side in (pairs.left, pairs.right)
    )
    expected = np.corrcoef(cosine_rows(left, right), pairs.gold)[0, 1]
    assert asked["tasks"]["STSBenchmark"]["score"] == pytest.approx(expected, abs=1e-6)
    files = ("--embeddings", tmp_path / "v.npy", "--sentences", tmp_path / "s.txt")
    refused = invoke(*command, *files, "--truncate-dim", 4)
    assert refused.exit_code == 2
    assert "--truncate-dim" in refused.stderr
