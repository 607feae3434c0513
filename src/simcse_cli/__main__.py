"""Start the command line, as ``simcse`` or as ``python -m simcse_cli``."""

import sys


def start() -> None:
    """Import and run the command line; Ctrl-C during the imports ends without a traceback."""
    try:
        from simcse_cli.commands.app import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    # Without ``-P`` (safe path), ``-m`` puts the current folder first in ``sys.path``, where a file
    # could hide a module of the same name.
    if not sys.flags.safe_path:
        del sys.path[0]
    start()
