"""Tokens that MLX-LM's caches allocate (``mlx_lm/models/cache.py`` 0.32.2).

Checked against real cache objects (``tests/data/mlx-lm-0.32.2``).
"""

from __future__ import annotations

from kvledger.model import KvFormat

__all__ = ["STEP_TOKENS", "count_plain_tokens", "count_rotating_tokens", "quantised_format"]

STEP_TOKENS = 256


def count_plain_tokens(length_tokens: int) -> int:
    """Return what ``KVCache`` and ``QuantizedKVCache`` allocate for a length: whole steps of 256.

    So it is while the prompt comes in chunks that are multiples of 256 (2,048 by default).

    >>> count_plain_tokens(257)
    512
    """
    return -(-length_tokens // STEP_TOKENS) * STEP_TOKENS


def count_rotating_tokens(
    prompt_tokens: int, generated_tokens: int, *, max_tokens: int, prefill_step_tokens: int = 2048
) -> int:
    """Return what ``RotatingKVCache`` allocates after a prompt and so many generated tokens.

    ``generate`` processes all but the last token of the prompt in chunks, each kept as long as it is, so up to
    ``max_tokens - 1`` plus a chunk (a chunk of one token counts as a step). Then, one token a step, the cache is cut to
    ``max_tokens``, or grows by 256 up to it.

    >>> count_rotating_tokens(2049, 0, max_tokens=512)
    2048
    >>> count_rotating_tokens(2049, 1, max_tokens=512)
    512
    """
    chunked = max(0, prompt_tokens - 1)
    whole, last = divmod(chunked, prefill_step_tokens)
    single = 1 if last == 1 else 0
    held = 0
    if whole:
        held = prefill_step_tokens if whole == 1 else min(prefill_step_tokens, max_tokens - 1) + prefill_step_tokens
    if last > 1:
        held = min(held, max_tokens - 1) + last
    return _take_single_tokens(held, chunked - single, single + generated_tokens, max_tokens)


def _take_single_tokens(held: int, offset: int, tokens: int, max_tokens: int) -> int:
    """Allocated tokens after so many steps of one token each."""
    if not tokens:
        return held
    if held >= max_tokens:
        return max_tokens
    missing = max(0, offset + tokens - held)
    return min(max_tokens, held + -(-missing // STEP_TOKENS) * STEP_TOKENS)


def quantised_format(bits: int, group_elements: int, dtype_bytes: int) -> KvFormat:
    """Return the layout of ``QuantizedKVCache``: ``bits`` an element, a scale and a bias for each group."""
    return KvFormat(
        name=f"int{bits}",
        bits=bits,
        group_elements=group_elements,
        group_bytes=2 * dtype_bytes,
        source="mlx_lm/models/cache.py QuantizedKVCache",
    )
