"""Peak memory of one training step: cached gradients at a large batch against a plain step at a small one.

    python benchmarks/bench_memory.py [--large 2048] [--small 64] [--rows 64] [--json FILE]

Each measurement is a process of its own that loads the model and the data, does one unsupervised
SimCSE step and reports the highest resident memory it had. The small batch goes through the encoder
at once, two rows a sentence; the large one ``--rows`` at a time.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from measure import arguments, data_dir, machine, report
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Pooler
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts

MAX_LENGTH = 32


def step(model: str, batch_size: int, micro_batch_size: int | None) -> None:
    """Do one step and print the peak resident memory in KiB."""
    config = TrainConfig(
        pooler=Pooler.CLS,
        model=model,
        train_file=str(data_dir() / "wiki" / "wiki1m_head.txt"),
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        max_length=MAX_LENGTH,
        max_steps=1,
        device="cpu",
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            config, build_parts(config, SilentProgress()), Path(folder), SilentProgress()
        )
        trainer.train_step(0, trainer.batches.make(0))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def peak(options: argparse.Namespace, batch_size: int, micro_batch_size: int | None) -> float:
    """Return the peak in MiB of a step in a fresh process."""
    command = [
        sys.executable,
        __file__,
        "--model",
        options.model,
        "--threads",
        str(options.threads),
    ]
    command += ["--step", str(batch_size), str(micro_batch_size or 0)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) / 1024


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--large", type=int, default=2048)
    parser.add_argument("--small", type=int, default=64)
    parser.add_argument(
        "--rows", type=int, default=64, help="--micro-batch-size of the large batch"
    )
    parser.add_argument("--step", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.step:
        batch_size, micro_batch_size = options.step
        step(options.model, batch_size, micro_batch_size or None)
        return
    small = peak(options, options.small, None)
    large = peak(options, options.large, options.rows)
    rows: list[dict[str, Any]] = [
        {
            "batch": options.small,
            "rows at a time": 2 * options.small,
            "peak MiB": small,
            "ratio": 1.0,
        },
        {
            "batch": options.large,
            "rows at a time": options.rows,
            "peak MiB": large,
            "ratio": large / small,
        },
    ]
    report("Peak memory of a training step", rows, machine(), options.json)


if __name__ == "__main__":
    main()
