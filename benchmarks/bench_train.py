"""Training against sentence-transformers' trainer: same pairs, batch, length and pooling, in alternating runs.

    python benchmarks/bench_train.py [--steps 6] [--rounds 3] [--json FILE]
    python benchmarks/bench_train.py --device cuda --model random:bert-base --steps 50

Both train on (sentence, same sentence) pairs with dropout, in-batch negatives, cosine / 0.05 and AdamW: the peer
with SentenceTransformerTrainer and MultipleNegativesRankingLoss, this toolkit with its own training loop. The
first step of every run is not counted (it allocates the optimizer's state and makes kernels).
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from measure import Peaks, Timing, arguments, data_dir, machine, report, synchronize, useful_flops, wikipedia
from shapes import model_folder
from simcse_cli.choices import Pooler
from simcse_cli.config import TrainConfig
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.progress import SilentProgress
from simcse_cli.training.batches import prefetch
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts

BASELINE, FAST_PEER = "sentence-transformers trainer fp32", "sentence-transformers trainer bf16"
BATCH_SIZE, MAX_LENGTH = 64, 32
Run = Callable[[], tuple[float, float]]
"""Trains ``steps`` counted steps; returns wall and processor seconds."""


class StepClock(TrainerCallback):
    """Reads both clocks at the end of every step."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the time when the device has done the step."""
        synchronize()
        self.readings.append((time.perf_counter(), time.process_time()))

    def elapsed(self) -> tuple[float, float]:
        """Return the seconds from the end of the first step to the end of the last."""
        (wall, cpu), (last_wall, last_cpu) = self.readings[0], self.readings[-1]
        return last_wall - wall, last_cpu - cpu


def peer(folder: str, sentences: list[str], steps: int, *, bf16: bool, work: Path, device: str) -> Run:
    """Return a run of sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(folder, device=device)
    model.max_seq_length = MAX_LENGTH
    pairs = Dataset.from_dict({"anchor": sentences, "positive": sentences})

    def run() -> tuple[float, float]:
        clock = StepClock()
        settings = SentenceTransformerTrainingArguments(
            output_dir=str(work / "peer"),
            per_device_train_batch_size=BATCH_SIZE,
            max_steps=steps + 1,
            learning_rate=3e-5,
            bf16=bf16,
            use_cpu=device == "cpu",
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


def ours(folder: str, steps: int, *, pooler: Pooler, precision: str, work: Path, device: str) -> Run:
    """Return a run of this toolkit's training loop."""
    config = TrainConfig(
        model=folder,
        train_file=str(data_dir() / "wiki" / "wiki1m_head.txt"),
        pooler=pooler,
        batch_size=BATCH_SIZE,
        max_length=MAX_LENGTH,
        max_steps=steps + 1,
        precision=precision,
        device=device,
    )
    trainer = Trainer(config, build_parts(config, SilentProgress()), work / "ours", SilentProgress())

    def run() -> tuple[float, float]:
        clock = StepClock()
        for step, batch in enumerate(prefetch(trainer.batches.make, range(steps + 1))):
            trainer.train_step(step, batch)
            clock.on_step_end(None, None, None)
        return clock.elapsed()

    return run


def alternate_runs(runs: dict[str, Run], rounds: int) -> dict[str, Timing]:
    """Run every contender once a round, in rotating order."""
    names = list(runs)
    timings = {name: Timing() for name in names}
    for round_number in range(rounds):
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            wall, cpu = runs[name]()
            timings[name].wall.append(wall)
            timings[name].cpu.append(cpu)
    return timings


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=6, help="counted steps of one run")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sentences = wikipedia(BATCH_SIZE * (options.steps + 2))
    device = options.device
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = model_folder(options.model, work)
        runs = {
            BASELINE: peer(folder, sentences, options.steps, bf16=False, work=work, device=device),
            FAST_PEER: peer(folder, sentences, options.steps, bf16=True, work=work, device=device),
        }
        for precision in ("fp32", "bf16"):
            for pooler in (Pooler.AVG, Pooler.CLS):
                runs[f"simcse {precision}, pooler {pooler}"] = ours(
                    folder,
                    options.steps,
                    pooler=pooler,
                    precision=precision,
                    work=work,
                    device=device,
                )
        if options.only:
            runs = {k: run for k, run in runs.items() if k == BASELINE or options.only in k}
        timings = alternate_runs(runs, options.rounds)
        encoder = load_encoder(folder, pooler=Pooler.AVG, device="cpu")

    lengths = [len(row) for row in encoder.tokenize(sentences, max_length=MAX_LENGTH)]
    # Two views, one forward and two products a product in the backward pass.
    flops = 2 * 3 * useful_flops(encoder.config, lengths) / len(sentences)
    peaks = Peaks.measured(options.clock, device)
    rows = []
    for name, timing in timings.items():
        rate = BATCH_SIZE * options.steps / timing.median(options.clock)
        rows.append(
            {
                "setting": name,
                "sentences/s": rate,
                "ratio to fp32 peer": timings[BASELINE].median(options.clock) / timing.median(options.clock),
                "ratio to bf16 peer": timings[FAST_PEER].median(options.clock) / timing.median(options.clock)
                if FAST_PEER in timings
                else None,
                "useful GFLOP/s": rate * flops / 1e9,
                **peaks.shares(name, rate * flops / 1e9),
                "runs, s": " ".join(f"{run:.2f}" for run in getattr(timing, options.clock)),
            }
        )
    facts = {
        "batch": BATCH_SIZE,
        "max length": MAX_LENGTH,
        "steps": options.steps,
        "clock": options.clock,
        **peaks.facts(),
        **machine(),
    }
    report("Training", rows, facts, options.json)


if __name__ == "__main__":
    main()
