import math

import numpy as np
import pytest
import torch

from simcse_cli.postprocess.flow import ActNorm, BertFlow, CouplingNet, FlowStep, MultiLevelFlow
from simcse_cli.progress import SilentProgress


def curved(n_rows: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    mixing = np.random.default_rng(100).standard_normal((dim, dim))
    base = np.random.default_rng(seed).standard_normal((n_rows, dim)) @ mixing
    return (3 + base + 0.3 * np.roll(base, 1, axis=1) ** 2).astype(np.float32)


@pytest.fixture(scope="module")
def trained() -> BertFlow:
    return BertFlow(epochs=4).fit(curved(512))


def double_flow(trained: BertFlow) -> MultiLevelFlow:
    copy = MultiLevelFlow(16, levels=3, depth=3, width=32, seed=0)
    copy.load_state_dict(trained.flow_.state_dict())
    return copy.double()


def test_actnorm_starts_with_mean_zero_and_variance_one():
    batch = 4 + 3 * torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    normed, _ = ActNorm(5)(batch)
    torch.testing.assert_close(normed.mean(dim=0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(normed.square().mean(dim=0), torch.ones(5), atol=1e-4, rtol=0)


def test_actnorm_of_a_constant_channel_divides_by_a_millionth():
    norm = ActNorm(1)
    norm(torch.full((4, 1), 7.0))
    assert math.exp(3 * norm.log_scale.item()) == pytest.approx(1e6, rel=1e-4)


def test_coupling_net_is_its_equation():
    net = CouplingNet(3, 5, torch.Generator().manual_seed(0))
    assert not net(torch.randn(6, 3)).any()  # the last layer starts at zero
    for parameter in (net.last.weight, net.last.bias, net.log_scale):
        torch.nn.init.normal_(parameter)
    x = torch.randn(6, 3)
    hidden = x
    for layer, norm in ((net.first, net.first_norm), (net.second, net.second_norm)):
        hidden = ((hidden @ layer.weight.T + norm.bias) * torch.exp(3 * norm.log_scale)).clamp(
            min=0
        )
    expected = (hidden @ net.last.weight.T + net.last.bias) * torch.exp(3 * net.log_scale)
    torch.testing.assert_close(net(x), expected)


def test_weights_of_a_coupling_start_with_deviation_a_twentieth():
    net = CouplingNet(300, 300, torch.Generator().manual_seed(0))
    for layer in (net.first, net.second):
        assert layer.weight.std().item() == pytest.approx(0.05, rel=0.02)


def test_actnorm_keeps_its_start_for_later_batches():
    norm = ActNorm(2)
    norm(torch.tensor([[0.0, 2.0], [2.0, 6.0]]))
    mapped, log_det = norm(torch.tensor([[3.0, 8.0]]))
    torch.testing.assert_close(mapped, torch.tensor([[2.0, 2.0]]), atol=1e-5, rtol=0)
    assert log_det.item() == pytest.approx(-math.log(2), abs=1e-5)


def test_fresh_flow_step_only_normalises_and_reverses():
    batch = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 4.0, 7.0, 0.0]])
    step = FlowStep(4, 8, torch.Generator())
    mapped, _ = step(batch)
    torch.testing.assert_close(mapped, step.norm(batch)[0].flip(-1))


def test_coupling_net_has_the_layers_of_the_definition():
    net = CouplingNet(384, 32, torch.Generator())
    shapes = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    assert shapes["first.weight"] == (32, 384)
    assert shapes["second.weight"] == (32, 32)
    assert shapes["last.weight"] == (384, 32)
    assert {"first.bias", "second.bias"}.isdisjoint(shapes)


def test_flow_levels_halve_the_channels():
    flow = MultiLevelFlow(768, levels=3, depth=3, width=32, seed=0)
    widths = [[len(step.norm.bias) for step in level] for level in flow.levels]
    assert widths == [[768] * 3, [384] * 3, [192] * 3]


def test_latent_lists_the_channels_in_the_order_they_leave():
    flow = MultiLevelFlow(8, levels=3, depth=1, width=2, seed=0)
    batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    latent, _ = flow(batch)
    after_first, _ = flow.levels[0][0](batch)
    torch.testing.assert_close(latent[:, :4], after_first[:, 4:])
    after_second, _ = flow.levels[1][0](after_first[:, :4])
    torch.testing.assert_close(latent[:, 4:6], after_second[:, 2:])


@torch.no_grad()
def inverse(flow: MultiLevelFlow, latent: torch.Tensor) -> torch.Tensor:
    """Undo the layers one by one, from their definitions."""
    *leaving, x = torch.split(latent, latent_sizes(latent.shape[-1], len(flow.levels)), dim=-1)
    for number in reversed(range(len(flow.levels))):
        for step in reversed(flow.levels[number]):
            first, second = x.chunk(2, dim=-1)
            normed = torch.cat([first, second - step.shift(first)], dim=-1).flip(-1)
            x = normed * torch.exp(-3 * step.norm.log_scale) - step.norm.bias
        if number:
            x = torch.cat([x, leaving[number - 1]], dim=-1)
    return x


def latent_sizes(dim: int, n_levels: int) -> list[int]:
    halves = [dim // 2**number for number in range(1, n_levels)]
    return [*halves, dim - sum(halves)]


def test_flow_inverts(trained):
    vectors = curved(100, seed=5)
    back = inverse(trained.flow_, torch.from_numpy(trained.transform(vectors)))
    np.testing.assert_allclose(back.numpy(), vectors, atol=1e-4)


def test_flow_of_four_levels_inverts():
    flow = MultiLevelFlow(32, levels=4, depth=1, width=4, seed=0).double()
    batch = torch.randn(6, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    flow(batch)
    for parameter in flow.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    latent, _ = flow(batch)
    torch.testing.assert_close(inverse(flow, latent), batch)


def test_flow_log_determinant_equals_slogdet_of_its_jacobian(trained):
    flow = double_flow(trained)
    point = torch.from_numpy(curved(1, seed=9)[0]).double()
    jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0][0], point)
    _, log_det = flow(point[None])
    assert abs(log_det.item()) > 0.1
    assert log_det.item() == pytest.approx(
        torch.linalg.slogdet(jacobian).logabsdet.item(), abs=1e-8
    )


def test_flow_loss_is_the_negative_log_likelihood_in_bits_per_dimension(trained):
    batch = torch.from_numpy(curved(7, seed=2))
    latent, log_det = trained.flow_(batch)
    normal = torch.distributions.Normal(0.0, 1.0)
    expected = [-(normal.log_prob(row).sum() + log_det) / (16 * math.log(2)) for row in latent]
    assert trained._loss(batch).item() == pytest.approx(
        torch.stack(expected).mean().item(), rel=1e-5
    )


def test_flow_of_standard_normal_draws_costs_their_entropy():
    vectors = np.random.default_rng(0).standard_normal((4096, 8)).astype(np.float32)
    flow = BertFlow(batch_size=512).fit(vectors)
    assert np.mean(flow.losses_) == pytest.approx(0.5 * math.log2(2 * math.pi * math.e), abs=0.05)


def test_flow_training_raises_the_likelihood_of_unseen_vectors(trained):
    fresh = BertFlow(epochs=1, learning_rate=1e-12).fit(curved(512))
    unseen = torch.from_numpy(curved(256, seed=7))
    assert trained._loss(unseen).item() < fresh._loss(unseen).item() - 0.01


def test_flow_with_one_seed_gives_one_result():
    first, second = (BertFlow(seed=3).fit(curved(64)).transform(curved(8)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_flow_starts_from_the_first_sides_of_the_first_batch():
    pairs = curved(64).reshape(32, 2, 16)
    pairs[:, 1] += 100
    flow = BertFlow(learning_rate=1e-12).fit(pairs)
    first = flow.flow_.levels[0][0].norm
    np.testing.assert_allclose(first.bias.detach(), -pairs[:, 0].mean(axis=0), rtol=1e-5)
    scale = np.exp(3 * first.log_scale.detach().numpy())
    np.testing.assert_allclose(scale, 1 / pairs[:, 0].std(axis=0), rtol=1e-4)


def test_flow_fitted_on_pairs_maps_single_vectors():
    flow = BertFlow(levels=1, depth=1).fit(curved(8).reshape(4, 2, 16))
    assert flow.transform(curved(3)).shape == (3, 16)


def test_flow_announces_its_steps():
    totals = []

    class Noting(SilentProgress):
        def task(self, description, *, total=None):
            totals.append(total)
            return super().task(description, total=total)

    flow = BertFlow(levels=1, depth=1, batch_size=4, epochs=2).fit(curved(10), progress=Noting())
    assert totals == [len(flow.losses_)] == [6]


@pytest.mark.parametrize("sizes", [{"depth": 1000}, {"levels": 1000}, {"width": 100_000}])
def test_flow_refuses_sizes_that_its_arrays_cannot_have(sizes, trained):
    with pytest.raises(ValueError, match="are not in it"):
        BertFlow(**sizes).load_state(trained.state())


def test_flow_counts_a_pair_as_one_example():
    assert len(BertFlow().fit(curved(128).reshape(64, 2, 16)).losses_) == 2
    assert len(BertFlow().fit(curved(128)).losses_) == 4


def test_flow_that_diverges_names_the_step():
    with pytest.raises(ValueError, match=r"loss became (inf|nan) at step 1$"):
        BertFlow(levels=1, depth=1).fit(1e37 * curved(8))


def test_flow_refuses_a_single_pair():
    with pytest.raises(ValueError, match="at least two pairs"):
        BertFlow().fit(curved(2).reshape(1, 2, 16))


def test_flow_refuses_a_dimension_that_cannot_be_halved():
    with pytest.raises(ValueError, match="divisible by 8, got 12"):
        BertFlow().fit(curved(8, dim=12))


@pytest.mark.parametrize(
    "settings",
    [{name: 0} for name in ("levels", "depth", "width", "epochs", "learning_rate")]
    + [{"batch_size": 1}],
)
def test_flow_refuses_impossible_settings(settings):
    with pytest.raises(ValueError, match="need 1 or more, batch_size 2, learning_rate above 0"):
        BertFlow(**settings)


def test_flow_accepts_its_smallest_settings():
    smallest = {
        "levels": 1,
        "depth": 1,
        "width": 1,
        "epochs": 1,
        "batch_size": 2,
        "learning_rate": 1e-9,
    }
    assert BertFlow(**smallest).fit(curved(2, dim=2)).settings() == smallest | {"seed": 42}


def test_defaults_of_the_flow_are_those_of_the_released_code():
    assert BertFlow().settings() == {
        "levels": 3, "depth": 3, "width": 32, "learning_rate": 1e-3, "epochs": 1, "batch_size": 32, "seed": 42
    }  # fmt: skip


def test_flow_is_trained_as_by_a_plain_loop(monkeypatch):
    """Two epochs written out: shuffled pairs, both sides summed, clipped, Adam without bias correction."""
    pairs = curved(20).reshape(10, 2, 16)
    clip, found_norms = torch.nn.utils.clip_grad_norm_, []
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda *given: found_norms.append(clip(*given))
    )
    settings = {"levels": 2, "depth": 2, "width": 4, "learning_rate": 0.01, "epochs": 2, "seed": 5}
    found = BertFlow(**settings, batch_size=4).fit(pairs)
    flow = MultiLevelFlow(16, levels=2, depth=2, width=4, seed=5)
    order = np.random.default_rng(5)
    losses, norms, state = [], [], {}
    for _ in range(2):
        permutation = order.permutation(len(pairs))
        for start in (0, 4, 8):
            rows = np.sort(permutation[start : start + 4])
            if not losses:
                flow(torch.from_numpy(pairs[rows, 0]))
            latent, log_det = flow(torch.from_numpy(pairs[rows].reshape(-1, 16)))
            density = torch.distributions.Normal(0.0, 1.0).log_prob(latent).sum(dim=1) + log_det
            loss = -density.mean() / (16 * math.log(2))
            flow.zero_grad()
            (2 * loss).backward()
            losses.append(loss.item())
            norms.append(torch.stack([p.grad.norm() for p in flow.parameters()]).norm().item())
            for parameter in flow.parameters():
                gradient = parameter.grad * min(1.0, 1.0 / (norms[-1] + 1e-6))
                mean, square = state.get(parameter, (0.0, 0.0))
                mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
                state[parameter] = mean, square
                with torch.no_grad():
                    parameter -= 0.01 * mean / (square.sqrt() + 1e-6)
                    parameter -= 0.01 * 0.01 * parameter
    np.testing.assert_allclose(found.losses_, losses, rtol=1e-4)
    np.testing.assert_allclose(found_norms, norms, rtol=1e-3)
    assert max(norms) > 1
    for name, value in flow.state_dict().items():
        torch.testing.assert_close(found.flow_.state_dict()[name], value, rtol=1e-3, atol=1e-4)
