"""Training against sentence-transformers' trainer: same pairs, batch, length and pooling, in alternating runs.

    python benchmarks/bench_train.py [--steps 6] [--rounds 3] [--json FILE]
    python benchmarks/bench_train.py --device cuda --model random:bert-base --batch-size 512

Both train on (sentence, same sentence) pairs with dropout, in-batch negatives, cosine / 0.05 and
AdamW: the peer with SentenceTransformerTrainer and MultipleNegativesRankingLoss, this toolkit with
its own training loop. The first step of every run is not counted (it allocates the optimizer's
state and makes kernels).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from measure import (
    Peaks,
    Timing,
    arguments,
    data_dir,
    machine,
    report,
    synchronize,
    types,
    useful_flops,
    wikipedia,
)
from shapes import model_folder
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Attention, Pooler
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.batches import prefetch
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts

BASELINE, FAST_PEER = "sentence-transformers trainer fp32", "sentence-transformers trainer bf16"
MAX_LENGTH = 32
Run = Callable[[], tuple[float, float]]
"""Trains ``steps`` counted steps; returns wall and processor seconds."""


class StepClock(TrainerCallback):
    """Reads both clocks when the device has done the first step and the last; between them nobody waits for it."""

    def __init__(self, n_steps: int) -> None:
        self.readings: list[tuple[float, float]] = []
        self._n_steps, self._n_done = n_steps, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step."""
        self._n_done += 1
        if self._n_done in (1, self._n_steps):
            synchronize()
            self.readings.append((time.perf_counter(), time.process_time()))

    def elapsed(self) -> tuple[float, float]:
        """Return the seconds from the end of the first step to the end of the last."""
        (wall, cpu), (last_wall, last_cpu) = self.readings[0], self.readings[-1]
        return last_wall - wall, last_cpu - cpu


def peer(
    folder: str,
    sentences: list[str],
    options: argparse.Namespace,
    *,
    work: Path,
    bf16: bool = False,
) -> Run:
    """Return a run of sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(folder, device=options.device)
    model.max_seq_length = MAX_LENGTH
    pairs = Dataset.from_dict({"anchor": sentences, "positive": sentences})

    def run() -> tuple[float, float]:
        clock = StepClock(options.steps + 1)
        settings = SentenceTransformerTrainingArguments(
            output_dir=str(work / "peer"),
            per_device_train_batch_size=options.batch_size,
            max_steps=options.steps + 1,
            learning_rate=3e-5,
            bf16=bf16,
            use_cpu=options.device == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=settings,
            train_dataset=pairs,
            loss=MultipleNegativesRankingLoss(model),
            callbacks=[clock],
        )
        trainer.train()
        return clock.elapsed()

    return run


def ours(folder: str, options: argparse.Namespace, *, work: Path, **settings: Any) -> Run:
    """Return a run of this toolkit's training loop; numbers of steps are read at its end, as between two log lines."""
    config = TrainConfig(
        model=folder,
        train_file=str(data_dir() / "wiki" / "wiki1m_head.txt"),
        batch_size=options.batch_size,
        max_length=MAX_LENGTH,
        max_steps=options.steps + 1,
        device=options.device,
        **settings,
    )
    trainer = Trainer(
        config, build_parts(config, SilentProgress()), work / "ours", SilentProgress()
    )

    def run() -> tuple[float, float]:
        clock = StepClock(options.steps + 1)
        for step, batch in enumerate(prefetch(trainer.batches.make, range(options.steps + 1))):
            trainer.start_step(step, batch)
            clock.on_step_end(None, None, None)
        trainer.finish_steps()
        return clock.elapsed()

    return run


def contenders(device: str) -> dict[str, dict[str, Any]]:
    """Return our settings by name; on a GPU also those that a CPU has no use for."""
    found = {
        f"{precision}, pooler {pooler}": {"precision": precision, "pooler": pooler}
        for precision in types(device)
        for pooler in (Pooler.AVG, Pooler.CLS)
    }
    if device != "cuda":
        return found
    bf16 = {"precision": "bf16", "pooler": Pooler.AVG}
    return found | {
        "tf32, pooler avg": {"precision": "tf32", "pooler": Pooler.AVG},
        "bf16, --compile": bf16 | {"compile": True},
        "bf16, --attention packed": bf16 | {"attention": Attention.PACKED},
        "bf16, --attention eager": bf16 | {"attention": Attention.EAGER},
        "bf16, --gradient-checkpointing": bf16 | {"gradient_checkpointing": True},
        "bf16, --micro-batch-size 64": bf16 | {"micro_batch_size": 64},
    }


def alternate_runs(runs: dict[str, Run], rounds: int, device: str) -> dict[str, Timing]:
    """Run every contender once a round, in rotating order."""
    names = list(runs)
    timings = {name: Timing() for name in names}
    for round_number in range(rounds):
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            before = 0
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            wall, cpu = runs[name]()
            if device == "cuda":
                timings[name].peak_bytes = torch.cuda.max_memory_allocated() - before
            timings[name].wall.append(wall)
            timings[name].cpu.append(cpu)
    return timings


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=6, help="counted steps of one run")
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sentences = wikipedia(options.batch_size * (options.steps + 2))
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = model_folder(options.model, work)
        makers: dict[str, Callable[[], Run]] = {
            f"sentence-transformers trainer {precision}": partial(
                peer, folder, sentences, options, work=work, bf16=precision == "bf16"
            )
            for precision in types(options.device)
        }
        for setting, values in contenders(options.device).items():
            makers[f"simcse {setting}"] = partial(ours, folder, options, work=work, **values)
        if options.only:
            makers = {
                k: make
                for k, make in makers.items()
                if k == BASELINE or any(part in k for part in options.only)
            }
        runs = {name: make() for name, make in makers.items()}
        timings = alternate_runs(runs, options.rounds, options.device)
        encoder = load_encoder(folder, pooler=Pooler.AVG, device="cpu")

    lengths = [len(row) for row in encoder.tokenize(sentences, max_length=MAX_LENGTH)]
    # Two views, one forward and two products a product in the backward pass.
    flops = 2 * 3 * useful_flops(encoder.config, lengths) / len(sentences)
    peaks = Peaks.measured(options.clock, options.device)
    rows = []
    for name, timing in timings.items():
        rate = options.batch_size * options.steps / timing.median(options.clock)
        rows.append(
            {
                "setting": name,
                "sentences/s": rate,
                "ratio to fp32 peer": timings[BASELINE].median(options.clock)
                / timing.median(options.clock),
                "ratio to bf16 peer": timings[FAST_PEER].median(options.clock)
                / timing.median(options.clock)
                if FAST_PEER in timings
                else None,
                "useful GFLOP/s": rate * flops / 1e9,
                **peaks.shares(name, rate * flops / 1e9),
                "peak MiB": None if timing.peak_bytes is None else timing.peak_bytes / 2**20,
                "runs, s": " ".join(f"{run:.2f}" for run in getattr(timing, options.clock)),
            }
        )
    facts = {
        "batch": options.batch_size,
        "max length": MAX_LENGTH,
        "steps": options.steps,
        "clock": options.clock,
        **peaks.facts(),
        **machine(options.device),
    }
    report("Training", rows, facts, options.json)


if __name__ == "__main__":
    main()
