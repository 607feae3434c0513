"""Equal texts in batches: kept apart as by two plain samplers, or numbered for the loss to mask."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers import SENTENCES, Told
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.objectives.base import Batch, Examples
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import WEIGHTS_FILE, kept_states
from simcse_cli.settings.choices import Batches, ObjectiveName
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import dump_config
from simcse_cli.training.batches import BatchMaker, SharedTexts, pack_apart
from simcse_cli.training.loop import Trainer
from simcse_cli.training.run import train_run
from simcse_cli.training.setup import build_parts, shared_texts


def rows_of(n, n_texts, seed=3):
    """Return triplets of texts with few anchors and repeated negatives, some of them equal within a row."""
    draw = np.random.default_rng(seed)
    return [
        (f"a{i % n_texts}", f"p{i}", f"a{draw.integers(n_texts)}" if i % 3 else f"p{i}")
        for i in range(n)
    ]


def plain_batches(order, rows, size):
    """Fill one batch after the other from what is left, as one would by hand."""
    left, batches = list(order), []
    while left:
        batch, texts = [], set()
        for row in left:
            if len(batch) < size and not texts & set(rows[row]):
                batch.append(row)
                texts |= set(rows[row])
        left = [row for row in left if row not in batch]
        batches.append(batch)
    return batches


@pytest.mark.parametrize(
    ("n", "n_texts", "size"), [(60, 40, 4), (97, 9, 8), (50, 1, 4), (30, 30, 64), (64, 16, 16)]
)
def test_rows_are_packed_as_by_hand(n, n_texts, size):
    rows, order = rows_of(n, n_texts), np.random.default_rng(1).permutation(n)
    packed = pack_apart(order, SharedTexts(rows), size, least=2)
    plain = plain_batches(order, rows, size)
    short = max((batch for batch in plain if len(batch) < size), key=len, default=[])
    expected = [batch for batch in plain if len(batch) == size] + [short] * (len(short) >= 2)
    assert packed.tolist() == [row for batch in expected for row in batch]


def test_full_batches_are_those_of_sentence_transformers():
    datasets = pytest.importorskip("datasets")
    sampler = pytest.importorskip("sentence_transformers.base.sampler")
    rows = rows_of(200, 60)
    columns = dict(
        zip(("anchor", "positive", "negative"), map(list, zip(*rows, strict=True)), strict=True)
    )
    theirs = sampler.NoDuplicatesBatchSampler(
        datasets.Dataset.from_dict(columns),
        16,
        drop_last=False,
        generator=torch.Generator(),
        seed=5,
    )
    order = torch.randperm(
        200, generator=torch.Generator().manual_seed(5), dtype=torch.int32
    ).numpy()
    ours = pack_apart(order, SharedTexts(rows), 16, least=99).reshape(-1, 16)
    assert ours.tolist() == [list(map(int, batch)) for batch in theirs if len(batch) == 16]


@pytest.mark.parametrize(
    ("rows", "batches", "is_told"),
    [
        ([("a",)] * 7, None, True),
        ([("a", "b")] * 3, None, True),
        ([("a", "a", "a")] * 3, Batches.MASK_DUPLICATES, True),
        ([("a", "b", "b")] * 3, None, True),
        ([("a", "b", "c")] * 3, None, False),
        ([("a",)] * 7, Batches.SHUFFLED, False),
        ([("a",), ("a",), ("b",)], None, False),
    ],
)
def test_rows_that_are_all_equal_teach_nothing(rows, batches, is_told):
    progress = Told()
    objective = SimpleNamespace(in_batch_negatives=True, name="simcse-unsup")
    examples = Examples(rows, are_rows=True)
    shared_texts(TrainConfig(batches=batches), objective, examples, progress, None)
    line = "the rows to train on are all equal: none has a negative, so the loss is 0 and nothing "
    assert (f"{line}is learnt" in progress.warnings) == is_told


def test_share_counts_rows_with_a_text_of_an_earlier_one():
    shared = SharedTexts([("a", "b"), ("c", "a"), ("d", "d"), ("b", "a"), ("e", "f")])
    assert shared.share == 2 / 5
    assert {row: len(texts) for row, texts in shared.by_row.items()} == {0: 2, 1: 1, 3: 2}
    assert SharedTexts([("a",), ("b",)]).share == 0


class Rows(SimpleNamespace):
    ordered = False
    encoder = SimpleNamespace(prepacked=lambda rows: rows, device=SimpleNamespace(type="cpu"))

    def examples(self, data, generator):
        return Examples(data.rows, are_rows=True)

    def collate(self, examples, generator):
        return Batch([], len(examples), texts=examples)


def maker(rows, rank=0, n_processes=1, kind=Batches.NO_DUPLICATES, **settings):
    config = TrainConfig(**{"batch_size": 4, "seed": 7} | settings)
    data = SimpleNamespace(rows=rows, name="a.csv")
    processes = {"rank": rank, "n_processes": n_processes}
    return BatchMaker(
        Rows(), data, len(rows), config, **processes, shared=SharedTexts(rows), kind=kind
    )


@pytest.mark.parametrize("n_texts", [20, 100, 300])
def test_no_batch_of_any_epoch_has_a_text_twice(n_texts):
    rows = rows_of(400, n_texts)
    batches = maker(rows, bucket_batches=2)
    steps = range(4 * batches.steps_per_epoch)
    for step in steps:
        texts = [text for row in batches.make(step).texts for text in set(row)]
        assert len(texts) == len(set(texts)) > 2
    assert (
        maker(rows, bucket_batches=2).make(steps[-1]).texts == batches.make(steps[-1]).texts
    )  # a resumed run


def test_processes_share_the_batches_of_one():
    rows = rows_of(400, 100)
    alone = maker(rows, batch_size=8)
    parts = [maker(rows, rank, 2, batch_size=4) for rank in (0, 1)]
    for step in range(2 * alone.steps_per_epoch):
        assert [row for part in parts for row in part.make(step).texts] == alone.make(step).texts


def test_at_most_one_row_in_a_hundred_is_left_out():
    others = [(f"a{i}", f"b{i}") for i in range(196)]
    assert maker([("x", f"p{i}") for i in range(52)] + others).n_examples == 248
    assert maker([("x", f"p{i}") for i in range(51)] + [*others, ("y", "z")]).n_examples == 248
    too_many = [("x", f"p{i}") for i in range(80)]
    with pytest.raises(
        DataError, match=r"a\.csv: --batches no-duplicates has no place for 14 of 276 rows"
    ) as caught:
        maker(too_many + others)
    assert caught.value.hint == "use --batches mask-duplicates, which trains on every row"


def test_masked_batches_hold_every_row_and_number_its_texts_over_processes():
    rows = [(f"question {i}", f"answer {i % 5}") for i in range(40)]
    parts = [maker(rows, rank, 2, kind=Batches.MASK_DUPLICATES, batch_size=4) for rank in (0, 1)]
    seen = []
    for step in range(parts[0].steps_per_epoch):
        made = [part.make(step) for part in parts]
        batch = [row for each in made for row in each.texts]
        for each in made:
            flat = each.extra["texts"].flatten()
            texts = [text for row in batch for text in row]
            expected = [[text == other for other in texts] for text in texts]
            assert (flat[:, None] == flat).tolist() == expected
        seen += batch
    assert sorted(seen) == sorted(rows)
    plain = maker(rows, kind=Batches.SHUFFLED)
    assert plain.make(0).texts == maker(rows, kind=Batches.MASK_DUPLICATES).make(0).texts
    assert "texts" not in plain.make(0).extra


@pytest.mark.parametrize(
    ("batches", "n_repeated", "kind"),
    [
        (None, 0, Batches.SHUFFLED),
        (None, 2, Batches.MASK_DUPLICATES),
        (Batches.SHUFFLED, 2, Batches.SHUFFLED),
        (Batches.NO_DUPLICATES, 0, Batches.NO_DUPLICATES),
    ],
)
def test_repeated_texts_change_the_default(tiny_model_dir, tmp_path, batches, n_repeated, kind):
    texts = [*SENTENCES[:20], *SENTENCES[:n_repeated]]
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in texts))
    config = TrainConfig(
        train_file=str(tmp_path / "a.txt"), model=str(tiny_model_dir), pooler="avg", batches=batches
    )
    assert build_parts(config, SilentProgress()).batches.kind is kind


def test_batches_without_negatives_have_no_duplicates_to_avoid(tiny_model_dir, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in SENTENCES[:20]))
    config = TrainConfig(
        objective=ObjectiveName.VICREG,
        train_file=str(tmp_path / "a.txt"),
        model=str(tiny_model_dir),
        pooler="avg",
        batches=Batches.NO_DUPLICATES,
    )
    with pytest.raises(
        ConfigError, match="the rows of a batch are no negatives in --objective vicreg"
    ):
        build_parts(config, SilentProgress())


OLD = SimpleNamespace(batches=Batches.NO_DUPLICATES, least_rows=2)
"""The batches of version 1.0.0, which recorded neither of the two."""


@pytest.mark.parametrize("version", ["1.0.0", "today"])
@pytest.mark.parametrize(
    ("objective", "texts", "length", "expected"),
    [
        ("simcse-unsup", [*SENTENCES[:20], *SENTENCES[:1] * 8], {"max_steps": 6}, {}),
        ("mlm", SENTENCES[:11], {"epochs": 2.0}, {"1.0.0": 4, "today": 6}),
    ],
    ids=["repeated texts", "a last row"],
)
def test_a_resumed_run_keeps_the_batches_it_started_with(
    tiny_model_dir, tmp_path, version, objective, texts, length, expected
):
    """Version 1.0.0 kept equal texts apart by default, and left out a last row of any objective."""
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in texts))
    config = TrainConfig(
        objective=objective,
        train_file=(str(tmp_path / "a.txt"),),
        model=str(tiny_model_dir),
        pooler="avg",
        batch_size=5,
        save_every=1,
        device="cpu",
        **length,
    )
    for name, stops in (("whole", False), ("stopped", True)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(dump_config(config))
        parts = build_parts(config, SilentProgress(), OLD if version == "1.0.0" else None)
        Trainer(
            config, parts, tmp_path / name, SilentProgress(), should_stop=lambda stops=stops: stops
        ).run()
    record = json.loads((tmp_path / "stopped" / "run.json").read_text())
    recorded = record["data"]["batches"], record["data"]["least_rows"]
    if version == "1.0.0":
        del record["data"]["batches"]
        del record["data"]["least_rows"]
        (tmp_path / "stopped" / "run.json").write_text(json.dumps(record))
    resumed = train_run(config, tmp_path / "stopped", SilentProgress(), resume=True)
    assert resumed.step == expected.get(version, 6)
    assert (resumed.data["batches"], resumed.data["least_rows"]) == recorded
    if objective == "simcse-unsup":
        kinds = {"1.0.0": "no-duplicates", "today": "mask-duplicates"}
        assert recorded == (kinds[version], 2)
    weights = [
        (kept_states(tmp_path / name / "checkpoint")[-1] / WEIGHTS_FILE).read_bytes()
        for name in ("whole", "stopped")
    ]
    assert weights[0] == weights[1]
