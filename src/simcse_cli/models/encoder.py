"""The encoder: a transformer, a pooler and possibly a head."""

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from simcse_cli.errors import ConfigError, reason_of
from simcse_cli.machine.precision import no_autocast, wide
from simcse_cli.machine.transfer import to_device
from simcse_cli.models.head_dropout import drop_heads
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.mask_template import NOTHING_AROUND, MaskTemplate
from simcse_cli.models.packed_pooling import packed_ahead, packed_states, packed_vectors
from simcse_cli.models.padding import PaddedRows, TokenRows, pad
from simcse_cli.models.poolers import POOLERS, pool
from simcse_cli.models.pretrained import attend_as_configured
from simcse_cli.models.record import ModelRecord
from simcse_cli.models.tokens import Tokens
from simcse_cli.packed.backbone import PackedBackbone, forget_prepared, packed_backbone
from simcse_cli.packed.tokens import ROUNDED_TO, PackedRows
from simcse_cli.settings.choices import Attention, HeadUse, Pooler

FLASH_LIBRARIES = {Attention.FLASH_2: "flash_attn", Attention.FLASH_3: "flash_attn_interface"}
DEFAULT_MAX_LENGTH = 512


def _forget_prepared(encoder: Any, _: object) -> None:
    """Drop tensors prepared from the weights that ``load_state_dict`` has replaced."""
    forget_prepared(encoder.backbone)


def unread_mask(backbone: Any, mask: Tensor) -> Tensor:
    """Return the mask ``(B, L)`` in a form whose values transformers does not check.

    transformers checks whether any token is padded, and on a GPU that check waits for all pending
    work. It skips the check for a mask that already has an axis for heads, ``(B, 1, L, L)``. Such a
    mask is built here if every token attends to its whole sentence. This is known of architectures
    with a packed form; the mask of any other is returned unchanged.
    """
    if mask.device.type == "cpu":
        return mask
    kind = backbone.config._attn_implementation
    if kind not in (Attention.SDPA, Attention.EAGER):
        return mask
    # Models that call ``create_bidirectional_mask`` of transformers take a mask with an axis for
    # heads as it is.
    module = sys.modules[type(backbone).__module__]
    if not hasattr(module, "create_bidirectional_mask"):
        return mask
    if packed_backbone(backbone) is None:
        return mask
    n_rows, length = mask.shape
    is_seen = mask.bool()[:, None, None].expand(n_rows, 1, length, length)
    if kind == Attention.SDPA:
        return is_seen
    # Eager attention adds the mask to the scores.
    dtype = next(backbone.parameters()).dtype
    return torch.zeros_like(is_seen, dtype=dtype).masked_fill(~is_seen, torch.finfo(dtype).min)


class SentenceEncoder(nn.Module):
    """A Hugging Face encoder with a pooler and possibly a head over the pooled vector.

    ``encode.encode`` makes vectors of sentences with it.

    Attributes:
        backbone: the transformer, without its own pooler.
        head: module over the pooled vector, or None.
        token_cnn: convolutions over the last layer's token states, before pooling (IS-BERT), or
            None.
        record: how the vectors are made: pooler, prompts, normalisation and more.
        tokens: the tokenizer.
        name: the name that the user gave.
        folder: where it was loaded from, or None.
        matmul_dtype: type of the matrix products of the packed form. If it is None, they have the
            type of autocast where autocast is on, else the type of the weights.
        packs_anywhere: whether rows are packed on GPUs too.
        flash: the flash attention of training, or None. Evaluation computes in float32, which flash
            attention does not take, so evaluation uses SDPA.
        trains_padded: whether training takes padded rows even where they could be packed.
        reads_padding: whether states depend on padding, so that ``encode`` puts only texts of one
            length into a batch.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokenizer: Any,
        record: ModelRecord,
        *,
        head: MlpHead | None = None,
        token_cnn: TokenCnn | None = None,
        name: str = "model",
        folder: Path | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.record = record
        self.change(head=head)  # sets the head; without one, also ``head_use`` of the record
        self.token_cnn = token_cnn
        self.tokens = Tokens(
            tokenizer,
            max_length=record.max_length or DEFAULT_MAX_LENGTH,
            n_known=int(self.config.vocab_size),
            name=name,
        )
        self._template = MaskTemplate(NOTHING_AROUND, self.tokens)
        self.name = name
        self.folder = folder
        self.matmul_dtype: torch.dtype | None = None
        self.packs_anywhere = False
        self.flash: Attention | None = None
        self.trains_padded = False
        self.reads_padding = False
        self.register_load_state_dict_post_hook(_forget_prepared)  # type: ignore[no-untyped-call]

    @property
    def config(self) -> Any:
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def tokenizer(self) -> Any:
        return self.tokens.tokenizer

    @property
    def pooler(self) -> Pooler:
        return self.record.pooler or Pooler.AVG

    @property
    def template(self) -> MaskTemplate:
        """What stands around each text."""
        text = self.record.template or NOTHING_AROUND
        if self._template.text != text:
            self._template = MaskTemplate(text, self.tokens)
        return self._template

    @property
    def hidden_size(self) -> int:
        """Width of the token states."""
        return int(self.config.hidden_size)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        if self.head is not None and self.record.head_use is HeadUse.KEPT:
            return self.head.dense.out_features
        return self.hidden_size if self.token_cnn is None else self.token_cnn.dim

    def change(self, *, head: MlpHead | None, **changes: Any) -> None:
        """Replace the head, and the entries of the record that ``changes`` names.

        Without a head, ``head_use`` becomes ``none``.
        """
        self.head = head
        if head is None:
            changes["head_use"] = HeadUse.NONE
        self.record = replace(self.record, **changes)

    def copied(self) -> Self:
        """Return a copy of the encoder, which shares its tokenizer."""
        # deepcopy does not copy objects in its memo.
        return copy.deepcopy(self, {id(self.tokenizer): self.tokenizer})

    def tokenize(
        self, sentences: Sequence[str], *, max_length: int | None = None
    ) -> list[list[int]]:
        """Return sub-word ids with special tokens, cut at a limit.

        The words of the template are added after the cut, inside the special tokens. ``max_length``
        can only lower the model's own limit.
        """
        limit = min(max_length or self.tokens.max_length, self.tokens.max_length)
        texts = self.template.texts(sentences)  # with the space and the stop of the template
        return self.template.around(self.tokens.ids(texts, limit))

    def hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the states ``(B, L, H)`` that the pooler reads.

        They are those of the last layer alone. If the pooler needs more, they are the embedding
        output and the states of all layers. With ``token_cnn``, they are the outputs of the
        convolutions over the last layer. Everything computed after the transformer is at least
        float32, even under autocast.
        """
        all_layers = POOLERS[self.pooler].needs_all_layers
        mask = unread_mask(self.backbone, attention_mask)
        output = self.backbone(
            input_ids=input_ids, attention_mask=mask, output_hidden_states=all_layers, **inputs
        )
        last: Tensor = output.last_hidden_state
        states: tuple[Tensor, ...] = (last,)
        # The last state is ``last`` in both cases, whatever a model lists as its last hidden state.
        if all_layers:
            states = (*output.hidden_states[:-1], last)
        states = tuple(map(wide, states))
        if self.token_cnn is None:
            return states
        with no_autocast(last.device):
            return (self.token_cnn(states[-1], attention_mask),)

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation: dropout, a train-only head, and flash attention."""
        if mode:  # training will change the weights from which tensors were prepared
            forget_prepared(self.backbone)
        if self.flash is not None:
            backbone: Any = self.backbone
            attention = self.flash if mode else Attention.SDPA
            backbone.set_attn_implementation(attention.value)
        return super().train(mode)

    def attend_by(self, attention: Attention) -> None:
        """Choose the attention of the padded pass, or packed rows in its place.

        Raise ConfigError if the model or the machine cannot do this.
        """
        # Packed rows need no attention of transformers. The choice changes ``pads_in_training``.
        self.packs_anywhere = attention is Attention.PACKED
        if self.packs_anywhere:
            if self.pads_in_training:
                raise ConfigError(
                    f"--attention packed: {self.name} has an architecture, a head or an "
                    "option that needs padded rows",
                    hint="leave it out",
                )
            return
        # An attention of the padded pass.
        backbone: Any = self.backbone
        library = FLASH_LIBRARIES.get(attention)
        # Without this library, transformers would fetch code from the Hub.
        if library is not None and find_spec(library) is None:
            raise ConfigError(
                f"--attention {attention}: {library} is not installed",
                hint="install it, or use --attention sdpa",
            )
        try:
            backbone.set_attn_implementation(attention.value)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"--attention {attention}: {self.name} cannot use it here ({reason_of(error)})",
                hint="leave it out, or use --attention sdpa",
            ) from error
        self.flash = None if library is None else attention

    def apply_head(self, pooled: Tensor) -> Tensor:
        """Return the embedding for a pooled vector.

        The vector goes through the head if the head applies in the current mode.
        """
        if self.head is None or (self.record.head_use is HeadUse.TRAIN_ONLY and not self.training):
            return pooled
        with no_autocast(pooled.device):
            return self.head(pooled)  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings ``(B, D)``, not normalised, with gradient in training mode."""
        return self.apply_head(self._pooled(input_ids, attention_mask))

    def _pooled(
        self, input_ids: Tensor, attention_mask: Tensor, *, n_skipped: int = 0, **inputs: Tensor
    ) -> Tensor:
        states = self.hidden_states(input_ids, attention_mask, **inputs)
        return self.pool_states(states, input_ids, attention_mask, n_skipped=n_skipped)

    def pool_states(
        self, states: Sequence[Tensor], ids: Tensor, mask: Tensor, *, n_skipped: int = 0
    ) -> Tensor:
        """Return vectors ``(B, D)`` before any head, from what ``hidden_states`` returns."""
        is_mask = ids == self._mask_id
        return pool(self.pooler, states, mask, n_skipped=n_skipped, is_mask=is_mask)

    @property
    def _mask_id(self) -> int:
        """The sub-word that the pooler looks for; -1 if it looks for none."""
        if self.pooler is not Pooler.MASK:
            return -1
        return int(self.tokenizer.mask_token_id)

    def prepare(self) -> bool:
        """Prepare the weights for inference before threads share them.

        Return whether rows are packed.
        """
        packed = self._packed()
        if packed is not None and not packed.nested:  # a nested form casts weights in every pass
            packed.prepare(self.matmul_dtype)
        if self.reads_padding:  # such a model may be BigBird, whose attention short texts change
            attend_as_configured(self.backbone)
        return packed is not None

    def freeze_unread(self) -> None:
        """Freeze the parameters of the transformer that no vector depends on.

        Such parameters belong to global attention, to entities, or to the architecture's own
        pooler. Distributed training would wait for their gradients.
        """
        trained = [weight for weight in self.backbone.parameters() if weight.requires_grad]
        if not trained:
            return
        was_training = self.training
        self.eval()
        # A pass over any three sub-words of the vocabulary shows which parameters get a gradient.
        ids, mask = pad([[5, 6, 7]], self.tokens.pad_id, self.device)
        with torch.enable_grad():
            total = self(ids % self.tokens.n_known, mask).sum()
        gradients = torch.autograd.grad(total, trained, allow_unused=True)
        for weight, gradient in zip(trained, gradients, strict=True):
            weight.requires_grad_(gradient is not None)
        self.train(was_training)

    def _packed(self) -> PackedBackbone | None:
        """Return the packed form of the transformer, or None where padded rows are needed.

        The BERT family has a packed form, on a CPU or with ``packs_anywhere``. Convolutions over
        the tokens need padded rows, and so does training with ``trains_padded``.
        """
        can_pack = (self.packs_anywhere or self.device.type == "cpu") and self.token_cnn is None
        if not can_pack or (self.trains_padded and self.training):
            return None
        # Nested attention computes on any device, the other one on a CPU alone.
        return packed_backbone(self.backbone, nested=self.packs_anywhere)

    def _packed_for(self, rows: TokenRows) -> PackedBackbone | None:
        """Return the packed form, or None if it has not enough positions for these rows."""
        packed = self._packed()
        if packed is None or max(map(len, rows)) > packed.max_tokens:
            return None
        return packed

    def prepacked(self, rows: TokenRows) -> TokenRows:
        """Return rows padded or packed as a training pass takes them.

        Another thread may do this ahead of time.
        """
        if self.pads_in_training:
            return PaddedRows(rows, *pad(rows, self.tokens.pad_id))
        packed = self._packed_for(rows)
        if packed is None:  # too long to be packed, so the pass will pad them
            return rows
        return packed_ahead(packed, rows)

    @property
    def pads_in_training(self) -> bool:
        """Whether a training pass takes padded rows, not packed ones."""
        return self.trains_padded or self._packed() is None

    def checkpoint_layers(self) -> None:
        """Save memory in training: keep only the inputs of layers, and compute the rest again.

        Training then takes padded rows. Each layer is computed again in the backward pass, with the
        same dropout masks.
        """
        backbone: Any = self.backbone
        enable = getattr(backbone, "activation_checkpointing_enable", None)
        if enable is None:  # in older versions of transformers
            enable = backbone.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        self.trains_padded = True

    def drop_heads(self, rate: float) -> None:
        """Let training drop whole attention heads with this probability, on padded rows."""
        drop_heads(self.backbone, rate, name=self.name)
        self.trains_padded = True

    def training_note(self, n_tokens: int) -> str | None:
        """Return a note for the user before training on batches of this many tokens, or None."""
        packed = self._packed()
        if packed is None:
            return None
        return packed.training_note(n_tokens)

    def compute_in(self, dtype: torch.dtype) -> None:
        """Compute the transformer's matrix products in ``dtype`` from now on, for inference.

        The packed form multiplies by copies of the weights in ``dtype``; between products, its
        states are float32. Without a packed form, the weights themselves are converted, and int8
        raises ConfigError.
        """
        if self._packed() is None:
            if dtype is torch.int8:
                raise ConfigError(
                    f"--precision int8: {self.name} has an architecture without it",
                    hint="use --precision bf16 or fp32",
                )
            self.backbone.to(dtype)
        else:
            self.matmul_dtype = dtype

    def embed_rows(self, rows: TokenRows, *, n_skipped: int = 0, dropout: bool = True) -> Tensor:
        """Return embeddings ``(R, D)`` of token-id rows of any lengths, with gradient in training.

        Pooling ignores the first ``n_skipped`` tokens of each row. Without ``dropout``, training
        mode draws no random number, but a train-only head still applies.
        """
        if self.training and not dropout:
            with self._no_dropout():
                return self.embed_rows(rows, n_skipped=n_skipped)
        pooled = self.pooled_rows(rows, n_skipped=n_skipped)
        if self.record.subtracts_template and not self.training:
            pooled = pooled - self.around_nothing(self.template, rows)
        return self.apply_head(pooled)

    def pooled_rows(self, rows: TokenRows, *, n_skipped: int = 0) -> Tensor:
        """Return the pooled vectors ``(R, D)`` as they are before any head.

        Unlike ``embed_rows``, this does not subtract the state of a template.
        """
        packed = self._packed_for(rows)
        if packed is None:
            return self._pooled(*self._padded(rows), n_skipped=n_skipped)
        return packed_vectors(
            packed,
            rows,
            self.pooler,
            dtype=self.matmul_dtype,
            n_skipped=n_skipped,
            mask_id=self._mask_id,
        )

    def with_movable_positions(self) -> PackedBackbone:
        """Return the backbone in its packed form, in which each token's position can be set.

        Raise ConfigError if the architecture has no packed form.
        """
        packed = packed_backbone(self.backbone)
        if packed is None:
            raise ConfigError(
                f"{self.name}: the positions of its architecture cannot be moved, as the state "
                "of a template without a sentence wants",
                hint="use --set template_bias=off",
            )
        return packed

    def around_nothing(self, template: MaskTemplate, rows: TokenRows) -> Tensor:
        """Return the state of [MASK] in a template without a sentence, for each row, ``(R, H)``.

        Source: Jiang et al. 2022 (PromptBERT). If the sentence of a row has n sub-words, the
        positions behind its place are moved up by n, as if the sentence were there. If n is 0, the
        result is the row's own state. Each n is computed once, so rows with the same n share a
        dropout mask.
        """
        lengths = [template.n_of_sentence(row) for row in rows]
        distinct = sorted(set(lengths))

        # The template once for each n, with a gap of n positions in the place of the sentence. The
        # rows have one length, so they keep their order when they are packed.
        packed = self.with_movable_positions()
        (empty_row,) = template.around(self.tokens.ids([""], limit=None))
        empty_rows = [empty_row] * len(distinct)
        tokens = packed.pack(empty_rows, multiple=ROUNDED_TO)
        # How far each token moves up, ``(len(distinct), L)``: not at all before the sentence.
        shifts = torch.zeros(len(distinct), len(empty_row), dtype=torch.int64)
        shifts[:, template.n_before :] = torch.tensor(distinct)[:, None]
        # The packed size is rounded up, so the positions may go on behind those of the rows.
        positions = tokens.positions.clone()
        positions[: shifts.numel()] += to_device(shifts.flatten(), positions.device)

        # The states, one for each n, and then one for each row. A pass over padded rows gets the
        # positions as a matrix.
        if self._packed_for(empty_rows) is None:
            row_positions = positions[: shifts.numel()].view(shifts.shape)
            states = self._pooled(*self._padded(empty_rows), position_ids=row_positions)
        else:
            states = self.pooled_rows(PackedRows(empty_rows, replace(tokens, positions=positions)))
        places = torch.tensor([distinct.index(n) for n in lengths])
        return states.index_select(0, to_device(places, states.device))

    @contextmanager
    def _no_dropout(self) -> Iterator[None]:
        """Switch dropout off in a model that stays in training mode.

        Only the children of the transformer are put into evaluation mode. In evaluation mode, the
        transformer itself would prepare its weights for inference, but the next step changes them.
        """
        parts = list(self.backbone.children())
        for part in parts:
            part.eval()
        try:
            yield
        finally:
            for part in parts:
                part.train()

    def _padded(self, rows: TokenRows) -> tuple[Tensor, Tensor]:
        if isinstance(rows, PaddedRows):
            return rows.tensors()
        return pad(rows, self.tokens.pad_id, self.device)

    def token_states(self, rows: TokenRows) -> tuple[Tensor, Tensor]:
        """Return the last layer's states of all tokens end to end, ``(T, H)``.

        The second tensor tells where each row starts, ``(R,)``; padding may follow a row.
        """
        packed = self._packed_for(rows)
        if packed is None:
            ids, mask = self._padded(rows)
            starts = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
            return self.hidden_states(ids, mask)[-1].flatten(0, 1), starts
        return packed_states(packed, rows, dtype=self.matmul_dtype)

    def embed_with_states(self, rows: TokenRows) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings ``(R, D)``, the token states ``(R, L, H)``, and the mask ``(R, L)``."""
        ids, mask = self._padded(rows)
        states = self.hidden_states(ids, mask)
        return self.apply_head(self.pool_states(states, ids, mask)), states[-1], mask
