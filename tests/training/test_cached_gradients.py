import pytest
import torch
from torch import Tensor, nn

from simcse_cli.machine.rng import RngState
from simcse_cli.training.cached_gradients import cached_backward

CPU = torch.device("cpu")


def toy_encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 4), nn.Dropout(0.3)
    ).double()


def gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters()]


@pytest.mark.parametrize("size", [1, 3, 4, 10])
def test_cached_backward_equals_plain_with_dropout_and_uneven_chunks(size):
    rows = torch.randn(10, 5, dtype=torch.float64)
    encoder, head = toy_encoder(), nn.Linear(4, 1).double()
    chunks = rows.split(size)

    def encode(chunk: Tensor) -> tuple[Tensor, ...]:
        vectors = encoder(chunk)
        return vectors, vectors.square().sum(dim=1)

    def loss(representations: tuple[Tensor, ...]) -> Tensor:
        vectors, norms = representations
        return (vectors @ vectors.T).logsumexp(dim=1).mean() + head(vectors).std() + norms.max()

    torch.manual_seed(1)
    plain = loss(
        tuple(
            torch.cat(column) for column in zip(*[encode(chunk) for chunk in chunks], strict=True)
        )
    )
    plain.backward()
    next_draw = torch.rand(1)
    expected = gradients(encoder) + gradients(head)

    encoder.zero_grad()
    head.zero_grad()
    torch.manual_seed(1)
    value = cached_backward(chunks, encode, loss, device=CPU)
    assert value.item() == pytest.approx(plain.item(), rel=1e-12)
    torch.testing.assert_close(
        gradients(encoder) + gradients(head), expected, rtol=1e-10, atol=1e-12
    )
    assert torch.equal(torch.rand(1), next_draw)


def test_cached_backward_scales_with_the_given_backward_once():
    encoder, rows = nn.Linear(3, 2), torch.randn(4, 3)
    for factor in (1.0, 8.0):
        cached_backward(
            rows.split(3),
            lambda chunk: (encoder(chunk),),
            lambda representations: representations[0].square().mean(),
            device=CPU,
            backward=lambda value, factor=factor: (value * factor).backward(),
        )
        if factor == 1.0:
            once = encoder.weight.grad.clone()
            encoder.zero_grad()
    torch.testing.assert_close(encoder.weight.grad, once * 8)


def test_cached_backward_accepts_a_representation_the_loss_ignores():
    encoder, rows = nn.Linear(3, 2), torch.randn(4, 3)
    cached_backward(
        rows.split(2),
        lambda chunk: (encoder(chunk), encoder(chunk)),
        lambda representations: representations[0].sum(),
        device=CPU,
    )
    torch.testing.assert_close(encoder.bias.grad, torch.full((2,), 4.0))


def test_random_state_restore_repeats_draws():
    state = RngState.of(CPU)
    first = torch.rand(3)
    state.restore(CPU)
    assert torch.equal(torch.rand(3), first)
