"""IS-BERT: tokens recognise the vector of their own sentence among those of other sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from simcse_cli.errors import ConfigError
from simcse_cli.losses.mutual_information import jensen_shannon_mi
from simcse_cli.machine.gather import gather_with_grad, row_counts
from simcse_cli.machine.processes import process_rank
from simcse_cli.machine.transfer import to_device
from simcse_cli.models.heads import TokenCnn
from simcse_cli.models.padding import real_positions
from simcse_cli.objectives.base import Batch, Losses, Objective, ObjectiveOptions, Representations
from simcse_cli.settings.choices import ObjectiveName, Pooler
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class IsBertOptions(ObjectiveOptions):
    max_length: int = setting(128, "Sub-words per text, including special ones.", "--max-length")
    n_channels: int = setting(256, "Channels of each of the three convolutions.", min=1)


class IsBert(Objective):
    """Convolutions over the last layer give token features; their mean is the sentence's vector.

    The loss is ``jensen_shannon_mi`` of the token features and the sentence vectors. The three
    convolutions have ``n_channels`` each and are kept after training.

    Source: Zhang et al. 2020, with the settings of their code.
    """

    name = ObjectiveName.IS_BERT
    needs_two_rows = True
    defaults = {
        "adam_eps": 1e-7,
        "batch_size": 32,
        "eval_every": 1000,
        "head": "none",
        "lr": 2e-6,
        "max_length": 128,
        "optimizer": "adamw-uncorrected",
        "pooler": "avg",
        "warmup": 0.1,
        "weight_decay": 0.01,
    }

    Options = IsBertOptions
    options: IsBertOptions

    def set_up(self) -> None:
        if self.encoder.pooler is not Pooler.AVG or self.encoder.head is not None:
            raise ConfigError(
                f"--pooler {self.encoder.pooler}: --objective {self.name} averages features of its "
                "own",
                hint="leave --pooler and --head out",
            )
        self.encoder.token_cnn = TokenCnn(self.encoder.hidden_size, self.options.n_channels)

    def collate(self, examples: Sequence[str], generator: np.random.Generator) -> Batch:
        return self.batch_of(examples)

    def encode(self, batch: Batch) -> Representations:
        """Return the features ``(M, D)`` of all tokens but padding, and the sentences' vectors.

        The tokens of the first sentence come first, then those of the second, and so on.
        """
        embeddings, features, _ = self.encoder.embed_with_states(batch.rows)
        real = to_device(real_positions(batch.rows), features.device)
        return features.flatten(0, 1)[real], embeddings

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        local_features, sentence_features = representations
        counts = batch.counts or row_counts(sentence_features)
        # For each token, find the number of its sentence: first among those of this process, then
        # among those of all processes.
        lengths = torch.tensor([len(row) for row in batch.rows])
        local_numbers = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        sentence_numbers = local_numbers + sum(counts[: process_rank()])
        loss = jensen_shannon_mi(
            local_features,
            gather_with_grad(sentence_features, counts),
            to_device(sentence_numbers, local_features.device),
        )
        return {"mutual_information": loss}, {}
