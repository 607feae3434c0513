"""The generated corpus, which commands use when they are given no input files.

It has every kind of file that the toolkit reads. No sentence occurs twice, so the scored pairs
contain no training sentence.
"""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from simcse_cli.data.demo_grammar import (
    PARTS,
    DemoSizes,
    Scene,
    draw_scene,
    grammar,
    phrase,
    similarity,
    vary,
)
from simcse_cli.data.senteval import sts_files
from simcse_cli.data.writers import build_manifest
from simcse_cli.files.atomic import atomic_text, check_output, write_json
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.system import default_cache_dir
from simcse_cli.progress import Progress
from simcse_cli.version import __version__

STSB_FOLDER = "downstream/STS/STSBenchmark"
_GENRE = "demo-grammar"  # the first column of STS-B
_NLI_LABELS = ("entailment", "neutral", "contradiction")
_MAX_TRIES = 10_000


def demo_folder(progress: Progress) -> Path:
    """Return the folder of the generated corpus in the user's cache, written on first use."""
    folder = default_cache_dir() / f"demo-{__version__}"
    if not (folder / "sentences.txt").exists():  # it is written last
        progress.info(f"writing the generated demo corpus to {folder}")
        write_demo_corpus(build_demo_corpus(DemoSizes(), seed=42), folder, force=True)
    return folder


def data_dir_or_demo(data_dir: Path | None, progress: Progress) -> Path:
    """Return ``data_dir``; if it is None, warn and return the folder of the demo corpus."""
    if data_dir is not None:
        return data_dir
    progress.warn(
        "no --data-dir and no SIMCSE_DATA: scoring on the generated demo corpus, "
        "whose scores compare with no others; for the published sets: "
        "export SIMCSE_DATA=FOLDER, the SentEval folder that holds downstream/"
    )
    return demo_folder(progress)


def is_demo_corpus(data_dir: Path) -> bool:
    """Tell whether an evaluation folder is a generated corpus, whose only task is STS-B."""
    path = sts_files(data_dir, "STSBenchmark")[0]
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.readline().startswith(_GENRE.encode())


def prepare_demo(
    folder: Path,
    sizes: DemoSizes,
    *,
    seed: int,
    force: bool = False,
    progress: Progress,
) -> None:
    """Write a generated corpus to a folder, with a manifest that marks it as complete."""
    manifest = folder / "manifest.json"
    corpus = build_demo_corpus(sizes, seed=seed)
    with sole_writer(manifest, *map(folder.joinpath, corpus_files(corpus))):
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


@dataclass(frozen=True)
class DemoCorpus:
    """The generated rows.

    Attributes:
        inference: rows ``(premise, entailed, neutral, contradicted)``.
        documents: short stories, their sentences in order.
        graded: pairs ``(score, sentence, sentence)`` by STS-B split, with a score in [0, 5].
    """

    sentences: list[str]
    inference: list[tuple[str, str, str, str]]
    documents: list[list[str]]
    graded: dict[str, list[tuple[float, str, str]]]


def build_demo_corpus(sizes: DemoSizes, *, seed: int) -> DemoCorpus:
    """Return the corpus of a seed and sizes; it is the same on every machine."""
    # The parts are drawn from one generator in the order below; another order would change them.
    generator = _Generator(Random(seed))
    n_held_out = sizes.pairs // 4
    n_graded = {"train": sizes.pairs - 2 * n_held_out, "dev": n_held_out, "test": n_held_out}
    return DemoCorpus(
        graded={split: list(generator.graded(count)) for split, count in n_graded.items()},
        inference=list(generator.inference(sizes.triplets)),
        documents=[generator.story() for _ in range(sizes.documents)],
        sentences=[generator.sentence() for _ in range(sizes.sentences)],
    )


def write_demo_corpus(corpus: DemoCorpus, folder: Path, *, force: bool = False) -> dict[Path, int]:
    """Write the corpus below ``folder`` and return its files with their numbers of rows.

    Files that have the right content already are kept. Without ``force``, an error is raised before
    anything is written if one of the files exists with other content.
    """
    counts: dict[Path, int] = {}
    to_write: dict[Path, str] = {}
    for name, (text, count) in corpus_files(corpus).items():
        path = folder / name
        counts[path] = count
        if not path.is_file() or path.read_bytes() != text.encode():
            check_output(path, force=force)
            to_write[path] = text
    for path, text in reversed(to_write.items()):  # sentences.txt last: if it exists, all do
        with atomic_text(path, force=force) as stream:
            stream.write(text)
    return counts


def corpus_files(corpus: DemoCorpus) -> dict[str, tuple[str, int]]:
    """Return the text and the number of rows of each file, by its name."""
    triplets = []
    nli = []
    for premise, entailed, neutral, wrong in corpus.inference:
        triplets.append((premise, entailed, wrong))
        hypotheses = (entailed, neutral, wrong)
        for label, hypothesis in zip(_NLI_LABELS, hypotheses, strict=True):
            nli.append((label, premise, hypothesis))
    triplet_table = _table(("anchor", "positive", "hard_negative"), triplets, ",")
    nli_table = _table(("gold_label", "sentence1", "sentence2"), nli, "\t")

    # A blank line separates documents.
    stories = "\n".join(map(_lines, corpus.documents))
    files = {
        "sentences.txt": (_lines(corpus.sentences), len(corpus.sentences)),
        "documents.txt": (stories, sum(map(len, corpus.documents))),
        "triplets.csv": (triplet_table, len(triplets)),
        "nli.tsv": (nli_table, len(nli)),
    }
    # The layout of STS-B is genre, file, year, number, score and two texts.
    for split, pairs in corpus.graded.items():
        rows = []
        for number, (score, first, second) in enumerate(pairs, start=1):
            origin = f"{_GENRE}\tscenes\tgenerated\t{number:04d}"
            rows.append(f"{origin}\t{score:.3f}\t{first}\t{second}")
        files[f"{STSB_FOLDER}/sts-{split}.csv"] = (_lines(rows), len(rows))
    return files


def _lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _table(header: tuple[str, ...], rows: list[tuple[str, str, str]], delimiter: str) -> str:
    stream = io.StringIO()
    table = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    table.writerow(header)
    table.writerows(rows)
    return stream.getvalue()


class _Generator:
    """Draws sentences from the grammar, none of them twice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._used: set[str] = set()

    def _new(self, make: Callable[[], str]) -> str:
        for _ in range(_MAX_TRIES):
            text = make()
            if text not in self._used:
                self._used.add(text)
                return text
        raise ValueError(f"the demo grammar has run out after {len(self._used):,} sentences")

    def _say(self, scene: Scene, *, negated: bool = False, extra: str = "") -> str:
        return self._new(lambda: phrase(scene, self._rng, negated=negated, extra=extra))

    def sentence(self) -> str:
        return self._new(lambda: phrase(draw_scene(self._rng), self._rng))

    def graded(self, count: int) -> Iterator[tuple[float, str, str]]:
        """Yield scored pairs: for the second text, 0, 1, ... or 5 parts are changed in turn."""
        for index in range(count):
            scene = draw_scene(self._rng)
            n_changed = index % (len(PARTS) + 1)
            changed = self._rng.sample(PARTS, n_changed)
            other = vary(scene, changed, self._rng)
            yield similarity(scene, other), self._say(scene), self._say(other)

    def inference(self, count: int) -> Iterator[tuple[str, str, str, str]]:
        """Yield premises with three hypotheses: one follows, one may be true, and one is false."""
        for index in range(count):
            scene = draw_scene(self._rng)
            if self._rng.random() < 0.5:
                shorter = replace(scene, place=None)
            else:
                shorter = replace(scene, time=None)
            # One false hypothesis in three denies the scene; the other two tell of another action.
            negated = index % 3 == 0
            false = scene if negated else vary(scene, ["action", "thing"], self._rng)
            yield (
                self._say(scene),
                self._say(shorter),
                self._say(scene, extra=self._rng.choice(grammar()["company"])),
                self._say(false, negated=negated),
            )

    def story(self) -> list[str]:
        """Return 5 to 9 sentences about one agent at one place."""
        scene = draw_scene(self._rng)
        sentences = []
        for _ in range(self._rng.randint(5, 9)):
            sentences.append(self._say(scene))
            scene = vary(scene, ["action", "thing", "time"], self._rng)
        return sentences
