"""One encoder for training and inference: transformer, pooler, optional head."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from simcse_cli.choices import HeadUse, Pooler
from simcse_cli.errors import CheckpointError, DataError
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.packed import (
    PackedBackbone,
    forget_prepared,
    packed_backbone,
    packed_vectors,
)
from simcse_cli.models.padding import pad, token_batches
from simcse_cli.models.poolers import POOLERS, pool
from simcse_cli.models.thread_pool import map_on_cores
from simcse_cli.progress import Progress, SilentProgress
from simcse_cli.schema import foreign_format

DEFAULT_BATCH_TOKENS = 2048
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_vectors(vectors: NDArray[np.floating[Any]], sentences: Sequence[str], name: str) -> None:
    """Raise CheckpointError where a vector ``(N, D)`` is not finite: names the first sentence that has one."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        first = int(finite.argmin())
        raise CheckpointError(
            f"{name}: the vectors of {int((~finite).sum()):,} of {len(finite):,} sentences are not finite, "
            f"first that of {sentences[first][:80]!r}",
            hint="its weights are damaged or too large for this arithmetic: try --precision fp32",
        )


class SentenceEncoder(nn.Module):
    """A Hugging Face encoder with a pooler and, where there is one, a head over the pooled vector.

    Attributes:
        backbone: the transformer, without its own pooler.
        tokenizer: the Hugging Face tokenizer.
        pooler: how token states become a vector.
        head: module over the pooled vector, or None.
        token_cnn: convolutions over the last layer's token states, before pooling (IS-BERT), or None.
        head_use: ``kept`` heads always apply; ``train-only`` heads apply in training mode only.
        normalize: whether vectors leave ``encode`` with L2 norm 1 (a sentence-transformers Normalize module).
        max_length: most sub-words a sentence may have, special ones included; longer ones are cut.
        name: what the user called the model.
        matmul_dtype: arithmetic of packed matrix products; None follows autocast, else the weights.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokenizer: Any,
        *,
        pooler: Pooler,
        head: MlpHead | None = None,
        head_use: HeadUse = HeadUse.NONE,
        normalize: bool = False,
        max_length: int = 512,
        name: str = "model",
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooler = pooler
        self.head = head
        self.token_cnn: TokenCnn | None = None
        self.head_use = head_use if head is not None else HeadUse.NONE
        self.normalize = normalize
        self.max_length = max_length
        self.name = name
        self.matmul_dtype: torch.dtype | None = None
        self._fast_tokenizer: tuple[int, Tokenizer] | None = None

    @property
    def config(self) -> Any:
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def hidden_size(self) -> int:
        """Width of the token states."""
        return int(self.config.hidden_size)

    @property
    def dim(self) -> int:
        """Width of the vectors that ``encode`` returns."""
        if self.head is not None and self.head_use is HeadUse.KEPT:
            return self.head.dense.out_features
        return self.hidden_size if self.token_cnn is None else self.token_cnn.dim

    @property
    def digest(self) -> str:
        """SHA-256 over weights, pooler and head use: equal digests give equal vectors."""
        state = hashlib.sha256(f"{self.pooler}/{self.head_use}/{self.normalize}/{self.max_length}".encode())
        tensors = self.state_dict()
        for name in sorted(tensors):
            tensor = tensors[name].detach().cpu().contiguous()
            state.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            state.update(tensor.view(-1).view(torch.uint8).numpy().data)
        return state.hexdigest()

    def hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Return ``(B, L, H)`` states: all layers, embedding output first, if the pooler needs them, else the last."""
        all_layers = POOLERS[self.pooler].needs_all_layers
        output = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=all_layers, **inputs
        )
        last: Tensor = output.last_hidden_state
        states = (*output.hidden_states[:-1], last) if all_layers else (last,)
        if next(self.backbone.parameters()).dtype in (torch.bfloat16, torch.float16):
            states = tuple(state.float() for state in states)  # what follows the transformer is in float32
        return states if self.token_cnn is None else (self.token_cnn(states[-1], attention_mask),)

    def train(self, mode: bool = True) -> Self:
        """Switch dropout and a train-only head on or off."""
        if mode:
            forget_prepared(self.backbone)
        return super().train(mode)

    def apply_head(self, pooled: Tensor) -> Tensor:
        """Return the embedding for a pooled vector: through the head where it applies in the current mode."""
        if self.head is None or (self.head_use is HeadUse.TRAIN_ONLY and not self.training):
            return pooled
        return self.head(pooled)  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """Return embeddings ``(B, D)``, not normalised, with gradient in training mode."""
        states = self.hidden_states(input_ids, attention_mask, **inputs)
        return self.apply_head(pool(self.pooler, states, attention_mask))

    def _packed(self) -> PackedBackbone | None:
        """Return the transformer's form without padding, where there is one (CPU, BERT family)."""
        can_pack = self.device.type == "cpu" and self.token_cnn is None
        return packed_backbone(self.backbone) if can_pack else None

    def training_note(self, n_tokens: int) -> str | None:
        """Return what to tell the user before training on batches of so many tokens, if anything."""
        packed = self._packed()
        return None if packed is None else packed.training_note(n_tokens)

    def compute_in(self, dtype: torch.dtype) -> None:
        """Choose the arithmetic of the transformer's matrix products for inference.

        The packed form rounds copies of the weights and keeps the states between the products in float32;
        without it, the weights themselves are converted.
        """
        if self._packed() is None:
            self.backbone.to(dtype)
        else:
            self.matmul_dtype = dtype

    def embed_rows(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return embeddings ``(R, D)`` of token-id rows of any lengths, with gradient in training mode."""
        packed = self._packed()
        if packed is not None and max(map(len, rows)) <= packed.max_tokens:
            return self.apply_head(packed_vectors(packed, rows, self.pooler, dtype=self.matmul_dtype))
        return self(*pad(rows, self.pad_id, self.device))  # type: ignore[no-any-return]

    def embed_with_states(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings ``(R, D)``, the token states ``(R, L, H)`` behind them, and the mask ``(R, L)``."""
        ids, mask = pad(rows, self.pad_id, self.device)
        states = self.hidden_states(ids, mask)
        return self.apply_head(pool(self.pooler, states, mask)), states[-1], mask

    def tokenize(self, sentences: Sequence[str], *, max_length: int | None = None) -> list[list[int]]:
        """Return sub-word ids with special tokens, cut at ``max_length`` (default: the model's own limit)."""
        limit = min(max_length or self.max_length, self.max_length)
        fast = self._tokenizer_cut_at(limit)
        for sentence in sentences:
            if not sentence.isascii() and _SURROGATE.search(sentence):
                raise DataError(
                    f"{sentence[:80]!r} holds half of a character (a lone surrogate), need text",
                    hint="clean the file with `simcse prepare sentences FILE -o CLEAN.txt`",
                )
        with foreign_format(self.name, "a tokenizer that can cut every sentence", error=CheckpointError):
            if fast is None:
                rows = self.tokenizer(list(sentences), truncation=True, max_length=limit)["input_ids"]
            else:
                rows = [encoding.ids for encoding in fast.encode_batch_fast(list(sentences))]
        rows = [row or [self.pad_id] for row in rows]
        n_known, largest = int(self.config.vocab_size), max(map(max, rows), default=0)
        if largest >= n_known:
            raise CheckpointError(
                f"{self.name}: its tokenizer gives the sub-word {largest:,}, its weights know {n_known:,}",
                hint="tokenizer and weights are of different models: copy or download it again",
            )
        return rows

    def _tokenizer_cut_at(self, limit: int) -> Tokenizer | None:
        """Return a private copy of the Rust tokenizer (its truncation state is global), or None for a slow one."""
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        if self._fast_tokenizer is None or self._fast_tokenizer[0] != limit:
            copy = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
            copy.no_padding()
            copy.enable_truncation(max_length=limit)
            self._fast_tokenizer = (limit, copy)
        return self._fast_tokenizer[1]

    @property
    def pad_id(self) -> int:
        """Id of the padding token (0 for a tokenizer without one; padding is masked anyway).

        It also stands for an empty sentence where the tokenizer adds no special tokens.
        """
        return int(self.tokenizer.pad_token_id or 0)

    def encode(
        self,
        sentences: Sequence[str],
        *,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        normalize: bool = False,
        check_finite: bool = True,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Return one vector a sentence, in evaluation mode and without gradient.

        Each distinct sentence is encoded once; sentences are sorted by length, so that little is padded.

        Args:
            sentences: any number of sentences; an empty one is encoded as its special tokens.
            batch_tokens: tokens in one forward pass, padding included where there is any.
            max_length: most sub-words, at most the model's own limit.
            normalize: scale each vector to L2 norm 1 (zero vectors stay zero).
            check_finite: off for a model in training, whose vectors are judged by who asks for them.
            progress: shown per sentence.

        Returns:
            ``(N, D)`` float32; row i belongs to ``sentences[i]``.

        Raises:
            CheckpointError: a vector is not finite; names the first sentence that has one.
        """
        progress = progress or SilentProgress()
        positions: dict[str, int] = {}
        inverse = np.fromiter(
            (positions.setdefault(s, len(positions)) for s in sentences), np.int64, len(sentences)
        )
        distinct = np.empty((len(positions), self.dim), dtype=np.float32)
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode(), progress.task("encoding", len(positions)) as task:
                rows = self.tokenize(list(positions), max_length=max_length)
                for batch, vectors in self._batch_vectors(rows, batch_tokens or DEFAULT_BATCH_TOKENS):
                    distinct[batch] = vectors
                    task.advance(len(batch))
        finally:
            self.train(was_training)
        if check_finite:
            check_vectors(distinct, list(positions), self.name)
        if normalize or self.normalize:
            norms = np.linalg.norm(distinct, axis=1, keepdims=True)
            distinct /= np.where(norms > 0, norms, 1)
        return distinct[inverse]

    def _batch_vectors(
        self, rows: Sequence[Sequence[int]], batch_tokens: int
    ) -> Iterable[tuple[list[int], NDArray[np.float32]]]:
        """Yield positions of rows and their vectors ``(len(positions), D)``, longest rows first."""

        @torch.inference_mode()
        def vectors(batch: list[int]) -> NDArray[np.float32]:
            return self.embed_rows([rows[i] for i in batch]).float().cpu().numpy()

        packed = self._packed()
        batches = list(token_batches([len(row) for row in rows], batch_tokens, padded=packed is None))
        if packed is None:
            return zip(batches, map(vectors, batches), strict=True)
        packed.prepare(self.matmul_dtype)
        return zip(batches, map_on_cores(vectors, batches), strict=True)
