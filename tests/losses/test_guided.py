import math

import pytest
import torch
from draws import cosine, normal

from simcse_cli.losses.guided import guided_info_nce
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.settings.choices import ContrastBlock

OPPOSITE = [
    torch.eye(4, dtype=torch.float64)
] * 2  # no pair of texts is closer than the labelled one


@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("n_negatives", [0, 1, 2])
def test_guided_loss_equals_loops(margin, n_negatives):
    views = [normal(4, 3, seed=seed) for seed in range(2 + n_negatives)]
    guide = [normal(4, 5, seed=10 + seed) for seed in range(2 + n_negatives)]
    # Rows 1 and 2 have the same anchor, and anchor 3 is positive 0; negatives are positive 0 (twice),
    # anchor 1, and others.
    texts = torch.tensor([[0, 1, 1, 9], [2, 3, 1, 10], [2, 4, 11, 2], [1, 6, 12, 13]])
    texts = texts[:, : 2 + n_negatives]

    def fits(i, j):
        return texts[i, 0] in (texts[j, 0], texts[j, 1]) or texts[i, 1] == texts[j, 1]

    blocks = [(0, 1), *((0, 2 + k) for k in range(n_negatives)), (0, 0), (1, 1)]
    total, n_removed, n_all = 0.0, 0, 0
    for i in range(4):
        bar = cosine(guide[0][i], guide[1][i]) - margin
        right = math.exp(cosine(views[0][i], views[1][i]) / 0.3)
        terms = [right]
        for left, column in blocks:
            for j in range(4):
                if j == i and column < 2:
                    continue
                is_closer = cosine(guide[left][i], guide[column][j]) > bar
                n_removed, n_all = n_removed + is_closer, n_all + 1
                is_known = fits(i, j) or (left == column and fits(j, i))
                if column > 1:
                    is_known = texts[j, column] in texts[i, :2]
                if not is_closer and not is_known:
                    terms.append(math.exp(cosine(views[left][i], views[column][j]) / 0.3))
        total += math.log(sum(terms) / right)
    loss, share = guided_info_nce(views, guide, temperature=0.3, margin=margin, texts=texts)
    assert loss.item() == pytest.approx(total / 4, rel=1e-12)
    assert share.item() == pytest.approx(n_removed / n_all)


def test_a_guide_that_removes_nothing_and_no_blocks_are_info_nce_to_the_bit():
    a, p = normal(4, 3), normal(4, 3, seed=1)
    loss, share = guided_info_nce([a, p], OPPOSITE, temperature=0.05, blocks=())
    assert torch.equal(loss, info_nce(a, p, temperature=0.05))
    assert share.item() == 0.0


def test_equal_vectors_and_equal_cosines_stay():
    same = torch.ones(5, 3, dtype=torch.float64)
    loss, share = guided_info_nce([same, same], [same, same], temperature=0.05)
    assert loss.item() == pytest.approx(math.log(3 * 5 - 2))
    assert share.item() == 0.0
    only = guided_info_nce([same, same], [same, same], temperature=0.05, blocks=[ContrastBlock.AA])
    assert only[0].item() == pytest.approx(math.log(2 * 5 - 1))


def test_a_larger_margin_removes_more_until_nothing_is_left():
    views = [normal(6, 3, seed=seed).requires_grad_() for seed in range(3)]
    guide = [normal(6, 4, seed=9 + seed) for seed in range(3)]
    found = [guided_info_nce(views, guide, temperature=0.1, margin=m) for m in (0, 0.2, 0.5, 3)]
    shares = [share.item() for _, share in found]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    loss = found[-1][0]
    loss.backward()
    assert loss.item() == 0.0
    assert not any(view.grad.any() for view in views[:2])


def test_gradient_is_right_and_a_scaled_guide_the_same():
    views = [normal(4, 3, seed=seed).requires_grad_() for seed in range(3)]
    guide = [normal(4, 5, seed=9 + seed) for seed in range(3)]
    assert torch.autograd.gradcheck(lambda *v: guided_info_nce(v, guide, temperature=0.3)[0], views)
    plain, scaled = (
        guided_info_nce(views, [scale * each for each in guide], temperature=0.3)
        for scale in (1, 7)
    )
    assert plain[0].item() == pytest.approx(scaled[0].item(), rel=1e-12)
