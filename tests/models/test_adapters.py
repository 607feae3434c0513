"""LoRA: the merged weights, the packed pass, adapter folders, and what is refused."""

import copy
import json
from unittest.mock import patch

import numpy as np
import pytest
import torch
from huggingface_hub import hf_hub_download
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from helpers import SENTENCES, build_tiny_model
from simcse_cli import load
from simcse_cli.errors import CheckpointError, MissingExtraError
from simcse_cli.models.adapters import add_lora, merged_tensors, plain_weights
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.export import save_encoder, verify_export
from simcse_cli.models.padding import pad
from simcse_cli.models.record import ModelRecord
from simcse_cli.models.resolve import resolve_model
from simcse_cli.packed.backbone import PackedBackbone, packed_backbone
from simcse_cli.packed.compiled_operators import can_compile
from simcse_cli.settings.choices import HeadUse, Pooler

peft = pytest.importorskip("peft")

ROWS = [np.random.default_rng(i).integers(5, 60, 4 + i % 37).tolist() for i in range(80)]


def with_lora(backbone, *, rank=4, alpha=6.0, base="base"):
    """Put LoRA into a model, B drawn at random so that it counts."""
    torch.manual_seed(1)
    add_lora(backbone, rank, alpha, base=base)
    for name, parameter in backbone.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return backbone


@pytest.fixture
def adapted(tiny_model_dir):
    """Return the tiny encoder with LoRA in it."""
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    with_lora(encoder.backbone, base=str(tiny_model_dir))
    return encoder


@pytest.fixture
def adapter_dir(adapted, tmp_path):
    save_encoder(adapted, tmp_path / "adapter", keep_adapter=True)
    return tmp_path / "adapter"


def test_merged_weights_are_w_plus_alpha_over_r_times_b_a():
    generator = np.random.default_rng(0)
    weight, up, down = (generator.normal(size=shape) for shape in ((3, 5), (3, 2), (2, 5)))
    expected = [
        [weight[i, j] + 6 / 2 * sum(up[i, k] * down[k, j] for k in range(2)) for j in range(5)]
        for i in range(3)
    ]
    tensors = {
        "layer.query.base_layer.weight": torch.from_numpy(weight),
        "layer.query.base_layer.bias": torch.ones(3),
        "layer.query.lora_A.default.weight": torch.from_numpy(down),
        "layer.query.lora_B.default.weight": torch.from_numpy(up),
        "norm.weight": torch.zeros(2),
    }
    merged = merged_tensors(tensors, 6 / 2)
    assert list(merged) == ["layer.query.weight", "layer.query.bias", "norm.weight"]
    np.testing.assert_allclose(merged["layer.query.weight"].numpy(), expected, rtol=1e-14)
    assert merged["norm.weight"] is tensors["norm.weight"]


def test_every_linear_layer_has_lora_and_nothing_else_learns(adapted):
    names = [
        name for name, parameter in adapted.backbone.named_parameters() if parameter.requires_grad
    ]
    linears = [n for n, m in adapted.backbone.named_modules() if hasattr(m, "lora_A")]
    assert len(linears) == 2 * 6
    assert sorted(names) == sorted(
        f"{n}.lora_{side}.default.weight" for n in linears for side in "AB"
    )


def test_our_merge_is_that_of_peft(adapted, tiny_model_dir):
    ours = plain_weights(adapted.backbone)
    backbone = copy.deepcopy(adapted.backbone)
    for name, module in list(backbone.named_modules()):
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.merge()
            backbone.set_submodule(name, module.get_base_layer())
    plain = {name: tensor for name, tensor in backbone.state_dict().items() if ".lora_" not in name}
    assert plain.keys() == ours.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=1e-7)
    assert plain_weights(AutoModel.from_pretrained(tiny_model_dir)) is None


def padded_states(model, rows):
    """Return the last states of all tokens, sentence by sentence, by the model's own padded pass."""
    ids, mask = pad(rows, 0)
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return [states[i, : len(row)] for i, row in enumerate(rows)]


def gradients(model):
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize(("n_rows", "nested"), [(6, False), (6, True), (len(ROWS), False)])
@pytest.mark.parametrize("architecture", ["bert", "distilbert", "mpnet"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_packed_pass_sees_lora_in_value_and_gradient(
    tmp_path, architecture, n_rows, nested, first_only
):
    folder = build_tiny_model(tmp_path / "model", model_type=architecture)
    model = with_lora(AutoModel.from_pretrained(folder, dtype=torch.float64)).double().eval()
    rows, generator = ROWS[:n_rows], torch.Generator().manual_seed(2)
    expected = torch.cat([s[:1] if first_only else s for s in padded_states(model, rows)])
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (expected * weights).sum().backward()
    wanted = gradients(model)

    packed = packed_backbone(model, nested=nested)
    tokens = packed.pack(rows, multiple=8)
    is_split = packed.choose_path(tokens, torch.float64).halves is not None
    assert is_split == (n_rows > 6 and architecture != "mpnet" and not nested)
    if first_only:
        found = packed.first_token_states(tokens)[tokens.order.argsort()]
    else:
        (states,) = packed.hidden_states(tokens)
        by_row = [row for group in tokens.rows(states) for row in group]
        found = torch.cat([by_row[i] for i in tokens.order.argsort().tolist()])
    (found * weights).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    given = gradients(model)
    assert given.keys() == wanted.keys()
    assert all("lora" in name for name in given)
    for name, gradient in wanted.items():
        torch.testing.assert_close(given[name], gradient, rtol=1e-7, atol=1e-9)


def test_compiled_kernels_see_lora(tmp_path):
    pytest.importorskip("numba")
    model = with_lora(
        AutoModel.from_pretrained(build_tiny_model(tmp_path / "model", width=64))
    ).eval()
    found = []
    for use_kernels in (False, True):
        packed = packed_backbone(model)
        assert can_compile(packed.parts, torch.float32)
        with patch.object(PackedBackbone, "compiles", return_value=use_kernels):
            (states,) = packed.hidden_states(packed.pack(ROWS, multiple=8))
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(2))
        (states * weights)[: sum(map(len, ROWS))].sum().backward()
        found.append((states.detach(), gradients(model)))
    (states, wanted), (compiled, given) = found
    torch.testing.assert_close(compiled, states, rtol=1e-4, atol=1e-4)
    for name, gradient in wanted.items():
        torch.testing.assert_close(
            given[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max())
        )


def test_inference_follows_a_step_of_the_adapter(adapted):
    def expected():
        with torch.no_grad():
            return torch.stack([s.mean(0) for s in padded_states(adapted.backbone, rows)]).numpy()

    rows = adapted.tokenize(SENTENCES[:5])
    np.testing.assert_allclose(encode(adapted, SENTENCES[:5]), expected(), atol=1e-5)
    parameters = [p for p in adapted.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    adapted.train()
    torch.optim.AdamW(parameters, lr=0.1, fused=True).step()
    adapted.eval()
    np.testing.assert_allclose(encode(adapted, SENTENCES[:5]), expected(), atol=1e-5)


def test_other_adapters_have_no_packed_form(tiny_model_dir):
    model = AutoModel.from_pretrained(tiny_model_dir)
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["query"], use_dora=True), model)
    assert packed_backbone(model) is None


def test_an_adapter_folder_and_the_merged_model_give_equal_vectors(adapted, adapter_dir, tmp_path):
    save_encoder(adapted, tmp_path / "merged")
    expected = encode(adapted, SENTENCES)
    for folder in (adapter_dir, tmp_path / "merged"):
        np.testing.assert_allclose(
            encode(load_encoder(folder, device="cpu"), SENTENCES), expected, atol=1e-5
        )
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert not (adapter_dir / "model.safetensors").exists()
    n_bytes = sum(
        tensor.nbytes for tensor in load_file(adapter_dir / "adapter_model.safetensors").values()
    )
    assert n_bytes == 4 * sum(p.numel() for p in adapted.backbone.parameters() if p.requires_grad)
    assert verify_export(adapter_dir).keys() == {"auto_model", "sentence_transformers"}


def test_an_adapter_keeps_its_head(adapted, tmp_path):
    from simcse_cli.models.heads import MlpHead

    record = ModelRecord(Pooler.CLS, HeadUse.KEPT, max_length=64)
    encoder = SentenceEncoder(adapted.backbone, adapted.tokenizer, record, head=MlpHead(32)).eval()
    save_encoder(encoder, tmp_path / "adapter", keep_adapter=True)
    found = load_encoder(tmp_path / "adapter", device="cpu")
    np.testing.assert_allclose(encode(found, SENTENCES), encode(encoder, SENTENCES), atol=1e-5)
    differences = verify_export(tmp_path / "adapter")
    assert max(filter(None, differences.values())) < 1e-5


def test_adapter_folders_load_wherever_a_model_does(
    invoke, adapter_dir, adapted, sts_folder, tmp_path
):
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES) + "\n")
    outcome = invoke(
        "encode", tmp_path / "in.txt", "-o", tmp_path / "v.npy", "--model", adapter_dir
    )
    assert outcome.exit_code == 0, outcome.stderr
    expected = encode(adapted, SENTENCES)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)
    np.testing.assert_allclose(load(str(adapter_dir)).encode(list(SENTENCES)), expected, atol=1e-5)
    outcome = invoke(
        "eval",
        "sts",
        "--tasks",
        "STSBenchmark",
        "--data-dir",
        sts_folder,
        "-m",
        adapter_dir,
        "-f",
        "json",
    )
    assert json.loads(outcome.stdout)["pooler"] == "avg"


def test_the_files_of_an_adapter_are_the_same_every_time(adapted, adapter_dir, tmp_path):
    save_encoder(adapted, tmp_path / "again", keep_adapter=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (adapter_dir / name).read_bytes()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
def test_an_adapter_by_peft_itself_takes_the_pooler_of_its_base(adapted, tmp_path):
    save_encoder(adapted, tmp_path / "base")
    model = AutoModel.from_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query", "value"]))
    with_drawn_b = {
        n: torch.full_like(p, 0.05) for n, p in wrapped.named_parameters() if "lora_B" in n
    }
    wrapped.load_state_dict(with_drawn_b, strict=False)
    wrapped.save_pretrained(tmp_path / "foreign")
    found = load_encoder(tmp_path / "foreign", device="cpu")
    assert found.pooler == "avg"
    rows = found.tokenize(SENTENCES[:4])
    with torch.no_grad():
        expected = torch.stack([states.mean(0) for states in padded_states(wrapped.eval(), rows)])
    np.testing.assert_allclose(encode(found, SENTENCES[:4]), expected.numpy(), atol=1e-5)
    assert all(parameter.requires_grad for parameter in found.parameters())


def drawn_adapter(kind, base, folder, **settings):
    """Save an adapter of a model of class ``kind`` by PEFT, all its weights drawn; return the model."""
    model = peft.get_peft_model(kind.from_pretrained(base), peft.LoraConfig(r=4, **settings))
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": "all-linear"},
        {"target_modules": ["query", "dense"]},
        {"target_modules": ["query"], "bias": "all"},
        {"target_modules": ["query"], "modules_to_save": ["pooler"]},
    ],
)
def test_an_adapter_may_change_the_architectures_own_pooler(tiny_model_dir, tmp_path, settings):
    model = drawn_adapter(AutoModel, tiny_model_dir, tmp_path / "adapter", **settings)
    for pooler in ("avg", "cls"):
        found = load_encoder(tmp_path / "adapter", pooler=pooler, device="cpu")
        expected = []
        for row in found.tokenize(SENTENCES[:4]):
            with torch.no_grad():
                output = model(input_ids=torch.tensor([row]))
            mean = output.last_hidden_state[0].mean(0)
            expected.append(mean if pooler == "avg" else output.pooler_output[0])
        np.testing.assert_allclose(
            encode(found, SENTENCES[:4]), torch.stack(expected).numpy(), atol=1e-5
        )


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
@pytest.mark.parametrize("kind", [AutoModelForMaskedLM, AutoModelForSequenceClassification])
def test_an_adapter_of_a_model_with_a_head_loads_without_the_head(tiny_model_dir, tmp_path, kind):
    task = "SEQ_CLS" if kind is AutoModelForSequenceClassification else None
    model = drawn_adapter(
        kind,
        tiny_model_dir,
        tmp_path / "adapter",
        target_modules=["query", "dense"],
        task_type=task,
    )
    found = load_encoder(tmp_path / "adapter", device="cpu")
    expected = []
    for row in found.tokenize(SENTENCES[:4]):
        with torch.no_grad():
            output = model(input_ids=torch.tensor([row]), output_hidden_states=True)
        expected.append(output.hidden_states[-1][0].mean(0))
    np.testing.assert_allclose(
        encode(found, SENTENCES[:4]), torch.stack(expected).numpy(), atol=1e-5
    )
    assert not any(name.startswith("bert.") for name in found.backbone.state_dict())


def edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_base_that_is_gone_is_named(adapter_dir, tmp_path):
    edit(adapter_dir / "adapter_config.json", base_model_name_or_path=str(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match=r"is an adapter of .*gone.*does not exist") as error:
        load_encoder(adapter_dir)
    assert "base_model_name_or_path" in error.value.hint


def test_a_base_that_nobody_has_is_not_asked_of_the_network(adapter_dir):
    edit(adapter_dir / "adapter_config.json", base_model_name_or_path="nobody/nothing")
    with pytest.raises(
        CheckpointError, match=r"is an adapter of nobody/nothing: .*not in the local cache"
    ):
        load_encoder(adapter_dir)


def test_an_adapter_of_an_adapter_is_refused(adapter_dir, tmp_path):
    import shutil

    shutil.copytree(adapter_dir, tmp_path / "second")
    edit(tmp_path / "second" / "adapter_config.json", base_model_name_or_path=str(adapter_dir))
    with pytest.raises(CheckpointError, match="which is an adapter too"):
        load_encoder(tmp_path / "second")


def other_model(folder, tmp_path):
    base = build_tiny_model(tmp_path / "wide", width=64)
    edit(folder / "adapter_config.json", base_model_name_or_path=str(base))


def damaged_weights(folder, _):
    (folder / "adapter_model.safetensors").write_bytes(b"no tensors")


def no_weights(folder, _):
    (folder / "adapter_model.safetensors").unlink()


def strange_weights(folder, _):
    path = folder / "adapter_model.safetensors"
    save_file(
        load_file(path) | {"base_model.model.encoder.layer.9.x.lora_A.weight": torch.ones(2)}, path
    )


def missing_weights(folder, _):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.popitem()
    save_file(tensors, path)


def not_finite(folder, _):
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(path).items()}, path)


def no_base(folder, _):
    edit(folder / "adapter_config.json", base_model_name_or_path=None)


def repeated_layers(folder, _):
    edit(folder / "adapter_config.json", layer_replication=[[0, 2]] * 100_000)


def huge_rank(folder, _):
    edit(folder / "adapter_config.json", r=10**9)


def prompts(folder, _):
    edit(folder / "adapter_config.json", peft_type="PROMPT_TUNING", num_virtual_tokens=4)


@pytest.mark.parametrize(
    "damage",
    [
        other_model,
        damaged_weights,
        no_weights,
        strange_weights,
        missing_weights,
        not_finite,
        no_base,
        repeated_layers,
        huge_rank,
        prompts,
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(adapter_dir, tmp_path, damage):
    damage(adapter_dir, tmp_path)
    with pytest.raises(CheckpointError, match="adapter"):
        load_encoder(adapter_dir, device="cpu")


def test_without_peft_the_extra_is_named(adapter_dir, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(
        MissingExtraError, match=r"LoRA adapter .* pip install 'simcse-cli\[peft\]'"
    ):
        load_encoder(adapter_dir)


def test_a_base_with_an_endless_name_is_refused(adapter_dir):
    edit(adapter_dir / "adapter_config.json", base_model_name_or_path="a" * 5000)
    with pytest.raises(
        CheckpointError, match=r"adapter cannot be read .*File name too long"
    ) as error:
        load_encoder(adapter_dir)
    assert len(error.value.message) < 500


def test_the_pooler_of_the_base_has_no_adapter_where_layers_are_given_by_patterns(
    tiny_encoder, tmp_path, monkeypatch
):
    monkeypatch.setattr("peft.tuners.tuners_utils.MIN_TARGET_MODULES_FOR_OPTIMIZATION", 2)
    add_lora(tiny_encoder.backbone, 4, 8, base=str(tiny_encoder.folder))
    save_encoder(tiny_encoder, tmp_path / "adapter", keep_adapter=True)
    assert (
        "dense"
        in json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    )
    assert max(filter(None, verify_export(tmp_path / "adapter").values())) < 1e-5


def of_another_width(folder):
    build_tiny_model(folder, width=64)


def with_other_layer_names(folder):
    build_tiny_model(folder, model_type="distilbert")


def with_fewer_layers(folder):
    build_tiny_model(folder)
    config = AutoConfig.from_pretrained(folder, num_hidden_layers=1)
    AutoModel.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("write", "misfit"),
    [
        (of_another_width, r"\S*layer\.0\.\S*lora_A\.weight with 32 inputs, need 64"),
        (with_other_layer_names, r"\S*encoder\.layer\.0\.\S*weight, of no layer there"),
        (with_fewer_layers, r"\S*encoder\.layer\.1\.\S*weight, of no layer there"),
    ],
)
def test_an_adapter_of_another_base_is_named_with_base_and_weight(
    adapter_dir, tmp_path, write, misfit
):
    base = tmp_path / "other"
    write(base)
    edit(adapter_dir / "adapter_config.json", base_model_name_or_path=str(base))
    expected = rf"adapter: the weights .* do not fit its base model {base} \(first: {misfit}\)"
    with pytest.raises(CheckpointError, match=expected):
        load_encoder(adapter_dir, device="cpu")


def test_an_adapter_that_names_a_module_to_import_is_refused(adapter_dir):
    edit(adapter_dir / "adapter_config.json", megatron_config={"a": 1}, megatron_core="antigravity")
    with pytest.raises(CheckpointError, match="megatron_config is for layers of Megatron"):
        load_encoder(adapter_dir)


def test_the_base_of_an_adapter_folder_is_not_fetched(hub, adapter_dir, adapted, tiny_model_dir):
    hub.put("someone/base", tiny_model_dir)
    edit(adapter_dir / "adapter_config.json", base_model_name_or_path="someone/base")
    with pytest.raises(CheckpointError, match=r"someone/base is not in the local cache") as error:
        load_encoder(adapter_dir, device="cpu")
    assert hub.asked == []
    assert "simcse encode - -o - --model someone/base`" in error.value.hint
    assert "base_model_name_or_path" in error.value.hint

    resolve_model("someone/base")
    found = load_encoder(adapter_dir, device="cpu")
    np.testing.assert_allclose(encode(found, SENTENCES), encode(adapted, SENTENCES), atol=1e-5)


def test_a_cached_base_gets_the_files_that_it_lacks(hub, adapter_dir, tiny_model_dir):
    """transformers caches no modules.json, in which the pooler is recorded."""
    for name in ("simcse.json", "modules.json"):
        (adapter_dir / name).unlink()
    (tiny_model_dir / "modules.json").write_text(
        json.dumps(
            [
                {"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ]
        )
    )
    (tiny_model_dir / "1_Pooling").mkdir()
    (tiny_model_dir / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    hub.put("someone/base", tiny_model_dir)
    edit(adapter_dir / "adapter_config.json", base_model_name_or_path="someone/base")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        hf_hub_download("someone/base", name)
    assert load_encoder(adapter_dir, device="cpu").pooler is Pooler.CLS_BEFORE_POOLER


def test_a_command_in_a_hint_quotes_what_a_stranger_wrote(adapter_dir):
    entries = {"base_model_name_or_path": "someone/base", "revision": "main; rm -r ~"}
    edit(adapter_dir / "adapter_config.json", **entries)
    with pytest.raises(CheckpointError) as error:
        load_encoder(adapter_dir, device="cpu")
    assert "--model 'someone/base@main; rm -r ~'`" in error.value.hint


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_an_adapter_of_the_hub_is_fetched_with_its_base(
    hub, adapter_dir, adapted, tiny_model_dir, ending
):
    hub.put("someone/base", tiny_model_dir, commit="b" * 40)
    hub.put("someone/adapter", adapter_dir)
    edit(adapter_dir / "adapter_config.json", base_model_name_or_path="someone/base")
    if ending == "bin":
        path = adapter_dir / "adapter_model.safetensors"
        torch.save(load_file(path), path.with_suffix(".bin"))
        path.unlink()
    found = load_encoder("someone/adapter", device="cpu")
    np.testing.assert_allclose(encode(found, SENTENCES), encode(adapted, SENTENCES), atol=1e-5)


@pytest.mark.parametrize(
    "entries",
    [
        {"peft_type": "SHADOW", "shadow_model": "someone/other"},
        {"peft_type": "XLORA", "adapters": {"0": "someone/other"}, "hidden_size": 32},
    ],
    ids=str,
)
def test_an_adapter_that_names_further_models_fetches_none(
    hub, adapter_dir, tiny_model_dir, entries
):
    hub.put("someone/other", tiny_model_dir)
    edit(tiny_model_dir / "config.json", use_cache=False)
    edit(adapter_dir / "adapter_config.json", **entries)
    with pytest.raises(CheckpointError, match="names more models, which PEFT would fetch"):
        load_encoder(adapter_dir, device="cpu")
    assert hub.asked == []
