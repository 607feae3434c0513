"""Folders that others made: the vectors of sentence-transformers, or a refusal that names the reason."""

import json
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import SENTENCES, Told, build_tiny_model
from simcse_cli.errors import CheckpointError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.models.export import export_model, save_encoder
from simcse_cli.progress import SILENT, SilentProgress

TEXTS = (
    "A man plays a guitar.",
    "THE COMMITTEE POSTPONED ITS DECISION",
    "",
    "[CLS] the dog [SEP]",
    "rain in the north, " * 30 + "and the last word is GUITAR",
)
OLD = "sentence_transformers.models."
NEW = "sentence_transformers.base.modules."
IDENTITY = "torch.nn.modules.linear.Identity"
MEAN, CLS = ("Pooling", {"pooling_mode": "mean"}), ("Pooling", {"pooling_mode": "cls"})
NORMALIZE = ("Normalize", None)


def change(path, **values):
    content = (json.loads(path.read_text()) if path.is_file() else {}) | values
    path.write_text(
        json.dumps({name: value for name, value in content.items() if value is not ...})
    )


def dense(n_in, n_out, activation=IDENTITY, *, seed=7, **more):
    config = {
        "in_features": n_in,
        "out_features": n_out,
        "bias": True,
        "activation_function": activation,
        **more,
    }
    torch.manual_seed(seed)
    weights = {"linear.weight": torch.randn(n_out, n_in) / 4, "linear.bias": torch.randn(n_out) / 4}
    if not config["bias"]:
        del weights["linear.bias"]
    return "Dense", {name: value for name, value in config.items() if value is not ...}, weights


def listed(folder, *parts, first="", transformer=None, **use):
    """Make a folder of transformers one of sentence-transformers: a kind, a config and weights for each module."""
    rows = [{"idx": 0, "name": "0", "path": first, "type": f"{OLD}Transformer"}]
    for number, (kind, config, *weights) in enumerate(parts, 1):
        place = f"{number}_{kind.rpartition('.')[2]}"
        (folder / place).mkdir()
        if config is not None:
            widths = {"embedding_dimension": 32} if "Pooling" in kind else {}
            (folder / place / "config.json").write_text(json.dumps(config | widths))
        if weights:
            save_file(weights[0], folder / place / "model.safetensors")
        rows.append(
            {
                "idx": number,
                "name": str(number),
                "path": place,
                "type": kind if "." in kind else OLD + kind,
            }
        )
    (folder / "modules.json").write_text(json.dumps(rows))
    if transformer is not None:
        change(folder / first / "sentence_bert_config.json", **transformer)
    if use:
        change(folder / "config_sentence_transformers.json", **use)
    return folder


def by_sentence_transformers(folder):
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()
    return np.asarray(model.encode(list(TEXTS), batch_size=1, show_progress_bar=False), np.float32)


def vectors(folder, **how):
    return encode(load_encoder(folder, device="cpu", **how), TEXTS)


def require_equal(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max()))
    )


def keep_capitals(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(content))


def cut_on_the_left(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    cut = {"direction": "Left", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content | {"truncation": cut}))


def settings_of_tokenizer(**values):
    return lambda folder: change(folder / "tokenizer_config.json", **values)


def another_name(folder):
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")


def into_a_folder_of_its_own(folder):
    for path in [
        each for each in folder.iterdir() if each.is_file() and each.name != "modules.json"
    ]:
        (folder / "0_Transformer").mkdir(exist_ok=True)
        path.rename(folder / "0_Transformer" / path.name)
    rows = json.loads((folder / "modules.json").read_text())
    rows[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "config.json").write_text('{"__version__": "0.4.1"}')


EQUAL = {
    "mean": ((MEAN,), {}, None),
    "length": ((MEAN,), {"transformer": {"max_seq_length": 20}}, None),
    "length null": (
        (MEAN,),
        {"transformer": {"max_seq_length": None}},
        settings_of_tokenizer(model_max_length=24),
    ),
    "length of the tokenizer": ((MEAN,), {}, settings_of_tokenizer(model_max_length=24)),
    "old name of the length": (
        (MEAN,),
        {},
        settings_of_tokenizer(model_max_length=..., max_len=24),
    ),
    "length above the tokenizer's": (
        (MEAN,),
        {"transformer": {"max_seq_length": 48}},
        settings_of_tokenizer(model_max_length=24),
    ),
    "settings of RoBERTa's days": ((MEAN,), {"transformer": {"max_seq_length": 20}}, another_name),
    "a folder of its own": (
        (MEAN,),
        {"transformer": {"max_seq_length": 20}},
        into_a_folder_of_its_own,
    ),
    "lower case": ((MEAN,), {"transformer": {"do_lower_case": True}}, keep_capitals),
    "truncation side": ((MEAN,), {}, settings_of_tokenizer(truncation_side="left")),
    "truncation side of tokenizer.json": ((MEAN,), {}, cut_on_the_left),
    "padding side": ((CLS,), {}, settings_of_tokenizer(padding_side="left")),
    "width": ((MEAN, NORMALIZE), {"truncate_dim": 12}, None),
    "no mode": ((("Pooling", {"pooling_mode_mean_tokens": False}),), {}, None),
    "a list of one mode": ((("Pooling", {"pooling_mode": ["mean"]}),), {}, None),
    "mode over flags": (
        (("Pooling", {"pooling_mode": "cls", "pooling_mode_mean_tokens": True}),),
        {},
        None,
    ),
    "a prompt without text": ((MEAN,), {"prompts": {}, "default_prompt_name": "document"}, None),
    "a default prompt": ((MEAN,), {"prompts": {"q": "query: "}, "default_prompt_name": "q"}, None),
    "mean and tanh": ((MEAN, dense(32, 32, "torch.nn.modules.activation.Tanh")), {}, None),
    "another width": ((MEAN, dense(32, 20, "torch.nn.Tanh"), NORMALIZE), {}, None),
    "no bias": ((CLS, dense(32, 32, "torch.nn.Tanh", bias=False)), {}, None),
    "no activation": ((CLS, dense(32, 32, ...)), {}, None),
    "new names": (((f"{NEW}normalize.Normalize", None),), {}, "Pooling first"),
    "two layers": (
        (
            (
                "WeightedLayerPooling",
                {"num_hidden_layers": 2, "layer_start": 0},
                {"layer_weights": torch.tensor([0.0, 1, 1])},
            ),
            MEAN,
        ),
        {},
        lambda folder: change(folder / "config.json", output_hidden_states=True),
    ),
}


def copied(folder, target):
    """Export the model of a folder as it is, and return the folder of the copy."""
    export_model(
        str(folder),
        target,
        pooler=None,
        force_pooler=False,
        backends=(),
        quantize=False,
        force=False,
        progress=SILENT,
    )
    return target


@pytest.mark.parametrize("name", EQUAL)
def test_vectors_and_those_of_a_copy_equal_sentence_transformers(name, tiny_model_dir, tmp_path):
    parts, more, edit = EQUAL[name]
    if edit == "Pooling first":
        parts, edit = (MEAN, *parts), None
    folder = listed(tiny_model_dir, *parts, **more)
    if edit is not None:
        edit(folder)
    expected = by_sentence_transformers(folder)
    require_equal(vectors(folder), expected)
    require_equal(vectors(folder, encode_only=True), expected)
    copy = copied(folder, tmp_path / "copy")
    require_equal(vectors(copy), expected)
    require_equal(by_sentence_transformers(copy), expected)
    digests = {ReadyEncoder(load_encoder(each, device="cpu")).digest for each in (folder, copy)}
    assert len(digests) == 1


FOR_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
NAMES = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
REFUSED = {
    "two Dense": ((MEAN, dense(32, 32), dense(32, 32, seed=9)), {}, "Dense, Dense in this order"),
    "Normalize before Dense": (
        (MEAN, NORMALIZE, dense(32, 8)),
        {},
        "Normalize, Dense in this order",
    ),
    "Dense before Pooling": ((dense(32, 32), MEAN), {}, "Dense, Pooling in this order"),
    "Dense over tokens": (
        (MEAN, dense(32, 32, **NAMES)),
        {},
        "module_input_name 'token_embeddings'",
    ),
    "Normalize over tokens": (
        (MEAN, ("Normalize", NAMES)),
        {},
        "module_input_name 'token_embeddings'",
    ),
    "residual": ((MEAN, dense(32, 32, use_residual=True)), {}, "use_residual"),
    "GELU": (
        (MEAN, dense(32, 32, "torch.nn.modules.activation.GELU")),
        {},
        "torch.nn.modules.activation.GELU",
    ),
    "max": ((("Pooling", {"pooling_mode_max_tokens": True}),), {}, "pooling max"),
    "two modes": ((("Pooling", {"pooling_mode": ["cls", "mean"]}),), {}, "pooling cls and mean"),
    "LSTM": ((("LSTM", {}), MEAN), {}, "sentence_transformers.models.LSTM"),
    "foreign class": ((("acme.Pooling", {}),), {}, "module acme.Pooling"),
    "namesake": (
        (("sentence_transformers_acme.Pooling", {}),),
        {},
        "sentence_transformers_acme.Pooling",
    ),
    "weights of layers": (
        (
            (
                "WeightedLayerPooling",
                {"num_hidden_layers": 2, "layer_start": 0},
                {"layer_weights": torch.tensor([0.2, 1, 3])},
            ),
            MEAN,
        ),
        {},
        "WeightedLayerPooling",
    ),
    "arguments": (
        (MEAN,),
        {"transformer": {"tokenizer_args": {"model_max_length": 16}}},
        "tokenizer_args sets",
    ),
    "processing": (
        (MEAN,),
        {"transformer": {"processing_kwargs": {"text": {"max_length": 9}}}},
        "processing_kwargs sets text",
    ),
    "another output": (
        (MEAN,),
        {
            "transformer": {
                "modality_config": {
                    "text": {"method": "forward", "method_output_name": "pooler_output"}
                }
            }
        },
        "modality_config",
    ),
    "messages of a chat": (
        (MEAN,),
        {"transformer": {"modality_config": {"text": FOR_TEXT, "message": FOR_TEXT}}},
        "modality_config has message",
    ),
    "task": (
        (MEAN,),
        {"transformer": {"transformer_task": "fill-mask"}},
        "transformer_task 'fill-mask'",
    ),
    "unknown entry": ((MEAN,), {"transformer": {"acme": 1}}, "acme is not supported"),
    "kind of model": (
        (MEAN,),
        {"model_type": "MultiVectorEncoder"},
        "model_type 'MultiVectorEncoder'",
    ),
    "unknown prompt": (
        (MEAN,),
        {"prompts": {"q": "q"}, "default_prompt_name": "p"},
        "default_prompt_name 'p'",
    ),
    "negative width": ((MEAN,), {"truncate_dim": -3}, "truncate_dim -3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name_and_blames_no_file(name, tiny_model_dir):
    parts, more, told = REFUSED[name]
    with pytest.raises(CheckpointError) as refused:
        load_encoder(listed(tiny_model_dir, *parts, **more), device="cpu")
    assert told in refused.value.message
    assert "again" not in refused.value.hint


def test_folders_without_a_transformer_are_refused_by_their_module(tmp_path):
    row = {"idx": 0, "name": "0", "path": "", "type": f"{OLD}StaticEmbedding"}
    (tmp_path / "modules.json").write_text(json.dumps([row]))
    with pytest.raises(
        CheckpointError,
        match=r"module sentence_transformers.models.StaticEmbedding is not supported",
    ):
        load_encoder(tmp_path, device="cpu")


def test_an_activation_of_another_package_is_tanh_and_told(tiny_model_dir):
    folder = listed(tiny_model_dir, CLS, dense(32, 32, "acme.layers.Identity"))
    progress = SilentProgress()
    found = encode(load_encoder(folder, device="cpu", progress=progress), TEXTS)
    require_equal(found, by_sentence_transformers(folder))
    assert any("acme.layers.Identity" in warning for warning in progress.warnings)


def test_unknown_entries_that_others_ignore_are_told(tiny_model_dir):
    progress = SilentProgress()
    load_encoder(listed(tiny_model_dir, MEAN, acme=1), device="cpu", progress=progress)
    assert [warning.partition(": ")[2] for warning in progress.warnings] == [
        "acme is not known and has no effect"
    ]


CHAT_TEMPLATE = "{% for m in messages %}so: {{ m.content }}{% endfor %}"


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize(
    "place", ["chat_template.jinja", "tokenizer_config.json", "additional_chat_templates/a.jinja"]
)
def test_a_chat_template_is_refused_unless_modules_say_what_is_read(
    tiny_model_dir, place, encode_only
):
    expected = vectors(tiny_model_dir, pooler="avg")
    path = tiny_model_dir / place
    if path.suffix == ".json":
        change(path, chat_template=CHAT_TEMPLATE)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(CHAT_TEMPLATE)
    with pytest.raises(CheckpointError, match="a chat template is not supported") as refused:
        vectors(tiny_model_dir, pooler="avg", encode_only=encode_only)
    assert refused.value.message.startswith(str(path))
    # Modules of an earlier sentence-transformers read plain texts.
    folder = listed(tiny_model_dir, MEAN)
    found = vectors(folder, encode_only=encode_only)
    require_equal(found, expected)
    require_equal(found, by_sentence_transformers(folder))


def test_dropout_of_byte_pairs_is_turned_off_and_told(tiny_model_dir, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    pairs = Tokenizer(models.BPE(unk_token="[UNK]"))
    pairs.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=[*special.values()])
    pairs.train_from_iterator(SENTENCES, trainer)
    PreTrainedTokenizerFast(tokenizer_object=pairs, **special).save_pretrained(tiny_model_dir)
    folder = listed(tiny_model_dir, MEAN)
    expected = vectors(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    change(folder / "tokenizer.json", model=model | {"dropout": 0.5})
    for encode_only in (False, True):
        progress = Told()
        found = vectors(folder, encode_only=encode_only, progress=progress)
        np.testing.assert_array_equal(found, expected)
        assert progress.lines == [
            f"{folder}: dropout 0.5 in its tokenizer.json is turned off, so that equal texts have "
            "equal sub-words"
        ]
    copy = copied(folder, tmp_path / "copy")
    np.testing.assert_array_equal(vectors(copy), expected)


def test_code_of_a_folder_is_named_and_not_run(tiny_model_dir):
    change(tiny_model_dir / "config.json", model_type="acme", auto_map={"AutoModel": "acme.Acme"})
    (tiny_model_dir / "acme.py").write_text("raise SystemExit('code was run')")
    with pytest.raises(
        CheckpointError, match=r"model_type 'acme' needs code from the folder \(auto_map\)"
    ):
        load_encoder(tiny_model_dir, device="cpu")


def test_more_sub_words_than_embeddings_are_refused_at_loading(tiny_model_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    n_known = len(tokenizer)
    tokenizer.add_tokens(["newtoken"])
    tokenizer.save_pretrained(tiny_model_dir)
    with pytest.raises(
        CheckpointError, match=rf"knows {n_known + 1} sub-words, .* embeddings for {n_known}"
    ):
        load_encoder(tiny_model_dir, device="cpu")


def exchange_words(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "edit",
    [
        exchange_words,
        keep_capitals,
        settings_of_tokenizer(truncation_side="left"),
        settings_of_tokenizer(model_max_length=30),
        lambda folder: change(folder / "config.json", hidden_act="relu"),
        lambda folder: change(folder / "config.json", layer_norm_eps=0.5),
        lambda folder: change(folder / "config.json", num_attention_heads=2),
        lambda folder: listed(folder, MEAN, transformer={"do_lower_case": True}),
        lambda folder: listed(folder, MEAN, truncate_dim=8),
    ],
)
@pytest.mark.parametrize("encode_only", [False, True])
def test_another_tokenizer_or_configuration_is_another_digest(
    edit, encode_only, tiny_model_dir, tmp_path
):
    other = shutil.copytree(tiny_model_dir, tmp_path / "other")
    edit(other)
    digests = [
        ReadyEncoder(
            load_encoder(folder, pooler="avg", device="cpu", encode_only=encode_only)
        ).digest
        for folder in (tiny_model_dir, other)
    ]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("kind", ["convbert", "fnet", "nystromformer", "yoso", "mobilebert"])
def test_a_vector_does_not_depend_on_its_batch(kind, tmp_path):
    folder = backbone(tmp_path / kind, kind)
    encoder = load_encoder(folder, pooler="avg", device="cpu")
    together = encode(encoder, TEXTS)
    alone = np.concatenate([encode(encoder, [text]) for text in TEXTS])
    require_equal(together, alone)
    assert encoder.reads_padding


def backbone(folder, kind, **more):
    """Write a random model of an architecture beside the tokenizer of the tiny model."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    build_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    sizes |= {
        "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
        "convbert": {"embedding_size": 32, "conv_kernel_size": 3, "head_ratio": 2},
        "nystromformer": {"segment_means_seq_len": 64, "num_landmarks": 64},
        "squeezebert": {"embedding_size": 32},
        "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        "luke": {"entity_vocab_size": 4, "entity_emb_size": 16},
        "longformer": {"attention_window": 8},
        "albert": {"embedding_size": 16},
    }.get(kind, {})
    positions = {} if kind == "xlnet" else {"max_position_embeddings": 66}
    torch.manual_seed(0)
    settings = {**sizes, **positions, "vocab_size": len(tokenizer), "pad_token_id": 0, **more}
    model = AutoModel.from_config(AutoConfig.for_model(kind, **settings))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind", ["data2vec-text", "roberta-prelayernorm", "luke", "ibert", "xlnet"]
)
def test_long_texts_are_read_up_to_the_positions(kind, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    folder = backbone(tmp_path / kind, kind, pad_token_id=0, type_vocab_size=1)
    change(folder / "tokenizer_config.json", model_max_length=...)
    encoder = load_encoder(folder, pooler="avg", device="cpu")
    # Positions of this family begin behind that of the padding token, here 0.
    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    limit = {} if kind == "xlnet" else {"truncation": True, "max_length": 65}
    with torch.inference_mode():
        states = model(**tokenizer(TEXTS[-1], return_tensors="pt", **limit)).last_hidden_state[0]
    require_equal(encode(encoder, TEXTS[-1:]), states.mean(0, keepdim=True).numpy())


def test_an_architecture_that_calls_its_pooler_is_read(tmp_path):
    folder = backbone(tmp_path / "squeezebert", "squeezebert")
    assert vectors(folder, pooler="avg").shape == (len(TEXTS), 32)


def test_a_copy_of_a_reader_of_pages_is_opened_as_a_reader_of_text(tmp_path):
    """The original wants a feature extractor of MarkupLM that its folder does not have."""
    folder = backbone(tmp_path / "model", "markuplm", max_depth=4, xpath_unit_hidden_size=4)
    encoder = load_encoder(folder, pooler="avg", device="cpu")
    save_encoder(encoder, tmp_path / "copy")
    require_equal(encode(encoder, TEXTS), by_sentence_transformers(tmp_path / "copy"))


def test_an_architecture_that_needs_pictures_is_refused(tiny_model_dir):
    from transformers import LxmertConfig, LxmertModel

    layers = {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 8}
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    model = LxmertModel(LxmertConfig(vocab_size=120, **layers, **sizes))
    (tiny_model_dir / "model.safetensors").unlink()
    model.save_pretrained(tiny_model_dir)
    with pytest.raises(
        CheckpointError, match=r"lxmert gives no states for .* text alone"
    ) as caught:
        vectors(tiny_model_dir, pooler="avg")
    assert caught.value.hint.startswith("take a text encoder")


def test_a_tokenizer_names_the_package_that_it_needs(tiny_model_dir, monkeypatch):
    """Japanese words are cut by fugashi, with a dictionary in a package of its own."""
    monkeypatch.setitem(sys.modules, "fugashi", None)
    (tiny_model_dir / "tokenizer.json").unlink()
    (tiny_model_dir / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    cut = {"word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_dic": "unidic_lite"}}
    settings = {"tokenizer_class": "BertJapaneseTokenizer", **cut}
    (tiny_model_dir / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="needs a package that is not installed") as caught:
        load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    assert caught.value.hint in ("pip install fugashi", "pip install unidic_lite")


@pytest.mark.parametrize("kind", ["albert", "longformer", "luke"])
def test_what_no_vector_reads_is_frozen(kind, tmp_path):
    encoder = load_encoder(backbone(tmp_path / kind, kind), pooler="avg", device="cpu")
    encoder.freeze_unread()
    trained = [
        (name, weight) for name, weight in encoder.named_parameters() if weight.requires_grad
    ]
    assert len(trained) < len(list(encoder.parameters()))
    encoder.train()
    encoder.embed_rows([[5, 6, 7]]).sum().backward()
    assert all(weight.grad is not None for _, weight in trained)


def test_training_goes_on_from_the_head_of_the_original_code(tiny_model_dir, tmp_path):
    from simcse_cli.settings.config import TrainConfig
    from simcse_cli.training.setup import build_encoder

    tensors = load_file(tiny_model_dir / "model.safetensors")
    torch.manual_seed(3)
    tensors |= {"mlp.dense.weight": torch.randn(32, 32), "mlp.dense.bias": torch.randn(32)}
    save_file(tensors, tiny_model_dir / "model.safetensors", metadata={"format": "pt"})
    encoder = build_encoder(TrainConfig(model=str(tiny_model_dir), pooler="cls"), SILENT)
    assert torch.equal(encoder.head.dense.weight, tensors["mlp.dense.weight"])


def without_weights(folder):
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize("wrapper", ["module.", "model.", "0.auto_model.", "module.bert."])
@pytest.mark.parametrize("is_safe", [False, True])
def test_weights_saved_from_inside_another_module_are_read(
    tiny_model_dir, wrapper, is_safe, encode_only
):
    expected = encode(load_encoder(tiny_model_dir, pooler="cls", device="cpu"), TEXTS)
    path = tiny_model_dir / "model.safetensors"
    tensors = {wrapper + name: tensor for name, tensor in load_file(path).items()}
    path.unlink()
    if is_safe:
        save_file(tensors, path, metadata={"format": "pt"})
    else:
        torch.save(tensors, tiny_model_dir / "pytorch_model.bin")
    found = load_encoder(tiny_model_dir, pooler="cls", device="cpu", encode_only=encode_only)
    np.testing.assert_allclose(encode(found, TEXTS), expected, atol=1e-6)


@pytest.mark.parametrize("encode_only", [False, True])
@pytest.mark.parametrize("pooler", [None, "avg"])
def test_a_module_behind_the_transformer_without_a_list_is_named(
    tiny_model_dir, pooler, encode_only
):
    path = tiny_model_dir / "model.safetensors"
    tensors = {f"0.auto_model.{name}": tensor for name, tensor in load_file(path).items()}
    tensors |= {"2.linear.weight": torch.eye(32), "2.linear.bias": torch.ones(32)}
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"the weights 2\.linear\.bias .* modules\.json"):
        load_encoder(tiny_model_dir, pooler=pooler, device="cpu", encode_only=encode_only)


def test_the_head_of_a_wrapped_original_checkpoint_is_seen(tiny_model_dir):
    path = tiny_model_dir / "model.safetensors"
    tensors = {f"module.bert.{name}": tensor for name, tensor in load_file(path).items()}
    tensors |= {"module.mlp.dense.weight": torch.eye(32), "module.mlp.dense.bias": torch.ones(32)}
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="does not say how it was trained"):
        load_encoder(tiny_model_dir, device="cpu")
    head = load_encoder(tiny_model_dir, pooler="cls", device="cpu").head
    assert head.dense.weight.equal(torch.eye(32))


def test_weights_within_an_entry_are_named_and_the_fix_works(tiny_model_dir):
    path = tiny_model_dir / "pytorch_model.bin"
    torch.save({"state_dict": load_file(tiny_model_dir / "model.safetensors")}, path)
    without_weights(tiny_model_dir)
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin holds .* state_dict") as caught:
        load_encoder(tiny_model_dir, device="cpu")
    fix = caught.value.hint.partition(": python")[2]
    subprocess.run(f"{shlex.quote(sys.executable)}{fix}", shell=True, check=True)
    load_encoder(tiny_model_dir, device="cpu")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tf_model.h5", "take the same model"),
        ("flax_model.msgpack", "take the same model"),
        ("bert.gguf", "take the same model"),
        ("onnx/model.onnx", "take the same model"),
        ("model.fp16.safetensors", "rename the file: mv "),
        ("checkpoint-500/model.safetensors", "name the folder of one checkpoint: --model "),
    ],
)
def test_weights_that_are_not_read_are_named(tiny_model_dir, name, hint):
    (tiny_model_dir / name).parent.mkdir(exist_ok=True)
    (without_weights(tiny_model_dir) / name).touch()
    found = name.removesuffix("/model.safetensors")
    with pytest.raises(CheckpointError, match=f"holds {found} but no weights that are") as caught:
        load_encoder(tiny_model_dir, device="cpu")
    assert caught.value.hint.startswith(hint)


def test_a_folder_without_weights_and_a_pointer_are_named(tiny_model_dir):
    with pytest.raises(CheckpointError, match=r"holds no weights, need model\.safetensors"):
        load_encoder(without_weights(tiny_model_dir), device="cpu")
    path = tiny_model_dir / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError, match="pointer of Git LFS") as caught:
        load_encoder(tiny_model_dir, device="cpu")
    assert caught.value.hint == f"fetch them: git -C {tiny_model_dir} lfs pull"


def test_what_sentence_transformers_refuses_too_is_to_be_corrected(tiny_model_dir):
    folder = listed(tiny_model_dir, MEAN)
    place = folder / "1_Pooling" / "config.json"
    change(place, pooling_mode="average")
    with pytest.raises(CheckpointError, match="pooling average is not supported") as caught:
        load_encoder(folder, device="cpu")
    assert "correct the file" in caught.value.hint
    change(place, pooling_mode="max")  # which it computes
    with pytest.raises(CheckpointError, match="pooling max is not supported") as caught:
        load_encoder(folder, device="cpu")
    assert "encode with sentence-transformers" in caught.value.hint
    change(place, pooling_mode="mean", foo=1)
    with pytest.raises(CheckpointError, match="foo is not supported") as caught:
        load_encoder(folder, device="cpu")
    assert "remove it from the file" in caught.value.hint


def test_a_head_of_another_width_is_named(tiny_model_dir):
    folder = listed(tiny_model_dir, MEAN, dense(31, 4))
    with pytest.raises(CheckpointError, match=r"2_Dense cannot .* width 31.* width 32") as caught:
        load_encoder(folder, device="cpu")
    assert caught.value.hint.startswith("head and transformer are of different models")


@pytest.mark.parametrize("force", [False, True])
def test_a_listed_head_without_weights_is_named(tiny_model_dir, force):
    folder = listed(tiny_model_dir, MEAN, dense(32, 4))
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"2_Dense holds no weights, need model\.safetensors"
    ) as caught:
        load_encoder(folder, device="cpu", force_pooler=force)
    assert caught.value.hint == "copy or download the model again, with all its files"
    for pooler in ("cls_before_pooler", "cls"):
        with pytest.raises(CheckpointError):
            load_encoder(folder, pooler=pooler, device="cpu")


def test_a_recorded_head_without_weights_is_no_reason_for_another_pooler(tiny_model_dir):
    (tiny_model_dir / "simcse.json").write_text('{"pooler": "cls", "head_use": "kept"}')
    path = tiny_model_dir / "model.safetensors"
    tensors = {name: w for name, w in load_file(path).items() if not name.startswith("pooler.")}
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="holds no weights for the head") as caught:
        load_encoder(tiny_model_dir, device="cpu")
    assert caught.value.hint.startswith("copy or download the model again")
    assert "--pooler " not in caught.value.hint


def test_entries_without_effect_are_told(tiny_model_dir):
    folder = listed(tiny_model_dir, MEAN, similarity_fn_name="foo")
    change(folder / "1_Pooling" / "config.json", embedding_dimension=768)
    rows = json.loads((folder / "modules.json").read_text())
    rows[0]["bar"] = 1
    (folder / "modules.json").write_text(json.dumps(rows))
    progress = SilentProgress()
    load_encoder(folder, device="cpu", progress=progress)
    told = " / ".join(progress.warnings)
    assert f"{folder}/modules.json: bar is not known and has no effect" in told
    assert "similarity_fn_name 'foo' is not known and has no effect; there are cosine, dot" in told
    assert "1_Pooling/config.json: embedding_dimension 768 has no effect; the transf" in told
    assert len(progress.warnings) == 3


def test_entries_of_sentence_transformers_itself_are_not_told(tiny_model_dir):
    folder = listed(tiny_model_dir, MEAN, NORMALIZE, similarity_fn_name="manhattan")
    rows = json.loads((folder / "modules.json").read_text())
    rows[0]["kwargs"] = ["task"]
    (folder / "modules.json").write_text(json.dumps(rows))
    progress = SilentProgress()
    load_encoder(folder, device="cpu", progress=progress)
    assert progress.warnings == []
