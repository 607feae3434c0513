"""The seven commands as one shell script on the generated corpus, each using what the one before wrote."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from processes import command_on_path

SCRIPT = """
set -euo pipefail
DEV=data/downstream/STS/STSBenchmark/sts-dev.csv

simcse prepare demo -o data
head -n 64 data/sentences.txt | simcse augment - -o - --method delete --rate 0.2 --seed 1 > pairs.csv
simcse train --mode unsup --model "$MODEL" --train-file pairs.csv --dev-file "$DEV" \\
  --batch-size 16 --max-steps 2 --eval-every 2 -o run
simcse eval sts --model run --data-dir data --tasks STSBenchmark --save-scores run/sts.pairs.jsonl -o run/sts.json
simcse eval sts --model "$MODEL" --pooler avg --data-dir data --tasks STSBenchmark \\
  --save-scores before.pairs.jsonl --format json > before.json
head -n 64 data/sentences.txt | simcse encode - -o vectors.npy --model run
simcse analyze geometry --model run --data-dir data --format json > geometry.json
simcse compare before.json run --baseline before.json --resamples 100 --format json > comparison.json
simcse compare run --against simcse.3 --row p=0.1 --check --tolerance 100 > /dev/null
"""


@pytest.mark.slow
def test_seven_commands_chain_in_one_shell_script(tmp_path: Path, tiny_model_dir: Path) -> None:
    with command_on_path() as path:
        done = subprocess.run(
            ["bash", "-c", SCRIPT],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "MODEL": str(tiny_model_dir)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "vectors.npy").shape == (64, 32)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "finished"
    geometry = json.loads((tmp_path / "geometry.json").read_text())
    assert geometry["models"][0]["uniformity"] < 0
    comparison = json.loads((tmp_path / "comparison.json").read_text())
    before, run = comparison["entries"]
    score = json.loads((tmp_path / "run" / "sts.json").read_text())["tasks"]["STSBenchmark"][
        "score"
    ]
    assert run["scores"]["STSBenchmark"] == score
    assert run["scores"]["STSBenchmark-dev"] == record["best_score"]
    assert run["differences"]["STSBenchmark"] == pytest.approx(
        score - before["scores"]["STSBenchmark"]
    )
    assert comparison["tests"][0]["difference"] == pytest.approx(run["differences"]["STSBenchmark"])
    assert (
        "dev data is STS-B dev in" in done.stderr
    )  # the generated dev pairs are not those of the paper
