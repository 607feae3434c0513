import csv
import errno
import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import SENTENCES, CountingProgress, Told, build_tiny_model
from simcse_cli.data.text import match_key
from simcse_cli.encoding.search_index import ExactSearcher, SearchIndex
from simcse_cli.errors import DataError, OutputError, UsageError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.models.export import save_encoder
from simcse_cli.prepare import mining
from simcse_cli.prepare.mining import (
    NegativeCounts,
    prepare_hard_negatives,
    prepare_paraphrases,
)
from simcse_cli.prepare.options import HardNegativeOptions, PairOptions
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import NegativePick, Precision, SearchBackend

WORDS = sorted({word.strip(".,?") for sentence in SENTENCES for word in sentence.split()})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a tiny model that sentence-transformers reads too."""
    folder = tmp_path_factory.mktemp("mining")
    encoder = load_encoder(build_tiny_model(folder / "plain"), pooler="avg", device="cpu")
    save_encoder(encoder, folder / "model")
    return folder / "model"


@pytest.fixture
def pairs():
    """Return 60 pairs of random words, some anchors with two positives; no text stands on both sides."""
    rng = np.random.default_rng(5)
    texts = [f"{' '.join(rng.choice(WORDS, 5))} {i}" for i in range(110)]
    anchors = texts[:50]
    return [(anchors[i % 50], text) for i, text in enumerate(texts[50:])]


def write_pairs(path, rows, header=("anchor", "positive")):
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def read_written(path):
    with path.open(newline="", encoding="utf-8") as stream:
        return [tuple(row) for row in csv.reader(stream)][1:]


def mined_by_sentence_transformers(model, pairs, **options):
    datasets = pytest.importorskip("datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        st = pytest.importorskip("sentence_transformers", minversion="6.2")
        from sentence_transformers.util import mine_hard_negatives

        rows = datasets.Dataset.from_list([{"anchor": a, "positive": p} for a, p in pairs])
        found = mine_hard_negatives(
            rows, st.SentenceTransformer(str(model), device="cpu"), verbose=False, **options
        )
    return [(row["anchor"], row["positive"], row["negative"]) for row in found]


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--range", "0:5", "--margin", -2], {"range_max": 5, "num_negatives": 1}),
        (
            ["--range", "3:9", "--margin", -2, "--per-anchor", 2],
            {"range_min": 3, "range_max": 9, "num_negatives": 2},
        ),
        (
            ["--range", "0:60", "--margin", 0.05],
            {"range_max": 60, "absolute_margin": 0.05, "num_negatives": 1},
        ),
        (
            ["--range", "2:60"],
            {"range_min": 2, "range_max": 60, "absolute_margin": 0.05, "num_negatives": 1},
        ),
        (
            ["--range", "0:60", "--ratio", 0.9],
            {"range_max": 60, "relative_margin": 0.1, "num_negatives": 1},
        ),
        (
            [
                "--range",
                "1:60",
                "--margin",
                -2,
                "--max-score",
                0.9,
                "--min-score",
                0.6,
                "--per-anchor",
                3,
            ],
            {
                "range_min": 1,
                "range_max": 60,
                "max_score": 0.9,
                "min_score": 0.6,
                "num_negatives": 3,
            },
        ),
    ],
)
def test_hard_negatives_are_those_of_sentence_transformers(
    invoke, model, pairs, tmp_path, flags, options
):
    source = write_pairs(tmp_path / "pairs.csv", pairs)
    result = invoke(
        "prepare", "hard-negatives", source, "-o", tmp_path / "t.csv", "-m", model, *flags
    )
    assert result.exit_code == 0, result.stderr
    expected = mined_by_sentence_transformers(model, pairs, **options)
    assert sorted(read_written(tmp_path / "t.csv")) == sorted(expected)


def test_known_positives_and_equal_texts_are_never_negatives(invoke, model, tmp_path):
    cat, dog = "The cat sleeps.", "A dog runs."
    rows = [
        (cat, "The cat is sleeping."),
        (cat, "A cat naps."),
        ("A feline rests.", cat),
        (dog, "the CAT sleeps"),
    ]
    rows += [(dog, "a cat naps !"), ("Rain falls.", "A feline rests.")]
    source = write_pairs(tmp_path / "pairs.csv", rows)
    flags = ("--range", "0:50", "--margin", -2, "--per-anchor", 6)
    result = invoke(
        "prepare", "hard-negatives", source, "-o", tmp_path / "t.csv", "-m", model, *flags
    )
    assert result.exit_code == 0, result.stderr
    found = {}
    for anchor, _, negative in read_written(tmp_path / "t.csv"):
        found.setdefault(anchor, set()).add(match_key(negative))
    assert not {match_key(text) for _, text in rows[:2]} & found.get(cat, set())
    assert match_key(cat) not in found.get(cat, set())
    assert match_key("A feline rests.") not in found.get(cat, set())  # it has the cat as a positive
    assert found[dog] == {match_key("The cat is sleeping."), match_key("A feline rests.")}
    assert "fewer negatives" in result.stderr


def test_random_negatives_depend_on_seed_and_anchor_alone(invoke, model, pairs, tmp_path):
    def mine(rows, name, *flags):
        source = write_pairs(tmp_path / f"{name}.csv", rows)
        output = tmp_path / f"{name}.out.csv"
        command = (
            "prepare",
            "hard-negatives",
            source,
            "-o",
            output,
            "-m",
            model,
            "--range",
            "0:20",
        )
        assert invoke(*command, "--margin", -2, "--pick", "random", *flags).exit_code == 0
        return {(a, p): n for a, p, n in read_written(output)}

    first = mine(pairs, "first")
    assert first == mine(pairs[::-1], "turned")
    assert first != mine(pairs, "other", "--seed", 7)
    assert len(set(first.values())) > 10


def test_more_texts_and_an_index_are_searched(invoke, model, pairs, tmp_path):
    source = write_pairs(tmp_path / "pairs.csv", pairs)
    (tmp_path / "more.txt").write_text("\n".join(SENTENCES) + "\n\n")
    command = ("prepare", "hard-negatives", source, "-m", model, "--range", "0:9", "--margin", -2)
    texts = list(dict.fromkeys([*(p for _, p in pairs), *SENTENCES]))
    encoder = load_encoder(model, device="cpu")
    info = {"digest": ReadyEncoder(encoder).digest}
    for backend in SearchBackend:
        if backend is SearchBackend.FAISS:
            pytest.importorskip("faiss")
        index = SearchIndex.build(
            encode(encoder, texts), texts, backend=backend, factory="Flat", info=info
        )
        index.save(tmp_path / f"{backend}.index")
        result = invoke(
            *command, "-o", tmp_path / f"{backend}.csv", "--index", tmp_path / f"{backend}.index"
        )
        assert result.exit_code == 0, result.stderr
    assert (
        invoke(*command, "-o", tmp_path / "c.csv", "--corpus", tmp_path / "more.txt").exit_code == 0
    )
    whole = read_written(tmp_path / "c.csv")
    assert whole == read_written(tmp_path / "exact.csv") == read_written(tmp_path / "faiss.csv")
    assert any(negative in SENTENCES for _, _, negative in whole)
    other = invoke(*command, "-o", tmp_path / "d.csv", "--index", tmp_path / "exact.index", "--pooler",
                   "cls_before_pooler", "--force-pooler")  # fmt: skip
    assert other.exit_code == 1
    assert "another model" in other.stderr


def stop_after(monkeypatch, n_searches):
    """Let the search stop as if killed after so many blocks; return the list of the blocks searched."""
    searched, whole = [], ExactSearcher.search

    def search(self, queries, k):
        if len(searched) == n_searches:
            raise KeyboardInterrupt
        searched.append(len(queries))
        return whole(self, queries, k)

    monkeypatch.setattr(ExactSearcher, "search", search)
    return searched


@pytest.mark.parametrize("kind", ["hard-negatives", "pairs"])
def test_an_interrupted_search_continues_with_the_same_bytes(
    invoke, model, pairs, tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(mining, "BLOCK", 9)
    source = write_pairs(tmp_path / "pairs.csv", pairs)
    flags = (
        ("--range", "0:9") if kind == "hard-negatives" else ("--paraphrases", "--min-score", 0.5)
    )
    flags = (*flags, "--columns", "positive") if kind == "pairs" else flags
    command = ("prepare", kind, source, "-m", model, *flags, "-o")
    assert invoke(*command, tmp_path / "whole.csv").exit_code == 0
    n_blocks = 6 if kind == "hard-negatives" else 7
    with monkeypatch.context() as patch:
        assert len(stop_after(patch, 3)) == 0
        assert invoke(*command, tmp_path / "part.csv").exit_code == 130
    assert not (tmp_path / "part.csv").exists()
    refused = invoke(*command, tmp_path / "part.csv")
    assert refused.exit_code == 1
    assert "--resume" in refused.stderr
    changed = invoke(*command, tmp_path / "part.csv", "--resume", "--max-score", 0.99)
    assert changed.exit_code == 1
    assert "max_score" in changed.stderr
    with monkeypatch.context() as patch:
        searched = stop_after(patch, 100)
        result = invoke(*command, tmp_path / "part.csv", "--resume")
        assert result.exit_code == 0, result.stderr
        assert len(searched) == n_blocks - 3
    assert (tmp_path / "part.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if "mining" in path.name] == []


@pytest.mark.parametrize(("top_k", "max_pairs"), [(100, 10_000), (3, 10_000), (5, 40)])
def test_paraphrases_are_those_of_sentence_transformers(
    invoke, model, pairs, tmp_path, top_k, max_pairs
):
    texts = [text for _, text in pairs]
    (tmp_path / "texts.txt").write_text("\n".join([*texts, texts[3].upper(), ""]) + "\n")
    result = invoke(
        *(
            "prepare",
            "pairs",
            tmp_path / "texts.txt",
            "--paraphrases",
            "-m",
            model,
            "--min-score",
            -1,
        ),
        *("--top-k", top_k, "--max-pairs", max_pairs, "-o", tmp_path / "p.csv"),
    )
    assert result.exit_code == 0, result.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        st = pytest.importorskip("sentence_transformers", minversion="6.2")
        from sentence_transformers.util import paraphrase_mining

        peer = st.SentenceTransformer(str(model), device="cpu")
        found = paraphrase_mining(peer, texts, top_k=top_k, max_pairs=max_pairs)
    expected = [(texts[i], texts[j]) for _, i, j in found]
    written = read_written(tmp_path / "p.csv")
    assert sorted(written) == sorted(expected)
    units = encode(
        load_encoder(model, device="cpu"), [t for row in written for t in row], normalize=True
    )
    cosines = (units[::2] * units[1::2]).sum(axis=1)
    assert (np.diff(cosines) <= 1e-6).all()


def test_paraphrases_keep_to_the_scores_asked_for(invoke, model, pairs, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(text for _, text in pairs))
    result = invoke(
        *(
            "prepare",
            "pairs",
            tmp_path / "texts.txt",
            "--paraphrases",
            "-m",
            model,
            "-o",
            tmp_path / "p.csv",
        ),
        *("--min-score", 0.85, "--max-score", 0.95),
    )
    assert result.exit_code == 0, result.stderr
    rows = read_written(tmp_path / "p.csv")
    units = encode(
        load_encoder(model, device="cpu"), [t for row in rows for t in row], normalize=True
    )
    cosines = (units[::2] * units[1::2]).sum(axis=1)
    assert cosines.min() >= 0.85 - 1e-5
    assert cosines.max() <= 0.95 + 1e-5
    corpus = json.loads((tmp_path / "p.csv.manifest.json").read_text())["corpus"]
    assert corpus["n_texts"] == 60
    assert corpus["lowest_cosine"] == pytest.approx(cosines.min(), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["PAIRS", "-o", "o.csv", "--range", "10"], 2, "--range"),
        (["PAIRS", "-o", "o.csv", "--range", "5:6", "--per-anchor", 2], 2, "--per-anchor 2"),
        (["-", "-o", "o.csv"], 2, "several times"),
        (["PIPE", "-o", "o.csv"], 2, "INPUT: mining reads its input several times"),
        (["PAIRS", "-o", "-"], 2, "several times"),
        (["PAIRS", "-o", "o.txt"], 1, "plain text cannot hold"),
        (["PAIRS", "-o", "o.csv", "--range", "70:90"], 1, "pairs found a negative among"),
    ],
)
def test_requests_that_cannot_work_say_so(
    invoke, model, pairs, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "PAIRS.csv", pairs)
    os.mkfifo("PIPE")
    filled = ["PAIRS.csv" if each == "PAIRS" else each for each in arguments]
    result = invoke("prepare", "hard-negatives", *filled, "-m", model)
    assert result.exit_code == code
    assert message in result.stderr
    assert not (tmp_path / "o.csv").exists()


def test_an_input_that_changes_meanwhile_and_a_second_writer_are_told(
    invoke, model, pairs, tmp_path, monkeypatch
):
    source = write_pairs(tmp_path / "pairs.csv", pairs)
    command = (
        "prepare",
        "hard-negatives",
        source,
        "-m",
        model,
        "--range",
        "0:9",
        "-o",
        tmp_path / "t.csv",
    )
    whole = ExactSearcher.search

    def search(self, queries, k):
        second = invoke(*command, "--resume")
        assert second.exit_code == 1
        assert "is being written by process" in second.stderr
        write_pairs(source, pairs[:7])
        return whole(self, queries, k)

    monkeypatch.setattr(ExactSearcher, "search", search)
    result = invoke(*command)
    assert result.exit_code == 1
    assert "pairs.csv has changed while it was read" in result.stderr
    assert not (tmp_path / "t.csv").exists()


def test_a_corrected_input_is_searched_without_more_ado(invoke, model, pairs, tmp_path):
    source, output = write_pairs(tmp_path / "pairs.csv", pairs), tmp_path / "out.csv"
    whole = source.read_bytes()
    source.write_bytes(whole + b"an anchor,\xff\n")
    command = ("prepare", "hard-negatives", source, "-m", model, "--range", "0:9", "-o", output)
    assert invoke(*command).exit_code == 1
    source.write_bytes(whole)
    assert invoke(*command).exit_code == 0
    assert output.exists()


def search_command(source, model, output, *flags):
    return (
        "prepare",
        "hard-negatives",
        source,
        "-m",
        model,
        "--range",
        "0:9",
        "-o",
        output,
        *flags,
    )


@pytest.mark.parametrize("flags", [(), ("--force",), ("--resume",)])
@pytest.mark.parametrize("kind", ["file", "folder", "link inside", "link"])
def test_files_of_others_in_the_folder_of_a_search_are_never_touched(
    invoke, model, pairs, tmp_path, kind, flags
):
    source, work, other = (
        write_pairs(tmp_path / "pairs.csv", pairs),
        tmp_path / "o.csv.mining",
        tmp_path / "own",
    )
    other.mkdir()
    (other / "notes.txt").write_text("precious")
    (other / "texts.txt").write_text("precious")
    if kind == "link":
        work.symlink_to(other)
    else:
        work.mkdir()
        (work / "search.json").write_text("{}")
    if kind == "file":
        (work / "notes.txt").write_text("precious")
    elif kind == "folder":
        (work / "texts.txt").mkdir()
    elif kind == "link inside":
        (work / "texts.txt").symlink_to(other / "texts.txt")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outcome = invoke(*search_command(source, model, tmp_path / "o.csv", *flags))
    assert outcome.exit_code == 1
    assert "o.csv.mining" in outcome.stderr
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_full_disk_is_an_error_where_the_folder_of_a_search_is_made(
    invoke, model, pairs, tmp_path, monkeypatch
):
    source, make = write_pairs(tmp_path / "pairs.csv", pairs), os.mkdir

    def full(path, *rest, **more):
        if str(path).endswith(".mining"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(path, *rest, **more)

    monkeypatch.setattr(os, "mkdir", full)
    outcome = invoke(*search_command(source, model, tmp_path / "o.csv"))
    assert outcome.exit_code == 1
    assert "o.csv.mining: No space left on device" in outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]


def test_a_search_killed_while_it_wrote_a_block_or_after_its_output_is_resumed(
    invoke, model, pairs, tmp_path, monkeypatch
):
    monkeypatch.setattr(mining, "BLOCK", 9)
    source, output = write_pairs(tmp_path / "pairs.csv", pairs), tmp_path / "o.csv"
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert invoke(*search_command(source, model, output)).exit_code == 130
    work = tmp_path / "o.csv.mining"
    (work / ".found-27.npy.simcse-0123abcd.tmp").mkdir()
    (work / ".found-27.npy.simcse-0123abcd.tmp" / "found-27.npy").write_bytes(b"half")
    kept = {path.name: path.read_bytes() for path in work.iterdir() if path.is_file()}
    assert invoke(*search_command(source, model, output, "--resume")).exit_code == 0
    assert not work.exists()
    whole = output.read_bytes()
    work.mkdir()
    for name, content in kept.items():
        (work / name).write_bytes(content)
    outcome = invoke(*search_command(source, model, output, "--resume"))
    assert outcome.exit_code == 0, outcome.stderr
    assert "is already finished" in outcome.stderr
    assert (output.read_bytes(), work.exists()) == (whole, False)
    outcome = invoke(*search_command(source, model, output, "--resume", "--margin", "0.2"))
    assert outcome.exit_code == 1
    assert "exists already" in outcome.stderr


def test_texts_that_cannot_be_kept_are_an_error_that_names_their_file(
    invoke, model, pairs, tmp_path, monkeypatch
):
    open_file = Path.open

    def read_only(path, mode="r", *rest, **options):
        if mode == "w+b" and path.name == "texts.txt":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, mode, *rest, **options)

    source = write_pairs(tmp_path / "pairs.csv", pairs)
    monkeypatch.setattr(Path, "open", read_only)
    result = invoke("prepare", "hard-negatives", source, "-o", tmp_path / "t.csv", "-m", model)
    assert result.exit_code == 1
    assert "texts.txt" in result.stderr
    assert "Read-only file system" in result.stderr


def test_a_name_that_cannot_hold_columns_leaves_no_folder(invoke, tmp_path):
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\na\tb\n")
    outcome = invoke(
        "prepare", "hard-negatives", tmp_path / "pairs.tsv", "-o", tmp_path / "new" / "out.txt"
    )
    assert (outcome.exit_code, "plain text cannot hold" in outcome.stderr) == (1, True)
    assert not (tmp_path / "new").exists()


class Circle:
    """An encoder whose vector of a text has the cosine in the text, as in ``b 0.5``, with that of ``a 1``."""

    name, digest, dim, prompt, query_prompt = "circle", "d", 2, "plain: ", "query: "
    device = torch.device("cpu")

    def __init__(self):
        self.asked = []
        self.is_interrupted = False

    def digest_with(self, prompt):
        return self.digest

    def document_prompt(self, chosen):
        return "text: " if chosen is None else f"<{chosen}>"

    def warn_unread(self, progress): ...

    def encode(self, texts, *, normalize, prompt, batch_tokens, progress):
        if self.asked and self.is_interrupted:
            raise KeyboardInterrupt
        self.asked.append((prompt, list(texts)))
        cosines = np.array([float(re.search(r"-?[\d.]+", text)[0]) for text in texts])
        return (
            np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1) * (1 if normalize else 3)
        ).astype(np.float32)


@pytest.fixture
def circle(monkeypatch):
    encoder = Circle()
    monkeypatch.setattr(mining, "load_for_encoding", lambda *_: encoder)
    return encoder


PAIRS_ON_CIRCLE = [("q 1", "p 0.5"), ("r 1", "s -0.5"), ("q 1", "p 0.75"), ("", "t 0"), ("t 0", "")]
MORE_ON_CIRCLE = [f"n {cosine}" for cosine in (0.9, 0.625, 0.5, 0.4375, 0.25, 0.0)]


def mine_on_circle(folder, rows=PAIRS_ON_CIRCLE, more=MORE_ON_CIRCLE, **options):
    source = write_pairs(folder / "pairs.csv", rows)
    (folder / "more.txt").write_text("\n".join([*more, " "]))
    options = {"corpus": [str(folder / "more.txt")], "ranks": "0:20", **options}
    chosen = HardNegativeOptions(output=folder / "o.csv", **options)
    progress = Told()
    prepare_hard_negatives([str(source)], chosen, RowWriter(chosen, progress))
    manifest = json.loads((folder / "o.csv.manifest.json").read_text())
    return read_written(chosen.output), manifest, progress.lines


@pytest.mark.parametrize(
    ("options", "cosines"),
    [
        ({"margin": 0.25}, [0.25, 0.0, -0.5]),
        ({}, [0.4375, 0.25, 0.0, -0.5]),
        ({"ratio": 0.5}, [0.25, 0.0, -0.5]),
        ({"ratio": 1.0}, [0.5, 0.4375, 0.25, 0.0, -0.5]),
        ({"ratio": 1.0, "margin": 0.25}, [0.25, 0.0, -0.5]),
        ({"margin": -2, "max_score": 0.625}, [0.625, 0.5, 0.4375, 0.25, 0.0, -0.5]),
        ({"margin": -2, "min_score": 0.5}, [0.9, 0.625, 0.5]),
        ({"margin": -2, "ranks": "1:3", "per_anchor": 2}, [0.625, 0.5]),
        ({"margin": -2, "ranks": "0:1", "per_anchor": 1}, [0.9]),
        ({"margin": -2, "ranks": "1:20", "per_anchor": 2}, [0.625, 0.5]),
    ],
)
def test_negatives_on_a_circle_are_the_nearest_allowed_ones(circle, tmp_path, options, cosines):
    rows, _, _ = mine_on_circle(tmp_path, **{"per_anchor": 9, **options})
    found = [
        float(negative.split()[1]) for anchor, positive, negative in rows if positive == "p 0.5"
    ]
    assert found == cosines
    assert [row[2] for row in rows if row[1] == "p 0.75"] == [
        row[2] for row in rows if row[1] == "p 0.5"
    ]


def test_counts_and_manifest_of_a_search_on_a_circle(circle, tmp_path):
    rows, manifest, said = mine_on_circle(
        tmp_path, margin=-2, min_score=0.5, per_anchor=4, corpus_prompt="x"
    )
    assert rows[3:7] == [
        ("r 1", "s -0.5", f"{text}") for text in ("n 0.9", "p 0.75", "n 0.625", "p 0.5")
    ]
    assert len(rows) == 3 + 4 + 3
    # The farthest positive of q has 0.5, that of r -0.5; q has three negatives for each of its
    # pairs.
    positive, negative = (
        (0.5 - 0.5 + 0.5) / 3,
        (2 * (0.9 + 0.625 + 0.5) + 0.9 + 0.75 + 0.625 + 0.5) / 10,
    )
    assert manifest["corpus"] == {
        "n_pairs": 3, "n_anchors": 2, "n_texts": 9, "n_short_of_negatives": 2, "n_without_negative": 0,
        "positive_cosine": pytest.approx(positive), "negative_cosine": pytest.approx(negative),
    }  # fmt: skip
    assert said[:2] == [
        "left out 2 pairs with an empty text",
        (
            "3 pairs of 2 anchors, 9 texts searched; mean cosine 0.167 of positives, 0.683 of "
            "negatives; 2 pairs found fewer negatives than asked for"
        ),
    ]
    assert NegativeCounts(3, 2, 9, 0, 0, 0.5, 0.25).summary() == (
        "3 pairs of 2 anchors, 9 texts searched; mean cosine 0.500 of positives, 0.250 of negatives"
    )
    assert (
        NegativeCounts(3, 2, 9, 3, 1, 0.5, 0.25)
        .summary()
        .endswith(
            "; 1 pairs found no negative and are left out; 2 pairs found fewer negatives than "
            "asked for"
        )
    )
    assert {
        "model_digest": "d",
        "margin": -2,
        "index": None,
        "corpus_prompt": "x",
    }.items() <= manifest["settings"].items()
    assert [Path(each["path"]).name for each in manifest["inputs"]] == ["pairs.csv", "more.txt"]
    assert [prompt for prompt, _ in circle.asked] == ["<x>", "query: "]
    assert circle.asked[1][1] == ["q 1", "r 1"]
    rows, _, _ = mine_on_circle(tmp_path, force=True, pick=NegativePick.RANDOM)
    assert len(rows) == 2  # r has no negative
    assert circle.asked[2][0] == "text: "
    _, manifest, said = mine_on_circle(tmp_path, more=[], margin=-2, min_score=0.5, force=True)
    assert (
        manifest["corpus"]["n_short_of_negatives"],
        manifest["corpus"]["n_without_negative"],
    ) == (2, 2)
    assert said[1].endswith("; 2 pairs found no negative and are left out")


def test_search_on_a_circle_goes_deeper_by_the_texts_that_are_known(circle, tmp_path):
    pairs = [("q 1", "p 0.9"), ("q 1", "s 0.8"), ("r 0", "t 0.25")]
    rows, _, _ = mine_on_circle(tmp_path, pairs, ["Q: 1!", "n 0.5"], margin=-2, ranks="0:1")
    assert rows == [
        ("q 1", "p 0.9", "n 0.5"),
        ("q 1", "s 0.8", "n 0.5"),
        ("r 0", "t 0.25", "n 0.5"),
    ]


def test_an_index_on_a_circle_is_searched_and_recorded(circle, tmp_path):
    texts = ["u 0.25", "q 1", "v 0.5"]
    path = tmp_path / "i.index"
    SearchIndex.build(Circle().encode(texts, normalize=False, prompt="", batch_tokens=None, progress=None), texts,
                      info={"digest": "d"}).save(path)  # fmt: skip
    rows, manifest, _ = mine_on_circle(tmp_path, margin=-2, per_anchor=3, corpus=None, index=path)
    assert [negative for _, positive, negative in rows if positive == "p 0.5"] == [
        "v 0.5",
        "u 0.25",
    ]
    assert manifest["settings"]["index"] == manifest["inputs"][1]["path"] == str(path)
    assert manifest["corpus"]["n_texts"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": "5:6", "per_anchor": 2}, "--range: 5:6: need 0 <= MIN < MAX"),
        ({"ranks": "-1:6"}, "--range: -1:6: need 0 <= MIN < MAX"),
        ({"ranks": "6:6"}, "--range: 6:6: need 0 <= MIN < MAX"),
        ({"columns": "a,b,c"}, "need anchor=NAME,positive=NAME"),
        ({"output": Path("-")}, "--output: mining reads"),
        ({}, "INPUT: mining reads"),
    ],
)
def test_wrong_options_of_a_search_are_named(circle, tmp_path, options, message):
    chosen = HardNegativeOptions(**{"output": tmp_path / "o.csv", **options})
    with pytest.raises(UsageError, match=message):
        prepare_hard_negatives(
            ["in.csv" if "output" in options else "-"], chosen, RowWriter(chosen, SilentProgress())
        )


def test_a_search_without_a_text_says_so(circle, tmp_path):
    source = write_pairs(tmp_path / "pairs.csv", [("", "a 1")])
    chosen = HardNegativeOptions(output=tmp_path / "o.csv")
    with pytest.raises(DataError, match=r"pairs\.csv: no pair of texts"):
        prepare_hard_negatives([str(source)], chosen, RowWriter(chosen, SilentProgress()))
    (tmp_path / "in.txt").write_text(" \n")
    chosen = PairOptions(output=tmp_path / "p.csv", paraphrases=True)
    with pytest.raises(DataError, match=r"in\.txt: no text"):
        prepare_paraphrases([str(tmp_path / "in.txt")], chosen, RowWriter(chosen, SilentProgress()))


def test_a_search_that_finds_nothing_leaves_nothing_behind(circle, tmp_path):
    source = write_pairs(tmp_path / "pairs.csv", [("q 1", "a 1")])
    (tmp_path / "texts.txt").write_text("ta 1\ntb 0\n")
    for n_tries in range(2):
        chosen = HardNegativeOptions(output=tmp_path / "o.csv", margin=0.1 * n_tries)
        with pytest.raises(DataError, match="none of 1 pairs found a negative"):
            prepare_hard_negatives([str(source)], chosen, RowWriter(chosen, SilentProgress()))
        chosen = PairOptions(output=tmp_path / "p.csv", paraphrases=True)
        with pytest.raises(DataError) as caught:
            prepare_paraphrases(
                [str(tmp_path / "texts.txt")], chosen, RowWriter(chosen, SilentProgress())
            )
        what = "no pair of 2 different texts has a cosine of --min-score 0.8 or more"
        assert caught.value.message == what
        assert caught.value.hint == "take farther ones: --min-score -1"
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.csv", "texts.txt"}


@pytest.mark.parametrize(
    ("cosines", "options", "message", "hint"),
    [
        ((1,), {}, "the input holds 1 different text, need two for a pair", "add texts"),
        (
            (1, 1),
            {"min_score": 0.5, "max_score": 0.6},
            "no pair of 2 different texts has a cosine of --min-score 0.5 or more and "
            "--max-score 0.6 or less",
            "take farther ones: --min-score -1, or leave out --max-score",
        ),
    ],
)
def test_paraphrases_that_are_not_found_are_told_with_the_limits(
    circle, tmp_path, cosines, options, message, hint
):
    with pytest.raises(DataError) as caught:
        paraphrases_on_circle(tmp_path, cosines, **options)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_finished_search_on_a_circle_is_kept_with_resume_and_made_again_with_force(
    circle, tmp_path
):
    rows, _, _ = mine_on_circle(tmp_path)
    n_asked = len(circle.asked)
    assert mine_on_circle(tmp_path, resume=True)[2] == [f"{tmp_path / 'o.csv'} is already finished"]
    assert len(circle.asked) == n_asked
    for changed in (
        {"seed": 7},
        {"more": ["n 0.1"]},
        {"margin": 0.1},
        {"encoding": "latin-1"},
        {"sample": 2},
        {"precision": Precision.BF16},
    ):
        with pytest.raises(
            OutputError, match=r"o\.csv exists already, and this search did not write it"
        ):
            mine_on_circle(tmp_path, resume=True, **changed)
    assert mine_on_circle(tmp_path, resume=True, force=True)[0] == rows
    assert len(circle.asked) == 2 * n_asked
    circle.digest = "2-d"
    with pytest.raises(OutputError, match=r"o\.csv exists already and is of simcse 1\.0\.0"):
        mine_on_circle(tmp_path, resume=True)
    circle.digest = "other"
    with pytest.raises(OutputError, match="this search did not write it"):
        mine_on_circle(tmp_path, resume=True)
    with pytest.raises(OutputError, match=r"o\.csv exists already\n"):
        mine_on_circle(tmp_path)
    assert mine_on_circle(tmp_path, force=True)[0] == rows


def test_texts_on_a_circle_that_are_encoded_already_are_not_encoded_again(
    circle, tmp_path, monkeypatch
):
    monkeypatch.setattr("simcse_cli.encoding.parts.WINDOW", 4)
    circle.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        mine_on_circle(tmp_path)
    circle.is_interrupted = False
    with pytest.raises(DataError, match=r"has encoding 'utf-8', not 'latin-1'"):
        mine_on_circle(tmp_path, resume=True, encoding="latin-1")
    mine_on_circle(tmp_path, resume=True)
    assert [len(texts) for _, texts in circle.asked] == [4, 4, 1, 2]


def test_blocks_are_searched_once_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(mining, "BLOCK", 2)
    searched = []

    def search(block):
        searched.append(block)
        return np.arange(5)[block]

    for _ in range(2):
        progress = CountingProgress()
        found = np.concatenate(list(mining._blocks(tmp_path, 5, search, progress)))
        assert (found.tolist(), progress.n_expected, progress.n_done) == ([0, 1, 2, 3, 4], 5, 5)
    assert len(searched) == 3


def paraphrases_on_circle(folder, cosines, **options):
    (folder / "texts.txt").write_text(
        "".join(f"t{chr(97 + i)} {cosine}\n" for i, cosine in enumerate(cosines))
    )
    chosen = PairOptions(output=folder / "p.csv", paraphrases=True, force=True, **options)
    progress = Told()
    prepare_paraphrases([str(folder / "texts.txt")], chosen, RowWriter(chosen, progress))
    names = "".join(f"{left[1]}{right[1]} " for left, right in read_written(chosen.output))
    return names.split(), json.loads((folder / "p.csv.manifest.json").read_text()), progress.lines


@pytest.mark.parametrize(("top_k", "max_pairs"), [(20, 200), (2, 200), (20, 5), (3, 7), (1, 2)])
def test_paraphrases_on_a_circle_are_the_nearest_pairs(
    circle, tmp_path, monkeypatch, top_k, max_pairs
):
    monkeypatch.setattr(mining, "BLOCK", 2)
    angles = np.random.default_rng(2).uniform(0, np.pi, 11)
    found, manifest, said = paraphrases_on_circle(
        tmp_path, np.cos(angles), top_k=top_k, max_pairs=max_pairs, min_score=-1
    )
    gaps = np.abs(angles[:, None] - angles[None])
    near = np.argsort(gaps, axis=1)[:, 1 : top_k + 1]
    pairs = {tuple(sorted((i, int(j)))) for i in range(len(angles)) for j in near[i]}
    expected = sorted(pairs, key=lambda pair: gaps[pair])[:max_pairs]
    assert found == [f"{chr(97 + i)}{chr(97 + j)}" for i, j in expected]
    first, last = (np.cos(gaps[expected[at]]) for at in (0, -1))
    assert manifest["corpus"] == {
        "n_texts": 11, "highest_cosine": pytest.approx(first), "lowest_cosine": pytest.approx(last)
    }  # fmt: skip
    assert said[0] == f"11 different texts searched; cosines from {first:.3f} down to {last:.3f}"
    assert {"model": "minilm", "paraphrases": True}.items() <= manifest["settings"].items()
    assert (tmp_path / "p.csv").read_text().startswith("anchor,positive\n")
    assert [prompt for prompt, _ in circle.asked] == ["plain: "]


def test_paraphrases_on_a_circle_include_the_scores_asked_for(circle, tmp_path):
    assert paraphrases_on_circle(tmp_path, (1, 0.5, 0), min_score=0.5, max_score=0.5)[0] == ["ab"]


def test_equal_vectors_on_a_circle_have_as_many_paraphrases_as_asked_for(circle, tmp_path):
    found, _, _ = paraphrases_on_circle(tmp_path, (1, 1, 1, 1, 1), top_k=1)
    assert 3 <= len(found) <= 5  # one for each text, of which some are the same
