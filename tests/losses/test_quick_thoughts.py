import math

import pytest
import torch
from draws import dot, normal

from simcse_cli.losses.quick_thoughts import quick_thoughts


def neighbours_of_a_line(n: int) -> torch.Tensor:
    positions = torch.arange(n)
    return (positions[:, None] - positions[None, :]).abs() == 1


class TestQuickThoughts:
    def test_quick_thoughts_of_zero_vectors_is_ln_n(self):
        zeros = torch.zeros(6, 4, dtype=torch.float64)
        loss = quick_thoughts(zeros, zeros, neighbours_of_a_line(6))
        assert loss.item() == pytest.approx(math.log(6), rel=1e-12)

    def test_quick_thoughts_equals_double_loop(self):
        u, v = normal(5, 3), normal(5, 3, seed=1)
        near = neighbours_of_a_line(5)
        near[2, 3] = near[3, 2] = False  # a document ends after the third sentence
        total = 0.0
        for i in range(5):
            scores = [0.0 if j == i else dot(u[i], v[j]) for j in range(5)]
            targets = [j for j in range(5) if near[i, j]]
            log_z = math.log(sum(math.exp(s) for s in scores))
            total -= sum(scores[j] - log_z for j in targets) / len(targets)
        assert quick_thoughts(u, v, near).item() == pytest.approx(total / 5, rel=1e-12)

    def test_quick_thoughts_equals_the_original_formula(self):
        # The original: targets are a band matrix divided by its row sums, diagonal scores
        # multiplied away.
        u, v = normal(6, 3), normal(6, 3, seed=1)
        scores = (u @ v.T) * (1 - torch.eye(6, dtype=torch.float64))
        targets = torch.diag(torch.ones(5, dtype=torch.float64), 1) + torch.diag(
            torch.ones(5, dtype=torch.float64), -1
        )
        targets /= targets.sum(1, keepdim=True)
        expected = torch.nn.functional.cross_entropy(scores, targets)
        assert quick_thoughts(u, v, neighbours_of_a_line(6)).item() == pytest.approx(
            expected.item(), rel=1e-12
        )

    def test_quick_thoughts_leaves_out_rows_without_neighbour(self):
        u, v = normal(4, 3), normal(4, 3, seed=1)
        near = neighbours_of_a_line(4)
        near[3, :] = near[:, 3] = False
        rows = quick_thoughts(u, v, near) * 3
        alone = torch.zeros(4, 4, dtype=torch.bool)
        parts = 0.0
        for i in range(3):
            one = alone.clone()
            one[i] = near[i]
            parts += quick_thoughts(u, v, one).item()
        assert rows.item() == pytest.approx(parts, rel=1e-12)

    def test_quick_thoughts_without_any_neighbour_is_zero_with_zero_gradient(self):
        u = normal(3, 3).requires_grad_()
        loss = quick_thoughts(u, u, torch.zeros(3, 3, dtype=torch.bool))
        loss.backward()
        assert loss.item() == 0.0
        assert u.grad.abs().max() == 0.0

    def test_quick_thoughts_gradient_is_right(self):
        u, v = (normal(4, 3, seed=s).requires_grad_() for s in range(2))
        near = neighbours_of_a_line(4)
        assert torch.autograd.gradcheck(lambda u, v: quick_thoughts(u, v, near), (u, v))

    def test_quick_thoughts_refuses_a_wrong_neighbour_matrix(self):
        with pytest.raises(ValueError, match=r"neighbours \(3, 3\)"):
            quick_thoughts(torch.ones(2, 4), torch.ones(2, 4), torch.ones(3, 3, dtype=torch.bool))
