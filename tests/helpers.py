"""Builders used in several test files: tiny models, tiny evaluation data, and a slow reference encoder."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SENTENCES = (
    "A man is playing a guitar.",
    "A woman is slicing an onion in the kitchen.",
    "Someone plays an instrument.",
    "The cat sleeps.",
    "Two dogs are running through a field of tall grass near the river.",
    "Stocks fell sharply on Monday after the report.",
    "The committee postponed its decision.",
    "Why did the train stop?",
    "Rain is expected in the north.",
    "A child is riding a bicycle down the street.",
    "The president met the ministers in the capital.",
    "He reads a book.",
    "A large ship is leaving the harbour at night.",
    "The old bridge was closed for repairs.",
    "Nobody answered the phone.",
    "Three people are cooking dinner together.",
    "The film was long and rather dull.",
    "She wrote a letter to her brother.",
    "The price of oil rose by two percent.",
    "A bird is singing in the tree.",
    "The students are waiting for the bus.",
    "It is cold outside.",
    "A man is cutting bread with a knife.",
    "The museum opens at nine in the morning.",
)
LIMIT_S = 600.0
"""Limit of every wait in the tests: they wait for events, and this ends what would wait for ever."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'-"
_POSITIONS_FROM_2 = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "longformer", "mpnet")


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that another process or thread does."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class CountingProgress:
    """Counts how much work its latest task expects, and how much was done; keeps warnings and the latest detail."""

    n_expected: float | None = None
    n_done = 0.0
    said = ""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator["CountingProgress"]:
        self.n_expected, self.n_done = total, 0
        yield self

    def advance(self, amount: float = 1) -> None:
        self.n_done += amount

    def update(self, **fields: Any) -> None: ...

    def detail(self, text: str) -> None:
        self.said = text

    def info(self, text: str) -> None: ...

    def hint(self, text: str) -> None: ...

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Told(CountingProgress):
    """Also keeps the lines, the hints and the warnings that the user sees."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.hints: list[str] = []
        self.warnings: list[str] = []

    def hint(self, message: str) -> None:
        self.hints.append(message)

    def info(self, message: str) -> None:
        self.lines.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def build_tiny_model(
    folder: Path, *, seed: int = 0, model_type: str = "bert", width: int = 32
) -> Path:
    """Write a random two-layer encoder of the given architecture with a WordPiece tokenizer of characters."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    words = sorted({w.strip(".,?").lower() for s in SENTENCES for w in s.split()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    pieces += [c for c in _ALPHABET if c not in pieces] + [f"##{c}" for c in _ALPHABET]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    if model_type == "distilbert":
        sizes = {"n_layers": 2, "n_heads": 4, "hidden_dim": 64, "dim": width}
    elif model_type == "longformer":
        sizes["attention_window"] = 8
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(vocabulary),
        hidden_size=width,
        max_position_embeddings=64 if model_type not in _POSITIONS_FROM_2 else 66,
        pad_token_id=0,
        **sizes,
    )
    torch.manual_seed(seed)
    model = AutoModel.from_config(config)
    for (
        parameter
    ) in model.parameters():  # larger weights than at the start of training: layers matter
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def generator_beside(model_dir: Path) -> Path:
    """Return a masked language model with the tokenizer of a tiny model, made beside it once."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    from simcse_cli.models.pretrained import quiet_transformers

    folder = model_dir.with_name(f"{model_dir.name}-generator")
    if not folder.exists():
        torch.manual_seed(3)
        with quiet_transformers():
            AutoModelForMaskedLM.from_pretrained(model_dir).save_pretrained(folder)
        AutoTokenizer.from_pretrained(model_dir).save_pretrained(folder)
    return folder


# Annotated pairs of each subset, as published.
STS_PAIRS = {
    "STS12": {
        "MSRpar": 750,
        "MSRvid": 750,
        "SMTeuroparl": 459,
        "surprise.OnWN": 750,
        "surprise.SMTnews": 399,
    },
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {
        "deft-forum": 450,
        "deft-news": 300,
        "headlines": 750,
        "images": 750,
        "OnWN": 750,
        "tweet-news": 750,
    },
    "STS15": {
        "answers-forums": 375,
        "answers-students": 750,
        "belief": 375,
        "headlines": 750,
        "images": 750,
    },
    "STS16": {
        "answer-answer": 254,
        "headlines": 249,
        "plagiarism": 230,
        "postediting": 244,
        "question-question": 209,
    },
}


def write_sts_folder(folder: Path, *, pairs_per_subset: int = 6) -> Path:
    """Write a SentEval folder in which every STS task has a few pairs of ``SENTENCES``."""
    from simcse_cli.data.senteval import STS_SUBSETS

    rng = np.random.default_rng(0)
    root = folder / "downstream"

    def rows() -> list[tuple[str, str, float]]:
        picks = rng.integers(0, len(SENTENCES), size=(pairs_per_subset, 2))
        return [(SENTENCES[a], SENTENCES[b], float(rng.integers(0, 51)) / 10) for a, b in picks]

    for year, subsets in STS_SUBSETS.items():
        year_folder = root / "STS" / f"{year}-en-test"
        year_folder.mkdir(parents=True)
        for subset in subsets:
            made = rows()
            (year_folder / f"STS.input.{subset}.txt").write_text(
                "".join(f"{a}\t{b}\n" for a, b, _ in made)
            )
            (year_folder / f"STS.gs.{subset}.txt").write_text("".join(f"{g}\n" for _, _, g in made))
    stsb, sick = root / "STS" / "STSBenchmark", root / "SICK"
    stsb.mkdir(parents=True)
    sick.mkdir(parents=True)
    for split, sick_name in (("train", "train"), ("dev", "trial"), ("test", "test_annotated")):
        made = [*rows(), (SENTENCES[0], SENTENCES[0], 5.0), (SENTENCES[1], SENTENCES[1], 4.8)]
        lines = (f"main\tfile\t2017\t{i:04d}\t{g}\t{a}\t{b}\n" for i, (a, b, g) in enumerate(made))
        (stsb / f"sts-{split}.csv").write_text("".join(lines))
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        body = (f"{i}\t{a}\t{b}\t{g}\tNEUTRAL\n" for i, (a, b, g) in enumerate(rows()))
        (sick / f"SICK_{sick_name}.txt").write_text(header + "".join(body))
    return folder


def plain_vectors(folder: Path, pooler: str, sentences: Sequence[str]) -> NDArray[np.float32]:
    """Return vectors by the most straightforward loop: one sentence at a time through ``AutoModel``."""
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    vectors = []
    for sentence in sentences:
        with torch.no_grad():
            output = model(**tokenizer(sentence, return_tensors="pt"), output_hidden_states=True)
        layers = [*output.hidden_states[:-1], output.last_hidden_state]
        pooled = {
            "cls": lambda: output.pooler_output[0],  # noqa: B023 - called in this iteration
            "cls_before_pooler": lambda: layers[-1][0, 0],  # noqa: B023
            "avg": lambda: layers[-1][0].mean(0),  # noqa: B023
            "avg_top2": lambda: ((layers[-1] + layers[-2]) / 2)[0].mean(0),  # noqa: B023
            "avg_first_last": lambda: ((layers[-1] + layers[1]) / 2)[0].mean(0),  # noqa: B023
            "avg_emb_last": lambda: ((layers[-1] + layers[0]) / 2)[0].mean(0),  # noqa: B023
        }[pooler]()
        vectors.append(pooled.float().numpy())
    return np.stack(vectors)


def write_transfer_folder(folder: Path, *, n_good: int = 60, n_bad: int = 50) -> Path:
    """Write a SentEval folder with all seven transfer tasks; one word a sentence gives its class away."""
    from simcse_cli.data.transfer_files import TREC_CLASSES, transfer_files
    from simcse_cli.settings.choices import TRANSFER_TASKS

    rng = np.random.default_rng(0)
    fillers = [f"w{i}" for i in range(30)]
    (folder / "downstream" / "MR").mkdir(parents=True)

    def sentences(words: Sequence[str], n: int) -> list[str]:
        picks = ([rng.choice(words), *rng.choice(fillers, rng.integers(1, 6))] for _ in range(n))
        return [" ".join(rng.permutation(words_of_one)) for words_of_one in picks]

    for task in TRANSFER_TASKS:
        for role, path in transfer_files(folder, task).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            good = sentences(("good", "fine", "great", "lovely"), n_good)
            bad = sentences(("bad", "poor", "awful", "dull"), n_bad)
            match task:
                case "SST2":
                    lines = [f"{s}\t1" for s in good] + [f"{s}\t0" for s in bad]
                case "TREC":
                    kinds = (TREC_CLASSES * n_good)[:n_good]
                    lines = [f"{kind}:x {kind} {s}" for kind, s in zip(kinds, good, strict=True)]
                case "MRPC":
                    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
                    lines += [f"1\t1\t2\t{s}\t{s} too" for s in good]
                    lines += [f"0\t1\t2\t{s}\t{t}" for s, t in zip(bad, good, strict=False)]
                case _:
                    lines = good if role == "pos" else bad
            path.write_text("\n".join(lines) + "\n")
    return folder


def small_run(model: Path, folder: Path, sts_folder: Path, **settings: Any) -> Any:
    """Return the settings of a run on the CPU over ``SENTENCES``, which are written, with a dev set at each step."""
    from simcse_cli.settings.config import TrainConfig

    (folder / "train.txt").write_text("\n".join(SENTENCES) + "\n")
    dev_file = sts_folder / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    files = {"train_file": str(folder / "train.txt"), "dev_file": str(dev_file)}
    return TrainConfig(model=str(model), **files, eval_every=1, device="cpu", **settings)


def train_until(config: Any, run_dir: Path, stop_after: int | None = None) -> Any:
    """Train and return the record; interrupted after so many steps, if that is given."""
    from simcse_cli.progress import SilentProgress
    from simcse_cli.training.loop import Trainer
    from simcse_cli.training.setup import build_parts

    run_dir.mkdir(exist_ok=True)
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return stop_after is not None and len(asked) >= stop_after

    parts = build_parts(config, SilentProgress())
    return Trainer(config, parts, run_dir, SilentProgress(), should_stop).run()


_LONG = {"-m": "--model", "-o": "--output", "-f": "--format"}


def with_options(command: Sequence[object], *more: object) -> list[object]:
    """Return a command with further options, which take the place of those that it has."""
    again = {_LONG.get(str(word), str(word)) for word in more if str(word).startswith("-")}
    kept: list[object] = []
    is_dropped = False
    for word in command:
        if str(word).startswith("-"):
            is_dropped = _LONG.get(str(word), str(word)) in again
        if not is_dropped:
            kept.append(word)
    return [*kept, *more]


@contextmanager
def sigterm_in_second_window(monkeypatch: Any) -> Iterator[None]:
    """Let `encode` end as on SIGTERM when it comes to its second window."""
    from simcse_cli.models.encode import ReadyEncoder

    real, calls = ReadyEncoder.encode, []

    def encode_and_end(self: Any, sentences: Sequence[str], **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise SystemExit(128 + signal.SIGTERM)  # as the handler of the command line does
        return real(self, sentences, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ReadyEncoder, "encode", encode_and_end)
        yield
