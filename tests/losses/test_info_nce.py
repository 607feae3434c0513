import math

import pytest
import torch
from draws import cosine, dot, normal
from torch.nn.functional import cosine_similarity

from simcse_cli.losses.info_nce import info_nce
from simcse_cli.settings.choices import Similarity


def info_nce_oracle(anchors, positives, temperature, negatives=None, alpha=1.0, similarity=cosine):
    total = 0.0
    for i in range(len(anchors)):
        denominator = 0.0
        for j in range(len(anchors)):
            denominator += math.exp(similarity(anchors[i], positives[j]) / temperature)
            if negatives is not None:
                weight = alpha if i == j else 1.0
                denominator += weight * math.exp(similarity(anchors[i], negatives[j]) / temperature)
        total -= math.log(
            math.exp(similarity(anchors[i], positives[i]) / temperature) / denominator
        )
    return total / len(anchors)


def masked_oracle(
    anchors, positives, texts, temperature, negatives=None, alpha=1.0, symmetric=False
):
    """Return the loss by loops over rows, with every term written out; ``texts`` are tuples."""

    def term(x, y):
        return (torch.nn.functional.cosine_similarity(x, y, dim=0) / temperature).exp()

    n, total = len(anchors), torch.zeros((), dtype=anchors.dtype)
    for i, (anchor, positive, *_) in enumerate(texts):
        right = term(anchors[i], positives[i])
        denominator = reverse = right
        for j, (other_anchor, other_positive, *others) in enumerate(texts):
            if j != i and other_anchor != anchor and other_positive not in (anchor, positive):
                denominator = denominator + term(anchors[i], positives[j])
            if j != i and other_positive != positive and other_anchor not in (anchor, positive):
                reverse = reverse + term(anchors[j], positives[i])
            for place, negative in enumerate(others):
                if negative not in (anchor, positive):
                    weight = alpha if i == j else 1.0
                    denominator = denominator + weight * term(anchors[i], negatives[place * n + j])
        losses = [(denominator / right).log(), (reverse / right).log()]
        total = total + (sum(losses) / 2 if symmetric else losses[0])
    return total / n


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("n_negatives", [0, 1, 2])
def test_equal_texts_are_masked_as_in_a_double_loop(n_negatives, symmetric):
    numbers = torch.randint(
        9, (7, 2 + n_negatives), generator=torch.Generator().manual_seed(n_negatives)
    )
    vectors = [normal(7, 4, seed=seed).double().requires_grad_() for seed in range(3)]
    vectors[2] = normal(7 * max(n_negatives, 1), 4, seed=5).double().requires_grad_()
    negatives = vectors[2] if n_negatives else None
    used = vectors if n_negatives else vectors[:2]
    fast = info_nce(
        *vectors[:2],
        temperature=0.3,
        hard_negatives=negatives,
        hard_negative_alpha=2.0,
        symmetric=symmetric,
        texts=numbers,
    )
    plain = masked_oracle(
        *vectors[:2], [tuple(row) for row in numbers.tolist()], 0.3, negatives, 2.0, symmetric
    )
    assert fast.item() == pytest.approx(plain.item(), rel=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(fast, used), torch.autograd.grad(plain, used), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-14)


def test_masking_changes_no_bit_without_equal_texts_and_leaves_nothing_of_equal_ones():
    a, p, n = normal(6, 4), normal(6, 4, seed=1), normal(6, 4, seed=2)
    plain = info_nce(a, p, temperature=0.05, hard_negatives=n, symmetric=True)
    texts = torch.arange(18).view(6, 3)
    assert torch.equal(
        info_nce(a, p, temperature=0.05, hard_negatives=n, symmetric=True, texts=texts), plain
    )
    assert (
        info_nce(a, p, temperature=0.05, hard_negatives=n, texts=torch.zeros_like(texts)).item()
        == 0
    )
    with pytest.raises(ValueError, match=r"texts \(6, 3\): need \(6, 2\)"):
        info_nce(a, p, temperature=0.05, texts=texts)


@pytest.mark.parametrize("symmetric", [False, True])
def test_extra_negatives_and_excluded_pairs_are_those_of_a_double_loop(symmetric):
    a, p, q = normal(4, 3), normal(4, 3, seed=1), normal(5, 3, seed=2)
    excluded = torch.zeros(4, 4, dtype=torch.bool)
    excluded[0, 2] = excluded[3, 0] = excluded[3, 1] = True
    found = info_nce(
        a, p, temperature=0.3, extra_negatives=q, excluded=excluded, symmetric=symmetric
    )
    total = 0.0
    for i in range(4):
        right = math.exp(cosine(a[i], p[i]) / 0.3)
        others = [j for j in range(4) if not excluded[i, j]]
        forward = sum(math.exp(cosine(a[i], p[j]) / 0.3) for j in others)
        forward += sum(math.exp(cosine(a[i], each) / 0.3) for each in q)
        others = [j for j in range(4) if not excluded[j, i]]
        backward = sum(math.exp(cosine(a[j], p[i]) / 0.3) for j in others)
        losses = [math.log(forward / right), math.log(backward / right)]
        total += sum(losses) / 2 if symmetric else losses[0]
    assert found.item() == pytest.approx(total / 4, rel=1e-12)


def test_extra_negatives_are_counted_and_absent_ones_change_no_bit():
    same = torch.ones(5, 3, dtype=torch.float64)
    extra = torch.ones(7, 3, dtype=torch.float64)
    loss = info_nce(same, same, temperature=0.05, extra_negatives=extra)
    assert loss.item() == pytest.approx(math.log(5 + 7))
    a, p = normal(6, 4), normal(6, 4, seed=1)
    none = torch.zeros(6, 6, dtype=torch.bool)
    plain = info_nce(a, p, temperature=0.05)
    assert torch.equal(
        info_nce(a, p, temperature=0.05, extra_negatives=a[:0], excluded=none), plain
    )
    everything = ~torch.eye(6, dtype=torch.bool)
    assert info_nce(a, p, temperature=0.05, excluded=everything).item() == 0.0


class TestInfoNce:
    @pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
    def test_info_nce_of_orthogonal_pairs_is_closed_form(self, temperature):
        pairs = torch.eye(6, dtype=torch.float64)
        expected = math.log(1 + 5 * math.exp(-1 / temperature))
        assert info_nce(pairs, pairs, temperature=temperature).item() == pytest.approx(
            expected, abs=1e-12
        )

    @pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
    def test_info_nce_of_equal_embeddings_counts_the_choices(self, alpha):
        same = torch.ones(5, 3, dtype=torch.float64)
        assert info_nce(same, same, temperature=0.05).item() == pytest.approx(math.log(5))
        loss = info_nce(
            same, same, temperature=0.05, hard_negatives=same, hard_negative_alpha=alpha
        )
        assert loss.item() == pytest.approx(math.log(2 * 5 - 1 + alpha))
        default = info_nce(same, same, temperature=0.05, hard_negatives=same)
        assert default.item() == pytest.approx(math.log(2 * 5))

    def test_info_nce_of_one_anchor_has_its_own_hard_negatives_alone(self):
        same = torch.ones(1, 3, dtype=torch.float64)
        for n_negatives in (1, 3):
            loss = info_nce(
                same, same, temperature=0.05, hard_negatives=same.repeat(n_negatives, 1)
            )
            assert loss.item() == pytest.approx(math.log(1 + n_negatives))

    @pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
    @pytest.mark.parametrize(
        ("similarity", "oracle"), [(Similarity.COSINE, cosine), (Similarity.DOT, dot)]
    )
    def test_info_nce_equals_double_loop(self, alpha, similarity, oracle):
        a, p, n = normal(6, 4), normal(6, 4, seed=1), normal(6, 4, seed=2)
        loss = info_nce(
            a,
            p,
            temperature=0.3,
            hard_negatives=n,
            hard_negative_alpha=alpha,
            similarity=similarity,
        )
        assert loss.item() == pytest.approx(info_nce_oracle(a, p, 0.3, n, alpha, oracle), rel=1e-12)
        plain = info_nce(a, p, temperature=0.3, similarity=similarity)
        assert plain.item() == pytest.approx(
            info_nce_oracle(a, p, 0.3, None, 1.0, oracle), rel=1e-12
        )

    def test_info_nce_equals_the_original_formula(self):
        # The original: broadcast cosine, a log-weight on the diagonal of the hard-negative block.
        a, p, n = normal(5, 8), normal(5, 8, seed=1), normal(5, 8, seed=2)
        log_alpha = 0.7
        logits = cosine_similarity(a.unsqueeze(1), p.unsqueeze(0), dim=-1) / 0.05
        hard = cosine_similarity(a.unsqueeze(1), n.unsqueeze(0), dim=-1) / 0.05
        weights = torch.tensor(
            [[0.0] * (5 + i) + [log_alpha] + [0.0] * (5 - i - 1) for i in range(5)]
        )
        expected = torch.nn.CrossEntropyLoss()(
            torch.cat([logits, hard], 1) + weights, torch.arange(5)
        )
        loss = info_nce(
            a, p, temperature=0.05, hard_negatives=n, hard_negative_alpha=math.exp(log_alpha)
        )
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)

    def test_info_nce_weights_each_of_several_own_negatives(self):
        same = torch.ones(4, 3, dtype=torch.float64)
        loss = info_nce(
            same, same, temperature=1.0, hard_negatives=same.repeat(2, 1), hard_negative_alpha=2.0
        )
        assert loss.item() == pytest.approx(math.log(4 + 2 * (3 + 2.0)))

    def test_info_nce_ignores_order_and_norm(self):
        a, p, n = normal(7, 4), normal(7, 4, seed=1), normal(7, 4, seed=2)
        loss = info_nce(a, p, temperature=0.05, hard_negatives=n, hard_negative_alpha=2.0)
        order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
        moved = info_nce(
            a[order] * 3,
            p[order],
            temperature=0.05,
            hard_negatives=n[order] * 0.1,
            hard_negative_alpha=2.0,
        )
        assert moved.item() == pytest.approx(loss.item(), rel=1e-12)

    def test_info_nce_symmetric_is_the_mean_of_both_directions(self):
        a, p = normal(6, 4), normal(6, 4, seed=1)
        loss = info_nce(a, p, temperature=0.2, symmetric=True)
        expected = (info_nce_oracle(a, p, 0.2) + info_nce_oracle(p, a, 0.2)) / 2
        assert loss.item() == pytest.approx(expected, rel=1e-12)

    def test_info_nce_gradient_is_right(self):
        a, p, n = (normal(4, 3, seed=s).requires_grad_() for s in range(3))

        def loss(a, p, n):
            return info_nce(
                a, p, temperature=0.3, hard_negatives=n, hard_negative_alpha=2.0, symmetric=True
            )

        assert torch.autograd.gradcheck(loss, (a, p, n))

    def test_info_nce_of_one_pair_is_zero(self):
        assert info_nce(normal(1, 4), normal(1, 4, seed=1), temperature=0.05).item() == 0.0

    def test_info_nce_of_zero_vectors_is_uniform_with_finite_gradient(self):
        zeros = torch.zeros(4, 3, requires_grad=True)
        positives = normal(4, 3).float().requires_grad_()
        loss = info_nce(zeros, positives, temperature=0.05)
        loss.backward()
        assert loss.item() == pytest.approx(math.log(4))
        assert torch.isfinite(zeros.grad).all()
        assert torch.isfinite(positives.grad).all()

    def test_info_nce_keeps_full_precision_under_autocast(self):
        a, p = normal(8, 16).float(), normal(8, 16, seed=1).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = info_nce(a, p, temperature=0.05)
        assert inside.item() == pytest.approx(info_nce(a, p, temperature=0.05).item(), rel=1e-6)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"temperature": 0.0}, "temperature 0.0"),
            ({"hard_negative_alpha": 0.0}, "hard_negative_alpha 0.0"),
            ({"hard_negatives": torch.ones(3, 4)}, "hard_negatives"),
            ({"hard_negatives": torch.ones(0, 4)}, "hard_negatives"),
        ],
    )
    def test_info_nce_refuses_bad_arguments(self, change, message):
        arguments = {"temperature": 0.05, "hard_negatives": torch.ones(2, 4), **change}
        with pytest.raises(ValueError, match=message):
            info_nce(torch.ones(2, 4), torch.ones(2, 4), **arguments)

    def test_info_nce_refuses_unequal_shapes(self):
        with pytest.raises(ValueError, match=r"anchors \(2, 4\), positives \(3, 4\)"):
            info_nce(torch.ones(2, 4), torch.ones(3, 4), temperature=0.05)
