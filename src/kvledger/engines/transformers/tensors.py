"""Tokens that the tensors of a cache hold (``cache_utils.py`` of Transformers 5.24).

Checked against the real tensors of three model families in two dtypes (``tests/data/transformers-5.24.0``).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Held", "count_dynamic", "count_quantised", "count_static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Tokens of one layer and one row of the batch."""

    kept_tokens: int
    """Tokens in the tensors' shape."""
    stored_tokens: int
    """Tokens in the memory behind the tensors: a slice keeps alive what it was cut from."""


def count_dynamic(prompt_tokens: int, generated_tokens: int, *, window_tokens: int | None = None) -> Held:
    """Return what ``DynamicCache`` holds after a prompt and so many steps of one token.

    A windowed layer keeps ``window - 1`` tokens after each step. They are a slice, so after the prompt the memory of
    the whole prompt stays until the next step, and later one token more than the slice.

    >>> count_dynamic(50, 0, window_tokens=32)
    Held(kept_tokens=31, stored_tokens=50)
    """
    length = prompt_tokens + generated_tokens
    if window_tokens is None:
        return Held(kept_tokens=length, stored_tokens=length)
    kept = min(length, window_tokens - 1)
    stored = prompt_tokens if not generated_tokens else min(length, window_tokens)
    return Held(kept_tokens=kept, stored_tokens=stored)


def count_static(max_cache_tokens: int, *, window_tokens: int | None = None) -> int:
    """Return the tokens ``StaticCache`` allocates for a layer, whatever the length of the sequence."""
    return max_cache_tokens if window_tokens is None else min(max_cache_tokens, window_tokens)


def count_quantised(prompt_tokens: int, generated_tokens: int, *, residual_tokens: int = 128) -> tuple[int, int]:
    """Return the quantised tokens and those still in full precision (``QuantizedLayer``).

    The prompt is quantised at once; generated tokens are kept until ``residual_tokens`` of them are there, then all are
    quantised again.

    >>> count_quantised(100, 130)
    (228, 2)
    """
    whole = generated_tokens // residual_tokens * residual_tokens
    return prompt_tokens + whole, generated_tokens - whole
