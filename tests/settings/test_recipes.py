"""Every shipped recipe and sweep parses, agrees with its objective, and builds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import generator_beside
from simcse_cli.errors import ConfigError
from simcse_cli.files.schema import parse_yaml
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.resolve import ALIASES
from simcse_cli.objectives.registry import OBJECTIVES, build_objective, objective_defaults
from simcse_cli.settings.convert import convert
from simcse_cli.settings.recipes import read_recipe, resolve_config, shipped_recipes
from simcse_cli.training.setup import check_settings
from simcse_cli.training.sweep import grid_trials, nest_options, read_plan

# What each recipe says beyond its objective's defaults: Table A.1 (Gao et al. 2021) and the
# released codes.
CLS = {"pooler": "cls"}
ORIGINAL = CLS | {"batches": "shuffled"}
A_1 = ORIGINAL | {"temperature": 0.05, "precision": "auto"}
UNSUP = A_1 | {"head": "train-only"}
PROMPTED = UNSUP | {"pooler": "mask", "batch_size": 256, "lr": 1e-5}
RECIPES = {
    "simcse-unsup-bert-base": ("simcse-unsup", "bert-base", UNSUP | {"batch_size": 64, "lr": 3e-5}),
    "simcse-unsup-bert-large": (
        "simcse-unsup",
        "bert-large",
        UNSUP | {"batch_size": 64, "lr": 1e-5},
    ),
    "simcse-unsup-roberta-base": (
        "simcse-unsup",
        "roberta-base",
        UNSUP | {"batch_size": 512, "lr": 1e-5},
    ),
    "simcse-unsup-roberta-large": (
        "simcse-unsup",
        "roberta-large",
        UNSUP | {"batch_size": 512, "lr": 3e-5},
    ),
    "simcse-sup-bert-base": ("simcse-sup", "bert-base", A_1 | {"batch_size": 512, "lr": 5e-5}),
    "simcse-sup-bert-large": ("simcse-sup", "bert-large", A_1 | {"batch_size": 512, "lr": 1e-5}),
    "simcse-sup-roberta-base": (
        "simcse-sup",
        "roberta-base",
        A_1 | {"batch_size": 512, "lr": 5e-5},
    ),
    "simcse-sup-roberta-large": (
        "simcse-sup",
        "roberta-large",
        A_1 | {"batch_size": 512, "lr": 1e-5},
    ),
    "simcse-mlm": ("simcse-unsup", "bert-base", ORIGINAL | {"options": {"mlm_weight": 0.1}}),
    "next-sentence": ("next-sentence", "bert-base", CLS | {"options": {"window": 1}}),
    "next-3-sentences": ("next-sentence", "bert-base", CLS | {"options": {"window": 3}}),
    "quick-thoughts": ("quick-thoughts", "bert-base", {}),
    "sbert-nli": ("sbert", "bert-base", {}),
    "ct": ("ct", "bert-base", {"max_steps": 5000, "options": {"n_negatives": 7}}),
    "is-bert": ("is-bert", "bert-base", {}),
    "declutr-small": (
        "declutr",
        "distilroberta",
        {
            "epochs": 3,
            "options": {
                "n_anchors": 2,
                "n_positives": 2,
                "min_span": 32,
                "max_span": 512,
                "mlm_weight": 1.0,
            },
        },
    ),
    "mlm": ("mlm", "bert-base", {"epochs": 3}),
    "esimcse-bert-base": (
        "simcse-unsup",
        "bert-base",
        UNSUP | {"augment": "repeat:0.32", "options": {"queue_size": 160, "momentum": 0.995}},
    ),
    "esimcse-roberta-base": (
        "simcse-unsup",
        "roberta-base",
        UNSUP
        | {
            "augment": "repeat:0.3",
            "lr": 1e-5,
            "options": {"queue_size": 160, "momentum": 0.995},
        },
    ),
    "simcse-plus-plus-bert-base": (
        "simcse-unsup",
        "bert-base",
        UNSUP
        | {
            "options": {
                "negatives": "no-dropout",
                "dimension_weight": 0.1,
                "dimension_temperature": 5.0,
            }
        },
    ),
    "mixcse-bert-base": ("simcse-unsup", "bert-base", UNSUP | {"options": {"mix": 0.2}}),
    "mirror-bert-base": (
        "simcse-unsup",
        "bert-base",
        UNSUP
        | {
            "augment": "mask-span:5",
            "pooler": "avg",
            "head": "none",
            "batch_size": 200,
            "lr": 2e-5,
            "max_length": 50,
            "temperature": 0.04,
            "weight_decay": 0.01,
            "options": {"negatives": "all-views"},
        },
    ),
    "rankcse-bert-base": (
        "rankcse",
        "bert-base",
        UNSUP
        | {
            "batch_size": 128,
            "options": {"rank": "listmle", "rank_weight": 1.0, "consistency_weight": 1.0},
        },
    ),
    "promptbert-bert-base": (
        "promptbert",
        "bert-base",
        PROMPTED | {"max_length": 34, "options": {"template_bias": "train"}},
    ),
    "promptbert-roberta-base": (
        "promptbert",
        "roberta-base",
        PROMPTED
        | {
            "max_length": 34,
            "template": [
                "This sentence : ' {.} ' means{mask}.",
                "The sentence : ' {.} ' means{mask}.",
            ],
            "options": {"template_bias": "train"},
        },
    ),
    "sncse-bert-base": (
        "sncse",
        "bert-base",
        PROMPTED
        | {
            "max_length": 24,
            "options": {"margin_low": 0.1, "margin_high": 0.3, "soft_weight": 1e-3},
        },
    ),
    "dclr-bert-base": (
        "simcse-unsup",
        "bert-base",
        UNSUP
        | {
            "batch_size": 128,
            "epochs": 3,
            "options": {"false_negative_cosine": 0.9, "noise": 1.0, "noise_steps": 4},
        },
    ),
    "diffcse-bert-base": (
        "diffcse",
        "bert-base",
        A_1
        | {
            "head": "none",
            "batch_size": 64,
            "generator": "distilbert-base",
            "options": {"rtd_weight": 0.005, "mask_rate": 0.3, "fill": "argmax"},
        },
    ),
    "tsdae": (
        "tsdae",
        "bert-base",
        {
            "pooler": "cls",
            "precision": "auto",
            "eval_every": 10000,
            "options": {"delete": 0.6, "tie_decoder": True},
        },
    ),
    "barlow-twins": (
        "barlow-twins",
        "bert-base",
        CLS | {"eval_every": 60, "options": {"projector_dim": 8192, "redundancy_weight": 0.0051}},
    ),
    "vicreg": (
        "vicreg",
        "bert-base",
        CLS
        | {
            "eval_every": 60,
            "options": {
                "projector_dim": 8192,
                "invariance_weight": 25.0,
                "variance_weight": 25.0,
                "covariance_weight": 1.0,
            },
        },
    ),
}
SMALL = {"projector_dim": 16, "max_span": 16, "min_span": 4}


def small(options):
    return {name: SMALL.get(name, value) for name, value in options.items()}


@pytest.mark.parametrize("name", shipped_recipes())
def test_recipe_builds_its_objective(name, tiny_model_dir):
    # These recipes leave the teacher to the user.
    has_teacher = name.startswith(("dclr", "distill", "rankcse"))
    flags = {"teacher": ["unsup-simcse"]} if has_teacher else {}
    config = resolve_config(recipe=name, flags=flags, objective_defaults=objective_defaults)
    assert config.model in ALIASES
    check_settings(config)
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    taught = {"teacher": 8} if has_teacher else {}
    if config.generator is not None:
        taught["generator"] = str(generator_beside(tiny_model_dir))
    if config.template is not None:
        taught = {"template": config.template}
        encoder.change(head=None, pooler=config.pooler)
    build_objective(config.objective, encoder, taught, small(config.options))


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_the_published_settings(name):
    objective, model, more = RECIPES[name]
    flags = {"objective": objective, "model": model} | more
    expected = resolve_config(flags=flags, objective_defaults=objective_defaults)
    assert resolve_config(recipe=name, objective_defaults=objective_defaults) == expected


@pytest.mark.parametrize("name", shipped_recipes())
def test_recipe_says_nothing_that_contradicts_its_objective(name):
    values = read_recipe(name)
    config = resolve_config(recipe=name, objective_defaults=objective_defaults)
    defaults = OBJECTIVES[config.objective].defaults
    for setting in ("pooler", "head"):
        expected = defaults.get(setting)
        if setting in values and expected is not None:
            assert values[setting] == expected


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
        config = resolve_config(flags=merged, objective_defaults=objective_defaults)
        check_settings(config)
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    build_objective(
        config.objective,
        encoder,
        {},
        small({"projector_dim": 16} | config.options) if config.options else {},
    )


@given(st.text(max_size=80) | st.text("{}[]&*:,-!?|>'\"%@` \n\tab019.~", max_size=60))
def test_any_text_is_a_yaml_value_or_an_error_that_names_the_file(text):
    try:
        parse_yaml(text, "r.yaml")
    except ConfigError as error:
        assert error.message.startswith("r.yaml")  # noqa: PT017 - both ends are fine


def _repeated(sign):
    """Return YAML with seven levels of eight aliases each, 2 million in all."""
    lines = [f"a0: &a0 {sign.format('{k: x}')}"]
    for level in range(7):
        aliases = ", ".join([f"k: *a{level}" if "pairs" in sign else f"*a{level}"] * 8)
        lines.append(f"a{level + 1}: &a{level + 1} {sign.format(aliases)}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_repeated("!!pairs [{}]"), "aliases repeat so much"),
        (_repeated("{{<<: [{}]}}"), "aliases repeat so much"),
        (f"a: &a {'x' * 9000}\nb: [{'*a, ' * 9000}]", "aliases repeat so much"),
        (f"seed: 0x{'F' * 5000}", "a number of 5,002 digits"),
        ("seed: 1\nlr: 1.0\nseed: 2", "the key seed occurs twice"),
    ],
)
def test_values_that_no_setting_has_are_refused_before_they_are_made(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "r.yaml")


def test_an_alias_may_repeat_a_text_and_a_mapping():
    text = f"base: &base {{lr: 1.0, text: {'x' * 500}}}\nall: [{'*base, ' * 100}{{<<: *base}}]"
    assert len(parse_yaml(text, "r.yaml")["all"]) == 101


def test_a_seed_keeps_all_digits_in_every_spelling():
    assert convert(str(2**53 + 1), int, "SIMCSE_SEED") == 2**53 + 1
    assert convert("1e3", int, "SIMCSE_SEED") == 1000


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("nope.yaml", "shipped recipes: "),
        ("simcse-mlm.yaml", "did you mean simcse-mlm?"),
        ("mlms", "did you mean mlm?"),
    ],
)
def test_a_missing_file_is_not_mistaken_for_a_recipe(name, start):
    with pytest.raises(ConfigError, match="neither a YAML file") as caught:
        read_recipe(name)
    assert caught.value.hint.startswith(start)
