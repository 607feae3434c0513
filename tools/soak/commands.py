"""The command tree: every command with arguments that work in the folder of valid files, and the options it takes."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from simcse_cli.analysis.analyses import SPACE_ANALYSES

_MODEL = "--model bert --pooler avg --device cpu"
_SPACE = "--pair-file pairs.tsv -o out.json"

WORKING = {
    "prepare sentences": "lines.txt -o out.txt",
    "prepare nli": "nli.jsonl --hard-negative none -o out.csv",
    "prepare pairs": "rows.jsonl -o out.csv",
    "prepare hard-negatives": f"rows.jsonl {_MODEL} --range 0:9 --margin -1 -o out.csv",
    "prepare neighbours": "lines.txt -o out.csv",
    "prepare duplicates": f"lines.txt {_MODEL} -o out.csv",
    "prepare senteval": "--data-dir senteval --tasks STSBenchmark -o out.json",
    "prepare lint": "rows.csv -o out.json",
    "prepare model": "bert --pooler avg -o out",
    "prepare demo": "-o out --sentences 20 --triplets 12 --documents 3 --pairs 8",
    "augment": "lines.txt -o out.csv --method delete",
    "train": f"--mode unsup --train-file lines.txt {_MODEL} --max-steps 1 --batch-size 4 -o out",
    "eval sts": f"{_MODEL} --data-dir senteval --tasks STS12 --no-cache -o out.json",
    "eval transfer": f"{_MODEL} --data-dir senteval --tasks SST2 --protocol fast --no-cache -o "
    "out.json",
    "eval mteb": f"{_MODEL} --tasks STS12 -o out.json",
    "encode": f"lines.txt -o out.npy {_MODEL}",
    "analyze retrieval": f"{_MODEL} --corpus lines.txt --query rain -o out.json",
    "analyze search": f"{_MODEL} --corpus lines.txt --query rain -o out.json",
    "analyze groups": f"lines.txt {_MODEL} --k 3 -o out.json",
    "analyze overlap": "rows.csv -o out.json",
    "analyze trace": "run -o out.json",
    "analyze report": "run --pair-file pairs.tsv -o out.html",
    "compare": "sts.json other.json -o out.json",
}
WORKING |= {f"analyze {name}": f"{_MODEL} {_SPACE}" for name in SPACE_ANALYSES}
"""Arguments of each command, below the folder that ``malformed.build`` returns."""

BESIDE = {
    "backend": "--backend faiss",
    "embeddings": "--embeddings vectors.npy --sentences pairs.txt",
    "fit": "--fit lines.txt --postprocess whitening",
    "lora": "--lora 4",
    "pair_file": "--pair-file pairs.tsv",
    "postprocess": "--postprocess whitening --fit lines.txt",
    "qrels": "--queries lines.txt --qrels qrels.tsv",
    "vectors": "--vectors glove.txt",
}
"""What a setting needs beside it so that an option that depends on it has a use."""

OFFLINE = ("eval mteb",)
"""Commands whose data is not here, so that their arguments end in an error."""


@cache
def leaves() -> dict[str, Any]:
    """Return the commands by their full name."""
    from simcse_cli.commands.app import build

    def below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for child, inner in getattr(command, "commands", {}).items():
            yield from below(inner, f"{name} {child}".strip())

    return dict(below(build(), ""))


def options_of(name: str) -> list[Any]:
    """Return the parameters of a command that take a value."""
    return [
        each
        for each in leaves()[name].params
        if each.metavar is not None or each.param_type_name == "argument"
    ]


def with_value(name: str, parameter: Any, value: object) -> list[object]:
    """Return the arguments of a command with this value for a parameter, and with what it needs beside it."""
    words: list[object] = [*WORKING[name].split()]
    if parameter.param_type_name == "argument":
        given = [*words] if str(words[0]).startswith("-") else words[1:]
        return [*name.split(), value, *given]
    details = getattr(leaves()[name].callback, "declared", {}).get(parameter.name)
    needs = details[1].needs if details else ()
    conditions = [needs] if isinstance(needs, str) else [*needs]
    for condition in conditions:
        first = condition.split("|")[0]
        setting, _, chosen = first.partition("=")
        words += BESIDE.get(
            setting, f"--{setting.replace('_', '-')} {chosen}" if chosen else ""
        ).split()
    flags = {*parameter.opts}
    at = next((i for i, word in enumerate(words) if word in flags), None)
    if at is not None:
        words[at + 1] = value
    else:
        words += [parameter.opts[0], value]
    return [*name.split(), *words]
