import itertools
import math

import pytest
import torch
from draws import normal

from simcse_cli.losses.rankcse import consistency, list_mle, list_net, negative_entropy


def softmax(row):
    total = sum(map(math.exp, row))
    return [math.exp(each) / total for each in row]


def rows_of(logits):
    return logits.tolist(), logits.T.tolist()


def test_consistency_equals_loops_and_is_symmetric_in_both_directions():
    logits = normal(5, 5) * 4
    total = 0.0
    for row, column in zip(*rows_of(logits), strict=True):
        p, q = softmax(row), softmax(column)
        middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        for each in (p, q):
            total += sum(a * math.log(a / m) for a, m in zip(each, middle, strict=True)) / 2
    assert consistency(logits).item() == pytest.approx(total / 5, rel=1e-12)
    assert consistency(logits.T).item() == pytest.approx(total / 5, rel=1e-12)


def test_consistency_is_zero_for_symmetric_logits_and_at_most_ln_2():
    logits = normal(6, 6)
    assert consistency(logits + logits.T).item() == pytest.approx(0.0, abs=1e-12)
    apart = torch.zeros(4, 4, dtype=torch.float64)
    apart[0, 1] = apart[1, 2] = apart[2, 3] = apart[3, 0] = 200.0
    assert consistency(apart).item() == pytest.approx(math.log(2), rel=1e-9)


def test_negative_entropy_is_what_the_communitys_clamp_leaves():
    logits = normal(5, 5) * 4
    p, q = logits.softmax(1), logits.T.softmax(1)
    log_m = ((p + q) / 2).log().clamp(min=1e-7)
    released = ((p * (p.log() - log_m)).sum(1) + (q * (q.log() - log_m)).sum(1)).mean() / 2
    assert negative_entropy(logits).item() == pytest.approx(released.item(), abs=1e-6)


def test_list_net_equals_loops_and_without_difference_the_teachers_entropy():
    logits, teacher = normal(5, 5) * 3, normal(5, 5, seed=1) * 3
    total = entropy = 0.0
    for i in range(5):
        others = [j for j in range(5) if j != i]
        wanted = softmax([float(teacher[i, j]) for j in others])
        found = softmax([float(logits[i, j]) for j in others])
        total -= sum(w * math.log(f) for w, f in zip(wanted, found, strict=True))
        entropy -= sum(w * math.log(w) for w in wanted)
    assert list_net(logits, teacher).item() == pytest.approx(total / 5, rel=1e-12)
    student = teacher.clone().requires_grad_()
    loss = list_net(student, teacher)
    loss.backward()
    assert loss.item() == pytest.approx(entropy / 5, rel=1e-12)
    assert student.grad.abs().max() < 1e-12
    assert list_net(logits[:2, :2], teacher[:2, :2]).item() == 0.0


def test_list_mle_equals_loops_with_the_own_column_first_and_ties_by_column():
    logits, teacher = normal(5, 5) * 3, normal(5, 5, seed=1)
    teacher[1, 3] = teacher[1, 0] = teacher[1].max() + 1  # above the diagonal, and equal
    total = 0.0
    for i in range(5):
        order = [i, *sorted((j for j in range(5) if j != i), key=lambda j: -float(teacher[i, j]))]
        for k, column in enumerate(order):
            left = sum(math.exp(float(logits[i, j])) for j in order[k:])
            total += math.log(left) - float(logits[i, column])
    assert list_mle(logits, teacher).item() == pytest.approx(total / 5, rel=1e-12)
    assert list_mle(logits, teacher * 3 - 7).item() == pytest.approx(total / 5, rel=1e-12)


@pytest.mark.parametrize("n", [1, 4, 6])
def test_list_mle_of_equal_logits_is_ln_n_factorial(n):
    loss = list_mle(torch.ones(n, n, dtype=torch.float64), normal(n, n))
    assert loss.item() == pytest.approx(math.log(math.factorial(n)), abs=1e-12)


@pytest.mark.parametrize("n", [2, 4])
def test_list_mle_is_a_probability_over_all_orders(n):
    """Of one row of logits, over the orders that begin with each of its columns."""
    row = normal(1, n)[0]
    total = 0.0
    for order in itertools.permutations(range(n)):
        logits = torch.stack([row] * n)
        first = order[0]
        teacher = torch.zeros(n, n, dtype=torch.float64)
        for place, column in enumerate(order):
            teacher[first, column] = -place
        own = n * list_mle(logits, teacher).item()
        others = n * list_mle(logits, teacher.index_fill(0, torch.tensor([first]), 0.0)).item()
        default = _of_one_row(row, [first, *(j for j in range(n) if j != first)])
        total += math.exp(-(own - others + default))
    assert total == pytest.approx(1.0, rel=1e-9)


def _of_one_row(row, order):
    terms = [
        math.log(sum(math.exp(float(row[j])) for j in order[k:])) - float(row[column])
        for k, column in enumerate(order)
    ]
    return sum(terms)


@pytest.mark.parametrize(
    "loss",
    [
        consistency,
        negative_entropy,
        lambda s: list_net(s, normal(4, 4, seed=9)),
        lambda s: list_mle(s, normal(4, 4, seed=9)),
    ],
)
def test_gradients_are_right(loss):
    assert torch.autograd.gradcheck(loss, normal(4, 4).requires_grad_())
