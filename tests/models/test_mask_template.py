"""The pooler ``mask``: ids of a row, its vectors by a plain pass, what is recorded and refused."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import AutoModel

from helpers import build_tiny_model
from simcse_cli.errors import CheckpointError, ConfigError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode, with_use
from simcse_cli.models.export import save_encoder, verify_export
from simcse_cli.models.graphs import write_graphs
from simcse_cli.models.heads import MlpHead
from simcse_cli.models.mask_template import MaskTemplate
from simcse_cli.settings.choices import Backend, HeadUse

TEMPLATE = 'The film "{}" is a {mask}.'
TEXTS = ["A man is playing a guitar.", "The cat [MASK] sleeps", "[MASK]", "", "Why?"]


def load(folder, template=TEMPLATE, **settings):
    return load_encoder(folder, pooler="mask", template=template, device="cpu", **settings)


def ids_of(encoder, *words):
    return encoder.tokenizer.convert_tokens_to_ids(words)


def test_ids_of_a_row_by_hand(tiny_model_dir):
    encoder = load(tiny_model_dir)
    before, after = ("[CLS]", "the", "film", '"'), ('"', "is", "a", "[MASK]", ".", "[SEP]")
    text = ("the", "cat", "sleeps", ".")
    assert encoder.tokenize(["The cat sleeps."]) == [ids_of(encoder, *before, *text, *after)]
    # The text is cut before the template goes on, which is never cut.
    assert encoder.tokenize(["The cat sleeps."], max_length=4) == [
        ids_of(encoder, *before, *text[:2], *after)
    ]
    assert encoder.template.n_added == 8
    assert encoder.tokens.max_length == 64 - 8
    assert encoder.template.n_of_sentence(encoder.tokenize(["The cat sleeps."])[0]) == 4


@pytest.mark.parametrize(
    ("text", "read"),
    [("Rain", "Rain."), ("Rain.", "Rain."), ("Rain?", "Rain?"), ('"R"', '"R"'), ("", "")],
)
def test_a_dot_in_the_place_ends_a_sentence(tiny_encoder, text, read):
    template = MaskTemplate("It: {.} {mask}", tiny_encoder.tokens)
    assert template.texts([text]) == [f" {read}"]  # the space belongs to the sub-word behind it
    assert MaskTemplate("It: {} {mask}", tiny_encoder.tokens).texts([text]) == [f" {text}"]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "deberta-v2"])
def test_vectors_are_the_state_of_the_templates_mask(tmp_path, model_type):
    folder = build_tiny_model(tmp_path / model_type, model_type=model_type)
    encoder = load(folder)
    model = AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(TEXTS, encode(encoder, TEXTS), strict=True):
        inputs = encoder.tokenizer(f'The film "{text}" is a [MASK].', return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        np.testing.assert_allclose(vector, states[0, -3], atol=1e-5)


def test_windows_and_prompts_stand_inside_the_template(tiny_model_dir):
    encoder = load(tiny_model_dir)
    encoder.tokens.max_length = 6
    halves = encode(encoder, ["the cat sleeps .", "he reads a book"])
    use = with_use(encoder, prompt=None, truncate_dim=None, long="mean").use
    both = encode(encoder, ["the cat sleeps . he reads a book"], use)
    np.testing.assert_allclose(both[0], halves.mean(0), atol=1e-5)
    prompted = with_use(encoder, prompt="The ", truncate_dim=None, long="cut")
    np.testing.assert_allclose(prompted.encode(["cat"]), encode(encoder, ["The cat"]), atol=1e-6)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
@pytest.mark.parametrize("pads", [False, True])
def test_the_template_alone_has_a_gap_of_positions(tmp_path, model_type, pads):
    folder = build_tiny_model(tmp_path / model_type, model_type=model_type)
    encoder = load(folder)
    if pads:
        encoder.checkpoint_layers()
        encoder.train()
        encoder.backbone.eval()
    rows = encoder.tokenize(["one two three", "", "a b c d", "one"])
    ids = torch.tensor(
        [ids_of(encoder, *["[CLS]", "the", "film", '"', '"', "is", "a", "[MASK]", ".", "[SEP]"])]
    )
    first = 1 if model_type == "roberta" else 0  # position of the padding token, which is 0 here
    model = AutoModel.from_pretrained(folder).eval()
    lengths = [encoder.template.n_of_sentence(row) for row in rows]
    with torch.no_grad():
        found = encoder.around_nothing(encoder.template, rows)
        single = [encoder.around_nothing(encoder.template, [row]) for row in rows]
        for state, n in zip(found, lengths, strict=True):
            positions = torch.arange(10) + first
            positions[4:] += n
            output = model(ids, position_ids=positions[None]).last_hidden_state[0, 7]
            torch.testing.assert_close(state, output, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(single), found, rtol=1e-5, atol=1e-6)


def test_an_empty_sentence_less_the_template_is_zero(tiny_model_dir):
    encoder = load(tiny_model_dir)
    encoder.change(head=None, subtracts_template=True)
    assert not encode(encoder, [""]).any()
    assert encode(encoder, ["The cat"]).any()


@pytest.mark.parametrize("subtracts", [False, True])
@pytest.mark.parametrize("head_use", [HeadUse.KEPT, HeadUse.TRAIN_ONLY])
def test_the_folder_records_it_and_no_other_library_opens_it(
    tiny_model_dir, tmp_path, subtracts, head_use
):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = load(tiny_model_dir)
    head = MlpHead(32, std=0.2)
    encoder.change(head=head, head_use=head_use, subtracts_template=subtracts)
    folder = tmp_path / "model"
    save_encoder(encoder, folder)
    loaded = load_encoder(folder, device="cpu", encode_only=True)
    assert loaded.record.template == TEMPLATE
    assert (loaded.head is not None) == (head_use is HeadUse.KEPT)
    np.testing.assert_allclose(encode(loaded, TEXTS), encode(encoder, TEXTS), atol=1e-6)
    found = verify_export(folder)
    assert found["auto_model"] < 1e-5
    assert found["sentence_transformers"] is None
    with pytest.raises((ImportError, ValueError), match="PoolerMaskWithTemplate"):
        sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    if head_use is HeadUse.KEPT:
        assert ReadyEncoder(loaded).digest == ReadyEncoder(encoder).digest
        other = load_encoder(
            folder, pooler="mask", template="{} {mask}", force_pooler=True, device="cpu"
        )
        assert ReadyEncoder(other).digest != ReadyEncoder(loaded).digest
    with pytest.raises(CheckpointError, match="records --template"):
        load(folder, "{} {mask}")
    with pytest.raises(CheckpointError, match="no backend puts its template"):
        write_graphs(loaded, tmp_path, [Backend.ONNX])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "records no template"),
        ("{}", "records no template"),
        ("no place {mask}", "need one {}"),
        ("{} and {.} {mask}", "need one {}"),
        ("{mask} {}", "one {mask} behind it"),
        ("{} {mask} {mask}", "one {mask} behind it"),
        ("{} {mask} [MASK]", "does not read"),
    ],
)
def test_what_is_no_template_is_refused(tiny_model_dir, template, message):
    with pytest.raises(ConfigError, match=message):
        load(tiny_model_dir, template)
    with pytest.raises(ConfigError, match="no use with --pooler avg"):
        load_encoder(tiny_model_dir, pooler="avg", template=TEMPLATE)


def test_a_model_without_masks_is_refused(tiny_encoder):
    encoder = deepcopy(tiny_encoder)
    encoder.tokens.tokenizer.mask_token = None
    with pytest.raises(ConfigError, match=r"has no \[MASK\]"):
        MaskTemplate(TEMPLATE, encoder.tokens)
