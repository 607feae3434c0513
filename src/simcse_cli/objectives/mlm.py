"""Masked language modelling as an auxiliary term, row by row so that cached gradients apply."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.errors import ConfigError
from simcse_cli.losses.gather import share_of_mean
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.pretrained import MlmHead, quiet_transformers
from simcse_cli.models.resolve import resolve_model
from simcse_cli.objectives.sampling import NOT_MASKED, mask_tokens

Rows = Sequence[Sequence[int]]


class MlmTerm(nn.Module):
    """The masked-LM head of the encoder's checkpoint, its masks and its loss.

    Source: Devlin et al. 2019; as auxiliary term Gao et al. 2021 (Table D.2) and Giorgi et al. 2021.

    Args:
        encoder: gives tokenizer, input embedding (tied to the output layer) and the checkpoint of the head.
        probability: share of the non-special tokens that are predicted.

    Attributes:
        is_pretrained: whether the checkpoint has a masked-LM head; a fresh one is used otherwise.
    """

    def __init__(self, encoder: SentenceEncoder, *, probability: float) -> None:
        super().__init__()
        if not 0 < probability < 1:
            raise ConfigError(f"--set mlm_probability={probability}: need a number between 0 and 1")
        tokenizer = encoder.tokenizer
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                f"--mlm-weight: the tokenizer of {encoder.name} has no mask token",
                hint="leave --mlm-weight out",
            )
        self.probability = probability
        self.mask_id = int(tokenizer.mask_token_id)
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self.n_vocabulary = len(tokenizer)
        try:
            self.head = MlmHead(encoder.config, encoder.backbone.get_input_embeddings())  # type: ignore[operator]
        except ValueError as error:
            raise ConfigError(f"--mlm-weight: {error}", hint="use a BERT or RoBERTa encoder") from error
        with quiet_transformers():
            self.is_pretrained = self.head.load_pretrained(str(resolve_model(encoder.name)))

    def mask(self, rows: Rows, generator: np.random.Generator) -> tuple[list[list[int]], list[list[int]]]:
        """Return masked copies of token rows, and their labels."""
        return mask_tokens(
            rows,
            probability=self.probability,
            mask_id=self.mask_id,
            special_ids=self.special_ids,
            n_vocabulary=self.n_vocabulary,
            generator=generator,
        )

    def row_losses(self, states: Tensor, labels: Rows) -> Tensor:
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
        target = target.to(states.device)
        chosen = target != NOT_MASKED
        scores = self.head(states[chosen])
        losses = functional.cross_entropy(scores.float(), target[chosen], reduction="none")
        owners = chosen.nonzero()[:, 0]
        return losses.new_zeros(len(states)).index_add(0, owners, losses)


def mlm_loss(row_losses: Tensor, labels: Rows) -> Tensor:
    """Return this process's share of the mean over all masked tokens, a scalar; 0 if nothing is masked."""
    return share_of_mean(row_losses.sum(), sum(label != NOT_MASKED for row in labels for label in row))
