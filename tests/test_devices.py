import pytest
import torch

from simcse_cli.devices import resolve_device


@pytest.mark.parametrize(("local_rank", "index"), [(None, 0), ("0", 0), ("3", 3), ("5", 1)])
def test_each_process_of_a_machine_takes_a_gpu_of_its_own(local_rank, index, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", index)
    assert resolve_device("cpu") == torch.device("cpu")
