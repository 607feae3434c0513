"""`simcse eval sts` with word vectors, vectors from elsewhere and post-processing, end to end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import SENTENCES, build_tiny_model
from simcse_cli.data.senteval import read_sts_task

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def sts(invoke, sts_folder) -> Run:
    """Return a function that runs `simcse eval sts` and gives its JSON object."""

    def run(*arguments: object) -> dict[str, Any]:
        outcome = invoke("eval", "sts", "--data-dir", sts_folder, "--format", "json", *arguments)
        assert outcome.exit_code == 0, outcome.stderr
        return json.loads(outcome.stdout)

    return run


@pytest.fixture
def failing(invoke, sts_folder):
    """Return a function that runs `simcse eval sts` and gives exit code and what was said."""

    def run(*arguments: object) -> tuple[int, str]:
        outcome = invoke("eval", "sts", "--data-dir", sts_folder, *arguments)
        return outcome.exit_code, " ".join(outcome.stderr.replace("│", " ").split())

    return run


def test_an_automatic_precision_is_recorded_as_what_it_stands_for(sts, tiny_model_dir):
    result = sts("--model", tiny_model_dir, "--device", "cpu", "--precision", "auto")
    assert result["precision"] in ("fp32", "bf16")


def write_distinct_pairs(sts_folder: Path) -> None:
    """Make the STS-B test set of pairs of different sentences, so that no two cosines tie."""
    gold = np.random.default_rng(1).permutation(len(SENTENCES) - 1) / 5
    lines = [
        f"g\tf\ty\t{i}\t{score}\t{left}\t{right}\n"
        for i, (left, right, score) in enumerate(zip(SENTENCES, SENTENCES[1:], gold, strict=False))
    ]
    (sts_folder / "downstream/STS/STSBenchmark/sts-test.csv").write_text("".join(lines))


def spearman_of(vectors: dict[str, np.ndarray], folder: Path, task: str) -> float:
    from scipy.stats import spearmanr

    (subset,) = read_sts_task(folder, task).subsets.values()
    cosines = []
    for left, right in zip(subset.left, subset.right, strict=True):
        u, v = vectors[left].astype(np.float64), vectors[right].astype(np.float64)
        norm = np.linalg.norm(u) * np.linalg.norm(v)
        cosines.append(u @ v / norm if norm else 0.0)
    return float(spearmanr(cosines, subset.gold)[0])


@pytest.fixture
def glove(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})[::2]
    lines = [
        f"{word} " + " ".join(f"{value:.5f}" for value in rng.standard_normal(5)) for word in words
    ]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "glove.txt"


def test_word_vectors_take_a_row(sts, glove, sts_folder):
    table = {
        line.split()[0]: np.array(line.split()[1:], dtype=float)
        for line in glove.read_text().splitlines()
    }
    means = {}
    for sentence in SENTENCES:
        known = [table[word] for word in sentence.split() if word in table]
        means[sentence] = np.mean(known, axis=0) if known else np.zeros(5)
    write_distinct_pairs(sts_folder)
    payload = sts("--vectors", glove)
    assert payload["model"] == "glove.txt"
    expected = spearman_of(means, sts_folder, "STSBenchmark")
    assert payload["tasks"]["STSBenchmark"]["score"] == pytest.approx(expected, abs=1e-6)


def test_sif_counts_change_the_row(sts, glove, tmp_path):
    (tmp_path / "counts.txt").write_text("a 1000\nthe 2000\nis 500\nman 2\n")
    plain, weighted = (
        sts("--vectors", glove),
        sts("--vectors", glove, "--sif-counts", tmp_path / "counts.txt"),
    )
    assert weighted["model"] == "glove.txt (SIF)"
    assert weighted["average"] != plain["average"]
    removed = sts(
        "--vectors",
        glove,
        "--sif-counts",
        tmp_path / "counts.txt",
        "--postprocess",
        "sif",
        "--fit",
        "target",
    )
    assert removed["model"] == "glove.txt (SIF) + sif (target)"


def test_vectors_from_elsewhere_take_a_row(sts, tmp_path, sts_folder):
    vectors = np.random.default_rng(0).standard_normal((len(SENTENCES), 6)).astype(np.float32)
    np.save(tmp_path / "use.npy", vectors)
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES) + "\n")
    write_distinct_pairs(sts_folder)
    payload = sts("--embeddings", tmp_path / "use.npy", "--sentences", tmp_path / "sentences.txt")
    by_sentence = dict(zip(SENTENCES, vectors, strict=True))
    expected = spearman_of(by_sentence, sts_folder, "STSBenchmark")
    assert payload["tasks"]["STSBenchmark"]["score"] == pytest.approx(expected, abs=1e-6)
    assert (payload["model"], payload["pooler"]) == ("use.npy", None)


def test_written_sentences_are_those_that_embeddings_need(invoke, sts, sts_folder, tmp_path):
    listed = tmp_path / "needed.txt"
    outcome = invoke("eval", "sts", "--data-dir", sts_folder, "--write-sentences", listed)
    assert outcome.exit_code == 0, outcome.stderr
    lines = listed.read_text().splitlines()
    assert len(set(lines)) == len(lines)
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((len(lines), 4)))
    sts("--embeddings", tmp_path / "v.npy", "--sentences", listed)


@pytest.mark.parametrize("method", ["whitening:8", "all-but-the-top:2", "sif", "flow"])
@pytest.mark.parametrize("source", ["target", "file"])
def test_post_processing_gives_its_own_row(method, source, sts, tiny_model_dir, tmp_path):
    (tmp_path / "fit.txt").write_text("\n".join(SENTENCES) + "\n")
    options = ("--model", tiny_model_dir, "--pooler", "avg")
    fit = "target" if source == "target" else tmp_path / "fit.txt"
    plain = sts(*options)
    processed = sts(*options, "--postprocess", method, "--fit", fit)
    assert processed["postprocess"]["name"] == method.split(":")[0]
    assert processed["average"] != plain["average"]
    assert processed["model"] == f"{tiny_model_dir} + {method} ({Path(fit).name})"


def test_target_whitening_of_a_task_is_fitted_on_that_task_alone(sts, tiny_model_dir):
    options = (
        "--model",
        tiny_model_dir,
        "--pooler",
        "avg",
        "--postprocess",
        "whitening:4",
        "--fit",
        "target",
        "--metric",
        "pearson",  # ranks of equal pairs would depend on the last bits
    )
    together = sts(*options)
    for task in ("STS12", "STSBenchmark"):
        alone = sts(*options, "--tasks", task)
        assert alone["tasks"][task]["score"] == pytest.approx(
            together["tasks"][task]["score"], abs=1e-4
        )


def test_saved_post_processor_gives_the_same_scores_and_serves_encode(
    sts, invoke, tiny_model_dir, tmp_path
):
    text, saved = tmp_path / "fit.txt", tmp_path / "w.safetensors"
    text.write_text("\n".join(SENTENCES) + "\n")
    options = ("--model", tiny_model_dir, "--pooler", "avg")
    fitted = sts(
        *options, "--postprocess", "whitening:8", "--fit", text, "--save-postprocess", saved
    )
    loaded = sts(*options, "--postprocess", saved)
    assert loaded["average"] == fitted["average"]
    encoded = invoke("encode", text, "-o", tmp_path / "v.npy", *options, "--postprocess", saved)
    assert encoded.exit_code == 0, encoded.stderr
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.shape == (len(SENTENCES), 8)
    np.testing.assert_allclose(np.cov(vectors, rowvar=False, bias=True), np.eye(8), atol=1e-5)


def test_encode_can_scale_processed_vectors(sts, invoke, tiny_model_dir, tmp_path):
    text, saved = tmp_path / "fit.txt", tmp_path / "w.safetensors"
    text.write_text("\n".join(SENTENCES) + "\n")
    options = ("--model", tiny_model_dir, "--pooler", "avg")
    sts(*options, "--postprocess", "all-but-the-top", "--fit", text, "--save-postprocess", saved)
    invoke(
        "encode", text, "-o", tmp_path / "v.npy", *options, "--postprocess", saved, "--normalize"
    )
    np.testing.assert_allclose(np.linalg.norm(np.load(tmp_path / "v.npy"), axis=1), 1, rtol=1e-6)


def test_a_post_processor_of_another_model_is_refused(
    sts, invoke, failing, tiny_model_dir, tmp_path
):
    text, saved = tmp_path / "fit.txt", tmp_path / "w.safetensors"
    text.write_text("\n".join(SENTENCES) + "\n")
    options = ("--model", tiny_model_dir, "--pooler", "avg", "--postprocess", "sif", "--fit", text)
    sts(*options, "--save-postprocess", saved)
    other = build_tiny_model(tmp_path / "other", seed=1)
    code, said = failing("--model", other, "--pooler", "avg", "--postprocess", saved)
    assert code == 1
    assert "other weights or another pooler" in said
    outcome = invoke(
        "encode",
        text,
        "-o",
        tmp_path / "v.npy",
        "-m",
        other,
        "--pooler",
        "avg",
        "--postprocess",
        saved,
    )
    assert outcome.exit_code == 1
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--postprocess", "whitening"), 2, "needs --fit nli"),
        (
            ("--postprocess", "whitenning", "--fit", "target"),
            2,
            "neither a file nor one of whitening, flow",
        ),
        (("--postprocess", "whitening:many", "--fit", "target"), 2, "'many' is not a whole number"),
        (("--fit", "target"), 2, "has no use without --postprocess"),
        (("--postprocess", "whitening", "--fit", "nowhere.txt"), 1, "nowhere.txt does not exist"),
        (("--postprocess", "whitening", "--fit", "nli"), 1, "has no NLI files"),
        (
            ("--postprocess", "sif", "--fit", "target", "--save-postprocess", "x.safetensors"),
            2,
            "for each task",
        ),
        (("--embeddings", "a.npy"), 2, "has no use without --sentences"),
        (
            ("--embeddings", "a.npy", "--sentences", "s.txt", "--vectors", "g.txt"),
            2,
            "has no use with --embeddings",
        ),
        (("--sif-counts", "c.txt"), 2, "has no use without --vectors"),
        (("--bilstm", "b.pkl"), 2, "has no use without --vectors"),
        (("--vectors", "nothing.txt"), 1, "nothing.txt does not exist"),
        (("--embeddings", "nothing.npy", "--sentences", "s.txt"), 1, "nothing.npy does not exist"),
    ],
)
def test_wrong_options_are_named(arguments, code, said, failing, tiny_model_dir):
    of_model = (
        ()
        if {"--vectors", "--embeddings"} & {*arguments}
        else ("--model", tiny_model_dir, "--pooler", "avg")
    )
    got, text = failing(*of_model, *arguments)
    assert (got, said in text) == (code, True), text


def test_too_few_vectors_to_whiten_are_explained(failing, tiny_model_dir, tmp_path):
    (tmp_path / "one.txt").write_text("A single sentence .\n")
    options = ("--model", tiny_model_dir, "--pooler", "avg", "--postprocess", "whitening")
    code, said = failing(*options, "--fit", tmp_path / "one.txt")
    assert code == 1
    assert "cannot fit whitening on 1 vectors" in said
    assert "Traceback" not in said


def test_nli_files_below_the_data_folder_are_used(sts, sts_folder, tiny_model_dir):
    folder = sts_folder / "downstream" / "SNLI"
    folder.mkdir()
    for side in (1, 2):
        (folder / f"s{side}.dev").write_text("\n".join(SENTENCES[side:]) + "\n" * side)
    payload = sts(
        "--model", tiny_model_dir, "--pooler", "avg", "--postprocess", "sif", "--fit", "nli"
    )
    assert payload["postprocess"]["fit"]["source"] == "nli"
    # The last of the 23 pairs is left out, because its second text is empty.
    assert payload["postprocess"]["fit"]["n_vectors"] == 2 * (len(SENTENCES) - 2)


def test_fit_sample_draws_pairs(sts, tiny_model_dir, tmp_path):
    text = tmp_path / "fit.txt"
    text.write_text("\n".join(SENTENCES) + "\n")
    options = ("--model", tiny_model_dir, "--pooler", "avg", "--postprocess", "sif", "--fit", text)
    assert sts(*options, "--fit-sample", 10)["postprocess"]["fit"]["n_vectors"] == 10
