"""RankCSE: agreement of both directions of the similarities, and the order that a teacher gives."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.machine.precision import no_autocast


def consistency(logits: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of both directions, mean over rows, in nats.

    Source: Liu et al. 2023 (RankCSE), as a community's code has it. P is the softmax over the rows
    of ``logits`` ``(N, N)``, Q that over their transpose, M = (P + Q) / 2, and a row gives
    ``(KL(P || M) + KL(Q || M)) / 2``.

    Symmetric logits: 0; never above ``ln 2``.
    """
    log_p = logits.log_softmax(1)
    log_q = logits.T.log_softmax(1)
    half = torch.tensor(0.5, dtype=log_p.dtype, device=log_p.device)
    log_m = torch.logaddexp(log_p, log_q) + half.log()
    terms = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return terms.sum(1).mean() / 2


def negative_entropy(logits: Tensor) -> Tensor:
    """Return ``-(H(P) + H(Q)) / 2``, mean over rows, which that code computes for ``consistency``.

    The code clamps ln M, which is never above 0, to at least 1e-7, so that M drops out.
    """
    log_p = logits.log_softmax(1)
    log_q = logits.T.log_softmax(1)
    return (log_p.exp() * log_p + log_q.exp() * log_q).sum(1).mean() / 2


def list_net(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return the cross-entropy of the teacher's and the student's distribution over other rows.

    Source: Cao et al. 2007 in RankCSE: ``-mean_i sum_{j != i} softmax_j(teacher_ij) ln
    softmax_j(logits_ij)``, both ``(N, N)`` without the diagonal, in nats.

    Two rows: 0; equal logits off the diagonal: the teacher's entropy there.
    """
    n_rows = len(logits)
    is_other = ~torch.eye(n_rows, dtype=torch.bool, device=logits.device)
    shape = n_rows, n_rows - 1
    # Sorted to the front, as a GPU would have to say how many places a mask selects.
    order = is_other.flatten().to(torch.int8).argsort(descending=True, stable=True)
    places = order[: n_rows * (n_rows - 1)]
    student = logits.flatten()[places].view(shape)
    teacher = teacher_logits.flatten()[places].view(shape)
    return -(teacher.softmax(1) * student.log_softmax(1)).sum(1).mean()


def list_mle(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the likelihood of the teacher's order, negative logarithm, mean over rows, in nats.

    Source: Xia et al. 2008 in RankCSE: ``sum_k ( ln sum_{m >= k} exp(a_pi(m)) - a_pi(k) )`` with
    the ``logits`` a ``(N, N)`` of a row and pi its columns by falling ``teacher`` similarity, the
    own column first, equal ones in the order of columns.

    Equal logits: ``ln N!``, 3.1781 for 4 rows. The term of k = 1 is InfoNCE.
    """
    is_own = torch.eye(len(teacher), dtype=torch.bool, device=teacher.device)
    ranks = teacher.masked_fill(is_own, torch.inf).argsort(dim=1, descending=True, stable=True)
    ordered = logits.gather(1, ranks)
    with no_autocast(logits.device):
        left = ordered.flip(1).logcumsumexp(1).flip(1)
    return (left - ordered).sum(1).mean()


def similarity_distance(similarities: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference of two ``(N, N)`` matrices of cosines; equal ones: 0."""
    return functional.mse_loss(similarities, teacher)
