import math

import pytest
import torch
from draws import cosine, normal, signs

from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.simcse_plus_plus import dimension_contrast, off_dropout


@pytest.mark.parametrize("scale", [0.9, 1.0, 2.0])
def test_off_dropout_equals_a_double_loop(scale):
    a, p, z = normal(5, 4), normal(5, 4, seed=1), normal(5, 4, seed=2)
    excluded = torch.zeros(5, 5, dtype=torch.bool)
    excluded[1, 3] = True
    found = off_dropout(a, p, z, temperature=0.3, positive_scale=scale, excluded=excluded)
    total = 0.0
    for i in range(5):
        right = scale * cosine(a[i], p[i]) / 0.3
        others = [j for j in range(5) if j != i and not excluded[i, j]]
        negatives = sum(math.exp(cosine(z[i], z[j]) / 0.3) for j in others)
        total += -right + math.log(math.exp(right) + negatives)
    assert found.item() == pytest.approx(total / 5, rel=1e-12)


def test_off_dropout_of_equal_views_is_info_nce_and_of_equal_vectors_ln_n():
    a = normal(6, 4)
    found = off_dropout(a, a, a, temperature=0.05)
    assert found.item() == pytest.approx(info_nce(a, a, temperature=0.05).item(), rel=1e-12)
    same = torch.ones(7, 3, dtype=torch.float64)
    assert off_dropout(same, same, same, temperature=0.05).item() == pytest.approx(math.log(7))


def test_off_dropout_gradient_is_right():
    inputs = [normal(4, 3, seed=seed).requires_grad_() for seed in range(3)]
    assert torch.autograd.gradcheck(
        lambda a, p, z: off_dropout(a, p, z, temperature=0.3, positive_scale=0.9), inputs
    )


@pytest.mark.parametrize("temperature", [5.0, 10.0])
def test_dimension_contrast_of_uncorrelated_columns_is_closed_form(temperature):
    """The reference states 6.4441 for 5 and 6.5439 for 10 at 768 dimensions."""
    views = signs(8)
    expected = -1 / temperature + math.log(math.exp(1 / temperature) + 8 - 1)
    found = dimension_contrast(views, views, temperature=temperature)
    assert found.item() == pytest.approx(expected, abs=1e-5)
    at_768 = -1 / temperature + math.log(math.exp(1 / temperature) + 768 - 1)
    assert at_768 == pytest.approx({5.0: 6.4441, 10.0: 6.5439}[temperature], abs=1e-4)


def test_dimension_contrast_equals_a_double_loop():
    a, b = normal(6, 3), normal(6, 3, seed=1)
    columns = []
    for view in (a, b):
        centred = view - view.mean(0)
        columns.append(centred / (centred.square().mean(0) + 1e-5).sqrt())
    total = 0.0
    for k in range(3):
        row = [float(columns[0][:, k] @ columns[1][:, each]) / 6 / 2.0 for each in range(3)]
        total += -row[k] + math.log(sum(map(math.exp, row)))
    assert dimension_contrast(a, b, temperature=2.0).item() == pytest.approx(total / 3, rel=1e-12)


def test_dimension_contrast_ignores_scale_shift_and_order():
    a, b = normal(40, 5), normal(40, 5, seed=1)
    plain = dimension_contrast(a, b, temperature=5.0).item()
    scaled = dimension_contrast(a * 30 + 2, b * 7 - 1, temperature=5.0).item()
    assert scaled == pytest.approx(plain, abs=1e-4)  # but for the 1e-5 beside the variance
    rows, columns = torch.randperm(40), torch.randperm(5)
    moved = dimension_contrast(a[rows][:, columns], b[rows][:, columns], temperature=5.0)
    assert moved.item() == pytest.approx(plain, rel=1e-12)


def test_dimension_contrast_of_constant_columns_is_ln_d_and_of_one_row_refused():
    same = torch.ones(4, 6, dtype=torch.float64)
    assert dimension_contrast(same, same, temperature=5.0).item() == pytest.approx(math.log(6))
    with pytest.raises(ValueError, match="at least 2 rows"):
        dimension_contrast(same[:1], same[:1], temperature=5.0)


def test_dimension_contrast_gradient_is_right():
    views = normal(5, 3).requires_grad_(), normal(5, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: dimension_contrast(a, b, temperature=2.0), views)
