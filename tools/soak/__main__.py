"""`python tools/soak --seconds 600 --seed 0`: kill, fail, damage and attack the commands, and count what goes wrong."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tools"), str(REPOSITORY / "tests")]

if __name__ == "__main__":
    from soak.runner import main

    sys.exit(main())
