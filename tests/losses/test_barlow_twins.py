import math

import pytest
import torch
from draws import column, mean, normal, signs

from simcse_cli.losses.barlow_twins import barlow_twins, standardise


class TestBarlowTwins:
    def test_barlow_twins_of_independent_columns_is_closed_form(self):
        # C_ii = var / (var + eps) = 1 / (1 + 1e-5), all else 0.
        view = signs(3)
        expected = 3 * (1 - 1 / (1 + 1e-5)) ** 2
        assert barlow_twins(view, view).item() == pytest.approx(expected, rel=1e-6)

    def test_barlow_twins_of_opposite_views_is_closed_form(self):
        view = signs(3)
        assert barlow_twins(view, -view).item() == pytest.approx(
            3 * (1 + 1 / (1 + 1e-5)) ** 2, rel=1e-9
        )

    def test_barlow_twins_of_one_repeated_column_counts_off_diagonal_pairs(self):
        view = signs(1).repeat(1, 4)
        on, off = (1 - 1 / (1 + 1e-5)) ** 2, (1 / (1 + 1e-5)) ** 2
        loss = barlow_twins(view, view, redundancy_weight=0.01).item()
        assert loss == pytest.approx(4 * on + 0.01 * 12 * off, rel=1e-9)

    def test_barlow_twins_equals_double_loop(self):
        a, b = normal(6, 4), normal(6, 4, seed=1)
        loss = 0.0
        for i in range(4):
            for j in range(4):
                x, y = column(a, i), column(b, j)
                var_x = mean([(v - mean(x)) ** 2 for v in x]) + 1e-5
                var_y = mean([(v - mean(y)) ** 2 for v in y]) + 1e-5
                products = [(u - mean(x)) * (v - mean(y)) for u, v in zip(x, y, strict=True)]
                c = mean(products) / math.sqrt(var_x * var_y)
                loss += (1 - c) ** 2 if i == j else 0.0051 * c**2
        assert barlow_twins(a, b).item() == pytest.approx(loss, rel=1e-12)

    def test_barlow_twins_equals_the_original_formula(self):
        # The original: BatchNorm1d without affine in training mode, C / N, both sums.
        a, b = normal(8, 5), normal(8, 5, seed=1)
        norm = torch.nn.BatchNorm1d(5, affine=False, dtype=torch.float64)
        c = norm(a).T @ norm(b) / 8
        on = (torch.diagonal(c) - 1).pow(2).sum()
        off = c.flatten()[:-1].view(4, 6)[:, 1:].flatten().pow(2).sum()
        assert barlow_twins(a, b).item() == pytest.approx((on + 0.0051 * off).item(), rel=1e-12)

    def test_barlow_twins_ignores_order_shift_and_scale_of_columns(self):
        a, b = normal(16, 4) * 100, normal(16, 4, seed=1) * 100
        order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
        moved = barlow_twins(a[order] * 3 + 5, b[order] * 0.5 - 1)
        assert moved.item() == pytest.approx(barlow_twins(a, b).item(), rel=1e-6)

    def test_barlow_twins_of_swapped_views_is_equal(self):
        a, b = normal(6, 4), normal(6, 4, seed=1)
        assert barlow_twins(a, b).item() == pytest.approx(barlow_twins(b, a).item(), rel=1e-12)

    def test_barlow_twins_gradient_is_right(self):
        a, b = (normal(5, 3, seed=s).requires_grad_() for s in range(2))
        assert torch.autograd.gradcheck(barlow_twins, (a, b))

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_barlow_twins_of_constant_views_is_the_width(self, value):
        view = torch.full((4, 3), value, requires_grad=True)
        loss = barlow_twins(view, view)
        loss.backward()
        assert loss.item() == pytest.approx(3.0)
        assert torch.isfinite(view.grad).all()

    def test_barlow_twins_refuses_a_batch_of_one(self):
        with pytest.raises(ValueError, match="batch of one"):
            barlow_twins(torch.ones(1, 3), torch.ones(1, 3))

    def test_barlow_twins_refuses_unequal_shapes(self):
        with pytest.raises(ValueError, match=r"views \(2, 3\) and \(3, 3\)"):
            barlow_twins(torch.ones(2, 3), torch.ones(3, 3))


def test_standardise_is_batch_norm_in_training_mode():
    view = normal(9, 4)
    expected = torch.nn.BatchNorm1d(4, affine=False, dtype=torch.float64)(view)
    torch.testing.assert_close(standardise(view), expected, rtol=1e-12, atol=1e-12)
