from dataclasses import dataclass

import pytest

from simcse_cli.errors import ConfigError
from simcse_cli.settings.declare import check_ranges, flag, setting, settings_of


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
def test_check_ranges_names_the_flag(values, message):
    with pytest.raises(ConfigError, match=message):
        check_ranges(Own(output="a", **values))
    check_ranges(Own(output="a"))
