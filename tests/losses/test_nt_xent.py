import math

import pytest
import torch
from draws import cosine, normal

from simcse_cli.losses.nt_xent import nt_xent


class TestNtXent:
    def test_nt_xent_of_orthogonal_pairs_is_closed_form(self):
        pairs = torch.eye(5, dtype=torch.float64)
        expected = math.log(1 + 2 * 4 * math.exp(-1 / 0.5))
        assert nt_xent(pairs, pairs, temperature=0.5).item() == pytest.approx(expected, rel=1e-12)

    def test_nt_xent_equals_double_loop(self):
        a, p = normal(5, 4), normal(5, 4, seed=1)
        views, total = torch.cat([a, p]), 0.0
        for i in range(10):
            partner = i + 5 if i < 5 else i - 5
            others = sum(math.exp(cosine(views[i], views[j]) / 0.2) for j in range(10) if j != i)
            total -= math.log(math.exp(cosine(views[i], views[partner]) / 0.2) / others)
        assert nt_xent(a, p, temperature=0.2).item() == pytest.approx(total / 10, rel=1e-12)

    def test_nt_xent_does_not_mind_which_view_is_first(self):
        a, p = normal(5, 4), normal(5, 4, seed=1)
        assert nt_xent(a, p, temperature=0.1).item() == pytest.approx(
            nt_xent(p, a, temperature=0.1).item()
        )

    @pytest.mark.parametrize("n_rows", [1, 6])
    def test_nt_xent_of_equal_embeddings_counts_the_choices(self, n_rows):
        same = torch.ones(n_rows, 3, dtype=torch.float64)
        loss = nt_xent(same, same, temperature=0.05).item()
        assert loss == pytest.approx(math.log(2 * n_rows - 1), abs=1e-12)

    def test_nt_xent_gradient_is_right(self):
        a, p = (normal(3, 3, seed=s).requires_grad_() for s in range(2))
        assert torch.autograd.gradcheck(lambda a, p: nt_xent(a, p, temperature=0.3), (a, p))

    def test_nt_xent_of_zero_vectors_is_finite(self):
        zeros = torch.zeros(3, 4, requires_grad=True)
        nt_xent(zeros, zeros, temperature=0.05).backward()
        assert torch.isfinite(zeros.grad).all()


def test_excluded_rows_are_no_negatives_of_each_other():
    a, p = normal(4, 3), normal(4, 3, seed=1)
    excluded = torch.zeros(4, 4, dtype=torch.bool)
    excluded[0, 2] = excluded[2, 0] = True
    views, total = torch.cat([a, p]), 0.0
    for i in range(8):
        right = math.exp(cosine(views[i], views[(i + 4) % 8]) / 0.3)
        others = [j for j in range(8) if j != i and not excluded[i % 4, j % 4]]
        total += math.log(sum(math.exp(cosine(views[i], views[j]) / 0.3) for j in others) / right)
    found = nt_xent(a, p, temperature=0.3, excluded=excluded).item()
    assert found == pytest.approx(total / 8, rel=1e-12)
