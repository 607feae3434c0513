"""When the loop reads numbers from the device: on a CPU after every step, elsewhere when they are due."""

import dataclasses
import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import SENTENCES
from simcse_cli.errors import ConfigError, TrainingError, UsageError
from simcse_cli.models.encode import encode
from simcse_cli.models.heads import TokenCnn
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Attention, HeadUse, ObjectiveName, Pooler
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.cached_gradients import cached_backward
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts

DUE = [1, 4, 6, 8, 12]  # the first step, --log-every 4, --eval-every 6, the last step


@pytest.fixture
def settings(_tiny_model_dir, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES * 4) + "\n")
    return TrainConfig(
        model=str(_tiny_model_dir),
        train_file=str(tmp_path / "train.txt"),
        batch_size=8,
        max_steps=12,
        log_every=4,
        eval_every=6,
        lr=1e-3,
        device="cpu",
    )


def trainer_of(config, folder, *, like_gpu):
    folder.mkdir()
    trainer = Trainer(config, build_parts(config, SilentProgress()), folder, SilentProgress())
    trainer.reads_every_step = not like_gpu
    return trainer


def lines(trainer):
    log = [
        json.loads(line) for line in (trainer.run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    return [{k: v for k, v in line.items() if not k.endswith("_per_second")} for line in log]


def test_what_is_read_later_is_the_same(settings, tmp_path):
    trainers = [trainer_of(settings, tmp_path / str(late), like_gpu=late) for late in (False, True)]
    for trainer in trainers:
        assert trainer.train() == "finished"
    assert [line["step"] for line in lines(trainers[0])] == [1, 4, 8, 12]
    assert lines(trainers[0]) == lines(trainers[1])
    states = [trainer.objective.state_dict() for trainer in trainers]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    counts = [(trainer.position.step, trainer.position.n_sentences) for trainer in trainers]
    assert counts == [(12, 96), (12, 96)]


class Reads(TorchDispatchMode):
    """Notes the step at every value that Python takes out of a tensor."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.step, self.steps = 0, set()
        for name in ("tolist", "numpy", "cpu"):
            monkeypatch.setattr(torch.Tensor, name, self.noted(getattr(torch.Tensor, name)))

    def noted(self, function):
        def read(tensor, *args, **options):
            self.steps.add(self.step)
            return function(tensor, *args, **options)

        return read

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            self.steps.add(self.step)
        return function(*args, **(kwargs or {}))


def test_numbers_are_read_only_when_they_are_due(settings, tmp_path, monkeypatch):
    """The pass itself is left out here (on a CPU it draws its masks from a number); see test_no_waiting."""
    trainer = trainer_of(
        dataclasses.replace(settings, max_grad_norm=0.0), tmp_path / "run", like_gpu=True
    )
    weights = list(trainer.objective.parameters())
    reads = Reads(monkeypatch)

    def backward(batch):
        loss = torch.stack([weight.square().sum() for weight in weights]).sum()
        loss.backward()
        return {"loss": loss}, {"metric": loss.detach()}

    start = trainer.start_step

    def start_step(step, batch):
        reads.step = step + 1
        start(step, batch)

    monkeypatch.setattr(trainer, "backward", backward)
    monkeypatch.setattr(trainer, "start_step", start_step)
    with reads:
        trainer.train()
    assert sorted(reads.steps - {0}) == DUE


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_the_first_bad_step_is_named_later(settings, tmp_path, monkeypatch, where):
    trainer = trainer_of(settings, tmp_path / "run", like_gpu=True)
    backward, n_calls = trainer.backward, iter(range(99))

    def spoiled(batch):
        losses, metrics = backward(batch)
        if next(n_calls) == 1:
            if where == "loss":
                return {name: value * torch.nan for name, value in losses.items()}, metrics
            next(trainer.objective.parameters()).grad *= torch.nan
        return losses, metrics

    monkeypatch.setattr(trainer, "backward", spoiled)
    with pytest.raises(TrainingError, match=f"the {where} of step 2 is"):
        trainer.train()
    assert trainer.position.step == 4


def test_batches_are_prepacked_in_the_background(settings, tmp_path, monkeypatch):
    trainer = trainer_of(settings, tmp_path / "run", like_gpu=False)
    packed = trainer.batches.make(0)
    trainer.objective.encoder.checkpoint_layers()
    padded = trainer.batches.make(0)
    ids = packed.rows.tokens.ids.tolist()
    assert ids[: packed.n_tokens] == [
        i for row in sorted(packed.rows, key=len, reverse=True) for i in row
    ]
    ids, mask = padded.rows.tensors()
    assert [row[: int(n)].tolist() for row, n in zip(ids, mask.sum(1), strict=True)] == packed.rows
    assert padded.counts == packed.counts == [8]


@pytest.mark.parametrize("given", [{"micro_batch_size": 4}, {"gradient_checkpointing": True}])
def test_what_computes_twice_is_refused_where_masks_would_differ(settings, monkeypatch, given):
    monkeypatch.setattr("simcse_cli.training.setup.resolve_device", lambda _: torch.device("mps"))
    name = "--" + next(iter(given)).replace("_", "-")
    with pytest.raises(
        ConfigError, match=f"{name}: the random state of mps is not saved"
    ) as caught:
        build_parts(dataclasses.replace(settings, **given), SilentProgress())
    assert "--device cpu" in caught.value.hint


@pytest.mark.parametrize("given", [{"attention": Attention.EAGER}, {"compile": True}])
def test_settings_of_padded_rows_are_refused_where_rows_are_packed(settings, given):
    name = next(iter(given))
    with pytest.raises(
        ConfigError, match=f"--{name}: has no effect, on a CPU the rows of .* are packed"
    ):
        build_parts(dataclasses.replace(settings, **given), SilentProgress())


@pytest.mark.parametrize("other", ["compile", "gradient_checkpointing"])
def test_packed_rows_are_refused_beside_settings_of_padded_ones(settings, other):
    with pytest.raises(UsageError, match="has no use with --attention packed"):
        dataclasses.replace(settings, attention=Attention.PACKED, **{other: True})


def test_packed_rows_are_refused_where_every_row_is_padded(tiny_encoder):
    tiny_encoder.token_cnn = TokenCnn(32, 8)
    with pytest.raises(ConfigError, match=r"--attention packed: .* needs padded rows"):
        tiny_encoder.attend_by(Attention.PACKED)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_packed_rows_in_parts_have_the_gradient_of_one_graph(tiny_encoder):
    """Dropout is on: the second pass over a part draws the masks of the first."""
    tiny_encoder.attend_by(Attention.PACKED)
    tiny_encoder.train()
    assert not tiny_encoder.pads_in_training
    rows = tiny_encoder.tokenize(SENTENCES)
    parts, gradients = [rows[:3], rows[3:]], []
    for in_parts in (False, True):
        tiny_encoder.zero_grad()
        torch.manual_seed(3)
        if in_parts:
            cached_backward(
                parts,
                lambda part: (tiny_encoder.embed_rows(part),),
                lambda vectors: vectors[0].square().sum(),
                device=torch.device("cpu"),
            )
        else:
            torch.cat([tiny_encoder.embed_rows(part) for part in parts]).square().sum().backward()
        gradients.append([p.grad for p in tiny_encoder.parameters() if p.grad is not None])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain)


def test_flash_attention_is_not_fetched_from_the_hub(tiny_encoder):
    with pytest.raises(
        ConfigError, match="--attention flash_attention_2: flash_attn is not installed"
    ):
        tiny_encoder.attend_by(Attention.FLASH_2)


def test_flash_attention_is_of_training_alone_as_it_takes_no_float32(tiny_encoder, monkeypatch):
    chosen = []
    monkeypatch.setattr("simcse_cli.models.encoder.find_spec", lambda _: True)
    monkeypatch.setattr(
        type(tiny_encoder.backbone), "set_attn_implementation", lambda _, name: chosen.append(name)
    )
    tiny_encoder.attend_by(Attention.FLASH_2)
    tiny_encoder.train()
    encode(tiny_encoder, ["A man."])
    tiny_encoder.eval()
    flash, sdpa = "flash_attention_2", "sdpa"
    assert chosen == [flash, flash, sdpa, flash, sdpa]
    tiny_encoder.attend_by(Attention.EAGER)
    tiny_encoder.train()
    assert chosen[5:] == ["eager"]


def test_flash_attention_is_refused_in_float32(settings, monkeypatch):
    monkeypatch.setattr(
        "simcse_cli.training.setup.resolve_device", lambda _: torch.device("cuda", 0)
    )
    config = dataclasses.replace(settings, attention=Attention.FLASH_2, precision="tf32")
    with pytest.raises(
        ConfigError, match="--attention flash_attention_2 takes numbers of 16 bits, this is --pre"
    ):
        build_parts(config, SilentProgress())


def test_checkpointed_layers_give_the_same_gradient_and_keep_less(settings, tmp_path):
    """Dropout is on: layers that are computed again draw the masks of the first time."""
    config = dataclasses.replace(settings, pooler=Pooler.AVG, head=HeadUse.NONE)
    gradients, kept = [], []
    for is_on in (False, True):
        objective = build_parts(
            dataclasses.replace(config, gradient_checkpointing=is_on), SilentProgress()
        ).objective
        encoder = objective.encoder
        encoder.trains_padded = True  # both take the padded pass
        rows = encoder.tokenize(SENTENCES)
        kept.append(0)

        def keep(tensor):
            kept[-1] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            torch.manual_seed(3)
            loss = objective.train().encoder.embed_rows(rows).square().sum()
        loss.backward()
        gradients.append([p.grad for p in encoder.parameters() if p.grad is not None])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain)
    assert kept[1] < kept[0] / 4


def test_attention_and_checkpoints_reach_every_encoder_and_no_file(settings, tmp_path):
    config = dataclasses.replace(
        settings,
        objective=ObjectiveName.CT,
        pooler=Pooler.AVG,
        head=HeadUse.NONE,
        gradient_checkpointing=True,
        attention=Attention.EAGER,
        max_steps=2,
    )
    trainer = trainer_of(config, tmp_path / "run", like_gpu=False)
    objective = trainer.objective
    for encoder in (objective.encoder, objective.second):
        assert (encoder.config._attn_implementation, encoder.trains_padded) == ("eager", True)
    assert trainer.run().status == "finished"
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert not [key for key in saved if "attn" in key and "dropout" not in key]


def test_a_compiled_transformer_is_what_training_calls(settings, tmp_path, monkeypatch):
    compiled, calls = [], []

    def compile_to_record(module, **options):
        compiled.append((module, options))
        module._compiled_call_impl = lambda *args, **inputs: (
            calls.append(1) or module._call_impl(*args, **inputs)
        )

    monkeypatch.setattr(torch.nn.Module, "compile", compile_to_record)
    config = dataclasses.replace(settings, gradient_checkpointing=True, max_steps=2)
    trainers = [
        trainer_of(
            dataclasses.replace(config, compile=is_on), tmp_path / str(is_on), like_gpu=False
        )
        for is_on in (False, True)
    ]
    assert compiled == [(trainers[1].objective.encoder.backbone, {"dynamic": True})]
    for trainer in trainers:
        trainer.train()
    assert len(calls) == 2
    states = [trainer.objective.state_dict() for trainer in trainers]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
