"""What each objective makes of given vectors, against formulas written out here."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from objectives.cases import batch_of, build
from simcse_cli.objectives.base import Batch
from simcse_cli.objectives.registry import build_objective
from simcse_cli.objectives.simcse import teacher_cosines
from simcse_cli.settings.choices import DropoutMode
from simcse_cli.settings.choices import ObjectiveName as Name


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value(objective, representations, n_examples, **extra):
    """Return the terms of the loss of some representations as numbers."""
    rows = [[0]] * len(representations[0])
    terms, metrics = objective.losses(representations, Batch(rows, n_examples, extra=extra))
    numbers = [
        {name: number.item() for name, number in group.items()} for group in (terms, metrics)
    ]
    return numbers[0], numbers[1]


def cosines(left, right):
    return (left / left.norm(dim=1, keepdim=True)) @ (right / right.norm(dim=1, keepdim=True)).T


def info_nce(views, temperature=0.05, alpha=1.0, columns=None):
    """Return the mean of ``-ln(e^s_ii / (sum_j e^s_ij + sum_j w_ij e^n_ij))`` over the anchors."""
    anchors, positives, *negatives = (view[:, :columns] for view in views)
    terms = torch.exp(cosines(anchors, positives) / temperature)
    total = terms.sum(dim=1)
    for negative in negatives:
        weights = 1 + (alpha - 1) * torch.eye(len(anchors), dtype=torch.float64)
        total = total + (weights * torch.exp(cosines(anchors, negative) / temperature)).sum(dim=1)
    return -torch.log(terms.diagonal() / total).mean().item()


@pytest.mark.parametrize("variant", ["simcse-unsup", "next-sentence"])
def test_simcse_is_info_nce_at_its_temperature(variant, tiny_model_dir):
    objective, _ = build(variant, tiny_model_dir)
    views = vectors(2, 5, 32)
    assert value(objective, (views.view(10, 32),), 5) == (
        {"contrastive": pytest.approx(info_nce(views), rel=1e-9)},
        {},
    )
    warm, _ = build(variant, tiny_model_dir, temperature=0.5, symmetric=True)
    expected = (info_nce(views, 0.5) + info_nce(views.flip(0), 0.5)) / 2
    assert value(warm, (views.view(10, 32),), 5)[0]["contrastive"] == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_supervised_simcse_weighs_the_own_hard_negative(alpha, tiny_model_dir):
    objective, _ = build("simcse-sup", tiny_model_dir, hard_negative_alpha=alpha)
    views = vectors(3, 5, 32)
    assert value(objective, (views.view(15, 32),), 5)[0] == {
        "contrastive": pytest.approx(info_nce(views, alpha=alpha), rel=1e-9)
    }


def test_the_dot_product_is_not_normalised(tiny_model_dir):
    objective, _ = build("simcse-unsup", tiny_model_dir, similarity="dot", temperature=1.0)
    first, second = vectors(2, 5, 32) / 4
    expected = functional.cross_entropy(first @ second.T, torch.arange(5)).item()
    found = value(objective, (torch.cat([first, second]),), 5)[0]["contrastive"]
    assert found == pytest.approx(expected, rel=1e-9)


def test_matryoshka_is_the_mean_over_leading_columns_and_the_whole(tiny_model_dir):
    objective, _ = build("simcse-sup", tiny_model_dir, matryoshka_dims="16,8,16")
    views = vectors(3, 5, 32)
    expected = np.mean([info_nce(views, alpha=2.0, columns=width) for width in (8, 16, 32)])
    assert value(objective, (views.view(15, 32),), 5)[0]["contrastive"] == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize(
    ("variant", "names"),
    [
        ("rankcse", {"contrastive", "consistency", "rank"}),
        ("rankcse listnet", {"contrastive", "consistency", "rank"}),
        ("rankcse as released", {"contrastive", "consistency", "rank"}),
        ("sncse", {"contrastive", "margin"}),
        ("simcse-unsup no-dropout", {"contrastive", "dimension"}),
        ("simcse-sup angle", {"contrastive", "angle"}),
        ("simcse-sup guided", {"contrastive"}),
        ("simcse-unsup noise", {"contrastive"}),
    ],
)
def test_every_term_of_the_views_is_a_mean_over_matryoshka_widths(variant, names, tiny_model_dir):
    nested, data = build(variant, tiny_model_dir, matryoshka_dims="8,16")
    plain, _ = build(variant, tiny_model_dir)
    batch = batch_of(nested, data)
    torch.manual_seed(0)
    found, _ = nested.losses(nested.encode(batch), batch)
    assert found.keys() == names
    torch.manual_seed(0)
    views = nested.views(nested.encode(batch)[0], batch)
    parts = [plain.view_terms([view[:, :n] for view in views], batch)[0] for n in (8, 16, 32)]
    for name in names:
        expected = sum(part[name] for part in parts) / 3
        torch.testing.assert_close(found[name], expected)
        assert not torch.isclose(found[name], parts[-1][name], rtol=1e-4)


def test_fixed_dropout_leaves_only_the_negatives_to_learn_from(tiny_encoder):
    objective = build_objective(
        Name.SIMCSE_UNSUP, tiny_encoder, {"dropout_mode": DropoutMode.FIXED}, {}
    )
    view = vectors(5, 32)
    assert value(objective, (view,), 5)[0]["contrastive"] == pytest.approx(
        info_nce([view, view]), rel=1e-9
    )


def test_quick_thoughts_spreads_the_target_over_neighbours_in_the_document(tiny_model_dir):
    objective, _ = build("quick-thoughts", tiny_model_dir)
    inputs, outputs = vectors(2, 5, 32) / 4
    scores = (inputs @ outputs.T).fill_diagonal_(0.0)
    shares = torch.log_softmax(scores, dim=1)
    # Places 0 1 2 of one document and 9 of another, 10 the next of that.
    rows = [
        -shares[0, 1],
        -(shares[1, 0] + shares[1, 2]) / 2,
        -shares[2, 1],
        -shares[3, 4],
        -shares[4, 3],
    ]
    found, metrics = value(
        objective, (torch.cat([inputs, outputs]),), 5, places=torch.tensor([0, 1, 2, 9, 10])
    )
    assert found == {"quick_thoughts": pytest.approx(torch.stack(rows).mean().item(), rel=1e-9)}
    assert metrics == {"with_neighbour": 1.0}
    _, metrics = value(
        objective, (torch.cat([inputs, outputs]),), 5, places=torch.tensor([0, 1, 5, 9, 11])
    )
    assert metrics == {"with_neighbour": pytest.approx(2 / 5)}


def test_sbert_classifies_u_v_and_their_distance(tiny_model_dir):
    objective, _ = build("sbert", tiny_model_dir)
    objective.double()
    left, right = vectors(2, 5, 32)
    labels = torch.tensor([0, 2, 1, 1, 0])
    weight, bias = (p.detach() for p in objective.classifier.parameters())
    assert weight.shape == (3, 96)
    logits = torch.cat([left, right, (left - right).abs()], dim=1) @ weight.T + bias
    expected = -torch.log_softmax(logits, dim=1)[torch.arange(5), labels].mean().item()
    accuracy = (logits.argmax(dim=1) == labels).double().mean().item()
    found, metrics = value(objective, (torch.cat([left, right]),), 5, labels=labels)
    assert found == {"classification": pytest.approx(expected, rel=1e-9)}
    assert metrics == {"accuracy": pytest.approx(accuracy)}


def test_sbert_numbers_its_classes_as_the_original(tiny_model_dir):
    objective, _ = build("sbert", tiny_model_dir)
    rows = [("a", "b", label) for label in ("contradiction", "entailment", "neutral")]
    batch = objective.collate(rows, np.random.default_rng(0))
    assert batch.extra["labels"].tolist() == [0, 1, 2]
    assert batch.rows == objective.encoder.tokenize(["a", "a", "a", "b", "b", "b"])


def test_contrastive_tension_is_the_cross_entropy_of_raw_dot_products(tiny_model_dir):
    objective, _ = build("ct", tiny_model_dir)
    left, right = vectors(2, 4, 32) / 4
    dots = (left * right).sum(dim=1)
    expected = -torch.log(torch.sigmoid(dots * torch.tensor([1, -1, -1, 1]))).mean().item()
    is_positive = torch.tensor([True, False, False, True])
    found = value(objective, (torch.cat([left, right]),), 4, is_positive=is_positive)
    assert found == ({"tension": pytest.approx(expected, rel=1e-9)}, {})


def test_is_bert_scores_tokens_against_own_and_other_sentences(tiny_model_dir):
    objective, _ = build("is-bert", tiny_model_dir)
    sentences, tokens = vectors(3, 24, seed=1) / 2, vectors(6, 24) / 2
    owners = [0, 0, 1, 2, 2, 2]
    rows = [[1, 2], [3], [4, 5, 6]]
    positive, negative = [], []
    for token, owner in zip(tokens, owners, strict=True):
        for other, sentence in enumerate(sentences):
            score = (token @ sentence).item()
            if owner == other:
                positive.append(math.log(2) - math.log1p(math.exp(-score)))
            else:
                negative.append(math.log1p(math.exp(score)) - math.log(2))
    terms, _ = objective.losses((tokens, sentences), Batch(rows, 3))
    assert terms["mutual_information"].item() == pytest.approx(
        np.mean(negative) - np.mean(positive), rel=1e-9
    )


def test_declutr_compares_anchors_with_the_mean_of_their_positives(tiny_model_dir):
    objective, _ = build("declutr", tiny_model_dir, mlm_weight=0, n_positives=3, temperature=0.1)
    anchors, *positives = vectors(4, 5, 32)
    views = torch.cat([anchors, torch.stack(positives).mean(dim=0)])
    scores = (cosines(views, views) / 0.1).fill_diagonal_(-torch.inf)
    expected = functional.cross_entropy(scores, torch.arange(10).roll(5)).item()
    found = value(objective, (torch.cat([anchors, *positives]),), 5)
    assert found == ({"contrastive": pytest.approx(expected, rel=1e-9)}, {})


def projected(objective, view):
    """Return the projector's result step by step: linear, BatchNorm, ReLU, twice, and linear."""
    for i, layer in enumerate(layer for layer in objective.projector if hasattr(layer, "weight")):
        if i % 2:
            view = (view - view.mean(0)) / (view.var(0, correction=0) + 1e-5).sqrt()
            view = torch.relu(view * layer.weight + layer.bias)
        else:
            view = functional.linear(view, layer.weight, layer.bias)
    return view.detach()


def test_barlow_twins_makes_the_correlation_of_the_projections_the_identity(tiny_model_dir):
    objective, _ = build("barlow-twins", tiny_model_dir, redundancy_weight=0.5)
    objective.double()
    views = vectors(2, 6, 32)
    first, second = (projected(objective, view) for view in views)
    first, second = (
        (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt() for z in (first, second)
    )
    correlation = first.T @ second / 6
    off = correlation.clone().fill_diagonal_(0.0)
    expected = (1 - correlation.diagonal()).square().sum() + 0.5 * off.square().sum()
    found = value(objective, (views.view(12, 32),), 6)
    assert found == ({"barlow_twins": pytest.approx(expected.item(), rel=1e-9)}, {})
    assert all(
        layer.bias is None for layer in objective.projector if isinstance(layer, torch.nn.Linear)
    )


def test_vicreg_weighs_its_three_terms(tiny_model_dir):
    weights = {"invariance_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 5.0}
    objective, _ = build("vicreg", tiny_model_dir, **weights)
    objective.double()
    views = vectors(2, 6, 32)
    first, second = (projected(objective, view) for view in views)
    width = first.shape[1]
    deviations = [(z.var(0) + 1e-4).sqrt() for z in (first, second)]
    covariances = [torch.cov(z.T).fill_diagonal_(0.0) for z in (first, second)]
    expected = {
        "invariance": 2 * (first - second).square().mean(),
        "variance": 3 * sum(torch.relu(1 - deviation).mean() for deviation in deviations) / 2,
        "covariance": 5 * sum(covariance.square().sum() / width for covariance in covariances),
    }
    found, _ = value(objective, (views.view(12, 32),), 6)
    assert found == {name: pytest.approx(term.item(), rel=1e-9) for name, term in expected.items()}
    biases = [
        layer.bias is None for layer in objective.projector if isinstance(layer, torch.nn.Linear)
    ]
    assert biases == [False, False, True]


def test_autocast_does_not_round_the_cosines_of_teachers():
    teacher = functional.normalize(vectors(8, 1, 12).float() + 2, dim=2)
    batch = Batch([[0]] * 8, 8, extra={"teacher": teacher})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = teacher_cosines(batch)
    expected = cosines(teacher[:, 0].double(), teacher[:, 0].double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ["simcse-unsup mlm matryoshka symmetric", "declutr"])
@pytest.mark.parametrize("size", [None, 3])
def test_the_mlm_term_is_the_weighted_mean_over_chosen_tokens(variant, size, tiny_model_dir):
    objective, data = build(variant, tiny_model_dir, mlm_weight=0.25)
    objective.eval()
    batch = batch_of(objective, data, slice(0, 4))
    labels = batch.extra["mlm_labels"]
    masked = batch.rows[batch.extra.get("n_plain", 0) :][: len(labels)]
    losses = []
    for row, targets in zip(masked, labels, strict=True):
        _, states, _ = objective.encoder.embed_with_states([row])
        scores = torch.log_softmax(objective.mlm.head(states)[0], dim=1)
        losses += [-scores[i, target].item() for i, target in enumerate(targets) if target != -100]
    parts = [objective.encode(part) for part in (batch.chunks(size) if size else [batch])]
    representations = tuple(map(torch.cat, zip(*parts, strict=True)))
    found = objective.losses(representations, batch)[0]["mlm"].item()
    assert found == pytest.approx(0.25 * np.mean(losses), rel=1e-4)


@pytest.mark.parametrize("normalizes", [False, True])
def test_distillation_compares_the_vectors_that_the_model_gives(normalizes, tiny_model_dir):
    objective, _ = build("distill mse", tiny_model_dir)
    objective.encoder.record = replace(objective.encoder.record, normalize=normalizes)
    students, teachers = vectors(5, 32), functional.normalize(vectors(5, 12, seed=1), dim=1)
    units = functional.normalize(students, dim=1) if normalizes else students
    expected = (units @ objective.double().map.weight.T - teachers).square().mean()
    extra = {"teacher": teachers[:, None], "first": 0}
    found = value(objective, (students,), 5, **extra)[0]
    assert found == {"distance": pytest.approx(expected.item(), rel=1e-9)}
