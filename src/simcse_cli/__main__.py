"""Run the command line as ``python -m simcse_cli``."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # ``-m`` puts the current folder first: its files would stand in for modules
    from simcse_cli.commands.app import main

    main()
