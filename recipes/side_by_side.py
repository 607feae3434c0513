"""Run the commands of a recipe side by side: ``OUT=runs python recipes/side_by_side.py 16 recipes/table3-dropout.sh``.

A small run leaves most of a GPU, or of a large processor, idle. The recipe is read in passes. In a pass, `simcse` notes
the commands whose inputs are there and runs none of them; then the noted ones run, as many at a time as the first argument
says. The next pass answers these with their output and exit code. The recipe has ended when a pass notes nothing. When the
same call starts again, trainings that are done are kept. ``--only REGEX`` leaves out trainings and evaluations with
another output, and what needs them.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path

NOTES = "SIMCSE_NOTES"
"""Variable with the folder of the notes: what is noted in this pass, and the output of what is done."""
AT_ONCE = ("--dry-run", "--help", "--preview", "--show", "-")
"""Commands with these words write no file, so that the pass runs them."""
OUTPUTS = ("-o", "--save-scores", "--plot", "--html")


def key_of(words: list[str]) -> str:
    """Return the name of a command's notes; a recipe adds ``--resume`` where the folder is there."""
    same = [word for word in words if word != "--resume"]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]


def outputs_of(words: list[str]) -> list[str]:
    return [value for option, value in pairwise(words) if option in OUTPUTS]


def depends(word: str, output: str) -> bool:
    """Tell whether a word, LABEL=PATH or PATH, lies in an output, or an output in it.

    >>> depends("a=runs/x/p-0.1", "runs/x/p-0.1"), depends("runs/x", "runs/x/p"), depends("runs/x", "runs/xy")
    (True, True, False)
    """
    path = word.rpartition("=")[2] + "/"
    return path.startswith(output + "/") or (output + "/").startswith(path)


def waits(words: list[str], pending: list[str], folder: str) -> bool:
    """Tell whether a command needs what is not there yet: a pending output, or a missing file of the folder."""
    for word in words[1:]:
        if word in outputs_of(words):
            continue
        path = word.rpartition("=")[2]
        is_missing = path.startswith(f"{folder}/") and not os.path.exists(path)
        if is_missing or any(depends(word, output) for output in pending):
            return True
    return False


def note(notes: Path, words: list[str]) -> int:
    """Answer a call of `simcse` during a pass; return its exit code."""
    if any(word in AT_ONCE for word in words):
        return subprocess.call([os.environ["SIMCSE_REAL"], *words])
    done = notes / f"{key_of(words)}.json"
    if done.exists():
        result = json.loads(done.read_text())
        sys.stdout.write(result["stdout"])
        sys.stderr.write(result["stderr"])
        return int(result["code"])

    # What is noted, left out or waits in this pass is not there yet.
    lines = (notes / "noted.jsonl").read_text().splitlines()
    before = [json.loads(line) for line in lines]
    pending = [output for other in before for output in outputs_of(other["words"])]
    is_chosen = any(re.search(os.environ["SIMCSE_ONLY"], output) for output in outputs_of(words))
    is_left_out = words[0] in ("train", "eval") and not is_chosen
    runs = not is_left_out and not waits(words, pending, os.environ["OUT"])
    if all(words != other["words"] for other in before):
        with (notes / "noted.jsonl").open("a") as noted:
            noted.write(json.dumps({"words": words, "runs": runs}) + "\n")
    return 0


def run(notes: Path, words: list[str]) -> str:
    """Run a noted command, keep what it prints for the next pass, and return a line about it."""
    start = time.monotonic()
    done = subprocess.run([os.environ["SIMCSE_REAL"], *words], capture_output=True, text=True)
    result = {"command": words[0], "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    part = notes / f"{key_of(words)}.part"
    part.write_text(json.dumps(result))
    part.replace(part.with_suffix(".json"))
    said = f"{time.monotonic() - start:.0f} s" if done.returncode == 0 else f"failed: {done.stderr.strip()[-500:]}"
    return f"simcse {words[0]} {' '.join(outputs_of(words))}: {said}"


def passes(script: str, n_jobs: int, notes: Path) -> None:
    """Read the recipe and run what it notes, until nothing is noted."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "simcse")
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(__file__)} note "$@"\n')
        program.chmod(0o700)
        environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", NOTES: str(notes)}
        while True:
            (notes / "noted.jsonl").write_text("")
            read = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
            noted = map(json.loads, (notes / "noted.jsonl").read_text().splitlines())
            commands = [each["words"] for each in noted if each["runs"]]
            if not commands:
                break
            print(f"{len(commands)} commands, {n_jobs} at a time", flush=True)
            with ThreadPoolExecutor(n_jobs) as pool:
                for done in as_completed([pool.submit(run, notes, words) for words in commands]):
                    print(done.result(), flush=True)
    if read.returncode:
        said = (read.stderr or read.stdout)[-2000:]
        raise SystemExit(f"{script} ended with exit code {read.returncode}:\n{said}")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["note"]:
        raise SystemExit(note(Path(os.environ[NOTES]), arguments[1:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=int, help="commands at a time")
    parser.add_argument("recipe", help="its variables are those of the call: OUT is required")
    parser.add_argument("--only", default="", help="a regular expression in what a training or an evaluation writes")
    given = parser.parse_args(arguments)
    if "OUT" not in os.environ:
        parser.error("set OUT to the folder of the runs")
    os.environ["SIMCSE_ONLY"] = given.only
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // given.jobs)))
    real = subprocess.run(["bash", "-c", "command -v simcse"], capture_output=True, text=True, check=True)
    os.environ["SIMCSE_REAL"] = real.stdout.strip()
    notes = Path(os.environ["OUT"], "side-by-side")
    notes.mkdir(parents=True, exist_ok=True)
    # What failed is tried again. Of the others a training alone names all that its result depends on, as its seeds.
    for kept in notes.glob("*.json"):
        result = json.loads(kept.read_text())
        if result["code"] or result.get("command") != "train":
            kept.unlink()
    passes(given.recipe, given.jobs, notes)


if __name__ == "__main__":
    main(sys.argv[1:])
