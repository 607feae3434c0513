import math

import pytest
import torch
from draws import column, mean, normal, signs

from simcse_cli.losses.vicreg import covariance_loss, variance_loss, vicreg


def total(view_a: torch.Tensor, view_b: torch.Tensor) -> torch.Tensor:
    return sum(vicreg(view_a, view_b).values())


class TestVicreg:
    def test_vicreg_of_equal_wide_independent_views_is_zero(self):
        view = signs(3) * 2
        assert total(view, view).item() == pytest.approx(0.0, abs=1e-12)

    def test_vicreg_terms_of_shifted_views_are_closed_form(self):
        view = signs(2)  # unbiased variance 4/3 per column
        terms = vicreg(view, view + 0.5, invariance_weight=1.0)
        assert terms["invariance"].item() == pytest.approx(0.25)
        assert terms["variance"].item() == pytest.approx(0.0)
        assert terms["covariance"].item() == pytest.approx(0.0)

    def test_covariance_loss_of_a_repeated_column_is_closed_form(self):
        view = signs(1).repeat(2, 3)  # 4 rows, unbiased variance 4/3, three equal columns
        assert covariance_loss(view).item() == pytest.approx(6 * (4 / 3) ** 2 / 3, rel=1e-12)

    def test_variance_loss_of_constant_view_is_gamma_minus_root_eps(self):
        assert variance_loss(torch.ones(4, 3)).item() == pytest.approx(1 - 0.01)

    def test_vicreg_equals_double_loop(self):
        a, b = normal(6, 4) * 0.5, normal(6, 4, seed=1) * 0.5
        differences = [(a[i, j] - b[i, j]).item() ** 2 for i in range(6) for j in range(4)]
        expected = 25 * sum(differences) / 24
        for view in (a, b):
            for i in range(4):
                x = column(view, i)
                deviation = math.sqrt(sum((v - mean(x)) ** 2 for v in x) / 5 + 1e-4)
                expected += 25 * max(0.0, 1 - deviation) / 4 / 2
                for j in range(4):
                    if j != i:
                        y = column(view, j)
                        products = [
                            (u - mean(x)) * (v - mean(y)) for u, v in zip(x, y, strict=True)
                        ]
                        expected += (sum(products) / 5) ** 2 / 4
        assert total(a, b).item() == pytest.approx(expected, rel=1e-12)

    def test_vicreg_equals_the_original_formula(self):
        x, y = normal(8, 5), normal(8, 5, seed=1) * 0.3
        expected = 25 * torch.nn.functional.mse_loss(x, y)
        x, y = x - x.mean(dim=0), y - y.mean(dim=0)
        for z in (x, y):
            expected = expected + 25 * torch.relu(1 - torch.sqrt(z.var(dim=0) + 0.0001)).mean() / 2
            c = z.T @ z / 7
            expected = expected + c.flatten()[:-1].view(4, 6)[:, 1:].flatten().pow(2).sum() / 5
        original = total(normal(8, 5), normal(8, 5, seed=1) * 0.3)
        assert original.item() == pytest.approx(expected.item(), rel=1e-12)

    def test_vicreg_ignores_order_view_order_and_common_shift(self):
        a, b = normal(6, 4), normal(6, 4, seed=1)
        order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
        assert total(b[order] + 7, a[order] + 7).item() == pytest.approx(
            total(a, b).item(), rel=1e-9
        )

    def test_vicreg_weights_scale_their_terms(self):
        a, b = normal(6, 4), normal(6, 4, seed=1)
        plain = vicreg(a, b, invariance_weight=1.0, variance_weight=1.0, covariance_weight=1.0)
        weighted = vicreg(a, b, invariance_weight=2.0, variance_weight=3.0, covariance_weight=5.0)
        for (name, term), weight in zip(weighted.items(), (2, 3, 5), strict=True):
            assert term.item() == pytest.approx(weight * plain[name].item(), rel=1e-12)

    def test_vicreg_gradient_is_right(self):
        a, b = ((normal(5, 3, seed=s) * 0.3).requires_grad_() for s in range(2))
        assert torch.autograd.gradcheck(total, (a, b))

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_vicreg_of_constant_views_is_the_hinge(self, value):
        view = torch.full((4, 3), value, requires_grad=True)
        loss = total(view, view)
        loss.backward()
        assert loss.item() == pytest.approx(25 * 0.99)
        assert torch.isfinite(view.grad).all()

    def test_vicreg_refuses_a_batch_of_one(self):
        with pytest.raises(ValueError, match="batch of one"):
            vicreg(torch.ones(1, 3), torch.ones(1, 3))
