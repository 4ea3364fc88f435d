"""The bytes SGLang stores for a token, and the bytes its budget pays for: not always the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.engines.layout import key_bytes, value_bytes
from kvledger.engines.sglang.rules import Rules
from kvledger.model import (
    AttentionCache,
    Indexer,
    LatentCache,
    Layer,
    ModelSpec,
    StateCache,
    Storage,
    TensorRole,
    find_kv_format,
)
from kvledger.model.formats import FP8_INDEX

__all__ = ["Cells"]

_INDEX_BLOCK = 128


def _index_bytes(indexer: Indexer, *, owners_only: bool) -> int:
    """Index keys of a token: one byte an element and a 4-byte scale for each 128."""
    if owners_only and indexer.shares_with is not None:
        return 0
    return indexer.heads * (indexer.key_size + indexer.key_size // _INDEX_BLOCK * 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Bytes of a token in one layer, under the rules of one release."""

    rules: Rules
    raw_record: bool = False
    """The attention backend (TensorRT-LLM's) keeps an fp8 latent of sparse attention without scales."""

    def find_storage(self, model: ModelSpec, storage: Storage) -> Storage:
        """Return the storage of these rules: index keys in fp8, fp8 records of sparse attention with scales."""
        latents = [layer.cache for layer in model.layers if isinstance(layer.cache, LatentCache)]
        scaled = any(self._has_scales(cache, storage) for cache in latents)
        return replace(storage, kv=find_kv_format("fp8_ds_mla") if scaled else storage.kv, index=FP8_INDEX)

    def find_sides(self, layer: Layer, storage: Storage) -> tuple[int, int]:
        """Return the bytes of keys and of values; a latent record and its index keys count as keys."""
        cache = layer.cache
        if isinstance(cache, LatentCache):
            return self._record(cache, storage) + self._index(cache.indexer), 0
        keys = key_bytes(layer, storage)
        values = value_bytes(layer, storage) if self.rules.separate_value_size else keys
        index = self._index(cache.indexer) if isinstance(cache, AttentionCache) else 0
        return keys + index, values

    def find_printed_sides(self, layer: Layer, storage: Storage) -> tuple[int, int]:
        """Return the bytes of keys and of values that the size line counts: index keys since they are paid for."""
        keys, values = self.find_sides(layer, storage)
        if isinstance(layer.cache, LatentCache) and not self.rules.index_charged:
            keys -= self._index(layer.cache.indexer)
        return keys, values

    def stored(self, layer: Layer, storage: Storage) -> int:
        """Return the bytes that are allocated."""
        return sum(self.find_sides(layer, storage))

    def charged(self, layer: Layer, storage: Storage) -> int:
        """Return the bytes the budget is divided by (``pool_configurator.py``, before it ``model_runner.py``)."""
        cache = layer.cache
        if not isinstance(cache, LatentCache) or cache.indexer is None:
            return self.stored(layer, storage)
        plain = storage.kv.latent_bytes(cache.latent_size, cache.rope_size)
        record = self._record(cache, storage) if self.rules.record_charged else plain
        return record + (self._index(cache.indexer) if self.rules.index_charged else 0)

    def index(self, layer: Layer, storage: Storage) -> int:  # noqa: ARG002
        """Return the bytes of index keys."""
        cache = layer.cache
        return self._index(cache.indexer) if isinstance(cache, LatentCache | AttentionCache) else 0

    def _record(self, cache: LatentCache, storage: Storage) -> int:
        if not self._has_scales(cache, storage):
            return storage.kv.latent_bytes(cache.latent_size, cache.rope_size)
        # sparse attention in fp8: elements, a scale for each 128, and the rope part in bf16
        return cache.latent_size + cache.latent_size // _INDEX_BLOCK * 4 + cache.rope_size * 2

    def _has_scales(self, cache: LatentCache, storage: Storage) -> bool:
        return cache.indexer is not None and storage.kv.name == "fp8" and not self.raw_record

    def _index(self, indexer: Indexer | None) -> int:
        return _index_bytes(indexer, owners_only=self.rules.index_owners_only) if indexer else 0

    def find_state_sides(self, layer: Layer, storage: Storage) -> tuple[int, int]:
        """Return the bytes of one slot of a state layer: convolution and recurrent state."""
        if not isinstance(layer.cache, StateCache):
            return 0, 0
        tensors = layer.cache.tensors
        convolution = sum(t.tensor_bytes(storage) for t in tensors if t.role is TensorRole.CONV)
        recurrent = sum(t.tensor_bytes(storage) for t in tensors if t.role is not TensorRole.CONV)
        return convolution, recurrent

    def state(self, layer: Layer, storage: Storage) -> int:
        """Return the bytes of one slot of a state layer."""
        return sum(self.find_state_sides(layer, storage))
