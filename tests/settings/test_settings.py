from dataclasses import dataclass
from enum import StrEnum

import pytest
import yaml

from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.settings import choices
from simcse_cli.settings.convert import convert
from simcse_cli.settings.declare import (
    ALL,
    check_rules,
    check_values,
    flag,
    rules_of,
    setting,
    settings_of,
)


@dataclass(frozen=True, kw_only=True)
class Shared:
    share: float = setting(0.5, "A share.", min=0.1, max=1.0)


@dataclass(frozen=True, kw_only=True)
class Own(Shared):
    output: str = setting(..., "A file.", "--output", "-o")
    above_zero: float | None = setting(None, "A number.", above=0)


def test_a_setting_without_default_is_required():
    with pytest.raises(TypeError, match="output"):
        Own()
    assert Own(output="a").share == 0.5


def test_settings_of_puts_inherited_ones_last():
    assert list(settings_of(Own)) == ["output", "above_zero", "share"]


def test_flag_is_the_name_with_dashes_or_as_given():
    assert (flag(Own, "above_zero"), flag(Own, "output")) == ("--above-zero", "--output")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 0.05}, "--share 0.05: need at least 0.1"),
        ({"share": 2.0}, "--share 2.0: need at most 1"),
        ({"above_zero": 0.0}, "--above-zero 0.0: need a number above 0"),
    ],
)
def test_a_value_out_of_range_names_the_flag(values, message):
    with pytest.raises(ConfigError, match=message):
        check_values(settings_of(Own), vars(Own(output="a", **values)))
    check_values(settings_of(Own), vars(Own(output="a")))


@dataclass(frozen=True, kw_only=True)
class Ruled(Shared):
    method: str = setting("crop", "A method.")
    pairs: bool = setting(
        False, "Pairs.", excludes=("top_k",), enables=("share",), because="which counts"
    )
    top_k: int = setting(3, "How many.", "--top-k")
    device: str = setting(
        "auto", "Where.", env="RULED_DEVICE", needs={"method~mlm|pairs": "it runs"}
    )
    workers: int | None = setting(None, "How many.", needs="method!~mlm")
    merge: bool = setting(False, "Merge.", excludes=ALL)
    force: bool = setting(False, "Overwrite.")


@pytest.mark.parametrize(
    ("values", "flag", "message"),
    [
        ({"share": 0.3}, "--share", "has no use without --pairs, which counts"),
        ({"pairs": True, "top_k": 5}, "--top-k", "has no use with --pairs, which counts"),
        ({"device": "cpu"}, "--device", "has no use without --method mlm or --pairs, it runs"),
        ({"method": "MLM", "workers": 2}, "--workers", "has no use with --method mlm"),
        ({"merge": True, "method": "eda"}, "--method", "has no use with --merge"),
    ],
)
def test_a_setting_without_effect_beside_the_others_is_refused(values, flag, message):
    with pytest.raises(UsageError, match=f"^{flag}: {message}$") as caught:
        check_rules(settings_of(Ruled), vars(Ruled(**values)))
    assert caught.value.option == flag


def test_rules_pass_defaults_variables_and_what_has_an_effect(monkeypatch):
    fine = [
        {},
        {"pairs": True, "share": 0.3},
        {"method": "mlm", "device": "cpu"},
        {"merge": True, "force": True},
    ]
    for values in fine:
        check_rules(settings_of(Ruled), vars(Ruled(**values)))
    monkeypatch.setenv("RULED_DEVICE", "cpu")
    check_rules(settings_of(Ruled), vars(Ruled(device="cpu")))


def test_rules_are_told_as_sentences():
    told = {name: rules_of(name, settings_of(Ruled)) for name in settings_of(Ruled)}
    assert told["share"] == ["Has no use without --pairs."]
    assert told["device"] == ["Has no use without --method mlm or --pairs."]
    assert told["pairs"] == ["Excludes --top-k."]
    assert told["merge"] == ["Excludes all other options but --force."]
    assert told["top_k"] == []


def test_every_choice_can_be_typed_as_yaml():
    kinds = [kind for kind in vars(choices).values() if isinstance(kind, type)]
    enums = [kind for kind in kinds if issubclass(kind, StrEnum) and kind is not StrEnum]
    assert choices.TemplateBias in enums
    for kind in enums:
        for choice in kind:
            assert convert(yaml.safe_load(choice.value), kind, "--set") is choice


def test_a_wrong_item_of_a_list_of_choices_is_named():
    kind = tuple[choices.ContrastBlock, ...]
    first, *_ = choices.ContrastBlock
    assert convert(f"{first},{first}", kind, "--set contrast") == (first, first)
    with pytest.raises(ConfigError, match=r"--set contrast .*, need some of aa, pp"):
        convert(f"{first},x", kind, "--set contrast")
