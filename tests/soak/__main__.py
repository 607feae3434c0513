"""`python tests/soak --seconds 600 --seed 0`: kill, fail, damage and attack the commands, and count what goes wrong."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if __name__ == "__main__":
    from soak.runner import main

    sys.exit(main())
