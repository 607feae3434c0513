import math

import pytest
import torch
from draws import cosine, normal

from simcse_cli.losses.mixcse import mixcse
from simcse_cli.settings.choices import MixMasked, MixSides


def oracle(a, p, mix, masked, sides, excluded=()):
    n, total = len(a), 0.0
    for i in range(n):
        terms = [math.exp(cosine(a[i], p[j]) / 0.3) for j in range(n) if (i, j) not in excluded]
        for j in range(n):
            after, next_i = (j + 1) % n, (i + 1) % n
            blocks = [(cosine(a[i], mix * p[j] + (1 - mix) * p[after]), (i, after), after == i)]
            if sides is MixSides.BOTH:
                mixed = mix * a[i] + (1 - mix) * a[next_i]
                blocks.append((cosine(mixed, p[j]), (next_i, j), next_i == j))
            for similarity, other, is_own in blocks:
                if (i, j) in excluded:
                    continue
                if is_own or other in excluded:
                    terms += [1.0] if masked is MixMasked.ZERO else []
                else:
                    terms.append(math.exp(similarity / 0.3))
        total += math.log(sum(terms)) - cosine(a[i], p[i]) / 0.3
    return total / n


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("sides", MixSides)
@pytest.mark.parametrize("masked", MixMasked)
@pytest.mark.parametrize("mix", [0.0, 0.2, 1.0])
def test_mixcse_equals_a_triple_loop(n, sides, masked, mix):
    a, p = normal(n, 4), normal(n, 4, seed=1)
    found = mixcse(a, p, temperature=0.3, mix=mix, masked=masked, sides=sides)
    assert found.item() == pytest.approx(oracle(a, p, mix, masked, sides), rel=1e-9)


def test_known_pairs_are_in_no_block():
    a, p = normal(5, 4), normal(5, 4, seed=1)
    excluded = torch.zeros(5, 5, dtype=torch.bool)
    excluded[0, 3] = excluded[3, 0] = True
    found = mixcse(a, p, temperature=0.3, mix=0.2, excluded=excluded)
    expected = oracle(a, p, 0.2, MixMasked.EXCLUDE, MixSides.BOTH, {(0, 3), (3, 0)})
    assert found.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("masked", MixMasked)
def test_equal_vectors_count_what_is_left(masked):
    same = torch.ones(6, 3, dtype=torch.float64)
    released = 2 * math.exp(-1 / 0.05) if masked is MixMasked.ZERO else 0.0
    found = mixcse(same, same, temperature=0.05, mix=0.2, masked=masked).item()
    assert found == pytest.approx(math.log(3 * 6 - 2 + released), rel=1e-12)


def test_mixed_vectors_are_constants():
    """The gradient is that of the loss in which mixed vectors are given from outside."""
    a, p = normal(4, 3).requires_grad_(), normal(4, 3, seed=1).requires_grad_()
    mixcse(a, p, temperature=0.3, mix=0.2).backward()
    step = 1e-6
    for side, other in ((a, p), (p, a)):
        moved = side.detach().clone()
        moved[1, 2] += step
        held = [0.2 * each + 0.8 * each.roll(-1, 0) for each in (a.detach(), p.detach())]
        change = 0.0
        for sign, value in ((1, moved), (-1, side.detach() * 2 - moved)):
            pair = (value, other.detach()) if side is a else (other.detach(), value)
            change += sign * with_constants(*pair, *held)
        assert side.grad[1, 2].item() == pytest.approx(change / (2 * step), rel=1e-6, abs=1e-9)


def with_constants(a, p, v, u):
    n, total = len(a), 0.0
    for i in range(n):
        terms = [math.exp(cosine(a[i], p[j]) / 0.3) for j in range(n)]
        terms += [math.exp(cosine(a[i], u[j]) / 0.3) for j in range(n) if (j + 1) % n != i]
        terms += [math.exp(cosine(v[i], p[j]) / 0.3) for j in range(n) if (i + 1) % n != j]
        total += math.log(sum(terms)) - cosine(a[i], p[i]) / 0.3
    return total / n
