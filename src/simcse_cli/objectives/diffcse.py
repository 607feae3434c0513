"""DiffCSE: SimCSE with a detector of replaced tokens that reads the sentence's vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.errors import ConfigError
from simcse_cli.files.digests import digest
from simcse_cli.machine.gather import mean_over_processes, share_of_mean
from simcse_cli.machine.precision import no_autocast
from simcse_cli.machine.transfer import to_device
from simcse_cli.models.encoder import SentenceEncoder, unread_mask
from simcse_cli.models.heads import BatchNormHead
from simcse_cli.models.model_files import find_model
from simcse_cli.models.padding import TokenRows, pad, real_positions
from simcse_cli.models.pretrained import load_masked_lm, load_tokenizer, weights_as_bytes
from simcse_cli.objectives.base import Batch, Losses, Representations, training_width
from simcse_cli.objectives.mlm import Masking
from simcse_cli.objectives.simcse import Simcse, SimcseOptions
from simcse_cli.settings.choices import Fill, ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class DiffcseOptions(SimcseOptions):
    generator: str | None = setting(None, "Masked language model that edits.", "--generator")
    rtd_weight: float = setting(
        0.005,
        "Weight of the detection of replaced tokens.",
        min=0,
        enables=("generator", "mask_rate", "fill", "as_released"),
    )
    mask_rate: float = setting(
        0.3, "Share of tokens that are masked for the generator.", min=0, below=1
    )
    fill: Fill = setting(
        Fill.ARGMAX, "The generator's tokens: the likeliest ones, or drawn from its softmax."
    )
    as_released: bool = setting(
        False,
        "As the code has it: padding counts as unchanged tokens, the generator's dropout is on.",
        excludes=("fill",),
        because="which takes the likeliest tokens",
    )


class Detector(nn.Module):
    """A copy of the encoder, with its own weights, that tells which tokens were replaced.

    It reads the tokens of an edited sentence. Before the first layer, after normalisation and
    dropout, the vector of the original sentence takes the place of the first token's embedding.
    """

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder.copied()
        self.encoder.change(head=None)
        backbone: Any = self.encoder.backbone
        width = training_width(encoder)
        embedding_width = backbone.get_input_embeddings().embedding_dim
        if not hasattr(backbone, "embeddings") or width != embedding_width:
            raise ConfigError(
                f"--objective diffcse: a vector of width {width} cannot replace an embedding of "
                f"{encoder.name} ({encoder.config.model_type}, width {embedding_width})",
                hint="take an encoder such as BERT, RoBERTa or MiniLM, or leave --head out",
            )
        self.linear = nn.Linear(encoder.hidden_size, 2)

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return logits of *kept* and *replaced*, ``(R, L, 2)``.

        The vectors ``(R, D)`` stand in place of the embeddings of the first tokens.
        """

        def put_vectors(_: nn.Module, __: object, embedded: Tensor) -> Tensor:
            return torch.cat([vectors[:, None].to(embedded.dtype), embedded[:, 1:]], dim=1)

        backbone: Any = self.encoder.backbone
        with backbone.embeddings.register_forward_hook(put_vectors):
            states = self.encoder.hidden_states(ids, mask)[-1]
        with no_autocast(states.device):
            logits: Tensor = self.linear(states)
        return logits


class Diffcse(Simcse):
    """SimCSE with a second task: to find the tokens that a frozen masked language model replaced.

    Source: Chuang et al. 2022 and the authors' code. The generator turns a masked copy of each view
    into an edited sentence. The detector reads this sentence and the vector of the view; its
    gradient reaches the encoder through the vector. The detection loss is a mean over tokens, in
    nats; a detector that gives both classes the same logit has a loss of ``ln 2``. An encoder
    without a head gets a BatchNorm head, which is dropped after training, like the detector and the
    generator.
    """

    name = ObjectiveName.DIFFCSE
    defaults = {"epochs": 2.0, "head": "none", "lr": 7e-6}
    Options = DiffcseOptions
    options: DiffcseOptions

    @classmethod
    def check_options(cls, options: DiffcseOptions) -> None:
        if options.rtd_weight and options.generator is None:
            raise ConfigError(
                f"--objective {cls.name} detects the edits of a masked language model, and none "
                "is named",
                hint="add --generator MODEL, such as distilbert-base for bert-base",
            )

    def set_up(self) -> None:
        super().set_up()
        self.head = BatchNormHead(self.encoder.hidden_size) if self.encoder.head is None else None
        self.generator: Any = None
        self.detector: Any = None
        if self.options.rtd_weight:
            self.generator = self._load_generator()
            self.detector = Detector(self.encoder)
            self.masking = Masking.of(self.encoder.tokenizer, self.options.mask_rate)

    def _load_generator(self) -> nn.Module:
        """Return the frozen masked language model that the options name."""
        name = str(self.options.generator)
        folder = find_model(name).named
        model: nn.Module = load_masked_lm(folder)
        tokenizer = self.encoder.tokenizer
        if (
            load_tokenizer(folder).get_vocab() != tokenizer.get_vocab()
            or tokenizer.mask_token_id is None
        ):
            raise ConfigError(
                f"--generator {name}: need the vocabulary of {self.encoder.name}, with a mask "
                "token",
                hint="take a masked language model that has the tokenizer of the encoder",
            )
        self.model_digests[name] = digest(*weights_as_bytes(model))
        return model.requires_grad_(False)

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        """Tokenise the views, and add a masked copy of each row for the generator."""
        batch = super().collate(examples, generator)
        if self.generator is not None:
            # With the MLM term, its masked copies follow the first ``n_plain`` rows.
            n_plain = batch.extra.get("n_plain", len(batch.rows))
            batch.extra["masked"], _ = self.masking(batch.rows[:n_plain], generator)
        return batch

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        vectors, *others = representations
        if self.head is not None:
            with no_autocast(vectors.device):
                vectors = self.head(vectors)
        terms, metrics = super().losses((vectors, *others), batch)
        if self.detector is not None:
            loss, replaced = self.detection(vectors, batch)
            terms["rtd"] = self.options.rtd_weight * loss
            metrics["replaced"] = replaced
        return terms, metrics

    def detection(self, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the detection loss and the fraction of replaced tokens.

        Both are this process's shares of a mean over all processes. ``vectors`` ``(R, D)`` belong
        to the views of this process, view by view.
        """
        rows = batch.rows[: len(vectors)]
        edited = self.edited(rows, batch.extra["masked"], vectors.device)
        ids, mask = pad(rows, self.encoder.tokens.pad_id, vectors.device)
        is_replaced = (edited != ids).long()
        logits = self.detector(vectors, edited, mask)
        losses = functional.cross_entropy(logits.mT, is_replaced, reduction="none")

        # Means are over tokens without padding, except the loss of the released code.
        n_tokens = mask.sum()
        fraction = share_of_mean(is_replaced.sum().to(losses.dtype), n_tokens)
        if self.options.as_released:
            return mean_over_processes(losses), fraction
        return share_of_mean((losses * mask).sum(), n_tokens), fraction

    @torch.no_grad()
    def edited(self, rows: TokenRows, masked_rows: TokenRows, device: torch.device) -> Tensor:
        """Return the token ids of the rows as the generator edits them, padded, ``(R, L)``.

        The generator predicts every token, so tokens that were not masked may change too. Only the
        first token of each row and the padding stay.
        """
        pad_id = self.encoder.tokens.pad_id
        ids, _ = pad(rows, pad_id, device)
        masked, mask = pad(masked_rows, pad_id, device)
        positions = to_device(real_positions(rows), device)
        logits = self._generator_logits(masked, mask, positions)
        if self.options.fill is Fill.SAMPLE:
            # The Gumbel-max trick: with the logarithm of an exponential draw subtracted from each
            # logit, the argmax is a draw from the softmax.
            logits = logits - torch.empty_like(logits).exponential_().log()
        edited = ids.flatten().index_copy(0, positions, logits.argmax(dim=-1)).view_as(ids)
        edited[:, 0] = ids[:, 0]
        return edited

    def _generator_logits(self, masked: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """Return the generator's logits ``(T, V)`` at ``positions``; padded rows lie end to end.

        The output layer takes more time than all others, and padding would cost it as much as
        tokens do. So it gets the states at these positions alone.
        """

        def states_of_tokens(_: nn.Module, arguments: tuple[Tensor, ...]) -> Tensor:
            return arguments[0].flatten(end_dim=-2)[positions]

        self.generator.train(self.options.as_released)  # the released code leaves its dropout on
        # This form of the mask spares a check by transformers that would wait for the GPU.
        attention_mask = unread_mask(self.generator.base_model, mask)
        with self.generator.get_output_embeddings().register_forward_pre_hook(states_of_tokens):
            output = self.generator(input_ids=masked, attention_mask=attention_mask)
        logits: Tensor = output.logits
        # A head that uses the weights of its output layer without calling it passes the hook by.
        if logits.ndim == 3:
            logits = logits.flatten(end_dim=-2)[positions]
        # An output layer may be padded to more ids than the tokenizer has.
        return logits[:, : len(self.encoder.tokenizer)].float()
