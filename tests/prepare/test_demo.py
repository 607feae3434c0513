import json
import subprocess
import sys
from itertools import chain
from random import Random

import pytest

from simcse_cli.data import demo
from simcse_cli.data.demo import build_demo_corpus, demo_folder, prepare_demo, write_demo_corpus
from simcse_cli.data.demo_grammar import (
    PARTS,
    WEIGHTS,
    DemoSizes,
    Scene,
    draw_scene,
    phrase,
    similarity,
    vary,
)
from simcse_cli.data.jobs import Job
from simcse_cli.data.nli import iter_nli
from simcse_cli.data.senteval import read_sts_task
from simcse_cli.data.table import Table
from simcse_cli.errors import OutputError
from simcse_cli.progress import SilentProgress

SIZES = DemoSizes(sentences=300, triplets=100, pairs=200, documents=10)
SCENE = Scene("man", "play", "guitar", "park", "night")


@pytest.fixture(scope="module")
def corpus():
    return build_demo_corpus(SIZES, seed=3)


def all_sentences(corpus):
    graded = ((first, second) for pairs in corpus.graded.values() for _, first, second in pairs)
    return list(chain(corpus.sentences, *corpus.inference, *corpus.documents, *graded))


def test_similarity_is_the_weight_of_equal_parts():
    assert sum(WEIGHTS.values()) == 5.0
    assert similarity(SCENE, SCENE) == 5.0
    assert similarity(SCENE, Scene("man", "play", "drum", "park", "rain")) == 5.0 - 1.25 - 0.5
    assert similarity(SCENE, Scene("cook", "buy", "boat", "beach", "rain")) == 0.0


@pytest.mark.parametrize("part", PARTS)
def test_vary_changes_the_part_and_keeps_agent_place_and_time(part):
    rng = Random(0)
    for _ in range(200):
        scene = draw_scene(rng)
        other = vary(scene, [part], rng)
        assert getattr(other, part) != getattr(scene, part)
        assert all(
            getattr(other, p) == getattr(scene, p) for p in ("agent", "place", "time") if p != part
        )


def test_phrase_says_every_part_in_some_wording():
    texts = {phrase(SCENE, Random(seed)) for seed in range(300)}
    assert len(texts) > 100
    assert all(any(name in text.lower() for name in ("a man", "a guy")) for text in texts)
    assert all(text[0].isupper() and text.endswith(".") and "  " not in text for text in texts)


def test_build_demo_corpus_has_the_sizes_asked_for(corpus):
    assert len(corpus.sentences) == 300
    assert len(corpus.inference) == 100
    assert len(corpus.documents) == 10
    assert {split: len(pairs) for split, pairs in corpus.graded.items()} == {
        "train": 100,
        "dev": 50,
        "test": 50,
    }


@pytest.mark.parametrize("pairs", [4, 5, 6, 7, 10, 30])
def test_build_demo_corpus_spreads_any_number_of_pairs_over_the_splits(pairs):
    graded = build_demo_corpus(DemoSizes(1, 1, pairs, 1), seed=3).graded
    n_pairs = {split: len(rows) for split, rows in graded.items()}
    assert sum(n_pairs.values()) == pairs
    assert n_pairs["train"] >= n_pairs["dev"] == n_pairs["test"] == pairs // 4


def test_build_demo_corpus_never_repeats_a_sentence(corpus):
    texts = all_sentences(corpus)
    assert len(set(texts)) == len(texts)


def test_build_demo_corpus_spreads_the_scores(corpus):
    scores = [score for pairs in corpus.graded.values() for score, _, _ in pairs]
    assert min(scores) == 0.0
    assert max(scores) == 5.0
    assert all(any(low <= score <= low + 1 for score in scores) for low in range(5))


def test_build_demo_corpus_is_fixed_by_its_seed(corpus):
    assert build_demo_corpus(SIZES, seed=3) == corpus
    assert build_demo_corpus(SIZES, seed=4) != corpus


def test_build_demo_corpus_does_not_depend_on_hash_seeds(corpus):
    script = (
        "import json; from simcse_cli.data.demo import *; from simcse_cli.data.demo_grammar "
        f"import *;print(json.dumps(build_demo_corpus({SIZES!r}, seed=3).sentences))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == corpus.sentences


def test_write_demo_corpus_is_read_by_the_readers(corpus, tmp_path):
    files = write_demo_corpus(corpus, tmp_path)
    assert sum(files.values()) == 300 + 100 + 300 + sum(map(len, corpus.documents)) + 200
    assert list(Table(tmp_path / "sentences.txt", Job.TEXTS).texts()) == corpus.sentences
    triplets = [
        tuple(record.values()) for _, record in Table(tmp_path / "triplets.csv", Job.ROWS).records()
    ]
    assert triplets == [(row[0], row[1], row[3]) for row in corpus.inference]
    (nli,) = iter_nli(tmp_path / "nli.tsv")
    assert [pair.hypothesis for pair in nli] == [
        text for row in corpus.inference for text in row[1:]
    ]
    subset = read_sts_task(tmp_path, "STSBenchmark", split="dev").subsets["dev"]
    assert (
        list(zip(subset.gold.tolist(), subset.left, subset.right, strict=True))
        == corpus.graded["dev"]
    )


def test_write_demo_corpus_overwrites_nothing_without_force(corpus, tmp_path):
    (tmp_path / "nli.tsv").write_text("mine")
    with pytest.raises(OutputError, match=r"nli\.tsv exists already"):
        write_demo_corpus(corpus, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["nli.tsv"]
    write_demo_corpus(corpus, tmp_path, force=True)
    assert (tmp_path / "nli.tsv").read_text().startswith("gold_label\t")


def test_demo_goes_on_after_a_kill_between_its_files(tmp_path):
    def prepare(folder, **options):
        prepare_demo(folder, SIZES, seed=3, progress=SilentProgress(), **options)
        return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    expected = prepare(tmp_path / "whole")
    assert len(expected) == 8
    prepare(tmp_path / "demo")
    with pytest.raises(OutputError, match=r"manifest\.json exists already"):
        prepare(tmp_path / "demo")
    for name in ("manifest.json", "sentences.txt", "triplets.csv"):
        (tmp_path / "demo" / name).unlink()
    assert prepare(tmp_path / "demo") == expected


def test_demo_folder_of_a_killed_command_is_completed(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCSE_CACHE", str(tmp_path))  # a small corpus, not for the other tests
    monkeypatch.setattr(
        demo, "build_demo_corpus", lambda sizes, seed: build_demo_corpus(SIZES, seed=seed)
    )
    folder = demo_folder(SilentProgress())
    n_files = len(list(folder.rglob("*.*")))
    (folder / "sentences.txt").unlink()
    (folder / "triplets.csv").unlink()
    assert demo_folder(SilentProgress()) == folder
    assert len(list(folder.rglob("*.*"))) == n_files
