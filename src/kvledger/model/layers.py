"""Layers: what each layer of a model keeps for a sequence, and its bytes.

A :class:`Layer` is one cache of one transformer block. A block that keeps two things (self and cross attention, or
attention and a state side by side) is two layers with the same ``index``. Every cache answers three questions, always
for one tensor-parallel rank:

- ``growth``: bytes a further token adds to a long sequence (exact, may be a fraction for compressed caches);
- ``fixed_bytes``: bytes a long sequence keeps beside that (a full window, a state, the encoder's output);
- ``bytes_at``: bytes kept for a sequence of a given length, a token at a time, without blocks or padding.

``Storage.windows`` says whether tokens outside a sliding window or chunk are dropped.

What an engine adds on top (blocks, pages, groups) is in the room ``engines``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kvledger.model.formats import FP8_INDEX, KvFormat
from kvledger.model.states import StateCache
from kvledger.model.storage import Storage, Windows

__all__ = [
    "AttentionCache",
    "Cache",
    "CompressedCache",
    "CrossAttentionCache",
    "Indexer",
    "LatentCache",
    "Layer",
    "NoCache",
    "Role",
    "SharedCache",
    "StateCache",
    "heads_per_rank",
]


class Role(StrEnum):
    """What a layer is for."""

    MAIN = "main"
    CROSS = "cross"
    """Attention of a decoder to the encoder's output."""
    DRAFT = "draft"
    """MTP, EAGLE or another draft layer; kept only with speculative decoding."""


def heads_per_rank(heads: int, tp: int) -> int:
    """Return the KV heads one rank keeps: split while they last, then replicated (vLLM 0.8 to 0.33)."""
    return max(1, heads // tp) if heads else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The key cache of a sparse-attention indexer, one vector a token, the same on every rank.

    DeepSeek-V3.2, GLM-5.x, MiniMax-M3.
    """

    key_size: int
    heads: int = 1
    """Key heads that are cached (query heads of the indexer do not count)."""
    topk_tokens: int | None = None
    shares_with: int | None = None
    """Layer whose selection is reused; such a layer keeps no index keys."""
    key_format: KvFormat = FP8_INDEX
    """How vLLM and SGLang store the keys whatever the KV dtype is; ``Storage.index`` replaces it."""

    def token_bytes(self, storage: Storage) -> int:
        """Return the bytes of one token's index keys."""
        if self.shares_with is not None:
            return 0
        return self.heads * (storage.index or self.key_format).side_bytes(self.key_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCache:
    """Keys and values of every token, or of those in a sliding window or chunk."""

    kv_heads: int
    key_size: int
    value_size: int
    window_tokens: int | None = None
    """Sliding window: a token sees itself and the ``window_tokens - 1`` before it."""
    chunk_tokens: int | None = None
    """Chunked attention: a token sees its own chunk up to itself (Llama 4)."""
    indexer: Indexer | None = None

    @property
    def cap_tokens(self) -> int | None:
        """The most tokens the layer can still read, if there is a limit."""
        return self.window_tokens if self.window_tokens is not None else self.chunk_tokens

    def token_bytes(self, storage: Storage) -> int:
        """Return the bytes of one stored token on one rank (keys, values and index keys).

        ``kv_heads_per_rank * (key_side + value_side) + index``; for plain dtypes a side is ``head_size * dtype_bytes``.
        """
        sides = storage.kv.side_bytes(self.key_size) + storage.value_format.side_bytes(self.value_size)
        index = self.indexer.token_bytes(storage) if self.indexer else 0
        return heads_per_rank(self.kv_heads, storage.tp) * sides + index

    def growth(self, storage: Storage) -> Fraction:
        """Return the bytes a further token adds to a long sequence."""
        capped = self.cap_tokens is not None and storage.windows is Windows.CAPPED
        return Fraction(0 if capped else self.token_bytes(storage))

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:
        """Return the bytes of a sequence; a chunked layer is taken at its fullest."""
        kept = length_tokens
        if self.cap_tokens is not None and storage.windows is Windows.CAPPED:
            kept = min(kept, self.cap_tokens)
        return kept * self.token_bytes(storage)

    def fixed_bytes(self, storage: Storage) -> int:
        """Return the bytes of a full window or chunk; 0 for a layer that keeps every token."""
        if self.cap_tokens is None or storage.windows is Windows.FULL:
            return 0
        return self.cap_tokens * self.token_bytes(storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCache:
    """The compressed keys and values of multi-head latent attention (MLA), the same on every rank.

    What is cached is ``kv_lora_rank + qk_rope_head_dim`` elements a token. An engine that does not absorb the
    up-projection keeps full heads instead (``expanded``): ``heads * (key_size + value_size)``.
    """

    latent_size: int
    rope_size: int
    indexer: Indexer | None = None
    expanded: AttentionCache | None = None
    """The heads an engine without absorbed projections stores instead (llama.cpp with old GGUF files)."""

    def token_bytes(self, storage: Storage) -> int:
        """Return the bytes of one stored token (latent record and index keys), whatever the tensor parallelism."""
        index = self.indexer.token_bytes(storage) if self.indexer else 0
        return storage.kv.latent_bytes(self.latent_size, self.rope_size) + index

    def growth(self, storage: Storage) -> Fraction:
        """Return the bytes a further token adds."""
        return Fraction(self.token_bytes(storage))

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:
        """Return the bytes of a sequence."""
        return length_tokens * self.token_bytes(storage)

    def fixed_bytes(self, storage: Storage) -> int:  # noqa: ARG002
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedCache:
    """Keys and values of a sliding window plus one entry for every ``ratio`` tokens (DeepSeek-V4), same on every rank.

    Keys equal values, so an entry is one head of ``head_size`` elements, of which ``rope_size`` carry positions.
    ``ratio`` 0 keeps the window only. The compressor keeps its inputs of the last ``compressor_tokens`` in fp32: key
    and score, each ``head_size`` wide, twice that where entries overlap (ratio 4; vLLM 0.32 ``models/deepseek_v4``).
    """

    ratio: int
    head_size: int
    rope_size: int
    window_tokens: int
    indexer: Indexer | None = None
    """One index key for every compressed entry."""

    @property
    def overlap(self) -> int:
        """How many windows of ``ratio`` tokens an entry is made from: 2 at ratio 4, else 1."""
        return 2 if self.ratio == 4 else 1

    @property
    def compressor_tokens(self) -> int:
        """Tokens whose inputs the compressor still needs."""
        return self.overlap * self.ratio

    def compressor_token_bytes(self) -> int:
        """Return the bytes of one token's compressor inputs, those of the indexer included."""
        width = self.head_size + (self.indexer.key_size if self.indexer else 0)
        return 2 * self.overlap * width * 4 if self.ratio else 0

    def entry_bytes(self, storage: Storage) -> int:
        """Return the bytes of one entry of the window or of the compressed part, without index key."""
        return storage.kv.latent_bytes(self.head_size - self.rope_size, self.rope_size)

    def compressed_bytes(self, storage: Storage) -> int:
        """Return the bytes of one compressed entry with its index key."""
        index = self.indexer.token_bytes(storage) if self.indexer else 0
        return self.entry_bytes(storage) + index

    def growth(self, storage: Storage) -> Fraction:
        """Return the bytes a further token adds on average: one compressed entry in ``ratio`` tokens."""
        window = self.entry_bytes(storage) if storage.windows is Windows.FULL else 0
        return window + (Fraction(self.compressed_bytes(storage), self.ratio) if self.ratio else Fraction(0))

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:
        """Return the bytes of a sequence: window, ``floor(length / ratio)`` entries and compressor inputs."""
        kept = length_tokens if storage.windows is Windows.FULL else min(length_tokens, self.window_tokens)
        entries = length_tokens // self.ratio if self.ratio else 0
        inputs = min(length_tokens, self.compressor_tokens) * self.compressor_token_bytes()
        return kept * self.entry_bytes(storage) + entries * self.compressed_bytes(storage) + inputs

    def fixed_bytes(self, storage: Storage) -> int:
        """Return the bytes of a full window and of the compressor's inputs."""
        window = 0 if storage.windows is Windows.FULL else self.window_tokens * self.entry_bytes(storage)
        return window + self.compressor_tokens * self.compressor_token_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionCache:
    """Keys and values of the encoder's output, computed once for each request."""

    kv_heads: int
    key_size: int
    value_size: int
    encoder_tokens: int
    """The longest encoder output (Whisper: 1500); a shorter input takes less in engines that do not pad."""

    def token_bytes(self, storage: Storage) -> int:
        """Return the bytes of one encoder token on one rank."""
        sides = storage.kv.side_bytes(self.key_size) + storage.value_format.side_bytes(self.value_size)
        return heads_per_rank(self.kv_heads, storage.tp) * sides

    def growth(self, storage: Storage) -> Fraction:  # noqa: ARG002
        """Return 0: decoding adds nothing."""
        return Fraction(0)

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:  # noqa: ARG002
        """Return the bytes of the longest encoder output."""
        return self.fixed_bytes(storage)

    def fixed_bytes(self, storage: Storage) -> int:
        """Return the bytes of the longest encoder output."""
        return self.encoder_tokens * self.token_bytes(storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """A layer that reads the cache of an earlier one (Gemma 3n and 4, YOCO, CLA); it keeps nothing itself."""

    shares_with: int
    """Index of the layer whose cache is read."""
    cache: AttentionCache
    """What the layer would keep in an engine that does not share (SGLang allocates it for Gemma 4)."""

    def growth(self, storage: Storage) -> Fraction:  # noqa: ARG002
        """Return 0."""
        return Fraction(0)

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def fixed_bytes(self, storage: Storage) -> int:  # noqa: ARG002
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCache:
    """A layer that keeps nothing: an MLP or expert block, a removed or linear block, an encoder layer."""

    reason: str = ""

    def growth(self, storage: Storage) -> Fraction:  # noqa: ARG002
        """Return 0."""
        return Fraction(0)

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def fixed_bytes(self, storage: Storage) -> int:  # noqa: ARG002
        """Return 0."""
        return 0


Cache = AttentionCache | LatentCache | CompressedCache | CrossAttentionCache | SharedCache | StateCache | NoCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One cache of one transformer block.

    Blocks with two caches appear twice with the same ``index``.
    """

    index: int
    """Position of the block in the model, from 0; draft layers count from the end of the main ones."""
    cache: Cache
    role: Role = Role.MAIN
    origin: str = ""
    """The config entry that decided the kind of this layer, such as ``layer_types[3] = "full_attention"``."""

    def growth(self, storage: Storage) -> Fraction:
        """Return the bytes a further token adds to a long sequence on one rank."""
        return self.cache.growth(storage)

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:
        """Return the bytes this layer keeps for a sequence on one rank."""
        return self.cache.bytes_at(length_tokens, storage)

    def fixed_bytes(self, storage: Storage) -> int:
        """Return the bytes a long sequence keeps beside its growth: a full window, a state, the encoder's output."""
        return self.cache.fixed_bytes(storage)
