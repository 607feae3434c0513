"""One encoder for training and inference: transformer, pooler, optional head."""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import tee
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from simcse_cli.errors import CheckpointError, ConfigError, DataError, reason_of
from simcse_cli.files.schema import foreign_format
from simcse_cli.machine.devices import HostCopy, no_autocast
from simcse_cli.machine.processes import add_up, process_count, process_rank
from simcse_cli.machine.threads import map_on_cores
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.packed.backbone import PackedBackbone, packed_backbone
from simcse_cli.models.packed.pooling import packed_ahead, packed_vectors
from simcse_cli.models.packed.prepared import forget_prepared
from simcse_cli.models.padding import PaddedRows, Rows, pad, token_batches
from simcse_cli.models.poolers import POOLERS, pool
from simcse_cli.progress import Progress, SilentProgress
from simcse_cli.settings.choices import Attention, HeadUse, LongTexts, Pooler, Similarity

DEFAULT_BATCH_TOKENS, GPU_BATCH_TOKENS = 2048, 32_768
FLASH_LIBRARIES = {Attention.FLASH_2: "flash_attn", Attention.FLASH_3: "flash_attn_interface"}
HALF = (torch.bfloat16, torch.float16)
Item = TypeVar("Item")
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""What models call the prompt of texts that are searched; earlier ones win."""
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
        packs_anywhere: whether rows are packed on GPUs too.
        checkpoints_layers: whether training keeps the inputs of layers only and computes the rest again.
        prompts: what models trained with prompts want before a text, by name.
        default_prompt: name of the one that ``encode`` takes by default, or None.
        include_prompt: whether pooling counts the tokens of a prompt.
        similarity: what vectors are compared by, as sentence-transformers calls it.
        folder: where it was loaded from, or None.
        prompt: text before every text in this use of the model, or None for the default.
        truncate_dim: how many components ``encode`` keeps, or None for all.
        long: what ``encode`` does with texts beyond ``max_length``.
        n_cut: how many texts ``encode`` has cut.
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
        self.packs_anywhere = False
        self.checkpoints_layers = False
        self.prompts: dict[str, str] = {}
        self.default_prompt: str | None = None
        self.include_prompt = True
        self.similarity: str = Similarity.COSINE
        self.folder: Path | None = None
        self.prompt: str | None = None
        self.truncate_dim: int | None = None
        self.long = LongTexts.CUT
        self.n_cut = 0
        self._fast_tokenizers: dict[int | None, Tokenizer] = {}

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
        return min(self.truncate_dim or self._whole_dim, self._whole_dim)

    @property
    def _whole_dim(self) -> int:
        if self.head is not None and self.head_use is HeadUse.KEPT:
            return self.head.dense.out_features
        return self.hidden_size if self.token_cnn is None else self.token_cnn.dim

    @property
    def digest(self) -> str:
        """SHA-256 over weights, pooler, head use and variations: equal digests give equal vectors."""
        return self.digest_with(self.prompt_in_use)

    def digest_with(self, prompt: str) -> str:
        """Return the digest of vectors made with another prompt."""
        variations = self._variations(prompt)
        state = hashlib.sha256(f"{self.pooler}/{self.head_use}/{self.normalize}/{self.max_length}".encode())
        if variations:
            state.update(json.dumps(variations, sort_keys=True).encode())
        tensors = self.state_dict()
        for name in sorted(tensors):
            tensor = tensors[name].detach().cpu().contiguous()
            state.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            state.update(tensor.view(-1).view(torch.uint8).numpy().data)
        return state.hexdigest()

    @property
    def variations(self) -> dict[str, Any]:
        """How vectors differ from those of the plain model: the prompt, fewer components, windows of long texts."""
        return self._variations(self.prompt_in_use)

    def _variations(self, prompt: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if prompt:
            found["prompt"] = prompt
        if prompt and not self.include_prompt:
            found["include_prompt"] = False
        if self.dim < self._whole_dim:
            found["truncate_dim"] = self.dim
        if self.long is not LongTexts.CUT:
            found["long"] = self.long.value
        return found

    def facts(self, prompt: str) -> dict[str, str]:
        """Return what a search index keeps of the encoder that made its vectors with this prompt."""
        found = {"model": self.name, "digest": self.digest_with(prompt), "pooler": self.pooler.value}
        return found | {name: str(value) for name, value in self._variations(prompt).items()}

    @property
    def prompt_in_use(self) -> str:
        """The prompt of ``encode``: the one that was chosen, else the model's default, else none."""
        return self._prompt_called() if self.prompt is None else self.prompt

    @property
    def query_prompt(self) -> str:
        """The prompt of a search's queries: the one that was chosen, else the model's for queries."""
        return self._prompt_called("query") if self.prompt is None else self.prompt

    @property
    def document_prompt(self) -> str:
        """The prompt of the texts that are searched: the model's for documents."""
        return self._prompt_called(*DOCUMENT_PROMPTS)

    def _prompt_called(self, *names: str) -> str:
        return next((self.prompts[n] for n in (*names, self.default_prompt) if n in self.prompts), "")

    def find_prompt(self, prompt: str) -> str:
        """Return the model's prompt of this name, else the text itself.

        Raises:
            ConfigError: one word that is no name of a prompt; a text ends in something else.
        """
        if prompt not in self.prompts and re.fullmatch(r"[\w.-]+", prompt):
            names = f"there are {', '.join(self.prompts)}" if self.prompts else "it has none"
            raise ConfigError(
                f"--prompt {prompt}: {self.name} has no prompt of this name, {names}",
                hint=f"if it is meant as text, end it as the model wants it, as in --prompt '{prompt}: '",
            )
        return self.prompts.get(prompt, prompt)

    def vary(
        self, *, prompt: str | None, truncate_dim: int | None, long: LongTexts | str = LongTexts.CUT
    ) -> None:
        """Choose how ``encode`` makes vectors: a prompt (text or name), fewer components, windows of long texts.

        Raises:
            ConfigError: no prompt of this name, or more components than there are.
        """
        if truncate_dim is not None and truncate_dim > self._whole_dim:
            raise ConfigError(
                f"--truncate-dim {truncate_dim}: vectors of {self.name} have {self._whole_dim} components"
            )
        self.prompt = None if prompt is None else self.find_prompt(prompt)
        self.truncate_dim, self.long = truncate_dim, LongTexts(long)

    def hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Return ``(B, L, H)`` states: all layers, embedding output first, if the pooler needs them, else the last.

        They are in float32 at least, and so is what follows the transformer, also under autocast.
        """
        all_layers = POOLERS[self.pooler].needs_all_layers
        mask = self._unread_mask(attention_mask)
        output = self.backbone(
            input_ids=input_ids, attention_mask=mask, output_hidden_states=all_layers, **inputs
        )
        last: Tensor = output.last_hidden_state
        states = (*output.hidden_states[:-1], last) if all_layers else (last,)
        states = tuple(state.float() if state.dtype in HALF else state for state in states)
        if self.token_cnn is None:
            return states
        with no_autocast(last.device):
            return (self.token_cnn(states[-1], attention_mask),)

    def _unread_mask(self, mask: Tensor) -> Tensor:
        """Return the mask as the transformer takes it without looking at its values.

        transformers asks whether any token is padded, and a GPU would have to finish all work before the answer.
        A mask of every head is taken as it is, where attention is over whole sentences.
        """
        if mask.device.type == "cpu":
            return mask
        kind = self.config._attn_implementation
        if kind not in (Attention.SDPA, Attention.EAGER):
            return mask
        takes_any = hasattr(sys.modules[type(self.backbone).__module__], "create_bidirectional_mask")
        if not takes_any or packed_backbone(self.backbone) is None:
            return mask
        n_rows, length = mask.shape
        whole = mask.bool()[:, None, None].expand(n_rows, 1, length, length)
        if kind == Attention.SDPA:
            return whole
        dtype = next(self.backbone.parameters()).dtype  # eager attention adds it to the scores
        return torch.zeros_like(whole, dtype=dtype).masked_fill(~whole, torch.finfo(dtype).min)

    def train(self, mode: bool = True) -> Self:
        """Switch dropout and a train-only head on or off."""
        if mode:
            forget_prepared(self.backbone)
        return super().train(mode)

    def attend_by(self, attention: Attention) -> None:
        """Choose the attention of the padded pass, or that no row is padded.

        Raises:
            ConfigError: the transformer has none of this name, or its library is missing.
        """
        self.packs_anywhere = attention is Attention.PACKED
        if self.packs_anywhere:
            if self._packed() is None:
                raise ConfigError(
                    f"--attention packed: {self.name} has an architecture or a head that needs padded rows",
                    hint="leave it out",
                )
            return
        backbone: Any = self.backbone
        library = FLASH_LIBRARIES.get(attention)
        if (
            library is not None and find_spec(library) is None
        ):  # transformers would fetch code from the Hub instead
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

    def apply_head(self, pooled: Tensor) -> Tensor:
        """Return the embedding for a pooled vector: through the head where it applies in the current mode."""
        if self.head is None or (self.head_use is HeadUse.TRAIN_ONLY and not self.training):
            return pooled
        with no_autocast(pooled.device):
            return self.head(pooled)  # type: ignore[no-any-return]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, *, n_skipped: int = 0, **inputs: Tensor
    ) -> Tensor:
        """Return embeddings ``(B, D)``, not normalised, with gradient in training mode."""
        states = self.hidden_states(input_ids, attention_mask, **inputs)
        return self.apply_head(pool(self.pooler, states, attention_mask, n_skipped=n_skipped))

    def _packed(self) -> PackedBackbone | None:
        """Return the transformer's form without padding, where there is one (BERT family; on a CPU, or asked for)."""
        can_pack = (self.packs_anywhere or self.device.type == "cpu") and self.token_cnn is None
        if not can_pack or (self.checkpoints_layers and self.training):
            return None
        return packed_backbone(self.backbone, nested=self.packs_anywhere)

    def _packed_for(self, rows: Rows) -> PackedBackbone | None:
        """Return the form without padding, if it knows as many positions as the rows have."""
        packed = self._packed()
        return packed if packed is not None and max(map(len, rows)) <= packed.max_tokens else None

    def laid_out(self, rows: Rows) -> Rows:
        """Return rows padded or packed as a training pass needs them, which may be done ahead in another thread."""
        if self.pads_in_training:
            return PaddedRows(rows, *pad(rows, self.pad_id))
        packed = self._packed_for(rows)
        return rows if packed is None else packed_ahead(packed, rows)

    @property
    def pads_in_training(self) -> bool:
        """Whether a training pass takes padded rows; the other one lays them end to end."""
        return self.checkpoints_layers or self._packed() is None

    def checkpoint_layers(self) -> None:
        """Train in less memory: keep the inputs of layers only, and compute the rest again in the backward pass.

        The padded pass does that, with the dropout masks of the first time.
        """
        backbone: Any = self.backbone
        enable = (
            getattr(backbone, "activation_checkpointing_enable", None)
            or backbone.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
        self.checkpoints_layers = True

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

    def embed_rows(self, rows: Rows, *, n_skipped: int = 0) -> Tensor:
        """Return embeddings ``(R, D)`` of token-id rows of any lengths, with gradient in training mode.

        Pooling leaves out the first ``n_skipped`` tokens of each row.
        """
        packed = self._packed_for(rows)
        if packed is not None:
            pooled = packed_vectors(packed, rows, self.pooler, dtype=self.matmul_dtype, n_skipped=n_skipped)
            return self.apply_head(pooled)
        return self(*self._padded(rows), n_skipped=n_skipped)  # type: ignore[no-any-return]

    def _padded(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return rows.tensors() if isinstance(rows, PaddedRows) else pad(rows, self.pad_id, self.device)

    def embed_with_states(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings ``(R, D)``, the token states ``(R, L, H)`` behind them, and the mask ``(R, L)``."""
        ids, mask = self._padded(rows)
        states = self.hidden_states(ids, mask)
        return self.apply_head(pool(self.pooler, states, mask)), states[-1], mask

    def tokenize(self, sentences: Sequence[str], *, max_length: int | None = None) -> list[list[int]]:
        """Return sub-word ids with special tokens, cut at ``max_length`` (default: the model's own limit)."""
        return self._token_ids(sentences, min(max_length or self.max_length, self.max_length))

    def _token_ids(self, texts: Sequence[str], limit: int | None) -> list[list[int]]:
        fast = self._tokenizer_cut_at(limit)
        for text in texts:
            if not text.isascii() and _SURROGATE.search(text):
                raise DataError(
                    f"{text[:80]!r} holds half of a character (a lone surrogate), need text",
                    hint="clean the file with `simcse prepare sentences FILE -o CLEAN.txt`",
                )
        with foreign_format(self.name, "a tokenizer that can cut every sentence", error=CheckpointError):
            if fast is None:
                cut = {"truncation": True, "max_length": limit} if limit else {"verbose": False}
                rows = self.tokenizer(list(texts), **cut)["input_ids"]
            else:
                rows = [encoding.ids for encoding in fast.encode_batch_fast(list(texts))]
        rows = [row or [self.pad_id] for row in rows]
        n_known, largest = int(self.config.vocab_size), max(map(max, rows), default=0)
        if largest >= n_known:
            raise CheckpointError(
                f"{self.name}: its tokenizer gives the sub-word {largest:,}, its weights know {n_known:,}",
                hint="tokenizer and weights are of different models: copy or download it again",
            )
        return rows

    def _tokenizer_cut_at(self, limit: int | None) -> Tokenizer | None:
        """Return a private copy of the Rust tokenizer (its truncation state is global), or None for a slow one."""
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        if limit not in self._fast_tokenizers:
            copy = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
            copy.no_padding()
            if limit is None:
                copy.no_truncation()
            else:
                copy.enable_truncation(max_length=limit)
            self._fast_tokenizers[limit] = copy
        return self._fast_tokenizers[limit]

    def _frame(self, prompt: str, limit: int) -> tuple[int, int]:
        """Return how many tokens stand before a text, the prompt among them, and how many after it.

        Raises:
            ConfigError: they leave no room for a text.
        """
        fast = self._tokenizer_cut_at(None)
        mask = (
            self.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
            if fast is None
            else fast.encode("a").special_tokens_mask
        )
        n_after = len(mask) - len("".join(map(str, mask)).rstrip("1"))
        n_before = len(self._token_ids([prompt], None)[0]) - n_after
        if n_before + n_after >= limit:
            raise ConfigError(
                f"--prompt {prompt!r}: {n_before + n_after} sub-words with the special ones leave no room for "
                f"a text, {self.name} reads {limit}"
            )
        return n_before, n_after

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
        prompt: str | None = None,
        shared: bool = False,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Return one vector a sentence, in evaluation mode and without gradient.

        Each distinct sentence is encoded once; sentences are sorted by length, so that little is padded. Of a
        sentence beyond ``max_length`` the rest is cut, or, with ``long`` set to ``mean``, its sub-words are
        taken in consecutive windows, each with prompt and special tokens, and the vector is the mean of theirs
        weighted by their sub-words of text, scaled to norm 1 where those of the model are.

        Args:
            sentences: any number of sentences; an empty one is encoded as its special tokens.
            batch_tokens: tokens in one forward pass, padding included where there is any.
            max_length: most sub-words, at most the model's own limit.
            normalize: scale each vector to L2 norm 1 (zero vectors stay zero).
            check_finite: off for a model in training, whose vectors are judged by who asks for them.
            prompt: put before every sentence, instead of ``prompt_in_use``.
            shared: every process of the group calls this with the same sentences, encodes some of the batches
                that one would make, and gets all vectors.
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
        prompt = self.prompt_in_use if prompt is None else prompt
        limit = min(max_length or self.max_length, self.max_length)
        takes_windows = self.long is LongTexts.MEAN
        frame = self._frame(prompt, limit) if prompt or takes_windows else (0, 0)
        texts = [prompt + sentence for sentence in positions]
        rows = self._token_ids(texts, limit)
        beyond = self._beyond(texts, rows, limit) if takes_windows or limit == self.max_length else {}
        pieces = [[row] for row in rows]
        if takes_windows:
            for position, ids in beyond.items():
                pieces[position] = _windows(ids, frame, limit)
        elif beyond:
            n_cut = int(np.isin(inverse, list(beyond)).sum())
            self.n_cut += n_cut
            progress.warn(self._cut_note(n_cut))
        every = [piece for own in pieces for piece in own]
        vectors = np.zeros((len(every), self._whole_dim), dtype=np.float32)
        n_skipped = 0 if self.include_prompt or not prompt else frame[0]
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode(), progress.task("encoding", len(rows)) as task:
                default = GPU_BATCH_TOKENS if self.device.type == "cuda" else DEFAULT_BATCH_TOKENS
                for batch, made in self._batch_vectors(
                    every, batch_tokens or default, n_skipped, shared=shared
                ):
                    vectors[batch] = made
                    task.advance(len(batch) * len(rows) / len(every))
        finally:
            self.train(was_training)
        if shared:
            add_up(vectors)
        if check_finite:
            owners = [sentence for sentence, own in zip(positions, pieces, strict=True) for _ in own]
            check_vectors(vectors, owners, self.name)
        if self.normalize:
            _scale_to_unit(vectors)
        if takes_windows and beyond:
            vectors = _means([[len(piece) - sum(frame) for piece in own] for own in pieces], vectors)
            if self.normalize:
                _scale_to_unit(vectors)
        vectors = vectors[:, : self.dim]
        if normalize and (self.dim < self._whole_dim or not self.normalize):
            _scale_to_unit(vectors)
        return vectors[inverse]

    def _beyond(
        self, texts: Sequence[str], rows: Sequence[Sequence[int]], limit: int
    ) -> dict[int, list[int]]:
        """Return all sub-words of the texts that have more than ``limit``, by position."""
        candidates = [position for position, row in enumerate(rows) if len(row) >= limit]
        whole = self._token_ids([texts[position] for position in candidates], None) if candidates else []
        return {position: ids for position, ids in zip(candidates, whole, strict=True) if len(ids) > limit}

    def _cut_note(self, n_texts: int) -> str:
        return (
            f"cut {n_texts:,} {'text' if n_texts == 1 else 'texts'} at {self.max_length} sub-words, the most that "
            f"{self.name} reads; --long mean takes the mean of their windows"
        )

    def tell_cut(self, progress: Progress) -> None:
        """Warn of the texts that were cut in calls of ``encode`` that told nobody."""
        if self.n_cut:
            progress.warn(self._cut_note(self.n_cut))

    def _batch_vectors(
        self, rows: Rows, batch_tokens: int, n_skipped: int, *, shared: bool
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Yield positions of rows and their vectors ``(len(positions), D)``, longest rows first."""

        @torch.inference_mode()
        def vectors(batch: list[int]) -> HostCopy:
            return HostCopy(self.embed_rows([rows[i] for i in batch], n_skipped=n_skipped).float())

        packed = self._packed()
        batches = list(token_batches([len(row) for row in rows], batch_tokens, padded=packed is None))
        if shared:
            batches = batches[process_rank() :: process_count()]
        if packed is None or self.device.type != "cpu":
            copies = one_behind(map(vectors, batches))
        else:
            packed.prepare(self.matmul_dtype)
            copies = map_on_cores(vectors, batches)
        for batch, copy in zip(batches, copies, strict=True):
            yield batch, copy.arrived().numpy()


def one_behind(items: Iterable[Item]) -> Iterator[Item]:
    """Yield each item when the next one is there: a GPU computes it while this one is looked at."""
    before, after = tee(items)
    next(after, None)
    for item in before:
        next(after, None)
        yield item


def _windows(ids: list[int], frame: tuple[int, int], limit: int) -> list[list[int]]:
    """Return the sub-words between those of the frame in pieces of at most ``limit``, each with the frame."""
    before, after = ids[: frame[0]], ids[len(ids) - frame[1] :]
    inner, room = ids[frame[0] : len(ids) - frame[1]], limit - sum(frame)
    return [before + inner[start : start + room] + after for start in range(0, len(inner), room)]


def _means(weights: Sequence[Sequence[int]], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a weighted mean for each list of weights over its share of the rows, in order; one row stays as it is."""
    means = np.empty((len(weights), vectors.shape[1]), dtype=np.float32)
    start = 0
    for position, own in enumerate(weights):
        rows = vectors[start : start + len(own)]
        means[position] = rows[0] if len(own) == 1 else np.average(rows, axis=0, weights=own)
        start += len(own)
    return means


def _scale_to_unit(vectors: NDArray[np.float32]) -> None:
    """Scale rows to L2 norm 1 in place; a row of zeros stays."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.where(norms > 0, norms, 1)
