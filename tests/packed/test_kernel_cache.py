"""Compiled kernels on disk: what is damaged is compiled again."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")
pytestmark = pytest.mark.upkeep

SCRIPT = """
import numpy as np
from simcse_cli.packed.kernels import RELU, compiled
x, bias, out = np.array([[-1.0, 2.0] * 8], np.float32), np.zeros(16, np.float32), np.empty((1, 16), np.float32)
kernel = compiled.ACTIVATION_KERNELS[RELU][0]
kernel(x, bias, out)
print(out[0, :2].tolist(), sum(kernel.stats.cache_hits.values()))
"""


# Another process may read or replace a file as soon as it has its name.
WATCH = """
import os
from hashlib import sha256
from pathlib import Path
replace = os.replace
def replace_whole(source, target):
    content = Path(source).read_bytes()
    assert not target.endswith(".nbc") or sha256(content[:-32]).digest() == content[-32:], target
    replace(source, target)
os.replace = replace_whole
"""


def run(folder, script: str = SCRIPT) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_damaged_kernels_are_compiled_again(tmp_path):
    right = "[0.0, 2.0]"
    assert run(tmp_path) == f"{right} 0"
    assert run(tmp_path) == f"{right} 1"
    # Other bytes in the machine code, which numba would run.
    for path in tmp_path.rglob("*.nbc"):
        content = bytearray(path.read_bytes())
        third = len(content) // 3
        content[third : 2 * third] = bytes(third)
        path.write_bytes(content)
    assert run(tmp_path) == f"{right} 0"
    assert run(tmp_path) == f"{right} 1"
    # An index of which the end is missing.
    for path in tmp_path.rglob("*.nbi"):
        path.write_bytes(path.read_bytes()[:60])
    assert run(tmp_path) == f"{right} 0"


def test_a_kernel_is_on_disk_with_its_checksum_or_not_at_all(tmp_path):
    assert run(tmp_path, WATCH + SCRIPT) == "[0.0, 2.0] 0"
    assert list(tmp_path.rglob("*.nbc"))
    assert run(tmp_path) == "[0.0, 2.0] 1"
