import pytest

from simcse_cli.errors import ConfigError
from simcse_cli.settings.choices import HeadUse, ObjectiveName, Similarity
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.declare import check_keys, coerce_settings, settings_of
from simcse_cli.settings.recipes import (
    dump_config,
    given_variables,
    mistyped_variables,
    read_recipe,
    resolve_config,
    shipped_recipes,
)
from simcse_cli.training.options import RunOptions


def test_later_sources_win(tmp_path, monkeypatch):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("lr: 1.0e-4\nbatch-size: 8\ntemperature: 0.1\n")
    monkeypatch.setenv("SIMCSE_BATCH_SIZE", "16")
    config = resolve_config(recipe=str(recipe), flags={"temperature": 0.2, "seed": None})
    assert (config.lr, config.batch_size, config.temperature, config.seed) == (1e-4, 16, 0.2, 42)


def test_objective_defaults_lie_under_the_recipe(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("objective: simcse-sup\nepochs: 2\n")
    defaults = {ObjectiveName.SIMCSE_SUP: {"epochs": 3.0, "head": HeadUse.KEPT}}
    config = resolve_config(
        recipe=str(recipe), objective_defaults=lambda name: defaults.get(name, {})
    )
    assert (config.epochs, config.head) == (2.0, HeadUse.KEPT)


def test_dump_and_resolve_give_the_same_settings(tmp_path):
    config = TrainConfig(
        objective=ObjectiveName.SIMCSE_SUP, similarity=Similarity.DOT, options={"x": 1}
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert resolve_config(recipe=str(path)) == config


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("temprature", "temperature"), ("learning_rate", None), ("hard-neg-alph", "hard_neg")],
)
def test_unknown_key_names_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match="unknown key") as caught:
        coerce_settings(TrainConfig, {key: 1}, place="r.yaml")
    if nearest == "temperature":
        assert caught.value.hint == "did you mean temperature?"
    else:
        assert caught.value.hint


def test_flag_spelling_is_accepted_as_a_key():
    assert (
        coerce_settings(TrainConfig, {"hard-neg-alpha": 2}, place="r")["hard_negative_alpha"] == 2.0
    )


def test_every_flag_of_a_setting_is_accepted_as_a_key():
    values = {"guide": "minilm", "column": "anchor=a"}
    known = coerce_settings(TrainConfig, values, place="r")
    assert known == {"teacher": ["minilm"], "columns": "anchor=a"}


def test_check_keys_turns_dashes_to_underscores():
    assert check_keys({"batch-size": 3}, ["batch_size"], place="r") == {"batch_size": 3}
    with pytest.raises(ConfigError, match="r: the key batch_size occurs twice"):
        check_keys({"batch-size": 3, "batch_size": 4}, ["batch_size"], place="r")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "--batch-size"),
        ({"lr": -1}, "--lr"),
        ({"temperature": 0}, "--temperature"),
        ({"dropout": 1.0}, "--dropout"),
        ({"max_length": 2}, "--max-length"),
        ({"hard_negative_alpha": 0}, "--hard-neg-alpha"),
    ],
)
def test_impossible_values_name_the_flag(values, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": "many"},
        {"batch_size": 1.5},
        {"pooler": "max"},
        {"options": 3},
        {"epochs": True},
    ],
)
def test_wrong_types_are_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        coerce_settings(TrainConfig, values, place="r.yaml")


def test_temperature_is_one_for_the_dot_product():
    assert TrainConfig(similarity=Similarity.DOT).effective_temperature == 1.0
    assert TrainConfig().effective_temperature == 0.05


def test_broken_yaml_names_the_line(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("lr: 1\n  bad: [\n")
    with pytest.raises(ConfigError, match=r"r\.yaml, line"):
        read_recipe(str(path))


def test_unknown_recipe_suggests_a_shipped_one():
    with pytest.raises(ConfigError) as caught:
        read_recipe("simcse-unsup-bertbase")
    assert caught.value.hint == "did you mean simcse-unsup-bert-base?"


PAPER = {  # Table A.1: batch size and learning rate
    "simcse-unsup-bert-base": (64, 3e-5),
    "simcse-unsup-bert-large": (64, 1e-5),
    "simcse-unsup-roberta-base": (512, 1e-5),
    "simcse-unsup-roberta-large": (512, 3e-5),
    "simcse-sup-bert-base": (512, 5e-5),
    "simcse-sup-bert-large": (512, 1e-5),
    "simcse-sup-roberta-base": (512, 5e-5),
    "simcse-sup-roberta-large": (512, 1e-5),
}


@pytest.mark.parametrize("name", PAPER)
def test_recipes_have_the_settings_of_table_a1(name):
    config = resolve_config(recipe=name)
    assert (config.batch_size, config.lr) == PAPER[name]
    assert config.epochs == (1 if "unsup" in name else 3)


def test_every_shipped_recipe_is_a_mapping_with_known_keys():
    assert set(PAPER) <= set(shipped_recipes())
    for name in shipped_recipes():
        assert resolve_config(recipe=name)


def test_only_a_variable_that_resembles_one_is_reported(monkeypatch):
    known = ("BATCH_SIZE", "DATA", "CACHE", "WORDNET", "START_TIMEOUT")
    for name in (*known, "NOTES", "TEST", "HOME", "BATCHSIZE", "LRR", "MODLE", "CACH", "OPTIONS"):
        monkeypatch.setenv(f"SIMCSE_{name}", "1")
    assert dict(mistyped_variables()) == {
        "SIMCSE_BATCHSIZE": "SIMCSE_BATCH_SIZE",
        "SIMCSE_LRR": "SIMCSE_LR",
        "SIMCSE_MODLE": "SIMCSE_MODEL",
        "SIMCSE_CACH": "SIMCSE_CACHE",
        "SIMCSE_OPTIONS": "--set NAME=VALUE",
    }


@pytest.mark.parametrize("name", sorted({*settings_of(TrainConfig), *settings_of(RunOptions)}))
def test_a_variable_named_as_an_option_gives_it_or_is_reported(monkeypatch, name):
    declared = settings_of(TrainConfig) | settings_of(RunOptions)
    for flag in declared[name][1].flags or (f"--{name}",):
        variable = "SIMCSE_" + flag.partition("/")[0].lstrip("-").replace("-", "_").upper()
        if flag.startswith("--"):
            monkeypatch.setenv(variable, "1")
            is_given = variable in given_variables().values()
            assert is_given != (variable in dict(mistyped_variables()))
            monkeypatch.delenv(variable)


def test_a_variable_may_be_named_as_a_flag(monkeypatch):
    monkeypatch.setenv("SIMCSE_HARD_NEG_ALPHA", "2")
    monkeypatch.setenv("SIMCSE_GUIDE", "minilm")
    config = resolve_config()
    assert (config.hard_negative_alpha, config.teacher) == (2.0, ["minilm"])
    assert not list(mistyped_variables())
    monkeypatch.setenv("SIMCSE_TEACHER", "minilm")
    with pytest.raises(ConfigError, match=r"^SIMCSE_GUIDE: SIMCSE_TEACHER gives the same setting"):
        resolve_config()


def test_a_variable_that_a_flag_replaces_names_the_right_way(monkeypatch):
    for name in ("MODE", "SET", "SEEDS", "MLM_WEIGHT"):
        monkeypatch.setenv(f"SIMCSE_{name}", "1")
    assert dict(mistyped_variables()) == {
        "SIMCSE_MLM_WEIGHT": "--mlm-weight",
        "SIMCSE_MODE": "SIMCSE_OBJECTIVE",
        "SIMCSE_SEEDS": "--seeds",
        "SIMCSE_SET": "--set NAME=VALUE",
    }


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("mode: unsup", "write objective: simcse-unsup or objective: simcse-sup"),
        ("seeds: 1,2", "give --seeds on the command line"),
        ("dual-encoder: true", "write options: {dual_encoder: true}"),
        ("seeeds: 1,2", "did you mean seed?"),
        ("lerning_rate: 1e-5", "did you mean lr?"),
    ],
)
def test_an_option_that_is_no_key_of_a_recipe_has_a_fix_of_its_own(tmp_path, line, hint):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"lr: 1.0e-4\n{line}\n")
    with pytest.raises(ConfigError, match=f"unknown key '{line.split(':')[0]}'") as caught:
        resolve_config(recipe=str(recipe))
    assert caught.value.hint == hint


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("SIMCSE_BATCH_SIZE", "abc")
    with pytest.raises(ConfigError, match=r"^SIMCSE_BATCH_SIZE 'abc', need a whole number"):
        resolve_config()
