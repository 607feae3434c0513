import pytest
import torch

from simcse_cli.files.atomic import write_json
from simcse_cli.models.module_list import read_record
from simcse_cli.models.poolers import POOLERS, pool, without_head
from simcse_cli.settings.choices import Pooler

# Two layers over the embedding output; one sentence of two tokens and a padded third.
STATES = [torch.tensor([[[1.0], [3.0], [9.0]]]) * scale for scale in (1, 10, 100)]
MASK = torch.tensor([[1, 1, 0]])


def test_every_pooler_is_one_row_of_the_table():
    assert set(POOLERS) == set(Pooler)


@pytest.mark.parametrize(
    ("pooler", "expected"),
    [
        ("cls", 100),
        ("cls_before_pooler", 100),
        ("avg", 200),
        ("avg_top2", 110),
        ("avg_first_last", 110),
        ("avg_emb_last", 101),
    ],
)
def test_pool_of_numbers_is_closed_form(pooler, expected):
    assert pool(Pooler(pooler), STATES, MASK).tolist() == [[expected]]


def test_the_pooler_mask_takes_the_last_mask_of_each_row():
    states = [torch.arange(6.0).view(2, 3, 1)]
    is_mask = torch.tensor([[True, True, False], [False, False, True]])
    mask = torch.ones(2, 3)
    assert pool(Pooler.MASK, states, mask, is_mask=is_mask).tolist() == [[1.0], [5.0]]
    with pytest.raises(ValueError, match="places of"):
        pool(Pooler.MASK, states, mask)


def test_pooler_without_head_reads_the_same_states():
    for pooler, spec in POOLERS.items():
        bare = POOLERS[without_head(pooler)]
        assert (bare.layers, bare.reduction, bare.has_head) == (spec.layers, spec.reduction, False)


@pytest.mark.parametrize(
    ("config", "dense", "pooler"),
    [
        ({"pooling_mode": "cls"}, False, Pooler.CLS_BEFORE_POOLER),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
            False,
            Pooler.CLS_BEFORE_POOLER,
        ),
        ({"pooling_mode": "cls"}, True, Pooler.CLS),
        ({"pooling_mode": "mean"}, False, Pooler.AVG),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, True, Pooler.AVG),
    ],
)
def test_pooling_modules_of_sentence_transformers_name_their_pooler(
    tmp_path, config, dense, pooler
):
    configs = {"Pooling": config} | ({"Dense": {}} if dense else {})
    for name, values in configs.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "config.json", values)
    rows = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    rows += [{"path": name, "type": f"sentence_transformers.models.{name}"} for name in configs]
    write_json(tmp_path / "modules.json", rows)
    assert read_record(tmp_path).pooler is pooler
