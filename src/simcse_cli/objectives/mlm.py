"""Masked language modelling as an auxiliary term, row by row so that cached gradients apply."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.errors import ConfigError
from simcse_cli.machine.devices import to_device
from simcse_cli.machine.gather import share_of_mean
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.model_files import find_model
from simcse_cli.models.padding import TokenRows
from simcse_cli.models.pretrained import MlmHead, quiet_transformers

NOT_MASKED = -100
_KEPT_SHARE = _RANDOM_SHARE = 0.1


class MlmTerm(nn.Module):
    """The masked-LM head of the encoder's checkpoint, its masks and its loss.

    Source: Devlin et al. 2019; as auxiliary term Gao et al. 2021 (Table D.2) and Giorgi et al. 2021.

    Args:
        tied: whether the input embedding is the matrix of the output layer too.

    Attributes:
        is_pretrained: whether the checkpoint has a masked-LM head; a fresh one is used otherwise.
    """

    def __init__(self, encoder: SentenceEncoder, *, weight: float, probability: float, tied: bool) -> None:
        super().__init__()
        if not 0 < probability < 1:
            raise ConfigError(f"--set mlm_probability={probability}: need a number between 0 and 1")
        tokenizer = encoder.tokenizer
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                f"--mlm-weight: the tokenizer of {encoder.name} has no mask token",
                hint="leave --mlm-weight out",
            )
        self.weight = weight
        self.probability = probability
        self.mask_id = int(tokenizer.mask_token_id)
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self.n_vocabulary = len(tokenizer)
        try:
            embeddings: nn.Embedding = encoder.backbone.get_input_embeddings()  # type: ignore[operator]
            self.head = MlmHead(encoder.config, embeddings, tied=tied)
        except ValueError as error:
            raise ConfigError(f"--mlm-weight: {error}", hint="use a BERT or RoBERTa encoder") from error
        with quiet_transformers():
            self.is_pretrained = self.head.load_pretrained(str(find_model(encoder.name).base))

    def mask(
        self, rows: TokenRows, generator: np.random.Generator
    ) -> tuple[list[list[int]], list[list[int]]]:
        return mask_tokens(
            rows,
            probability=self.probability,
            mask_id=self.mask_id,
            special_ids=self.special_ids,
            n_vocabulary=self.n_vocabulary,
            generator=generator,
        )

    def row_losses(self, states: Tensor, labels: TokenRows) -> Tensor:
        """Return the summed cross-entropy of each row's masked tokens.

        Args:
            states: ``(R, L, H)``, last layer for the masked rows.
            labels: one list a row, original ids where a token was chosen, -100 elsewhere.

        Returns:
            ``(R,)`` in nats. Only chosen positions pass through the head: ``(M, H)`` to ``(M, V)``.
        """
        target = torch.full(states.shape[:2], NOT_MASKED)
        for row, ids in enumerate(labels):
            target[row, : len(ids)] = torch.tensor(ids)
        chosen = target != NOT_MASKED  # found on the CPU: a GPU would have to say how many there are
        places = to_device(chosen.flatten().nonzero()[:, 0], states.device)
        owners, wanted = (to_device(part, states.device) for part in (chosen.nonzero()[:, 0], target[chosen]))
        scores = self.head(states.flatten(0, 1)[places])
        losses = functional.cross_entropy(scores.float(), wanted, reduction="none")
        return losses.new_zeros(len(states)).index_add(0, owners, losses)

    def loss(self, row_losses: Tensor, labels: TokenRows) -> Tensor:
        """Return weight times this process's share of the mean over all masked tokens; 0 if there are none."""
        n_masked = sum(label != NOT_MASKED for row in labels for label in row)
        return self.weight * share_of_mean(row_losses.sum(), n_masked)


def mlm_term(
    encoder: SentenceEncoder, weight: float, probability: float, *, tied: bool, warnings: list[str]
) -> MlmTerm | None:
    """Return the term, None for weight 0; adds a warning where the checkpoint has no masked-LM head."""
    if not weight > 0:
        return None
    term = MlmTerm(encoder, weight=weight, probability=probability, tied=tied)
    if not term.is_pretrained:
        warnings.append(
            f"{encoder.name} has no masked-LM head: the auxiliary term starts from a fresh one "
            "over the word embeddings"
        )
    return term


def mask_tokens(
    rows: TokenRows,
    *,
    probability: float,
    mask_id: int,
    special_ids: Collection[int],
    n_vocabulary: int,
    generator: np.random.Generator,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return rows with some tokens masked, and labels: the original id where one was chosen, -100 elsewhere.

    Source: Devlin et al. 2019, section 3.1. Each token that is not special is chosen with ``probability``; of
    the chosen, 80% become the mask token, 10% a random token and 10% stay as they are. Random tokens are
    drawn below ``n_vocabulary``, special ones included.
    """
    lengths = np.array([len(row) for row in rows])
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    chosen = (generator.random(len(ids)) < probability) & ~np.isin(ids, list(special_ids))
    labels = np.where(chosen, ids, NOT_MASKED)
    fate = generator.random(len(ids))
    random_ids = generator.integers(0, n_vocabulary, size=len(ids))
    ids = np.where(chosen & (fate < 1 - _KEPT_SHARE - _RANDOM_SHARE), mask_id, ids)
    ids = np.where(chosen & (fate >= 1 - _RANDOM_SHARE), random_ids, ids)
    borders = np.cumsum(lengths)[:-1]
    masked, targets = ([part.tolist() for part in np.split(values, borders)] for values in (ids, labels))
    return masked, targets
