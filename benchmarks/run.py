"""Run every speed benchmark, one process after the other, and keep the results as JSON.

python benchmarks/run.py [--threads N] [--clock wall|cpu] [-o FOLDER]
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPEED = ("encode", "train", "sts", "transfer", "memory", "scale")


def main() -> None:
    """Run the benchmarks; options it does not know go to each of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results")
    options, others = parser.parse_known_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in SPEED:
        command = [
            sys.executable,
            str(HERE / f"bench_{name}.py"),
            "--json",
            str(options.output / f"{name}.json"),
        ]
        print(f"bench_{name}", file=sys.stderr, flush=True)
        subprocess.run([*command, *others], check=True)


if __name__ == "__main__":
    main()
