"""The ledger of a cache object of Transformers: what its real tensors hold, slot by slot.

::

    row 0   . . p p p g g - -      .  padding on the left      p  prompt     g  generated
    row 1   p p p p p g e e e      -  not written yet          e  after the row's own end
            used: p, g    reserved: -    internal: . and e, and what a view keeps of a larger storage

A row that has ended holds its slots until the whole batch ends: nothing of it is needed, so all of it is `internal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvledger.errors import ModelError
from kvledger.ledger import Ledger, Memo
from kvledger.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["Row", "find_cache", "find_tensors", "take_ledger", "take_paged_ledger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a batch: the tokens of its own, padding left out, and whether its answer has ended."""

    tokens: int
    ended: bool = False


def find_cache(output: Any) -> Any:
    """Return the cache that a forward of Transformers returned, whatever its kind; None: none.

    It is called ``cache`` from 5.24 on, and ``past_key_values``, which goes with 5.40, before.
    """
    names = ("cache", "past_key_values")
    return next((found for name in names if (found := getattr(output, name, None)) is not None), None)


def find_tensors(cache: Any) -> list[torch.Tensor]:
    """Return the keys and values that a cache of Transformers holds, layer by layer; empty before the first token.

    Raises:
        ModelError: A layer keeps something else than keys and values, such as a state or quantised blocks.
    """
    tensors: list[torch.Tensor] = []
    for number, layer in enumerate(getattr(cache, "layers", ())):
        kind = type(layer).__name__
        if "Quantized" in kind or "Linear" in kind or "Indexed" in kind:
            raise ModelError(f"layer {number} of the cache is a `{kind}`, whose memory is not observed")
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None and keys.dim() == 4:
            tensors += [keys, values]
    return tensors


def take_ledger(cache: Any, rows: list[Row]) -> Ledger:
    """Return the ledger of a cache with these rows; its capacity is what the tensors hold (bytes).

    Storages are counted, not views: a sliding-window layer that keeps a slice keeps the whole tensor behind it. The
    moment within a layer's update in which `torch.cat` holds the old tensor beside the new one is not seen.

    Args:
        cache: A `Cache` of Transformers whose layers hold ``keys`` and ``values`` of (rows, heads, slots, head_size).
        rows: The rows of its batch.

    Raises:
        ModelError: The cache is of a kind that is not observed, or its batch has another size.
    """
    used = reserved = 0
    storages: dict[int, int] = {}
    for tensor in find_tensors(cache):
        count, heads, slots, size = tensor.shape
        if count != len(rows):
            raise ModelError(f"the cache has {counted(count, 'row')}, and the batch {len(rows)}")
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        slot_bytes = heads * size * tensor.element_size()
        used += slot_bytes * sum(min(row.tokens, slots) for row in rows if not row.ended)
    for slot_bytes, unwritten in _unwritten(cache):
        reserved += slot_bytes * unwritten * sum(not row.ended for row in rows)
    capacity = sum(storages.values())
    return Ledger(capacity=capacity, used=used, reserved=reserved, internal=capacity - used - reserved).check()


def _unwritten(cache: Any) -> list[tuple[int, int]]:
    """Return, for each tensor, the bytes of a slot of one row and how many slots no token has reached yet."""
    found = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.dim() != 4:
            continue
        left = max(0, keys.shape[2] - int(layer.get_seq_length()))
        found += [(t.shape[1] * t.shape[3] * t.element_size(), left) for t in (keys, values)]
    return found


def take_paged_ledger(kwargs: dict[str, Any]) -> tuple[Ledger, int]:
    """Return the ledger of Transformers' own paged cache in one forward of `generate_batch`, and its sequences.

    Transformers 5.24, ``generation/continuous_batching/cache.py``. What its blocks hold is capacity less what its
    allocators count as free; the lengths of the sequences in the forward are the keys they read. The two sectors that
    are never given out are `unattributed`, and what sequences share is a memo.

    Raises:
        ModelError: The cache is another version's, or its layers do not all keep every token.
    """
    cache, lengths = kwargs.get("cache"), kwargs.get("cu_seq_lens_k")
    tensor = getattr(cache, "cache_tensor", None)
    if tensor is None or not isinstance(lengths, dict) or not hasattr(cache, "compute_free_capacity"):
        raise ModelError("the paged cache of this version of Transformers is not known")
    if set(lengths) != {"full_attention"}:
        raise ModelError("layers with a sliding window have blocks of their own, which are not counted")
    assert cache is not None
    ends = lengths["full_attention"]
    capacity, free = int(tensor.nbytes), int(cache.compute_free_capacity(relative=False))
    allocator = cache.cache_allocators["full_attention"]
    token_bytes = allocator.bytes_per_block // allocator.tokens_per_page
    never = capacity - cache.num_sectors * cache.bytes_per_sector
    held = capacity - never - free
    logical = int(ends[-1]) * token_bytes
    used = min(held, logical)
    ledger = Ledger(
        capacity=capacity,
        used=used,
        internal=held - used,
        free=free,
        unattributed=never,
        memo=Memo(shared_saving=logical - used),
    )
    return ledger.check(), len(ends) - 1
