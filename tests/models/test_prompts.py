"""What `encode` is asked for beyond the plain model: prompts, fewer components, texts beyond the model's length."""

import json
import warnings

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers import SENTENCES, build_tiny_model, plain_vectors
from simcse_cli.errors import CheckpointError, ConfigError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, Use, encode, with_use
from simcse_cli.models.export import save_encoder, verify_export
from simcse_cli.models.record import PROMPTS_FILE
from simcse_cli.models.tokens import Tokens, in_windows
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import LongTexts

PROMPTS = {"query": "someone reads: ", "document": "the film ", "STS": "price ", "empty": ""}


def save_with_prompts(
    folder, *, model_type="bert", pooler="avg", include_prompt=True, normalize=False
):
    plain = build_tiny_model(folder / "plain", model_type=model_type)
    encoder = load_encoder(plain, pooler=pooler, device="cpu")
    encoder.change(
        head=encoder.head,
        prompts=PROMPTS,
        default_prompt="document",
        include_prompt=include_prompt,
        normalize=normalize,
    )
    save_encoder(encoder, folder / "model")
    return folder / "model"


def peer(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        st = pytest.importorskip("sentence_transformers")
        return st.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize(
    ("model_type", "pooler"),
    [("bert", "avg"), ("bert", "cls_before_pooler"), ("bert", "avg_first_last"), ("deberta-v2", "avg"),
     ("deberta-v2", "cls_before_pooler")],
)  # fmt: skip
def test_prompts_give_the_vectors_of_sentence_transformers(
    tmp_path, model_type, pooler, include_prompt
):
    folder = save_with_prompts(
        tmp_path, model_type=model_type, pooler=pooler, include_prompt=include_prompt
    )
    encoder, theirs = load_encoder(folder, device="cpu", encode_only=True), peer(folder)
    texts = [*SENTENCES[:6], ""]
    for name in ("query", "STS", "empty"):
        expected = theirs.encode(texts, prompt_name=name)
        np.testing.assert_allclose(
            encode(encoder, texts, use=Use(prompt=PROMPTS[name])), expected, atol=1e-5
        )
    np.testing.assert_allclose(
        encode(encoder, texts), theirs.encode(texts), atol=1e-5
    )  # the default prompt
    asked = encode(encoder, texts, use=Use(prompt=ReadyEncoder(encoder).query_prompt))
    np.testing.assert_allclose(asked, theirs.encode_query(texts), atol=1e-5)
    searched = encode(encoder, texts, use=Use(prompt=ReadyEncoder(encoder).document_prompt(None)))
    np.testing.assert_allclose(searched, theirs.encode_document(texts), atol=1e-5)
    assert not np.allclose(asked, encode(encoder, texts, use=Use(prompt="")), atol=1e-3)


def test_prompts_are_kept_on_save(tmp_path):
    folder = save_with_prompts(tmp_path, include_prompt=False)
    encoder = load_encoder(folder, device="cpu")
    record = encoder.record
    assert (record.prompts, record.default_prompt, record.include_prompt) == (
        PROMPTS,
        "document",
        False,
    )
    save_encoder(encoder, tmp_path / "again")
    for name in (PROMPTS_FILE, "simcse.json", "1_Pooling/config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((folder / PROMPTS_FILE).read_text())["default_prompt_name"] == "document"
    assert max(verify_export(folder).values()) < 1e-5


def test_prompts_of_a_sentence_transformers_folder_are_read(tmp_path):
    theirs = peer(save_with_prompts(tmp_path, include_prompt=False))
    theirs.save_pretrained(str(tmp_path / "theirs"))
    record = load_encoder(tmp_path / "theirs", device="cpu").record
    assert record.prompts | PROMPTS == record.prompts
    assert (record.default_prompt, record.include_prompt) == ("document", False)


def test_unreadable_prompts_are_named(tmp_path):
    folder = save_with_prompts(tmp_path)
    (folder / PROMPTS_FILE).write_text('{"prompts": {"query": 3}}')
    with pytest.raises(CheckpointError, match="query is 3, need a text"):
        load_encoder(folder, device="cpu")


def test_a_word_that_is_no_prompt_is_refused_and_a_text_is_taken(tmp_path):
    encoder = ReadyEncoder(load_encoder(save_with_prompts(tmp_path), device="cpu"))
    assert encoder.find_prompt("query") == PROMPTS["query"]
    assert encoder.find_prompt("query: ") == "query: "
    assert encoder.find_prompt("") == ""
    with pytest.raises(ConfigError, match="there are query, document, STS, empty"):
        encoder.find_prompt("qurey")
    with pytest.raises(
        ConfigError, match=r"the prompt .* leave no room .* fewer than 10"
    ) as caught:
        encoder.encode(["a"], prompt="a b c d e f g h: ", max_length=10)
    assert "config_sentence_transformers.json" in caught.value.hint


def test_a_chosen_prompt_is_part_of_the_digest_and_serves_queries(tmp_path):
    model = load_encoder(save_with_prompts(tmp_path), device="cpu")
    before = ReadyEncoder(model).digest
    encoder = with_use(model, prompt="query", truncate_dim=None, long="cut")
    assert encoder.prompt == encoder.query_prompt == PROMPTS["query"]
    assert encoder.document_prompt(None) == PROMPTS["document"]
    assert encoder.digest != before
    assert encoder.digest_with(PROMPTS["document"]) == before
    assert with_use(model, prompt="document", truncate_dim=8, long="cut").digest != before


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("model_normalizes", [True, False])
def test_truncated_vectors_are_those_of_sentence_transformers(
    tmp_path, normalize, model_normalizes
):
    folder = save_with_prompts(tmp_path, normalize=model_normalizes)
    model = load_encoder(folder, device="cpu")
    encoder = with_use(model, prompt=None, truncate_dim=12, long="cut")
    texts = list(SENTENCES[:5])
    expected = peer(folder).encode(texts, truncate_dim=12, normalize_embeddings=normalize)
    np.testing.assert_allclose(encoder.encode(texts, normalize=normalize), expected, atol=1e-5)
    assert encoder.dim == 12
    with pytest.raises(ConfigError, match="have 32 components"):
        with_use(model, prompt=None, truncate_dim=33, long="cut")


class SlowTokenizer:
    """A tokenizer without a Rust core, as far as the encoder can tell."""

    is_fast = False

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, texts, **options):
        return self._tokenizer(texts, **options)


LONG = "a man is playing a guitar the cat sleeps two dogs are running"  # a sub-word each


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("prompt", ["", "rain is "])
def test_long_mean_is_the_mean_of_windows_by_their_sub_words(tiny_model_dir, is_fast, prompt):
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    if not is_fast:
        encoder.tokens.tokenizer = SlowTokenizer(encoder.tokenizer)
    encoder.tokens.max_length, use = 7 + len(prompt.split()), Use(prompt, long=LongTexts.MEAN)
    words = LONG.split()
    windows = [" ".join(words[start : start + 5]) for start in range(0, 13, 5)]
    pieces = plain_vectors(tiny_model_dir, "avg", [prompt + window for window in windows])
    expected = (5 * pieces[0] + 5 * pieces[1] + 3 * pieces[2]) / 13
    texts = ["He reads a book.", LONG, windows[0], LONG]
    vectors = encode(encoder, texts, use)
    np.testing.assert_allclose(vectors[1], expected, atol=1e-5)
    np.testing.assert_allclose(vectors[3], expected, atol=1e-5)
    np.testing.assert_allclose(vectors[2], pieces[0], atol=1e-5)
    encoder.change(head=None, normalize=True)
    units = pieces / np.linalg.norm(pieces, axis=1, keepdims=True)
    expected = 5 * units[0] + 5 * units[1] + 3 * units[2]
    expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(encode(encoder, texts, use)[1], expected, atol=1e-5)


def test_windows_of_a_tokenizer_without_special_tokens_share_none():
    words = {word: number for number, word in enumerate(["pad", "a", "b", "c", "d", "e"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="pad"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="pad")
    tokens = Tokens(fast, max_length=2, n_known=len(words), name="plain")
    frame = tokens.frame("", 2)
    assert frame == (0, 0)
    (ids,) = tokens.ids(["a b c d e"], limit=None)
    assert in_windows(ids, frame, 2) == [[1, 2], [3, 4], [5]]
    assert tokens.frame("a b", 5) == (2, 0)


@pytest.mark.parametrize("is_fast", [True, False])
def test_texts_that_are_cut_are_counted(tiny_model_dir, is_fast):
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    if not is_fast:
        encoder.tokens.tokenizer = SlowTokenizer(encoder.tokenizer)
    encoder.tokens.max_length, progress = 7, SilentProgress()
    just = " ".join(LONG.split()[:5])
    vectors = encode(encoder, [LONG, just, "the cat", LONG], progress=progress)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    assert len(progress.warnings) == 1
    assert "cut 2 texts at 7 sub-words" in progress.warnings[0]
    assert encoder.tokens.n_cut == 2
    encode(encoder, [just], progress=progress)
    encode(encoder, [LONG], max_length=5, progress=progress)  # asked for
    assert len(progress.warnings) == 1


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("long", list(LongTexts))
@pytest.mark.parametrize("prompt", ["", "rain is "])
def test_texts_without_a_known_sub_word_are_counted(tiny_model_dir, is_fast, long, prompt):
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    if not is_fast:
        encoder.tokens.tokenizer = SlowTokenizer(encoder.tokenizer)
    encoder.tokens.max_length, progress = 9, SilentProgress()
    ready = ReadyEncoder(encoder, Use(prompt, long=long))
    texts = ["\U0001f680 \U0001f621", "\U0001f621 the cat", "the cat", "", "\U0001f680 \U0001f621"]
    ready.encode(texts, progress=progress)
    assert len(progress.warnings) == 1
    assert progress.warnings[0].startswith("2 texts are unknown to ")
    assert ready.unknown_texts(texts) == [0, 4]
    # Of the windows of a long text, the last one holds a word.
    late = "\U0001f680 " * 9 + "cat"
    assert ready.unknown_texts([late]) == ([] if long is LongTexts.MEAN else [0])


def test_no_text_is_unknown_where_the_end_token_stands_for_it(tiny_encoder):
    tokens = tiny_encoder.tokens
    tokens.tokenizer = SlowTokenizer(tokens.tokenizer)
    tokens.tokenizer.unk_token_id = tokens.tokenizer.sep_token_id
    assert ReadyEncoder(tiny_encoder).unknown_texts(["", "the cat"]) == []
