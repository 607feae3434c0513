"""TSDAE: rebuild a sentence from the vector of a damaged copy."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.augment.operators import delete_words
from simcse_cli.augment.words import split_words
from simcse_cli.errors import ConfigError
from simcse_cli.machine.gather import share_of_mean
from simcse_cli.machine.precision import wide
from simcse_cli.models.model_files import find_model
from simcse_cli.models.padding import TokenRows, pad
from simcse_cli.models.pretrained import load_decoder
from simcse_cli.objectives.base import Batch, Losses, Objective, ObjectiveOptions, Representations
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class TsdaeOptions(ObjectiveOptions):
    max_length: int = setting(75, "Sub-words per text, including special ones.", "--max-length")
    delete: float = setting(0.6, "Probability with which a word is deleted.", min=0, below=1)
    tie_decoder: bool = setting(
        True, "Share the encoder's weights with the decoder, but for its cross-attention."
    )


class Tsdae(Objective):
    """A decoder that sees only the vector of a damaged sentence predicts the whole one.

    Source: Wang, Reimers and Gurevych 2021; sentence-transformers. The loss is the mean
    cross-entropy of token t + 1 given the tokens up to t and the vector, in nats; equal scores of
    all V tokens give ``ln V``. The decoder has the architecture and weights of the checkpoint, and
    is dropped after training. The vector c is the only key of its cross-attention, which thus adds
    ``W_o W_v c`` (W_v and W_o are the value and output weights). The query and key weights have no
    effect and are frozen.
    """

    name = ObjectiveName.TSDAE
    learns_from_one_row = True
    defaults = {
        "batch_size": 8,
        "head": "none",
        "max_length": 75,
        "warmup": 0.1,
    }

    Options = TsdaeOptions
    options: TsdaeOptions

    def set_up(self) -> None:
        if self.encoder.head is not None:
            raise ConfigError(
                f"--head {self.encoder.record.head_use}: --objective {self.name} trains without a "
                "head",
                hint="leave --head out",
            )
        decoder: Any = load_decoder(find_model(self.encoder.name).base, self.encoder.config)
        if self.options.tie_decoder:
            output = decoder.get_output_embeddings()
            is_tied = output.weight is decoder.get_input_embeddings().weight
            tie_weights(decoder.base_model, self.encoder.backbone)
            if is_tied:  # the output matrix stays the word embedding, now that of the encoder
                output.weight = decoder.get_input_embeddings().weight
        # With a single key the attention weight is 1, so the query and key weights never learn.
        for name, parameter in decoder.named_parameters():
            if "crossattention" in name and (".query." in name or ".key." in name):
                parameter.requires_grad_(False)
        self.decoder = decoder

    def collate(self, examples: Sequence[str], generator: np.random.Generator) -> Batch:
        keys = generator.integers(0, 2**62, size=len(examples)).tolist()
        chance = self.options.delete
        damaged = [damage(text, chance, key) for text, key in zip(examples, keys, strict=True)]
        tokens = self.encoder.tokens
        whole = tokens.ids(examples, min(self.options.max_length, tokens.max_length))
        batch = self.batch_of(damaged, whole=whole)
        batch.texts = list(zip(examples, damaged, strict=True))  # people read both texts
        return batch

    def encode(self, batch: Batch) -> Representations:
        """Return the summed loss of each row, ``(R,)``."""
        return (self.row_losses(self.embed(batch), batch.own("whole")),)

    def row_losses(self, vectors: Tensor, whole: TokenRows) -> Tensor:
        """Return the cross-entropy of each row, summed over its tokens but the first, ``(R,)``."""
        ids, mask = pad(whole, self.encoder.tokens.pad_id, vectors.device)
        # A token sees only the tokens before it, so the padding behind it needs no mask.
        output = self.decoder(
            input_ids=ids[:, :-1], encoder_hidden_states=vectors[:, None], use_cache=False
        )
        scores = wide(output.logits).transpose(1, 2)
        losses = functional.cross_entropy(scores, ids[:, 1:], reduction="none")
        return (losses * mask[:, 1:]).sum(dim=1)

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        n_tokens = sum(len(row) - 1 for row in batch.extra["whole"])
        return {"reconstruction": share_of_mean(representations[0].sum(), n_tokens)}, {}


def tie_weights(decoder: nn.Module, encoder: nn.Module) -> None:
    """Replace the decoder's parameters by those of the encoder that have the same names.

    A layer with LoRA is replaced as a whole, so that the decoder uses its factors, too.
    """
    for name, module in encoder.named_modules():
        if hasattr(module, "base_layer"):
            decoder.set_submodule(name, module)
    for name, parameter in encoder.named_parameters():
        path, _, last_name = name.rpartition(".")
        try:
            module = decoder.get_submodule(path)
        except AttributeError:
            continue  # a part that only the encoder has, such as a pooler
        if last_name in dict(module.named_parameters(recurse=False)):
            setattr(module, last_name, parameter)


def damage(text: str, probability: float, key: int) -> str:
    """Return a text without some of its words; at least one word stays.

    Each word is deleted with this probability, and ``key`` seeds the choice.
    """
    words = split_words(text)
    if not words:
        return text
    return " ".join(delete_words(words, probability, random.Random(key)))
