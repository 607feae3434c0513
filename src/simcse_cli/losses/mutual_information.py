"""Mutual information between token features and sentence features (IS-BERT)."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.similarity import similarity_matrix
from simcse_cli.machine.gather import n_processes, sum_over_processes
from simcse_cli.settings.choices import Similarity


def jensen_shannon_mi(local_features: Tensor, global_features: Tensor, owners: Tensor) -> Tensor:
    """Return minus the Jensen-Shannon estimate of mutual information, in nats.

    Source: Zhang et al. 2020, as in the authors' code. T is the dot product of the features of a
    token and the features of a sentence:

        E+ = mean over all (token, its sentence) of (ln 2 - softplus(-T))
        E- = mean over all (token, other sentence) of (softplus(T) - ln 2)
        loss = E- - E+

    ``local_features`` ``(M, D)`` belong to the tokens of this process's sentences, without padding.
    ``global_features`` ``(N, D)`` belong to all sentences, already gathered over processes.
    ``owners`` ``(M,)`` holds, for each token, the row of its sentence in ``global_features``. Other
    shapes raise a ValueError, and so does a single sentence, which leaves no negative pair.

    The result is this process's share: the mean of the shares over processes is the global loss.
    With one process, the loss is never below ``-2 ln 2``. If all features are zero, it is 0.
    """
    if (
        local_features.shape[1:] != global_features.shape[1:]
        or owners.shape != local_features.shape[:1]
    ):
        raise ValueError(
            f"local_features {tuple(local_features.shape)}, "
            f"global_features {tuple(global_features.shape)}, "
            f"owners {tuple(owners.shape)}: need (M, D), (N, D) and (M,)"
        )
    n_sentences = len(global_features)
    if n_sentences < 2:
        raise ValueError("a batch of one sentence has no negative pair: need at least 2 sentences")

    # Sum over the pairs of a token with its own sentence, and over those with other sentences.
    scores = similarity_matrix(local_features, global_features, Similarity.DOT)  # (M, N)
    is_owner = owners.unsqueeze(1) == torch.arange(n_sentences, device=owners.device)
    positive = (math.log(2) - functional.softplus(-scores)).masked_fill(~is_owner, 0.0).sum()
    negative = (functional.softplus(scores) - math.log(2)).masked_fill(is_owner, 0.0).sum()
    # The tokens of all processes; at least 1, to divide by.
    n_tokens = sum_over_processes(scores.new_full((), len(scores))).clamp_min(1.0)
    return n_processes() * (negative / (n_tokens * (n_sentences - 1)) - positive / n_tokens)
