"""RankCSE: consistency of two views' similarities, and learning a teacher's ranking of texts."""

import math

import torch
from torch import Tensor

from simcse_cli.losses.similarity import own_pairs
from simcse_cli.machine.precision import no_autocast


def consistency(logits: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of both directions, mean over rows, in nats.

    Source: Liu et al. 2023 (RankCSE), as in other people's code, since the authors' code was not
    found. P and Q are the row-wise softmax of ``logits`` ``(N, N)`` and of their transpose, and
    M = (P + Q) / 2. The loss of a row is ``(KL(P || M) + KL(Q || M)) / 2``.

    Symmetric logits give 0; the loss is never above ``ln 2``.
    """
    log_p = logits.log_softmax(1)
    log_q = logits.T.log_softmax(1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    terms = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return terms.sum(1).mean() / 2


def negative_entropy(logits: Tensor) -> Tensor:
    """Return the negated mean entropy ``-(H(P) + H(Q)) / 2``, mean over rows, in nats.

    P and Q are the row-wise softmax of ``logits`` ``(N, N)`` and of their transpose. Other people's
    code for RankCSE computes this in place of ``consistency``, the divergence in the paper. It
    replaces ln M by max(ln M, 1e-7). This is always 1e-7, since ln M is at most 0, so the loss no
    longer depends on M = (P + Q) / 2.
    """
    log_p = logits.log_softmax(1)
    log_q = logits.T.log_softmax(1)
    return (log_p.exp() * log_p + log_q.exp() * log_q).sum(1).mean() / 2


def list_net(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return the cross-entropy of a student's softmax against a teacher's, in nats.

    Source: Cao et al. 2007, as used in RankCSE. The ``logits`` of the student and
    ``teacher_logits`` are ``(N, N)``. p_ij and q_ij are the teacher's and the student's softmax
    over row i without its diagonal entry:

        loss = -mean_i sum_{j != i} p_ij ln q_ij

    With N = 2, the loss is 0. Logits that equal the teacher's give the teacher's entropy.
    """
    student = _off_diagonal(logits)
    teacher = _off_diagonal(teacher_logits)
    return -(teacher.softmax(1) * student.log_softmax(1)).sum(1).mean()


def _off_diagonal(matrix: Tensor) -> Tensor:
    """Return the rows of a matrix ``(N, N)`` without their diagonal entries, ``(N, N - 1)``."""
    # The flat matrix is the first diagonal entry, and then N - 1 groups of N + 1 entries. Each
    # group ends with a diagonal entry.
    n_rows = len(matrix)
    entries = matrix.flatten()[1:].view(n_rows - 1, n_rows + 1)
    return entries[:, :-1].reshape(n_rows, n_rows - 1)


def list_mle(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the negative log-likelihood of the teacher's ranking, mean over rows, in nats.

    Source: Xia et al. 2008, as used in RankCSE. ``logits`` and the similarities ``teacher`` are
    ``(N, N)``. a_1 to a_N are the logits of a row in the teacher's order: the diagonal entry first,
    then the others from the highest to the lowest similarity. Equal similarities keep the order of
    the columns.

        loss of a row = sum_k (ln sum_{m >= k} exp(a_m) - a_k)

    The term of k = 1 is InfoNCE. Equal logits give ``ln N!``: 3.1781 for 4 rows.
    """
    # The diagonal entry comes first.
    ranked = teacher.masked_fill(own_pairs(teacher), torch.inf)
    order = ranked.argsort(dim=1, descending=True, stable=True)
    ordered = logits.gather(1, order)
    # Flipped twice, the cumulative sum runs from the last column back to the first.
    with no_autocast(logits.device):
        remaining = ordered.flip(1).logcumsumexp(1).flip(1)
    return (remaining - ordered).sum(1).mean()
