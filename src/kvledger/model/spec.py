"""The model: its layers, and the bytes they keep for a token and for a sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from kvledger.errors import UsageError
from kvledger.ledger import Accuracy
from kvledger.model.formats import Dtype, KvFormat, find_kv_format
from kvledger.model.layers import AttentionCache, Layer, NoCache, SharedCache
from kvledger.model.storage import Origin, Storage, Windows
from kvledger.units import counted

__all__ = ["Length", "ModelSpec", "Parameters", "Quantisation", "StoredAs"]

StoredAs = Storage | KvFormat | str | None
"""How to store the cache: a full :class:`Storage`, a KV dtype, its name, or None for the model's own."""

MAX_LENGTH_TOKENS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """The longest sequence a model takes."""

    tokens: int
    source: str
    """Which config field, and which scaling, gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How the checkpoint's weights are quantised."""

    method: str
    weight_bits: float | None = None
    """Bits of most weights, where the config says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How many parameters a model has."""

    count: int
    active: int
    """Parameters that work on one token; below ``count`` for mixtures of experts."""
    accuracy: Accuracy
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as a list of layers, each knowing its bytes.

    Bytes are whole-model bytes at ``tp`` 1 (or of one rank of ``Storage.tp``), token by token: no blocks, no padding.
    ``draft_layers`` (MTP, EAGLE) are never counted unless a method says so.
    """

    name: str
    model_type: str
    architectures: tuple[str, ...] = ()
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    dtype: Dtype
    """What the model is served in (float32 checkpoints: float16)."""
    declared_kv_format: KvFormat | None = None
    """The KV dtype the checkpoint declares (``kv_cache_scheme``, ``kv_cache_quant_algo``), if any."""
    max_model_len: Length | None = None
    query_heads: int | None = None
    hidden_size: int | None = None
    vocabulary_size: int | None = None
    quantisation: Quantisation | None = None
    parameters: Parameters | None = None
    provenance: tuple[Origin, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader should know: assumptions made, fields that engines treat differently."""

    def storage(self, kv_dtype: StoredAs = None) -> Storage:
        """Return the storage meant by ``kv_dtype``; None is what the checkpoint declares, else the model's dtype.

        Raises:
            UsageError: The dtype is not known.
        """
        if isinstance(kv_dtype, Storage):
            return kv_dtype
        if kv_dtype is None or (isinstance(kv_dtype, str) and kv_dtype.strip().lower() == "auto"):
            return Storage(kv=self.declared_kv_format or find_kv_format(self.dtype.value))
        return Storage(kv=find_kv_format(kv_dtype))

    @property
    def block_count(self) -> int:
        """Number of transformer blocks, those without a cache included, draft layers not."""
        return len({layer.index for layer in self.layers})

    def caching_layers(self) -> tuple[Layer, ...]:
        """Return the main layers that keep anything themselves (shared and empty ones left out)."""
        return tuple(layer for layer in self.layers if not isinstance(layer.cache, NoCache | SharedCache))

    def growth(self, kv_dtype: StoredAs = None, *, windows: Windows | None = None) -> Fraction:
        """Return the exact bytes a further token adds to a long sequence.

        A fraction only where a cache is compressed (DeepSeek-V4). Layers with a window or chunk count only with
        ``Windows.FULL``, or when the window is not shorter than the longest sequence (Phi-3 128k).
        """
        storage = _with_windows(self.storage(kv_dtype), windows)
        return sum((layer.growth(self._storage_of(layer, storage)) for layer in self.layers), Fraction(0))

    def bytes_per_token(self, kv_dtype: StoredAs = None, *, windows: Windows | None = None) -> int:
        """Return the bytes a further token adds to a long sequence (:meth:`growth`, rounded up)."""
        return ceil(self.growth(kv_dtype, windows=windows))

    def fixed_bytes_per_sequence(self, kv_dtype: StoredAs = None) -> int:
        """Return the bytes a long sequence keeps beside its growth: states, full windows, encoder output."""
        storage = _with_windows(self.storage(kv_dtype), Windows.CAPPED)
        return sum(layer.fixed_bytes(self._storage_of(layer, storage)) for layer in self.layers)

    def _storage_of(self, layer: Layer, storage: Storage) -> Storage:
        """Return the storage for growth: a window no shorter than the longest sequence never closes."""
        cache = layer.cache
        cap = cache.cap_tokens if isinstance(cache, AttentionCache) else None
        if cap is None or self.max_model_len is None or cap < self.max_model_len.tokens:
            return storage
        return replace(storage, windows=Windows.FULL)

    def sequence_bytes(self, length_tokens: int, kv_dtype: StoredAs = None, *, windows: Windows | None = None) -> int:
        """Return the bytes kept for one sequence of ``length_tokens``.

        Raises:
            UsageError: The length is negative or above 2**40.
        """
        return sum(self.layer_bytes(length_tokens, kv_dtype, windows=windows))

    def layer_bytes(
        self, length_tokens: int, kv_dtype: StoredAs = None, *, windows: Windows | None = None
    ) -> tuple[int, ...]:
        """Return the bytes kept for one sequence, for each of ``layers`` in order.

        Raises:
            UsageError: The length is negative or above 2**40.
        """
        _check_length(length_tokens)
        storage = _with_windows(self.storage(kv_dtype), windows)
        return tuple(layer.bytes_at(length_tokens, storage) for layer in self.layers)

    def draft_bytes(self, length_tokens: int, kv_dtype: StoredAs = None) -> int:
        """Return the bytes the draft layers keep for one sequence when speculative decoding is on."""
        _check_length(length_tokens)
        storage = self.storage(kv_dtype)
        return sum(layer.bytes_at(length_tokens, storage) for layer in self.draft_layers)

    def origins(self) -> Iterable[str]:
        """Yield the provenance as lines of text, such as ``kv_heads = 8 from num_key_value_heads``."""
        return (f"{origin.name} = {origin.value} from {origin.source}" for origin in self.provenance)


def _with_windows(storage: Storage, windows: Windows | None) -> Storage:
    return storage if windows is None else replace(storage, windows=Windows(windows))


def _check_length(length_tokens: int) -> None:
    if not 0 <= length_tokens <= MAX_LENGTH_TOKENS:
        raise UsageError(
            f"a sequence of {counted(length_tokens, 'token')} cannot be sized: lengths are 0 to {MAX_LENGTH_TOKENS}",
            hint="give a number of tokens",
        )
