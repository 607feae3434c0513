import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.upkeep

REPOSITORY = Path(__file__).resolve().parents[2]

CODE = """
import sys
from pathlib import Path
from soak.runner import PARTS, soak
from soak.workbench import Workbench
from simcse_cli.files import locks

bench = Workbench(Path(sys.argv[1]))
# Malformed files have a fixed part without forks, soak/test_soak_cases.py; killed trainings have tests of their own.
parts = [part for part in PARTS if part not in ("malformed", "trainings")]
soak(bench, parts=parts, seed=1, seconds=100, n_cases=2, show=print)
assert len(bench.n_cases) == len(parts) and min(bench.n_cases.values()) == 2, bench.n_cases
assert not bench.findings

import soak.kills as kills
from random import Random
job = next(job for job in kills.jobs() if job.arguments[0] == "augment")

def findings(name, broken):
    whole = getattr(locks, name)
    setattr(locks, name, broken)
    for _, run in kills.of_job(bench, job, Random(0), force=False):
        run()
        if bench.findings:
            break
    setattr(locks, name, whole)
    found = {failure for failure, _ in bench.findings}
    bench.findings.clear()
    return found

assert findings("remove_leftovers", lambda folder, names=None: None) == {"left files"}
"""


def test_a_short_part_of_the_soak_suite_finds_nothing_but_what_is_broken_on_purpose(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(REPOSITORY / "tools"), str(REPOSITORY / "tests"), *sys.path]
        )
    }
    environment |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
