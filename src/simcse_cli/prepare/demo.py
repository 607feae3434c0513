"""The embedded default: where no data is given, a command says so and uses the generated corpus."""

import os
from pathlib import Path

from simcse_cli import __version__
from simcse_cli.prepare.demo_corpus import DemoSizes, build_demo_corpus, write_demo_corpus
from simcse_cli.progress import Progress


def demo_folder(progress: Progress) -> Path:
    """Return the folder of the generated corpus in the user's cache, written on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "simcse" / f"demo-{__version__}"
    if not (folder / "sentences.txt").exists():
        progress.info(f"writing the generated demo corpus to {folder}")
        write_demo_corpus(build_demo_corpus(DemoSizes(), seed=42), folder, force=True)
    return folder


def data_dir_or_demo(data_dir: Path | None, progress: Progress) -> Path:
    """Return the evaluation folder given, or that of the demo corpus with a warning that its scores say little."""
    if data_dir is not None:
        return data_dir
    progress.warn(
        "no --data-dir (or SIMCSE_DATA): scoring on the generated demo corpus, whose numbers compare with nothing"
    )
    return demo_folder(progress)
