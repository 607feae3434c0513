"""The queue of ESimCSE: whose vectors it holds, in which order, and what a resumed run restores."""

import math

import pytest
import torch

from objectives.cases import batch_of, build
from simcse_cli.losses.info_nce import info_nce


def queued(objective, **changes):
    """Return a fresh objective with a queue around the same weights, and its data."""
    made, data = build("simcse-unsup queue", objective, dropout=0.2, **changes)
    return made, data


def step(objective, batch, lr=0.5):
    """Take a plain step of gradient descent; return the loss and the weights before the step."""
    before = {name: p.detach().clone() for name, p in objective.encoder.named_parameters()}
    losses, _ = objective(batch)
    losses["contrastive"].backward()
    with torch.no_grad():
        for parameter in objective.encoder.parameters():
            parameter -= lr * parameter.grad
            parameter.grad = None
    return losses["contrastive"].detach(), before


def vectors_with(objective, weights, batch):
    """Return the anchors' vectors by some weights without dropout, through the head."""
    now = {name: p.detach().clone() for name, p in objective.encoder.named_parameters()}
    objective.encoder.load_state_dict(weights, strict=False)
    objective.encoder.backbone.eval()
    with torch.no_grad():
        found = objective.encoder.embed_rows(batch.rows[: batch.n_examples])
    objective.encoder.load_state_dict(now, strict=False)
    objective.encoder.backbone.train()
    return found


def slow_weights(starts, momentum):
    """Return the moving average of the weights of the steps so far."""
    slow = starts[0]
    for fast in starts:
        slow = {name: momentum * slow[name] + (1 - momentum) * fast[name] for name in fast}
    return slow


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_queue_holds_the_newest_anchors_by_the_moving_average(momentum, tiny_model_dir):
    objective, data = queued(tiny_model_dir, queue_size=9, momentum=momentum)
    batches = [batch_of(objective, data, slice(start, start + 4)) for start in (0, 4, 8)]
    starts, expected = [], []
    for batch in batches:
        _, before = step(objective, batch)
        starts.append(before)
        head = {name: before[name] for name in before if name.startswith("head")}
        weights = slow_weights(starts, momentum) | head
        expected.append(vectors_with(objective, weights, batch))
    found = objective.queue.negatives(objective.epoch)
    torch.testing.assert_close(found, torch.cat(expected)[-9:], rtol=1e-4, atol=1e-5)
    spread = (torch.cat(expected)[-9:] - torch.cat(expected)[-9:].mean(0)).abs().mean()
    assert spread > 1e-3  # the vectors differ, so that the comparison says something


def test_loss_is_that_of_the_views_against_positives_and_queue(tiny_model_dir):
    objective, data = queued(tiny_model_dir, queue_size=6)
    first, second = (batch_of(objective, data, slice(start, start + 4)) for start in (0, 4))
    objective(first)
    held = objective.queue.negatives(objective.epoch).clone()
    assert len(held) == 4
    torch.manual_seed(3)
    anchors, positives = objective.encoder.embed_rows(second.rows).chunk(2)
    torch.manual_seed(3)
    found = objective(second)[0]["contrastive"]
    expected = info_nce(anchors, positives, temperature=0.05, extra_negatives=held)
    assert torch.equal(found, expected)
    assert len(objective.queue.negatives(objective.epoch)) == 6


def test_first_step_is_simcse_to_the_bit_and_an_empty_queue_stays_out(tiny_model_dir):
    plain, data = build("simcse-unsup", tiny_model_dir, dropout=0.2)
    objective, _ = queued(tiny_model_dir)
    batch = batch_of(objective, data)
    values = []
    for each in (plain, objective):
        torch.manual_seed(1)
        losses, _ = each(batch)
        losses["contrastive"].backward()
        values.append((losses["contrastive"], *(p.grad for p in each.encoder.parameters())))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*values, strict=True))


def test_equal_vectors_count_the_queue(tiny_model_dir):
    objective, data = queued(tiny_model_dir, queue_size=5)
    for parameter in objective.parameters():
        parameter.data.zero_()
    batch = batch_of(objective, data, slice(0, 4))
    assert objective(batch)[0]["contrastive"].item() == pytest.approx(math.log(4), rel=1e-6)
    assert objective(batch)[0]["contrastive"].item() == pytest.approx(math.log(4 + 4), rel=1e-6)
    assert objective(batch)[0]["contrastive"].item() == pytest.approx(math.log(4 + 5), rel=1e-6)


def test_epoch_starts_with_an_empty_queue_and_a_resumed_one_goes_on(tiny_model_dir):
    objective, data = queued(tiny_model_dir)
    objective(batch_of(objective, data))
    epoch = objective.epoch
    resumed, _ = queued(tiny_model_dir)
    resumed.load_state_dict(objective.state_dict())
    assert torch.equal(resumed.queue.negatives(epoch), objective.queue.negatives(epoch))
    assert len(resumed.queue.negatives(epoch)) == 8
    assert len(resumed.queue.negatives(epoch + 1)) == 0
