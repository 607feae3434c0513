"""What holds for every objective: gradients reach all of it, chunks and processes change nothing."""

import re
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, distributed

from helpers import build_tiny_model, generator_beside
from objectives.cases import VARIANTS, batch_of, build
from processes import run_on_processes
from simcse_cli.objectives.base import Objective
from simcse_cli.objectives.registry import OBJECTIVES
from simcse_cli.settings.choices import ObjectiveName as Name
from simcse_cli.settings.declare import settings_of
from simcse_cli.settings.recipes import read_recipe, shipped_recipes
from simcse_cli.training.cached_gradients import cached_backward

every_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_tiny_model(tmp_path_factory.mktemp("model"))
    generator_beside(folder)  # before processes look for it
    return folder


def total(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()


def gradients(objective: Objective) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}


# These have a transformer in their losses: the detector, or the copy behind the queue.
without_transformer = [
    name for name in VARIANTS if not name.startswith(("diffcse", "simcse-unsup queue"))
]


@pytest.mark.parametrize("variant", without_transformer)
def test_autocast_rounds_nothing_after_the_transformer(variant, model_dir):
    objective, data = build(variant, model_dir)
    batch = batch_of(objective, data)
    representations = objective.encode(batch)
    expected, _ = objective.losses(representations, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = objective.losses(representations, batch)
    assert found == expected


def test_registry_holds_every_name():
    assert set(OBJECTIVES) == set(Name)


def test_every_objective_has_a_file_of_its_own_a_recipe_and_a_line_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")
    recipes = {read_recipe(name)["objective"] for name in shipped_recipes()}
    assert recipes == set(Name)
    assert all(f"`{name}`" in page for name in Name)
    files = {cls.__module__ for cls in OBJECTIVES.values()}
    assert len(files) == len(Name)


def test_every_option_is_on_the_page_of_objectives():
    page = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")
    for objective in OBJECTIVES.values():
        for option, (_, own) in settings_of(objective.Options).items():
            name = own.flags[0] if own.flags else option
            assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page), (objective.name, name)


@every_variant
def test_objective_gives_finite_losses_and_gradient_to_every_parameter(variant, model_dir):
    objective, data = build(variant, model_dir)
    losses, _ = objective(batch_of(objective, data))
    total(losses).backward()
    assert torch.isfinite(total(losses))
    without = {
        name
        for name, p in objective.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.any())
    }
    # Keys add the same to all scores of a row, so their bias never has a gradient.
    assert {name for name in without if not name.endswith("key.bias")} == set()


def test_a_row_alone_teaches_where_the_objective_says_so(model_dir):
    told = set()
    for variant in VARIANTS:
        objective, data = build(variant, model_dir)
        if objective.learns_from_one_row:
            told.add(variant)
            total(objective(batch_of(objective, data, slice(1, 2)))[0]).backward()
            gradient = [p.grad for p in objective.encoder.parameters() if p.grad is not None]
            assert any(each.any() and each.isfinite().all() for each in gradient), variant
    assert told == {"ct", "distill", "distill mse", "mlm", "sbert", "tsdae", "tsdae untied"}


@every_variant
def test_objective_examples_and_batches_follow_the_seed(variant, model_dir):
    objective, data = build(variant, model_dir)
    epochs = [objective.examples(data, np.random.default_rng(seed)).items for seed in (0, 0, 1)]
    assert len({len(epoch) for epoch in epochs}) == 1
    assert list(epochs[0]) == list(epochs[1])
    batches = [objective.collate(list(epochs[0])[:4], np.random.default_rng(3)) for _ in range(2)]
    assert batches[0].rows == batches[1].rows
    assert len(batches[0].texts) == batches[0].n_examples


@every_variant
@pytest.mark.parametrize("size", [5, 7])
def test_cached_gradients_equal_plain_ones_with_dropout(variant, size, model_dir):
    objective, data = build(variant, model_dir, dropout=0.2)
    batch = batch_of(objective, data)
    chunks = batch.chunks(size)
    assert len(batch.rows) > size
    assert len(batch.rows) % size

    before = deepcopy(objective.state_dict())
    torch.manual_seed(5)
    parts = [objective.encode(chunk) for chunk in chunks]
    plain = total(objective.losses(tuple(map(torch.cat, zip(*parts, strict=True))), batch)[0])
    plain.backward()
    expected = gradients(objective)

    objective.zero_grad()
    objective.load_state_dict(before)
    torch.manual_seed(5)
    value = cached_backward(
        chunks,
        objective.encode,
        lambda r: total(objective.losses(r, batch)[0]),
        device=torch.device("cpu"),
    )
    torch.testing.assert_close(value, plain.detach(), rtol=1e-6, atol=1e-6)
    found = gradients(objective)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6 * scale)


@every_variant
def test_chunks_of_one_view_give_the_whole_batch(variant, model_dir):
    objective, data = build(variant, model_dir, dropout=0.0)
    batch = batch_of(objective, data)
    whole = objective.encode(batch)
    parts = [objective.encode(chunk) for chunk in batch.chunks(3)]
    for tensor, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(pieces), tensor, rtol=1e-4, atol=1e-5)


def value_and_gradients(
    variant: str, model_dir: Path, rows: slice
) -> tuple[float, dict[str, Tensor]]:
    """Return loss share and gradients of this process in float64, averaged over processes as DDP does."""
    objective, data = build(variant, model_dir, dropout=0.0)
    objective.double()
    value = total(objective(batch_of(objective, data, rows))[0])
    value.backward()
    found = gradients(objective)
    results = [value.detach(), *found.values()]
    if distributed.is_initialized():
        for result in results:
            distributed.all_reduce(result)
            result /= distributed.get_world_size()
    return float(value.detach()), found


def everything_on_two(rank: int, model_dir: Path) -> dict[str, tuple[float, dict[str, Tensor]]]:
    rows = slice(0, 3) if rank == 0 else slice(3, 8)
    return {variant: value_and_gradients(variant, model_dir, rows) for variant in VARIANTS}


@pytest.fixture(scope="module")
def on_two(model_dir, tmp_path_factory):
    return run_on_processes(everything_on_two, tmp_path_factory.mktemp("objectives"), model_dir)


@every_variant
def test_two_uneven_processes_equal_one(variant, on_two, model_dir):
    value, expected = value_and_gradients(variant, model_dir, slice(0, 8))
    for results in on_two:
        found_value, found = results[variant]
        assert found_value == pytest.approx(value, abs=1e-6)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6)
