"""Recipes and sweeps in YAML: files of the user's own, or those that come with the toolkit."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simcse_cli.errors import ConfigError, UsageError


def shipped_recipes(kind: str = "recipes") -> list[str]:
    """Return the names of the recipes (or ``sweeps``) that come with the toolkit."""
    folder = resources.files("simcse_cli") / "resources" / kind
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def read_recipe(name: str, kind: str = "recipes") -> dict[str, Any]:
    """Return the mapping of a YAML file, or of a shipped recipe (or one of the ``sweeps``) by its bare name.

    Raises:
        ConfigError: no such file or recipe, not YAML, or not a mapping; names the line.
    """
    path = Path(name)
    if not path.is_file():
        shipped = resources.files("simcse_cli") / "resources" / kind / f"{name}.yaml"
        if not shipped.is_file():
            known = shipped_recipes(kind)
            near = get_close_matches(name, known, n=1, cutoff=0.3)
            raise ConfigError(
                f"{name}: neither a YAML file nor one of the shipped {kind}",
                hint=f"did you mean {near[0]}?" if near else f"shipped {kind}: {', '.join(known)}",
            )
        text = shipped.read_text(encoding="utf-8")
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML ({getattr(error, 'problem', error)})") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: holds {type(values).__name__}, need keys and values such as `lr: 3.0e-5`")
    return values


def parse_pairs(items: Iterable[str], *, option: str) -> dict[str, Any]:
    """Return ``KEY=VALUE`` arguments of an option as a mapping; a value is read as in YAML.

    Raises:
        UsageError: an item has no ``=``.
    """
    values: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{item!r}; need KEY=VALUE", option=option)
        values[key.strip().replace("-", "_")] = yaml.safe_load(value)
    return values
