"""Two processes with uneven local batches must give the value and gradient of one process with all rows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, distributed

from processes import run_on_processes
from simcse_cli.losses.barlow_twins import barlow_twins
from simcse_cli.losses.classification import classification, sbert_features
from simcse_cli.losses.contrastive_tension import contrastive_tension
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.mutual_information import jensen_shannon_mi
from simcse_cli.losses.nt_xent import nt_xent
from simcse_cli.losses.quick_thoughts import quick_thoughts
from simcse_cli.losses.vicreg import vicreg
from simcse_cli.machine import gather
from simcse_cli.machine.gather import (
    gather_views,
    gather_with_grad,
    mean_over_processes,
    row_counts,
    sum_over_processes,
)

N_ROWS, SPLIT, WIDTH = 8, 3, 4
INPUTS = torch.randn(
    3, N_ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)
WEIGHT = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 2, 1, 3, -100, 1, 2, 0])
NEIGHBOURS = (torch.arange(N_ROWS)[:, None] - torch.arange(N_ROWS)[None, :]).abs() == 1

COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")

Rows = slice
Loss = Callable[[Tensor, Rows], Tensor]


def views(weight: Tensor, rows: Rows) -> list[Tensor]:
    """Return three local views as a linear encoder gives them."""
    return [torch.tanh(view[rows] @ weight) for view in INPUTS]


def gathered(weight: Tensor, rows: Rows) -> list[Tensor]:
    return [gather_with_grad(view) for view in views(weight, rows)]


def info_nce_case(weight: Tensor, rows: Rows) -> Tensor:
    anchors, positives, negatives = gathered(weight, rows)
    return info_nce(
        anchors,
        positives,
        temperature=0.3,
        hard_negatives=negatives,
        hard_negative_alpha=2.0,
        symmetric=True,
    )


def nt_xent_case(weight: Tensor, rows: Rows) -> Tensor:
    return nt_xent(*gathered(weight, rows)[:2], temperature=0.3)


def quick_thoughts_case(weight: Tensor, rows: Rows) -> Tensor:
    return quick_thoughts(*gathered(weight, rows)[:2], NEIGHBOURS)


def barlow_twins_case(weight: Tensor, rows: Rows) -> Tensor:
    return barlow_twins(*gathered(weight, rows)[:2])


def vicreg_case(weight: Tensor, rows: Rows) -> Tensor:
    return sum(vicreg(*gathered(weight, rows)[:2]).values())


def tension_case(weight: Tensor, rows: Rows) -> Tensor:
    left, right, _ = views(weight, rows)
    return contrastive_tension(left, right, LABELS[rows] == 0)


def together_case(weight: Tensor, rows: Rows) -> Tensor:
    """Views in one exchange, with counts that are known before."""
    counts = [SPLIT, N_ROWS - SPLIT] if distributed.is_initialized() else [N_ROWS]
    anchors, positives, negatives = gather_views(views(weight, rows), counts)
    return info_nce(anchors, positives, temperature=0.3, hard_negatives=negatives)


def mutual_information_case(weight: Tensor, rows: Rows) -> Tensor:
    local, sentences, more = views(weight, rows)
    owners = torch.arange(N_ROWS)[rows]
    return jensen_shannon_mi(
        torch.cat([local, more]), gather_with_grad(sentences), owners.repeat(2)
    )


def classification_case(weight: Tensor, rows: Rows) -> Tensor:
    left, right, _ = views(weight, rows)
    return classification(sbert_features(left, right)[:, 4:8] * 3, LABELS[rows])


CASES: dict[str, Loss] = {
    name.removesuffix("_case"): value
    for name, value in list(globals().items())
    if name.endswith("_case")
}


def value_and_gradient(loss: Loss, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the loss share and gradient of this process, both averaged over processes as DDP does."""
    weight = WEIGHT.clone().requires_grad_()
    value = loss(weight, rows)
    value.backward()
    results = [value.detach(), weight.grad]
    if distributed.is_initialized():
        for result in results:
            distributed.all_reduce(result)
            result /= distributed.get_world_size()
    return results[0], results[1]


def scaled_gather_case(weight: Tensor, rows: Rows) -> Tensor:
    anchors, positives, _ = [
        gather_with_grad(view, original_scaling=True) for view in views(weight, rows)
    ]
    return info_nce(anchors, positives, temperature=0.3)


def half_gradient(rows: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Return the types that a bfloat16 gradient is summed in, and comes back in."""
    summed, sum_own = [], gather._sum_own_rows

    def watched(parts: list[Tensor]) -> Tensor:
        summed.append(parts[0].dtype)
        return sum_own(parts)

    gather._sum_own_rows = watched
    try:
        leaf = rows.bfloat16().requires_grad_()
        gather_with_grad(leaf).sum().backward()
    finally:
        gather._sum_own_rows = sum_own
    return summed[0], leaf.grad.dtype


def n_exchanges(rows: Rows) -> int:
    """Return how often processes wait for each other to gather three views of known counts, forward and backward."""
    calls, originals = [], {name: getattr(distributed, name) for name in COLLECTIVES}
    for name, function in originals.items():
        setattr(
            distributed, name, lambda *args, function=function: calls.append(1) or function(*args)
        )
    try:
        leaves = [view.clone().requires_grad_() for view in INPUTS[:, rows]]
        torch.cat(gather_views(leaves, [SPLIT, N_ROWS - SPLIT])).sum().backward()
    finally:
        for name, function in originals.items():
            setattr(distributed, name, function)
    return len(calls)


def without_scatter(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return value and gradient where the group cannot sum and share out at once."""
    scatters = gather._scatters
    gather._scatters = lambda _: False
    try:
        return value_and_gradient(info_nce_case, rows)
    finally:
        gather._scatters = scatters


def everything_on_two(rank: int) -> dict[str, object]:
    rows = slice(0, SPLIT) if rank == 0 else slice(SPLIT, N_ROWS)
    results: dict[str, object] = {
        name: value_and_gradient(loss, rows) for name, loss in CASES.items()
    }
    results["original scaling"] = value_and_gradient(scaled_gather_case, rows)
    results["rows"] = gather_with_grad(INPUTS[0][rows])
    results["without scatter"] = without_scatter(rows)
    results["half"] = half_gradient(INPUTS[0][rows])
    results["exchanges"] = n_exchanges(rows)
    results["counts"] = row_counts(INPUTS[0][rows])
    own = torch.tensor(float(rank + 1), requires_grad=True)
    total = sum_over_processes(own)
    (total * (rank + 1)).backward()
    results["sum"] = (total.item(), own.grad.item())
    results["mean"] = mean_over_processes(INPUTS[0][rows].flatten())
    return results


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return run_on_processes(everything_on_two, tmp_path_factory.mktemp("gather"))


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(on_two, name):
    value, gradient = value_and_gradient(CASES[name], slice(0, N_ROWS))
    for results in on_two:
        torch.testing.assert_close(results[name][0], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(results[name][1], gradient, rtol=1e-10, atol=1e-12)


def test_gather_with_original_scaling_halves_the_gradient_on_two_processes(on_two):
    value, gradient = value_and_gradient(scaled_gather_case, slice(0, N_ROWS))
    for results in on_two:
        torch.testing.assert_close(results["original scaling"][0], value)
        torch.testing.assert_close(results["original scaling"][1], gradient / 2)


def test_gradients_without_scatter_are_the_same(on_two):
    expected = value_and_gradient(info_nce_case, slice(0, N_ROWS))
    for results in on_two:
        torch.testing.assert_close(results["without scatter"], expected)


@pytest.mark.parametrize(
    ("backend", "device", "version", "scatters"),
    [
        ("gloo", "cpu", "2.7.1", False),
        ("gloo", "cpu", "2.8", True),
        ("gloo", "cpu", "2.10", True),
        ("gloo", "cuda", "2.7.1", False),
        ("cpu:gloo,cuda:nccl", "cpu", "2.7.1", False),
        ("cpu:gloo,cuda:nccl", "cuda", "2.7.1", True),
    ],
)
def test_gloo_sums_and_shares_out_since_torch_2_8(backend, device, version, scatters, monkeypatch):
    monkeypatch.setattr(distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(torch, "__version__", version)
    assert gather._scatters(torch.device(device)) is scatters


def test_halves_are_summed_in_float32(on_two):
    assert [results["half"] for results in on_two] == [(torch.float32, torch.bfloat16)] * 2


def test_views_are_gathered_in_one_exchange_and_their_gradients_in_another(on_two):
    assert [results["exchanges"] for results in on_two] == [2, 2]


def test_gather_with_grad_returns_all_rows_in_rank_order(on_two):
    for results in on_two:
        torch.testing.assert_close(results["rows"], INPUTS[0])
        assert results["counts"] == [SPLIT, N_ROWS - SPLIT]


def test_sum_over_processes_adds_every_rank_and_what_each_sends_back(on_two):
    assert [results["sum"] for results in on_two] == [(3.0, 3.0)] * 2


def test_mean_over_processes_shares_average_to_the_global_mean(on_two):
    shares = [results["mean"] for results in on_two]
    torch.testing.assert_close(sum(shares) / 2, INPUTS[0].mean())


def test_collectives_are_the_identity_on_one_process():
    rows = torch.ones(2, 3)
    assert gather_with_grad(rows) is rows
    assert gather_with_grad(rows, original_scaling=True) is rows
    assert sum_over_processes(rows) is rows
    assert row_counts(rows) == [2]


def test_mean_over_processes_of_one_value_is_that_value():
    assert mean_over_processes(torch.tensor([3.0])).item() == 3.0


def test_mean_over_processes_of_nothing_is_zero():
    assert mean_over_processes(torch.zeros(0)).item() == 0.0
