"""``prepare demo``: write a generated corpus with each kind of file the toolkit reads; it needs no network.

No sentence occurs twice, so the scored pairs contain no training sentence. Commands without input files use it.
"""

from pathlib import Path

from simcse_cli.data.demo import STSB_FOLDER, build_demo_corpus, corpus_files, write_demo_corpus
from simcse_cli.data.demo_grammar import DemoSizes
from simcse_cli.data.writers import build_manifest
from simcse_cli.files.atomic import check_output, write_json
from simcse_cli.files.locks import sole_writer
from simcse_cli.progress import Progress


def prepare_demo(
    folder: Path, sizes: DemoSizes, *, seed: int, force: bool = False, progress: Progress
) -> None:
    manifest = folder / "manifest.json"
    corpus = build_demo_corpus(sizes, seed=seed)
    with sole_writer(manifest, *(folder / name for name in corpus_files(corpus))):
        check_output(manifest, force=force)
        manifest.unlink(missing_ok=True)  # it is written last and marks the corpus as complete
        files = write_demo_corpus(corpus, folder, force=force)
        facts = build_manifest(
            "demo", inputs=[], folder=folder, outputs=files.items(), settings=vars(sizes), seed=seed
        )
        write_json(manifest, facts)
    for path, count in files.items():
        progress.info(f"{path}: {count:,} rows")
    progress.info(
        f"next: simcse train --mode unsup --train-file {folder / 'sentences.txt'} --model minilm "
        f"--dev-file {folder / STSB_FOLDER / 'sts-dev.csv'} -o RUN"
    )
