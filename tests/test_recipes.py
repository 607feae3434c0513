"""Every shipped recipe and sweep parses, agrees with its objective, and builds it."""

import pytest

from simcse_cli.choices import HeadUse, Pooler
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.resolve import ALIASES
from simcse_cli.objectives.registry import OBJECTIVES, build_objective, objective_defaults
from simcse_cli.recipes import read_recipe, resolve_config, shipped_recipes
from simcse_cli.training.setup import check_settings
from simcse_cli.training.sweep import grid_trials, nest_options, read_plan

SMALL = {"projector_dim": 16, "max_span": 16, "min_span": 4}


def small(options):
    return {name: SMALL.get(name, value) for name, value in options.items()}


@pytest.mark.parametrize("name", shipped_recipes())
def test_recipe_builds_its_objective(name, tiny_model_dir):
    config = resolve_config(recipe=name, objective_defaults=objective_defaults())
    assert config.model in ALIASES
    check_settings(config)
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    build_objective(config.objective, encoder, {}, small(config.options))


@pytest.mark.parametrize("name", shipped_recipes())
def test_recipe_says_nothing_that_contradicts_its_objective(name):
    values = read_recipe(name)
    config = resolve_config(recipe=name, objective_defaults=objective_defaults())
    defaults = OBJECTIVES[config.objective].defaults
    for setting in ("pooler", "head"):
        expected = defaults.get(setting)
        if setting in values and expected is not None:
            assert values[setting] == expected
    assert config.pooler is not Pooler.CLS or config.head in list(HeadUse)


@pytest.mark.parametrize("name", shipped_recipes("sweeps"))
def test_sweep_gives_valid_settings(name, tiny_model_dir):
    plan = read_plan(name)
    proposals = (
        [trial.settings for trial in grid_trials(plan.grid)]
        if plan.grid
        else [{k: v["low"] for k, v in plan.search.items()}]
    )
    for settings in proposals:
        merged = nest_options(plan.settings | settings, place=name)
        config = resolve_config(flags=merged, objective_defaults=objective_defaults())
        check_settings(config)
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    build_objective(
        config.objective, encoder, {}, small({"projector_dim": 16} | config.options) if config.options else {}
    )
