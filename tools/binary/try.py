"""Try the binary where there is no Python: in a chroot of glibc and two devices alone, without variables."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from simcse_cli import load

GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
NOBODY = 65534
SENTENCES = [
    f"Sentence {number} of ten, about {what}." for number, what in enumerate(["dogs", "rain"] * 5)
]


def make_jail(jail: Path, binary: Path) -> None:
    """Lay out the root of the chroot: the binary, the libraries of glibc, random bytes, and a /tmp."""
    listed = subprocess.run(
        ["ldd", sys.executable], capture_output=True, text=True, check=True
    ).stdout
    folder = next(
        Path(line.split()[2]).parent for line in listed.splitlines() if "libc.so.6 =>" in line
    )
    for path in (LOADER, *(folder / name for name in GLIBC)):
        (jail / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, jail / path.relative_to("/"))
    (jail / "dev").mkdir()
    # torch reads /dev/urandom, dill /dev/null, when they are imported
    (jail / "dev/urandom").write_bytes(os.urandom(1 << 20))
    (jail / "dev/null").touch()
    (jail / "dev/null").chmod(0o666)
    (jail / "tmp").mkdir()
    (jail / "tmp").chmod(0o1777)
    (jail / "ten.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    shutil.copy(binary, jail / "simcse")
    jail.chmod(0o755)


def way_in(jail: Path) -> list[str] | None:
    """Return the command that runs another one in the chroot, None if this user may not."""
    root = ["chroot", f"--userspec={NOBODY}:{NOBODY}", str(jail)]
    for way in (root, ["unshare", "--map-root-user", "chroot", str(jail)]):
        path = shutil.which(way[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if (
            path
            and not subprocess.run(
                [path, *way[1:], str(LOADER), "--version"], capture_output=True
            ).returncode
        ):
            return [path, *way[1:]]
    return None


def main() -> None:
    """Run the commands, compare the vectors with those of this environment, and print times."""
    binary = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        jail = Path(folder) / "jail"
        jail.mkdir()
        make_jail(jail, binary)
        way = way_in(jail)
        out = jail / "tmp" if way else Path(folder) / "out"
        out.mkdir(exist_ok=True)
        inside = Path("/tmp") if way else out
        start = [*way, "/simcse"] if way else [str(jail / "simcse")]
        environment = {} if way else {"SIMCSE_CACHE": f"{folder}/cache"}
        where = (
            "in a chroot of glibc alone"
            if way
            else "without variables; a chroot is not allowed here"
        )
        print(f"{binary.name}: {binary.stat().st_size / 1e6:.0f} MB, tried {where}")

        def run(*words: object) -> str:
            command = [*start, *map(str, words)]
            began = time.perf_counter()
            done = subprocess.run(
                command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True
            )
            times.append(time.perf_counter() - began)
            if done.returncode:
                sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
            return done.stdout

        times: list[float] = []
        for _ in range(6):
            run("--version")
        print(
            f"first start {times[0]:.1f} s, then {statistics.median(times[1:]):.2f} s (--version)"
        )
        ten = "/ten.txt" if way else jail / "ten.txt"
        run("encode", ten, "-o", inside / "ten.npy", "--model", "minilm", "-q")
        np.testing.assert_allclose(
            np.load(out / "ten.npy"), load("minilm").encode(SENTENCES), atol=1e-5
        )
        run("train", "--mode", "unsup", "--max-steps", 4, "-o", inside / "run", "-q")
        run(
            "train",
            "--mode",
            "unsup",
            "--max-steps",
            4,
            "-o",
            inside / "two",
            "-q",
            "--num-processes",
            2,
        )
        score = json.loads(run("eval", "sts", "--model", inside / "run", "--format", "json", "-q"))
        print(
            "encode gives the vectors of this environment; trained on one process and two; "
            f"STS {score['average']:.4f}"
        )


if __name__ == "__main__":
    main()
