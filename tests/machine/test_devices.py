import pytest
import torch

from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.machine import transfer
from simcse_cli.machine.devices import resolve_device
from simcse_cli.machine.precision import resolve_precision, set_float32_products
from simcse_cli.machine.rng import has_rng_state
from simcse_cli.machine.transfer import HostCopy, to_device
from simcse_cli.settings.choices import Precision


@pytest.mark.parametrize(("local_rank", "index"), [(None, 0), ("0", 0), ("3", 3), ("5", 1)])
def test_each_process_of_a_machine_takes_a_gpu_of_its_own(local_rank, index, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", index)
    assert resolve_device("cpu") == torch.device("cpu")


def test_tf32_is_refused_where_no_gpu_has_it():
    with pytest.raises(
        ConfigError, match="--precision tf32 is arithmetic of NVIDIA GPUs, this is cpu"
    ):
        resolve_precision("tf32", torch.device("cpu"))
    assert resolve_precision("tf32", torch.device("cuda")) is Precision.TF32


@pytest.mark.parametrize(
    ("precision", "name", "is_rounded"), [("tf32", "high", True), ("fp32", "highest", False)]
)
def test_products_are_rounded_to_tf32_on_a_gpu_that_was_asked_to(
    monkeypatch, precision, name, is_rounded
):
    chosen = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not is_rounded)
    set_float32_products(Precision(precision), torch.device("cpu"))
    assert not chosen
    set_float32_products(Precision(precision), torch.device("cuda"))
    assert (chosen, torch.backends.cudnn.allow_tf32) == ([name], is_rounded)


class Recorded(torch.Tensor):
    """A tensor that notes how it is copied."""

    calls: list

    def pin_memory(self):
        self.calls.append("pin")
        return self

    def float(self):
        self.calls.append("float")
        return self

    def to(self, *args, **options):
        self.calls.append((*args, options))
        return self


def test_what_goes_to_a_gpu_is_pinned_and_not_waited_for():
    tensor = torch.zeros(2).as_subclass(Recorded)
    tensor.calls = []
    to_device(tensor, torch.device("cuda"))
    assert tensor.calls == ["pin", (torch.device("cuda"), {"non_blocking": True})]


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float32, []), (torch.float64, ["float"])])
def test_a_copy_to_mps_is_waited_for_and_never_in_float64(dtype, steps):
    tensor = torch.zeros(2, dtype=dtype).as_subclass(Recorded)
    tensor.calls = []
    to_device(tensor, torch.device("mps"))
    assert tensor.calls == [*steps, (torch.device("mps"), {})]


def test_a_copy_is_waited_for_when_it_is_wanted(monkeypatch):
    events = []

    class Event:
        def record(self, stream):
            events.append(f"record on {stream}")

        def synchronize(self):
            events.append("wait")

    class OnGpu:
        device, dtype, shape = torch.device("cuda", 1), torch.float32, (2,)

    class Pinned:
        def copy_(self, tensor, *, non_blocking):
            events.append(("copy", non_blocking))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    monkeypatch.setattr(
        transfer.torch, "empty", lambda *_, pin_memory, **__: Pinned() if pin_memory else None
    )
    copy = HostCopy(OnGpu())
    assert events == [("copy", True), "record on the stream of cuda:1"]
    assert isinstance(copy.arrived(), Pinned)
    assert events[2:] == ["wait"]


def test_random_states_are_kept_of_these_devices():
    assert [kind for kind in ("cpu", "cuda", "mps") if has_rng_state(torch.device(kind))] == [
        "cpu",
        "cuda",
    ]


def test_a_gpu_is_chosen_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert resolve_device("cuda:3") == torch.device("cuda", 3)
    with pytest.raises(
        ConfigError, match="--device cuda:4: this machine has 4 GPUs, counted from 0"
    ):
        resolve_device("cuda:4")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="each of several processes takes a GPU of its own"):
        resolve_device("cuda:3")


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:", "cuda:-1", ""])
def test_names_of_no_device_are_refused(name):
    with pytest.raises(UsageError, match="need auto, cpu, cuda, cuda:N"):
        resolve_device(name)
