"""Several training files with weights: an even, seeded mix that a resumed run continues exactly."""

import dataclasses
import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers import SENTENCES
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import dump_config, resolve_config
from simcse_cli.training.batches import random_generator, shuffled_files
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts, read_data, train_sources


def order(files, seed=0):
    return shuffled_files(files, random_generator(seed, 0)).tolist()


def test_one_file_is_a_plain_permutation():
    assert order([(50, 1.0)]) == random_generator(0, 0).permutation(50).tolist()


def test_an_epoch_takes_each_row_as_often_as_the_weight_says():
    counts = Counter(order([(4, 2.0), (6, 1.0), (10, 0.5)]))
    assert [counts[row] for row in range(10)] == [2] * 4 + [1] * 6
    assert sorted(counts[row] for row in range(10, 20)) == [0] * 5 + [1] * 5
    drawn = {frozenset(row for row in order([(10, 0.5)], seed)) for seed in range(5)}
    assert len(drawn) == 5  # another half each time


def test_a_file_of_little_weight_is_taken_once_at_least():
    assert sorted(row < 4 for row in order([(4, 0.01), (6, 1.0)])) == [False] * 6 + [True]


def test_files_are_mixed_evenly_and_copies_stand_apart():
    files = np.searchsorted([4, 6], order([(4, 1.0), (2, 1.0)]), side="right").tolist()
    assert files == [0, 1, 0, 0, 1, 0]
    mixed = order([(100, 3.0), (300, 1.0)])
    for start in range(0, 600, 60):  # any stretch holds both files in proportion
        assert sum(row < 100 for row in mixed[start : start + 60]) == 30
    places = {row: [i for i, other in enumerate(mixed) if other == row] for row in range(100)}
    assert np.mean([np.diff(each).mean() for each in places.values()]) == pytest.approx(
        200, rel=0.1
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{a}:2", 2.0), ("{a}:0.25", 0.25), ("{a}", 1.0), ("hf://owner/name@config:train", 1.0)],
)
def test_weights_follow_the_file(tmp_path, text, expected):
    (tmp_path / "a.txt").write_text("x\n")
    ((source, weight),) = train_sources(TrainConfig(train_file=[text.format(a=tmp_path / "a.txt")]))
    assert (weight, ":0" in source or ":2" in source) == (expected, False)


def test_wrong_weights_and_files_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(ConfigError, match="need a weight above 0"):
        train_sources(TrainConfig(train_file=[f"{tmp_path / 'a.txt'}:0"]))
    with pytest.raises(DataError, match=r"b\.txt:x does not exist"):
        train_sources(TrainConfig(train_file=[str(tmp_path / "a.txt"), str(tmp_path / "b.txt:x")]))
    config = TrainConfig(train_file=[f"{tmp_path / 'a.txt'}:2"], objective="ct")
    with pytest.raises(ConfigError, match="makes its examples from all files together"):
        build_parts(config, SilentProgress())
    for weight in ("1e9", "99999999999999999999"):
        with pytest.raises(
            ConfigError, match=r"an epoch would have .* examples of this file, it can have"
        ):
            read_data(TrainConfig(train_file=[f"{tmp_path / 'a.txt'}:{weight}"]), SilentProgress())


def test_settings_of_several_files_are_read_back(tmp_path):
    for files in (["a.csv:2", "b.csv"], ["a.csv"]):
        (tmp_path / "c.yaml").write_text(dump_config(TrainConfig(train_file=files)))
        assert resolve_config(recipe=str(tmp_path / "c.yaml")).train_file == files


def train(config, run_dir, stop_after=None):
    run_dir.mkdir(exist_ok=True)
    calls = []
    parts = build_parts(config, SilentProgress())
    stop = lambda: calls.append(1) or (stop_after is not None and len(calls) >= stop_after)  # noqa: E731
    record = Trainer(config, parts, run_dir, SilentProgress(), stop).run()
    return record, load_file(
        run_dir / "model" / "model.safetensors"
    ) if record.status == "finished" else {}


def test_a_mixed_run_resumes_to_the_last_bit_and_refuses_other_weights_of_data(
    tiny_model_dir, tmp_path
):
    (tmp_path / "a.csv").write_text(
        "Frage,Antwort\n" + "".join(f'"{s}","{s} Yes."\n' for s in SENTENCES[:7])
    )
    (tmp_path / "b.jsonl").write_text(
        "".join(f'{{"Frage": "{s}", "Antwort": "No."}}\n' for s in SENTENCES[7:])
    )
    config = TrainConfig(
        model=str(tiny_model_dir),
        train_file=[f"{tmp_path / 'a.csv'}:2", str(tmp_path / "b.jsonl")],
        columns="anchor=Frage,positive=Antwort",
        batch_size=6,
        epochs=2.0,
        lr=1e-3,
        device="cpu",
        save_every=2,
    )
    whole, weights = train(config, tmp_path / "whole")
    assert whole.data["n_examples"] == 2 * 7 + 17
    assert whole.data["train_file"] == f"{tmp_path / 'a.csv'}:2, {tmp_path / 'b.jsonl'}"
    stopped, _ = train(config, tmp_path / "parts", stop_after=4)
    assert stopped.status == "interrupted"
    _, continued = train(config, tmp_path / "parts")
    assert all(torch.equal(weights[name], continued[name]) for name in weights)
    train(config, tmp_path / "changed", stop_after=2)
    with (tmp_path / "b.jsonl").open("a") as stream:
        stream.write('{"Frage": "one", "Antwort": "more"}\n')
    with pytest.raises(DataError, match="has changed"):
        train(config, tmp_path / "changed")


def test_a_stream_is_read_as_far_as_the_steps_see(tiny_model_dir, tmp_path):
    import datasets

    datasets.Dataset.from_dict(
        {"text": [f"{s} {i}" for i in range(9) for s in SENTENCES]}
    ).save_to_disk(tmp_path / "d")
    config = TrainConfig(
        model=str(tiny_model_dir),
        train_file=[f"hf://{tmp_path / 'd'}"],
        batch_size=4,
        max_steps=3,
        device="cpu",
    )
    parts = build_parts(config, SilentProgress())
    assert (len(parts.batches.data), parts.digests["n_examples"]) == (12, 12)
    lines = "".join(f"{s} 0\n" for s in SENTENCES[:12])
    assert parts.digests["train_sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    assert (
        len(build_parts(dataclasses.replace(config, max_steps=None), SilentProgress()).batches.data)
        == 9 * 24
    )
