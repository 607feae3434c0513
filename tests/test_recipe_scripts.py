"""The shell recipes: each runs through with a stand-in for `simcse`, restarts after every call, and all are valid."""

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.upkeep

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
SCRIPTS = sorted(
    path.name
    for path in RECIPES.glob("*.sh")
    if path.name not in ("common.sh", "demo.sh", "every-week.sh", "figure2.sh", "findings.sh")
)
SCRIPTS += ["figure2.sh"]
# Stands in for `simcse`, and runs the script again and again until no call fails, all in one
# process. As the real one it refuses to overwrite without --force, goes on with training under
# --resume only, and needs every file below OUT that it reads. Each call fails the first time it is
# made, in the middle of its work, with a status of its own.
STAND_IN = """
simcse() {
  local arguments=("$@") call out= scores= seeds= sweep= again= i value
  printf -v call '%s\037' "$@"
  for ((i = 0; i < $#; i++)); do
    value=${arguments[i + 1]:-}
    case ${arguments[i]} in
      -o | --output) out=$value; i=$((i + 1)) ;;
      --save-scores) scores=$value; i=$((i + 1)) ;;
      --plot | --html) i=$((i + 1)) ;;
      --seeds) seeds=$value ;;
      --dry-run) echo "  step      1.00 s"; return ;;
      --sweep) sweep=yes ;;
      --resume | --force) again=yes ;;
      "$OUT"/* | *="$OUT"/*)
        value=${arguments[i]#*=}
        [ -f "$value" ] || [ -e "$value/run.json" ] || [ -e "$value/seeds.json" ] ||
          [ -e "$value/manifest.json" ] || { echo "$value is not complete" >&2; return 1; } ;;
    esac
  done
  if [ "$1 $2" = "prepare demo" ]; then
    mkdir -p "$out/downstream/STS/STSBenchmark"
    touch "$out/sentences.txt" "$out/triplets.csv" "$out/downstream/STS/STSBenchmark/sts-dev.csv"
    out+=/manifest.json
  fi
  for value in "$out" "$scores"; do
    if [ -e "$value" ] && [ -z "$again" ]; then echo "$value exists already" >&2; return 1; fi
  done
  if [ "$1" = train ] && [ ! -d "$out" ]; then mkdir -p "$out"; fi
  [ -z "$scores" ] || echo scores > "$scores"
  if [ -z "${failed_before[$call]:-}" ]; then
    echo "$call" >> failures
    return 75
  fi
  if [ "$1" = train ]; then
    [ -z "$sweep" ] || echo trials > "$out/sweep.json"
    value=${seeds:+seeds}
    echo complete > "$out/${value:-run}.json"
  elif [ -n "$out" ]; then
    echo result > "$out"
  fi
}
declare -A failed_before=()
for ((run = 0; run < 200; run++)); do
  ( source "$0" )
  status=$?
  if [ "$status" != 75 ]; then exit "$status"; fi
  while IFS= read -r line; do failed_before[$line]=1; done < failures
done
"""
OPTIONAL_SYSTEMS = (
    "SIMCSE_WORDNET",
    "MLM_MODEL",
    "GLOVE",
    "ANLI_FILE",
    "QQP_FILE",
    "PARANMT_FILE",
    "TRAIN",
)


def run_recipe(script: str, folder: Path, **variables: str) -> list[list[str]]:
    """Run a script with the stand-in until no call fails; return the calls, each once."""
    data = folder / "data"
    (data / "flickr30k").mkdir(parents=True)
    (data / "flickr30k" / "captions.tsv").write_text("image_id\tcaption\n1\tA dog.\n")
    (data / "nli").mkdir()
    for name in ("dev", "test"):
        (data / "nli" / f"snli_{name}.jsonl").write_text('{"sentence1": "A dog."}\n')
    weights = folder / "runs" / "raw-encoder-small" / "raw" / "model" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.touch()
    raw = "raw-encoder-small"
    for name in (  # made in Python
        f"{raw}/start/model.safetensors",
        f"{raw}/start/run.json",
        f"{raw}/text.txt",
        "family-full/negations.csv",
        "family-small/negations.csv",
    ):
        made = folder / "runs" / name
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("made")
    (data / "sts-dev.csv").write_text("\n".join(map(str, range(16))))
    environment = {
        "PATH": os.environ["PATH"],
        "SIMCSE_DATA": "data",
        "DEV_FILE": "data/sts-dev.csv",
        "STEPS": "2",
        **{name: name.lower() for name in OPTIONAL_SYSTEMS},
        **variables,
    }
    done = subprocess.run(
        ["bash", "-c", STAND_IN, RECIPES / script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\037")[:-1] for line in (folder / "failures").read_text().splitlines()]


@cache
def command_tree() -> Any:
    from simcse_cli.commands.app import build

    return build()


def parse(arguments: list[str]) -> dict[str, object]:
    """Return the parameters of a call as the command line would see them; a mistake raises."""
    command, rest = command_tree(), list(arguments)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context("simcse", rest).params


@cache
def check(call: tuple[str, ...], seeds: str) -> None:
    """Raise if a call is no valid one, names an unknown row, or trains with other seeds than asked for."""
    from simcse_cli.comparison.published import load_table

    parameters = parse(list(call))
    if call[0] == "compare":
        tables = [load_table(name) for name in parameters["against"] or ()]
        for row in parameters["row"] or ():
            assert [table.system(row, group=parameters["group"]) for table in tables]
        assert tables or parameters["show"] is None or load_table(str(parameters["show"]))
    elif call[0] == "train":
        once = "mlm" in (parameters["objective"], parameters["config"])  # one run for all seeds
        assert (parameters["seeds"] or str(parameters["seed"])) == ("42" if once else seeds)


@pytest.mark.parametrize("seeds", ["42", "1,2"])
@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_recipe_restarts_after_every_call_and_all_calls_are_valid(
    script: str, scale: str, seeds: str, tmp_path: Path
) -> None:
    calls = run_recipe(script, tmp_path, SCALE=scale, SEEDS=seeds)
    for call in calls:
        check(tuple(call), seeds if call[0] == "train" else "")
    assert calls[-1][0] == "compare"


def test_the_demo_restarts_after_every_call_and_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").touch()
    calls = run_recipe("demo.sh", tmp_path)
    assert [call[0] for call in calls] == [
        *(
            "prepare",
            "augment",
            "train",
            "train",
            "train",
            "train",
            "eval",
            "encode",
            "analyze",
            "compare",
        )
    ]
    assert [call[-1] == "--resume" for call in calls if call[0] == "train"] == [False, True] * 2
    for call in calls:
        parse(call)
    assert (tmp_path / "demo" / "mine.txt").is_file()


def test_scale_other_than_full_or_small_is_refused(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SIMCSE_DATA": str(tmp_path),
        "SCALE": "huge",
        "OUT": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", RECIPES / SCRIPTS[0]], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "need full or small" in done.stderr


def test_results_of_another_encoder_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SIMCSE_DATA": "data",
        "SCALE": "small",
        "OUT": str(tmp_path),
    }
    script = f"source {RECIPES}/common.sh"
    done = [
        subprocess.run(
            ["bash", "-c", script, "table"], env=environment | model, capture_output=True, text=True
        )
        for model in ({}, {"SEEDS": "1,2"}, {"MODEL": "bert-base"})
    ]
    assert [each.returncode for each in done] == [0, 0, 2]
    assert "holds results of\n  MODEL=minilm" in done[2].stderr
    assert "MODEL=bert-base" in done[2].stderr
    assert "name another folder by OUT" in done[2].stderr


@pytest.mark.parametrize(("content", "status"), [("weights", 0), ("other weights", 1)])
def test_the_raw_encoder_is_taken_with_the_digest_that_was_recorded(
    content: str, status: int, tmp_path: Path
) -> None:
    weights = tmp_path / "raw-encoder-small" / "raw" / "model" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text(content)
    digest = hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "raw-encoder-small" / "raw.sha256").write_text(
        f"{digest}  raw/model/model.safetensors\n"
    )
    environment = {"PATH": os.environ["PATH"], "SIMCSE_DATA": "data", "SCALE": "small", "RAW": "1"}
    script = f'source {RECIPES}/common.sh; echo "$MODEL $MLM_MODEL"'
    done = subprocess.run(
        ["bash", "-c", script, "table"],
        env=environment | {"OUT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status
    raw = tmp_path / "raw-encoder-small" / "raw"
    assert done.stdout == ("" if status else f"{raw} {raw}\n")
    assert ("FAILED" in done.stdout + done.stderr) == bool(status)


@pytest.mark.parametrize(
    ("error", "variables", "status"),
    [
        ("nothing to compare: simcse.7: none has STS-B dev", {"DEV_FILE": "mine.csv"}, 0),
        ("nothing to compare: simcse.7: none has STS-B dev", {}, 1),
        ("no row 'none'", {"DEV_FILE": "mine.csv"}, 1),
    ],
)
def test_a_dev_file_of_ones_own_stands_beside_nothing_and_the_recipe_goes_on(
    error: str, variables: dict[str, str], status: int, tmp_path: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SIMCSE_DATA": "data",
        "OUT": str(tmp_path),
        **variables,
    }
    program = f'simcse() {{ echo "error: {error}" >&2; return 1; }}'
    script = f"{program}; source {RECIPES}/common.sh; beside simcse.7 none none; echo end"
    done = subprocess.run(
        ["bash", "-c", script, "table7"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == status
    assert done.stdout == ("" if status else "end\n")
    assert error in done.stderr
    assert ("mine.csv is no published dev file, so none stands beside nothing" in done.stderr) == (
        not status
    )


def test_recipes_compare_by_the_function_that_bears_an_own_dev_file() -> None:
    for script in SCRIPTS:
        lines = (RECIPES / script).read_text().splitlines()
        assert not [line for line in lines if "simcse compare" in line and "--show" not in line], (
            script
        )


def test_every_published_table_has_a_recipe_or_needs_none() -> None:
    from simcse_cli.comparison.published import table_ids

    # copies of other rows, differences, and what a user of the original script reported
    without = {"v1.headline", "v1.10", "v1.datasets", "v1.sts", "v1.transfer", "repro.6"}
    without |= {"repro.7", "repo.models", "repo.issue285"}
    # successors that are not here, or that a recipe of full scale alone trains
    without |= {"arccse", "cards", "consert", "debcse", "infocse", "pcl"}
    without |= {"rankencoder", "scd", "whitenedcse", "angle", "mirror-bert"}
    text = "".join(path.read_text() for path in RECIPES.glob("*.sh"))
    assert {table for table in table_ids() if table not in text} == without
