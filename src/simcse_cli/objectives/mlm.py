"""Masked language modelling, alone or as an auxiliary term.

The loss of each row is computed by itself, so that cached gradients can be used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.errors import ConfigError
from simcse_cli.machine.gather import share_of_mean
from simcse_cli.machine.precision import wide
from simcse_cli.machine.transfer import to_device
from simcse_cli.models.model_files import find_model
from simcse_cli.models.padding import TokenRows
from simcse_cli.models.pretrained import MlmHead, quiet_transformers
from simcse_cli.objectives.base import Batch, Losses, Objective, ObjectiveOptions, Representations
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting

NOT_MASKED = -100
_KEPT_SHARE = _RANDOM_SHARE = 0.1
Words = Sequence[Sequence[int | None]]
"""For each token of each row, the number of its word in the row; None for special tokens."""


@dataclass(frozen=True)
class Masking:
    """Chooses tokens of rows and masks them.

    Source: Devlin et al. 2019, section 3.1. Each token that is not special is chosen with
    ``probability``. Of the chosen tokens, 80% become the mask token, 10% a random token, and 10%
    stay as they are. A random token is any id below ``n_vocabulary``, special ones included.
    """

    probability: float
    mask_id: int
    special_ids: Sequence[int]
    n_vocabulary: int

    @classmethod
    def of(cls, tokenizer: Any, probability: float) -> Self:
        return cls(probability, tokenizer.mask_token_id, tokenizer.all_special_ids, len(tokenizer))

    def __call__(
        self, rows: TokenRows, generator: np.random.Generator, words: Words | None = None
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return rows with some tokens masked, and labels: the ids of chosen tokens, else -100.

        With ``words``, each word is chosen with ``probability``, and all of its tokens with it.
        Still, what becomes of each token is drawn by itself.
        """
        ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        draws = generator.random(len(ids))
        if words is not None:
            # All tokens of a word get the draw of its first one, so that they are chosen together.
            draws = draws[_first_tokens(words)]
        chosen = (draws < self.probability) & ~np.isin(ids, self.special_ids)
        labels = np.where(chosen, ids, NOT_MASKED)

        # Mask, replace or keep each chosen token.
        fate = generator.random(len(ids))  # below 0.8: mask; up to 0.9: keep; above: replace
        random_ids = generator.integers(0, self.n_vocabulary, size=len(ids))
        ids = np.where(chosen & (fate < 1 - _KEPT_SHARE - _RANDOM_SHARE), self.mask_id, ids)
        ids = np.where(chosen & (fate >= 1 - _RANDOM_SHARE), random_ids, ids)

        # Cut the tokens into rows again.
        borders = np.cumsum([len(row) for row in rows])[:-1]
        masked = [part.tolist() for part in np.split(ids, borders)]
        targets = [part.tolist() for part in np.split(labels, borders)]
        return masked, targets


def _first_tokens(words: Words) -> list[int]:
    """Return, for each token, the position of the first token of its word.

    Positions count the tokens of all rows, laid end to end.
    """
    word_keys = [(row, word) for row, row_words in enumerate(words) for word in row_words]
    first_tokens: dict[tuple[int, int | None], int] = {}
    return [first_tokens.setdefault(key, token) for token, key in enumerate(word_keys)]


class MlmTerm(nn.Module):
    """The masked-LM head of the encoder's checkpoint, its masks and its loss.

    Source: Devlin et al. 2019; as an auxiliary term, Gao et al. 2021 (Table D.2) and Giorgi et al.
    2021.

    With ``tied``, the input embedding also serves as the matrix of the output layer. If the
    checkpoint has no masked-LM head, the head is new, and the objective warns of it.
    """

    def __init__(
        self, objective: Objective, *, weight: float, probability: float, tied: bool
    ) -> None:
        super().__init__()
        encoder = objective.encoder
        tokenizer = encoder.tokenizer
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                f"masked LM: the tokenizer of {encoder.name} has no mask token",
                hint="use a BERT or RoBERTa encoder, or leave --mlm-weight out",
            )
        self.weight = weight
        self.mask = Masking.of(tokenizer, probability)

        # The head gets the weights of the checkpoint's head, if it has one.
        try:
            embeddings: nn.Embedding = encoder.backbone.get_input_embeddings()  # type: ignore[operator]
            self.head = MlmHead(encoder.config, embeddings, tied=tied)
        except ValueError as error:
            kind = encoder.config.model_type
            raise ConfigError(
                f"masked LM: the head of {kind} ({encoder.name}) is not of the kind that is "
                f"trained here ({error})",
                hint="use a BERT or RoBERTa encoder, or leave the MLM term out",
            ) from error
        with quiet_transformers():
            if not self.head.load_pretrained(str(find_model(encoder.name).base)):
                objective.warnings.append(
                    f"{encoder.name} has no masked-LM head: training starts from a fresh one over "
                    "the word embeddings"
                )

    def row_losses(self, states: Tensor, labels: TokenRows, starts: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy of each row's masked tokens, ``(R,)``, in nats.

        ``states`` are the last layer for the masked rows: padded rows ``(R, L, H)``, or packed
        tokens ``(T, H)`` with the position ``starts`` ``(R,)`` of each row's first token.
        ``labels`` has one list for each row: the original id where a token was chosen, else -100.
        The head takes time: its last product is one of the largest of a step. So only the M chosen
        tokens pass through it, from states ``(M, H)`` to scores ``(M, V)``, and it runs under
        autocast.
        """
        # Lay padded rows end to end, so that both forms are indexed in one way: row r then starts
        # at token r * L.
        if starts is None:
            n_rows, length = states.shape[:2]
            starts = torch.arange(0, n_rows * length, length, device=states.device)
            states = states.flatten(0, 1)
        target = torch.full((len(labels), max(map(len, labels), default=0)), NOT_MASKED)
        for row, ids in enumerate(labels):
            target[row, : len(ids)] = torch.tensor(ids)

        # Find the chosen places on the CPU: on a GPU, the program would wait to learn their number.
        chosen = target != NOT_MASKED
        places_and_ids = (*chosen.nonzero().unbind(1), target[chosen])
        moved = [to_device(tensor, states.device) for tensor in places_and_ids]
        row_numbers, columns, original_ids = moved
        scores = wide(self.head(states[starts[row_numbers] + columns]))
        losses = functional.cross_entropy(scores, original_ids, reduction="none")
        return losses.new_zeros(len(starts)).index_add(0, row_numbers, losses)

    def loss(self, row_losses: Tensor, labels: TokenRows) -> Tensor:
        """Return this process's share of the mean loss over the masked tokens of all processes.

        The share is multiplied by the weight of the term. Without masked tokens, it is 0.
        """
        return self.weight * share_of_mean(row_losses.sum(), count_masked(labels))


def count_masked(labels: TokenRows) -> int:
    return sum(label != NOT_MASKED for row in labels for label in row)


def mlm_term(objective: Objective, *, tied: bool) -> MlmTerm | None:
    """Return the MLM term of an objective, or None if its option ``mlm_weight`` is 0.

    With ``tied``, the input embedding also serves as the matrix of the output layer.
    """
    options: Any = objective.options
    if not options.mlm_weight > 0:
        return None
    weight = options.mlm_weight
    return MlmTerm(objective, weight=weight, probability=options.mlm_probability, tied=tied)


@dataclass(frozen=True)
class MlmOptions(ObjectiveOptions):
    max_length: int = setting(128, "Sub-words per text, including special ones.", "--max-length")
    mlm_probability: float = setting(0.15, "Share of tokens that are predicted.", above=0, below=1)
    whole_words: bool = setting(
        False,
        "Choose words, each with this probability, and all sub-words of those.",
        "--whole-words",
    )


class MaskedLm(Objective):
    """Masked language modelling alone, to adapt an encoder to a field: predict masked tokens.

    Source: Devlin et al. 2019, section 3.1, with the settings of its appendix A.2; Gururangan et
    al. 2020. The loss is the mean cross-entropy of all chosen tokens of the step, in nats; equal
    scores of all V tokens give ``ln V``. The input embedding is also the output matrix, as in BERT,
    and the head is saved with the encoder. Whole words are masked as in the BERT authors' later
    models.
    """

    name = ObjectiveName.MLM
    learns_from_one_row = True
    defaults = {
        "head": "none",
        "lr": 1e-4,
        "max_length": 128,
        "pooler": "avg",
        "warmup": 0.01,
        "weight_decay": 0.01,
    }

    Options = MlmOptions
    options: MlmOptions

    def set_up(self) -> None:
        if self.encoder.head is not None:
            raise ConfigError(
                f"--head {self.encoder.record.head_use}: --objective {self.name} trains no vector "
                "that passes a head",
                hint="leave --head out, and train it with the objective that follows",
            )
        probability = self.options.mlm_probability
        self.mlm = MlmTerm(self, weight=1.0, probability=probability, tied=True)

    def collate(self, examples: Sequence[str], generator: np.random.Generator) -> Batch:
        tokens = self.encoder.tokens
        limit = min(self.options.max_length, tokens.max_length)
        rows = tokens.ids(examples, limit)
        words = tokens.words(examples, limit) if self.options.whole_words else None
        masked, labels = self.mlm.mask(rows, generator, words)
        texts = [(text,) for text in examples]
        return Batch(masked, len(examples), texts=texts, extra={"mlm_labels": labels})

    def encode(self, batch: Batch) -> Representations:
        states, starts = self.encoder.token_states(batch.rows)
        return (self.mlm.row_losses(states, batch.own("mlm_labels"), starts),)

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        return {"mlm": self.mlm.loss(representations[0], batch.extra["mlm_labels"])}, {}

    def mlm_head(self) -> MlmHead:
        return self.mlm.head
