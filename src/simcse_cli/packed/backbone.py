"""The forward pass of an encoder over packed tokens, with the parameters of the model itself."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.errors import how_to_install
from simcse_cli.machine.buffers import pool_of
from simcse_cli.machine.processor import is_x86
from simcse_cli.packed import kernels
from simcse_cli.packed.architectures import BackboneParts, read_parts
from simcse_cli.packed.compiled_operators import CompiledOperators, can_compile
from simcse_cli.packed.dropout import DeviceMasks, DropoutMasks, Masks, active_probability
from simcse_cli.packed.kernels import QueueWeightGradient
from simcse_cli.packed.layers import (
    Layer,
    QueryKeyValue,
    look_up,
    query_key_value,
    read_layers,
)
from simcse_cli.packed.operators import NestedOperators, Operators, inference_operators
from simcse_cli.packed.quantized import QuantizedOperators, RecordingOperators, quantized
from simcse_cli.packed.split_batch import run_shares
from simcse_cli.packed.tokens import LARGE, ROUNDED_TO, PackedTokens, pack

KERNELS_MISSING = "compiled kernels would make training steps in bf16 about a seventh shorter: "
KERNELS_NOT_LOADED = "training without compiled kernels: "
KERNELS_COMPILE = "compiling kernels for this processor, once"
# A compiled kernel uses one thread per share. With more threads than this, PyTorch's many small
# steps on all threads are faster. The number is an estimate: on two threads, kernels take 54 ms of
# a training step of 500 ms.
_MOST_THREADS = 8
# For int8, a pass over random sub-words measures how large each channel is. Its rows are short, so
# that int8 is most exact for short sentences.
_SAMPLED_TOKENS = 1024
_SAMPLED_LENGTH = 12

Prepared = tuple[Operators, list[Layer]]
# Prepared weights live as long as their model, and are part neither of its state nor of its copies.
_PREPARED: WeakKeyDictionary[nn.Module, dict[torch.dtype, Prepared]] = WeakKeyDictionary()
MakeOperators = Callable[[Any, QueueWeightGradient | None], Operators]
"""Makes operators from two arguments: dropout masks, and a function that queues gradients."""


class PackedPath(NamedTuple):
    """How one forward pass is computed.

    Attributes:
        layers: the layers, with weights as the operators take them.
        make_operators: makes the operators of the pass, or those of one half of it.
        halves: two parts of the sentences, to be computed side by side; None for a single pass.
    """

    layers: list[Layer]
    make_operators: MakeOperators
    halves: tuple[PackedTokens, PackedTokens] | None = None


@dataclass
class PackedBackbone:
    """The packed form of a model, which ``packed_backbone`` makes; it owns no parameters.

    Attributes:
        nested: whether attention over all sentences is one call.
    """

    backbone: nn.Module
    parts: BackboneParts
    nested: bool

    @property
    def n_layers(self) -> int:
        return len(self.parts.layers)

    @property
    def max_tokens(self) -> int:
        """The most tokens of a sentence: one for each position, or each behind ``pad_id``."""
        n_positions = self.parts.position_table.num_embeddings
        if self.parts.pad_id is None:
            return n_positions
        return n_positions - self.parts.pad_id - 1

    def pack(self, rows: Sequence[Sequence[int]], *, multiple: int = 1) -> PackedTokens:
        """Return rows of token ids end to end, with this architecture's positions.

        The number of tokens is rounded up to a multiple of ``multiple``.
        """
        tokens = pack(rows, pad_id=self.parts.pad_id, multiple=multiple)
        return tokens.to(self.parts.words.weight.device)

    def prepare(self, dtype: torch.dtype | None = None) -> Prepared:
        """Return operators and layers for inference with matrix products in ``dtype``.

        The first call makes them, so it must come before threads share the model. The default type
        is autocast's if that is on, else the type of the parameters.
        """
        if dtype is None:
            dtype = self._default_dtype()
        prepared = _PREPARED.setdefault(self.backbone, {})
        if dtype not in prepared and dtype is torch.int8:
            prepared[dtype] = self._quantized()
        elif dtype not in prepared:
            prepared[dtype] = inference_operators(self.parts, dtype)
        return prepared[dtype]

    @torch.no_grad()
    def _quantized(self) -> Prepared:
        """Return operators and layers with products of 8-bit integers.

        A pass over random sub-words measures how large each channel of the products' inputs is.
        """
        layers = read_layers(self.parts, torch.float32, merged=True)
        length = min(_SAMPLED_LENGTH, self.max_tokens)
        n_rows = _SAMPLED_TOKENS // length
        n_words = self.parts.words.num_embeddings
        token_ids = np.random.default_rng(0).integers(n_words, size=(n_rows, length))
        tokens = self.pack(token_ids.tolist())
        recording = RecordingOperators(self.parts.activation)
        embedded = self._embed(tokens, masks=None)
        run_layers(recording, layers, embedded, tokens, wanted=())  # only to record
        operators = QuantizedOperators(torch.float32, self.parts.activation)
        return operators, quantized(layers, recording.seen)

    def hidden_states(
        self,
        tokens: PackedTokens,
        *,
        layers: Sequence[int] = (-1,),
        dtype: torch.dtype | None = None,
    ) -> list[Tensor]:
        """Return states ``(T, H)`` after the embeddings (number 0) and layers (1 to ``n_layers``).

        In training mode, dropout applies with the probabilities of the model's own modules. The
        states equal those of the padded forward pass up to rounding.

        Args:
            tokens: from ``pack``.
            layers: numbers of the states to return; negative numbers count from the end.
            dtype: type of the matrix products; the default is autocast's if that is on, else that
                of the parameters. States between the products keep the type of the parameters.

        Returns:
            One tensor for each of ``layers``.
        """
        wanted = [index % (self.n_layers + 1) for index in layers]
        kept = self._run(tokens, dtype, wanted=wanted)
        return [kept[index] for index in wanted]

    def first_token_states(
        self, tokens: PackedTokens, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Return the last layer's state of each sentence's first token, ``(R, H)`` in packed order.

        Matrix products are in ``dtype``; the default is autocast's type if that is on, else that
        of the parameters. The last layer multiplies only first tokens by its weights, which saves
        nearly all of its work.
        """
        if self.nested:  # nested attention gives the states of all tokens
            (states,) = self.hidden_states(tokens, dtype=dtype)
            return states.index_select(0, tokens.first_tokens())
        return self._run(tokens, dtype, wanted=(self.n_layers,), first_only=True)[self.n_layers]

    def _run(
        self,
        tokens: PackedTokens,
        dtype: torch.dtype | None,
        *,
        wanted: Collection[int],
        first_only: bool = False,
    ) -> dict[int, Tensor]:
        """Return the states after the wanted layers, by the number of the layer.

        With ``first_only``, the states of the last layer are those of first tokens alone.
        """
        if dtype is None:  # asked before autocast is switched off
            dtype = self._default_dtype()
        with torch.autocast(tokens.ids.device.type, enabled=False):
            masks = self._draw_masks()
            embedded = self._embed(tokens, masks)
            path = self.choose_path(tokens, dtype)
            first_linears = None
            if first_only:
                first_linears = query_key_value(self.parts)
            # Without a layer to run (0 is for the embeddings), there is nothing to split.
            if path.halves is not None and max(wanted) > 0:
                return self._run_halves(embedded, path, first_linears, sorted(set(wanted)))
            operators = path.make_operators(masks, None)  # gradients are not queued
            return run_layers(
                operators, path.layers, embedded, tokens, wanted=wanted, first_linears=first_linears
            )

    def choose_path(self, tokens: PackedTokens, dtype: torch.dtype) -> PackedPath:
        """Return how the model, in its present mode, computes these tokens in ``dtype``.

        Of the two arguments of ``make_operators``, operators for inference use neither, compiled
        operators use both, and all others use only the dropout masks.
        """
        parts = self.parts
        activation = parts.activation
        is_training = torch.is_grad_enabled() or self.backbone.training
        if is_training:
            forget_prepared(self.backbone)  # the weights may change after this pass
        if self.nested:
            # Weights are cast in every pass: checking whether they have changed would wait for the
            # GPU.
            layers = read_layers(parts, dtype, merged=not is_training)
            return PackedPath(layers, lambda masks, _: NestedOperators(dtype, activation, masks))
        if not is_training:
            operators, layers = self.prepare(dtype)
            return PackedPath(layers, lambda *_: operators)
        pool = pool_of(self.backbone)
        layers = read_layers(parts, dtype, pool)
        # Two halves are faster for many tokens on a CPU. A half may read no parameter but those of
        # its layers, and a relative bias is computed from others, so a model with one is not split.
        halves = None
        if tokens.is_large and parts.relative_bias is None:
            halves = tokens.halves()
        if halves is None or not self.compiles(dtype):
            return PackedPath(layers, lambda masks, _: Operators(dtype, activation, masks), halves)
        return PackedPath(layers, partial(CompiledOperators, dtype, activation, pool), halves)

    def _run_halves(
        self,
        embedded: Tensor,
        path: PackedPath,
        first_linears: QueryKeyValue | None,
        wanted: Sequence[int],
    ) -> dict[int, Tensor]:
        """Return the states after the wanted layers, with both halves computed side by side."""
        halves = path.halves or ()  # not None here
        masks = [self._draw_masks() for _ in halves]
        numbers = [number for number in wanted if number > 0]  # 0 is for the embeddings

        def run(
            share: int,
            start: Tensor,
            parameters: tuple[Sequence[Layer], QueryKeyValue | None],
            queue_weight_gradient: QueueWeightGradient,
        ) -> list[Tensor]:
            """Return the wanted states of one half of the batch, which has the number ``share``.

            ``start`` holds the embedded tokens of this half. ``parameters`` stand for
            ``path.layers`` and ``first_linears`` in the graph of this half.
            """
            operators = path.make_operators(masks[share], queue_weight_gradient)
            layers, linears = parameters
            # A rounded number of rows lets most batches share the kernels of oneDNN.
            rounded = functional.pad(start, (0, 0, 0, (-len(start)) % ROUNDED_TO))
            tokens = halves[share]
            kept = run_layers(
                operators, layers, rounded, tokens, wanted=numbers, first_linears=linears
            )
            # Without the added rows.
            return [kept[number][: len(start)] for number in numbers]

        sizes = [len(half.ids) for half in halves]
        parameters = (path.layers, first_linears)
        outputs = run_shares(run, embedded, sizes, parameters, pool_of(self.backbone))
        kept = dict(zip(numbers, outputs, strict=True))
        if 0 in wanted:
            kept[0] = embedded
        return kept

    def compiles(self, dtype: torch.dtype) -> bool:
        """Tell whether training in ``dtype`` uses compiled kernels for passes in two halves.

        Other passes never use them.
        """
        return self._wants_kernels(dtype) and kernels.why_not_loaded() is None

    def _wants_kernels(self, dtype: torch.dtype) -> bool:
        """Tell whether training in ``dtype`` would use compiled kernels if they were installed."""
        # On processors other than x86, the kernels were not measured.
        saves_time = is_x86() and torch.get_num_threads() <= _MOST_THREADS
        return saves_time and can_compile(self.parts, dtype)

    def training_note(self, n_tokens: int) -> str | None:
        """Return a message to show before training, or None.

        It says that compiled kernels are missing, cannot be loaded, or are yet to be compiled, if
        passes of ``n_tokens`` tokens would use them.
        """
        is_halved = n_tokens >= LARGE and not self.nested
        if not is_halved or not self._wants_kernels(self.parts.words.weight.dtype):
            return None
        if not kernels.is_installed():
            return KERNELS_MISSING + how_to_install("cpu-kernels")
        if reason := kernels.why_not_loaded():
            return KERNELS_NOT_LOADED + reason
        return None if kernels.is_compiled() else KERNELS_COMPILE

    def _default_dtype(self) -> torch.dtype:
        """Return autocast's type if that is on, else the type of the parameters."""
        weight = self.parts.words.weight
        if torch.is_autocast_enabled(weight.device.type):
            return torch.get_autocast_dtype(weight.device.type)
        return weight.dtype

    def _draw_masks(self) -> Masks | None:
        """Return new dropout masks, or None if no dropout is active."""
        dropouts = [self.parts.embedding_dropout]
        for layer in self.parts.layers:
            dropouts += (layer.attention_dropout, layer.out_dropout, layer.output_dropout)
        if not any(active_probability(dropout) > 0 for dropout in dropouts):
            return None
        return DeviceMasks() if self.nested else DropoutMasks()

    def _embed(self, tokens: PackedTokens, masks: Masks | None) -> Tensor:
        """Return the states ``(T, H)`` before the first layer."""
        parts = self.parts
        p = active_probability(parts.embedding_dropout)
        states = look_up(parts.words, tokens.ids, pool_of(self.backbone))
        states = states + parts.position_table(tokens.positions)
        if parts.segment_table is not None:
            states = states + parts.segment_table.weight[0]
        states = parts.embedding_norm(states)
        if masks is not None and p > 0:
            mask, scale = masks.keep(states, p)
            states = states * mask.mul_(scale)
        if parts.projection is not None:
            states = functional.linear(states, parts.projection.weight, parts.projection.bias)
        return states


def packed_backbone(backbone: nn.Module, *, nested: bool = False) -> PackedBackbone | None:
    """Return the packed form of a model, or None if it has no packed form.

    With ``nested``, attention over all sentences is one call, on any device; otherwise there is one
    call per sentence length, on a CPU. ``packed_backbone`` is cheap enough to be called in every
    forward pass: nothing is copied, and weights prepared for inference are kept between calls.
    """
    parts = read_parts(backbone)
    if parts is None:
        return None
    return PackedBackbone(backbone, parts, nested)


def forget_prepared(backbone: nn.Module) -> None:
    """Free what inference prepared from a model's weights; call it when these change."""
    _PREPARED.pop(backbone, None)


def run_layers(
    operators: Operators,
    layers: Sequence[Layer],
    states: Tensor,
    tokens: PackedTokens,
    *,
    wanted: Collection[int],
    first_linears: QueryKeyValue | None = None,
) -> dict[int, Tensor]:
    """Return the states ``(T, H)`` after the wanted layers, by number; 0 is for the embeddings.

    ``states`` are the embeddings. With ``first_linears``, the last layer uses these query, key and
    value layers and attends from first tokens only, so its states are ``(R, H)``.
    """
    kept = {0: states} if 0 in wanted else {}
    # The same states, perhaps in another type: ``states`` for sums, ``x`` for matrix products.
    x = states
    for number, layer in enumerate(layers, 1):
        if first_linears is not None and number == len(layers):
            # Not x: these linear layers have the type of ``states``.
            states, context = operators.attend_from_first(states, tokens, first_linears, layer)
        else:
            context = operators.attend(x, tokens, layer)
        states, x = operators.dropout_add_norm(states, context, layer.after_attention)
        activated = operators.activate(x, layer.up)
        states, x = operators.dropout_add_norm(states, activated, layer.after_activation)
        if number in wanted:
            kept[number] = states
    return kept
