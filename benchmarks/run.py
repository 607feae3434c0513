"""Run the speed benchmarks, one process after the other, and keep the results as JSON.

python benchmarks/run.py [--threads N] [--clock wall|cpu] [-o FOLDER]
python benchmarks/run.py --device cuda       # what there is to measure on a GPU
python benchmarks/run.py --isa avx2          # encode, train and constants as on a processor without AVX-512
python benchmarks/run.py --device cuda --dry # does it run? a tiny model and few sentences, on a CPU where no GPU is
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
BERT_BASE = ("--model", "random:bert-base")
BATCHES = ("32", "128", "512", "1024")
# Name of the result, script, arguments.
CPU = [
    (name, name, ())
    for name in ("encode", "train", "sts", "transfer", "memory", "scale", "constants", "search")
]
GPU = [
    (
        "encode",
        "encode",
        (*BERT_BASE, "--sentences", "100000", "--rounds", "3", "--peer-batches", *BATCHES),
    ),
    ("train-64", "train", (*BERT_BASE, "--batch-size", "64", "--steps", "200")),
    ("train-512", "train", (*BERT_BASE, "--batch-size", "512", "--steps", "50")),
]
DRY = {
    "encode": (
        "--model",
        "random:tiny",
        "--sentences",
        "64",
        "--rounds",
        "1",
        "--peer-batches",
        "128",
    ),
    "train": ("--model", "random:tiny", "--batch-size", "8", "--steps", "1", "--rounds", "1"),
    "constants": ("--model", "random:tiny", "--sentences", "64", "--rounds", "1"),
}
# What PyTorch, oneDNN, MKL, OpenBLAS and numba take for the processor's instructions.
ISA = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
        "NUMBA_CPU_NAME": "cascadelake",
        "NUMBA_CPU_FEATURES": "",
    },
}


def main() -> None:
    """Run the benchmarks; options it does not know go to each of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--isa", choices=list(ISA), help="switch the processor's instructions down to these"
    )
    parser.add_argument("--dry", action="store_true", help="only see whether everything runs")
    options, others = parser.parse_known_args()
    options.output.mkdir(parents=True, exist_ok=True)
    runs = GPU if options.device == "cuda" else CPU
    if options.isa or options.dry:
        runs = [run for run in runs if run[1] in DRY]
    device = "cpu" if options.dry and not torch.cuda.is_available() else options.device
    environment = os.environ | (
        {"SIMCSE_BENCH_ISA": options.isa, **ISA[options.isa]} if options.isa else {}
    )
    for name, script, arguments in runs:
        command = [sys.executable, str(HERE / f"bench_{script}.py"), "--device", device]
        command += DRY[script] if options.dry else arguments
        command += ["--json", str(options.output / f"{name}.json"), *others]
        print(" ".join(command[1:]), file=sys.stderr, flush=True)
        subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
