import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from helpers import SENTENCES, build_tiny_model
from simcse_cli.augment import language_model
from simcse_cli.augment.language_model import (
    MlmFiller,
    cut_pieces,
    join_pieces,
    load_mlm_filler,
    make_subword_shuffler,
    mask_words,
    model_augmenter,
    split_subwords,
)
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.augment.words import split_graphemes
from simcse_cli.errors import CheckpointError

ALMOST_NEVER = 1e-4


@pytest.fixture(scope="module")
def mlm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random two-layer BERT that has a masked-LM head."""
    folder = build_tiny_model(tmp_path_factory.mktemp("mlm") / "bert")
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


@pytest.fixture
def filler(mlm_dir: Path) -> MlmFiller:
    return load_mlm_filler(mlm_dir, rate=0.3)


def plain_fill(folder: Path, text: str, chosen: Sequence[int]) -> str:
    """Fill whitespace words without punctuation one sentence at a time, straight from the definition."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    words = text.split()
    masked = [tokenizer.mask_token if i in chosen else word for i, word in enumerate(words)]
    ids = tokenizer(" ".join(masked), return_tensors="pt")
    with torch.no_grad():
        logits = model(**ids).logits[0]
    places = (ids["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
    for i, place in zip(chosen, places, strict=True):
        for token in logits[place].argsort(descending=True).tolist():
            word = tokenizer.convert_ids_to_tokens(token)
            if word.isalnum() and word != words[i]:
                words[i] = word
                break
    return " ".join(words)


class FirstTokens:
    """A model that finds the tokens likelier the smaller their ids; keeps the shapes of its inputs."""

    device = torch.device("cpu")

    def __init__(self, n_tokens: int, **config: int) -> None:
        self.config = SimpleNamespace(vocab_size=n_tokens, **config)
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        self.shapes.append(tuple(input_ids.shape))
        assert input_ids.shape == attention_mask.shape
        return SimpleNamespace(
            logits=-torch.arange(self.config.vocab_size).expand(*input_ids.shape, -1).float()
        )


def plain_filler(
    tokens: str, max_length: int = 10**9, **config: int
) -> tuple[MlmFiller, FirstTokens]:
    """Return a filler whose vocabulary is a mask token, an unknown one, and ``tokens``; text is cut at white space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(("MASK", "UNK", *tokens.split()))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="UNK"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="UNK", mask_token="MASK", model_max_length=max_length
    )
    model = FirstTokens(len(vocabulary) + 1, **config)  # with a row that is no word
    return MlmFiller(model, fast, rate=1.0), model


def test_filler_takes_words_that_begin_one_where_white_space_stands_before() -> None:
    filler, _ = plain_filler(". ##s Ġ � ing Ġdog Ġcat")
    assert filler.many(["x (y) z"], [0])[0] == "ing (ing) dog"
    assert filler.many(["Ing x Dog"], [0])[0] == "Dog dog Cat"  # another word than before
    filler, _ = plain_filler(". ##s dog cat")
    assert filler.many(["x (y) Dog"], [0])[0] == "dog (dog) Cat"
    filler, _ = plain_filler("dog")
    assert filler.many(["x dog"], [0])[0] == "dog dog"  # there is no other


@pytest.mark.parametrize(
    ("max_length", "config", "n_read"),
    [
        (10**9, {}, 510),
        (10**9, {"max_position_embeddings": 2000}, 512),
        (10**9, {"max_position_embeddings": 130}, 128),
        (10**9, {"max_position_embeddings": 40}, 38),
        (100, {"max_position_embeddings": 130}, 100),
    ],
)
def test_filler_reads_no_more_than_model_and_tokenizer_can(
    max_length: int, config: dict[str, int], n_read: int
) -> None:
    filler, model = plain_filler("dog", max_length, **config)
    (filled,) = filler.many(["x " * 600], [0])
    assert filled.split() == ["dog"] * n_read + ["x"] * (600 - n_read)
    assert model.shapes == [(1, n_read)]


def test_filler_reads_as_many_texts_at_a_time_as_the_logits_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filler, model = plain_filler("dog")
    monkeypatch.setattr(language_model, "_LOGITS_PER_PASS", 12 * model.config.vocab_size)
    texts = [("x " * n).strip() for n in (20, 3, 3, 6, 3, 3, 3)]
    assert filler.many(texts, range(7)) == [text.replace("x", "dog") for text in texts]
    assert model.shapes == [(4, 3), (2, 6), (1, 20)]


def test_model_augmenter_builds_each_step_with_the_model_it_needs(
    mlm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, keys = "one two three four", [3, 4]
    filled = model_augmenter(AugmentOptions(method=f"mlm:1.0:{mlm_dir}")).many([text] * 2, keys)
    assert filled == load_mlm_filler(mlm_dir, rate=1.0).many([text] * 2, keys)
    assert all(set(each.split()).isdisjoint(text.split()) for each in filled)
    shuffled = model_augmenter(AugmentOptions(method=f"shuffle:1:{mlm_dir}")).many([text] * 2, keys)
    assert shuffled == make_subword_shuffler(mlm_dir, 1.0).many([text] * 2, keys) != [text] * 2
    (deleted,) = model_augmenter(AugmentOptions(method="delete-one")).many([text], [3])
    assert len(deleted.split()) == 3
    names: list[Any] = []
    monkeypatch.setattr(language_model, "load_mlm_filler", lambda name, **_: names.append(name))
    model_augmenter(AugmentOptions(method="mlm"))
    assert names == ["bert-base"]


def test_mask_words_masks_exactly_the_rounded_share_at_uniform_positions() -> None:
    counts: Counter[int] = Counter()
    for key in range(3000):
        masked = mask_words("a b c d e f g h i j", 0.15, random.Random(key), "[MASK]")
        assert [masked.text[at : at + 6] for _, at in masked.masks] == ["[MASK]"] * 2
        counts.update(position for position, _ in masked.masks)
    assert chisquare([counts[i] for i in range(10)]).pvalue > ALMOST_NEVER


def test_mask_words_keeps_punctuation_and_skips_words_that_are_nothing_else() -> None:
    masked = mask_words("(Yes), -- he said.", 1.0, random.Random(0), "[MASK]")
    assert masked.text == "([MASK]), -- [MASK] [MASK]."
    assert masked.masks == [(0, 1), (2, 13), (3, 20)]
    assert mask_words("... !", 0.5, random.Random(0), "[MASK]").masks == []


def test_filler_agrees_with_one_sentence_at_a_time(filler: MlmFiller, mlm_dir: Path) -> None:
    texts = [sentence.strip(".?").lower() for sentence in SENTENCES]
    keys = list(range(len(texts)))
    filled = filler.many(texts, keys)
    for text, key, result in zip(texts, keys, filled, strict=True):
        masked = mask_words(text, 0.3, random.Random(key), "[MASK]")
        chosen = [position for position, _ in masked.masks]
        assert result == plain_fill(mlm_dir, text, chosen)
        assert all(
            (a != b) == (i in chosen)
            for i, (a, b) in enumerate(zip(text.split(), result.split(), strict=True))
        )


def test_filler_does_not_depend_on_batch_and_order(filler: MlmFiller) -> None:
    texts, keys = list(SENTENCES), list(range(len(SENTENCES)))
    together = filler.many(texts, keys)
    one_by_one = [filler.many([text], [key]) for text, key in zip(texts, keys, strict=True)]
    assert [[text] for text in together] == one_by_one
    assert together == filler.many(texts[::-1], keys[::-1])[::-1]


def test_filler_keeps_case_punctuation_and_blank_text(filler: MlmFiller) -> None:
    results = filler.many(["(Cat), DOG!"] * 20, range(20))
    assert all(
        result.startswith("(") and result.endswith("!") and "), " in result for result in results
    )
    changed = {result[1:].partition(")")[0] for result in results}
    assert all(word[0].isupper() or word[0].isdigit() for word in changed)
    assert filler.many(["", " "], [0, 1]) == ["", " "]


def test_filler_leaves_masks_beyond_the_maximum_length(mlm_dir: Path) -> None:
    filler = load_mlm_filler(mlm_dir, rate=1.0)
    text = " ".join(["cat"] * 600)
    filled = filler.many([text], [0])[0].split()
    assert len(filled) == 600
    assert filled[0] != "cat"
    assert filled[-1] == "cat"


def test_filler_fills_with_words_of_a_byte_level_vocabulary(tmp_path: Path) -> None:
    folder = build_byte_level_model(tmp_path / "roberta")
    filler = load_mlm_filler(folder, rate=0.5)
    for key in range(20):
        words = filler.many(["one two (three) four"], [key])[0].split(" ")
        assert len(words) == 4
        assert all(word.strip("()") for word in words)


def build_byte_level_model(folder: Path) -> Path:
    """Write a random RoBERTa masked-LM with a byte-level BPE tokenizer trained on the test sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
        model_max_length=64,
    )
    fast.save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=len(fast) + 3,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=80,
    )
    torch.manual_seed(0)
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


def test_no_bars_and_reports_of_libraries_reach_the_screen(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "bert")
    whole = AutoModelForPreTraining.from_config(AutoConfig.from_pretrained(folder))
    whole.save_pretrained(folder)  # with weights that a masked language model has no use for
    (tmp_path / "text.txt").write_text("a man is playing a guitar\n")
    code = (
        "import sys; from simcse_cli.commands.app import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    import tqdm\n    list(tqdm.tqdm([1]))"
    )
    call = ("augment", "text.txt", "--method", f"mlm:0.5:{folder}", "-o", "o.csv")
    done = subprocess.run(
        [sys.executable, "-c", code, *call],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["augment", "o.csv"]


def test_load_mlm_filler_refuses_a_model_without_the_head(tiny_model_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="would be random") as caught:
        load_mlm_filler(tiny_model_dir, rate=0.1)
    assert "such as bert-base" in str(caught.value.hint)


def test_load_mlm_filler_names_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model folder"):
        load_mlm_filler(tmp_path, rate=0.1)


@pytest.mark.parametrize(
    ("text", "starts", "pieces", "gaps"),
    [
        ("unhappy cat", [0, 2, 8], ["un", "happy", "cat"], ["", "", " ", ""]),
        ("  a b ", [2, 4], ["a", "b"], ["  ", " ", " "]),
        ("e\u0301t", [0, 1, 2], ["e\u0301", "t"], ["", "", ""]),  # offset 1 is inside a grapheme
        (
            "ab c",
            [0, 1, 2],
            ["a", "b", "c"],
            ["", "", " ", ""],
        ),  # a piece that begins with its space
        ("", [], [], [""]),
    ],
)
def test_cut_pieces_and_join_pieces_are_inverse(
    text: str, starts: list[int], pieces: list[str], gaps: list[str]
) -> None:
    assert cut_pieces(text, starts) == (pieces, gaps)
    assert join_pieces(pieces, gaps) == text


def test_split_subwords_cuts_where_the_tokenizer_does(tiny_model_dir: Path) -> None:
    pieces, gaps = split_subwords("The cat sqz!", tiny_model_dir)
    assert pieces == ["The", "cat", "s", "q", "z", "!"]
    assert gaps == ["", " ", " ", "", "", "", ""]


def test_subword_shuffler_permutes_pieces_between_fixed_gaps(tiny_model_dir: Path) -> None:
    shuffler = make_subword_shuffler(tiny_model_dir, 1.0)
    outcomes = {shuffler("cat qz", key) for key in range(60)}
    assert outcomes == {"cat qz", "cat zq", "q catz", "q zcat", "z catq", "z qcat"}
    copy = pickle.loads(pickle.dumps(shuffler))  # noqa: S301 - our own bytes
    assert copy("cat qz", 5) == shuffler("cat qz", 5)


def test_subword_shuffler_never_splits_a_grapheme(tiny_model_dir: Path) -> None:
    shuffler = make_subword_shuffler(tiny_model_dir, 1.0)
    rng = random.Random(0)
    for _ in range(50):
        text = " ".join(
            "".join(rng.choices(["e\u0301", "a", "👨‍👩‍👧", "7"], k=3)) for _ in range(4)
        )
        changed = shuffler(text, rng.randrange(1000))
        count = sorted(grapheme.strip() for grapheme in split_graphemes(changed))
        assert count == sorted(grapheme.strip() for grapheme in split_graphemes(text))
