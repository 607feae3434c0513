"""Run the command line as ``python -m simcse_cli``."""

from simcse_cli.cli import main

if __name__ == "__main__":
    main()
