"""Two pools sized apart: one for the layers that keep every token, one for those with a sliding window (SGLang).

A request takes a slot in both pools for every token; those that its window has left behind go back to the second pool.
Neither pool can lend to the other, so the ratio of their sizes decides which one fills first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvledger.errors import UsageError
from kvledger.units import counted

__all__ = ["TwoPools"]

_MOST_TOKENS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPools:
    """What a token costs in each pool, and how the pools are sized."""

    full_token_bytes: int
    """A token in all layers that keep every token."""
    window_token_bytes: int
    """A token in all layers with a window."""
    window_tokens: int
    """Tokens that a window reaches, the token itself included."""
    ratio: float = 0.8
    """Tokens of the window's pool over those of the other (``--swa-full-tokens-ratio``)."""
    page_tokens: int = 1
    lag_tokens: int = 128
    """While decoding, slots behind the window go back once there are so many (``SGLANG_SWA_EVICTION_INTERVAL``)."""

    def __post_init__(self) -> None:
        """Refuse what no two pools can have."""
        for name, low in (("full_token_bytes", 1), ("window_token_bytes", 1), ("window_tokens", 2), ("page_tokens", 1)):
            value = getattr(self, name)
            if not low <= value <= _MOST_TOKENS:
                raise UsageError(f"{name} of two pools is {value}, not from {low} to 2**40")
        if not 0 < self.ratio <= 1:
            raise UsageError(f"--swa-full-tokens-ratio is {self.ratio:g}, not above 0 and at most 1")
        if not 0 <= self.lag_tokens <= _MOST_TOKENS:
            raise UsageError(f"a lag of {counted(self.lag_tokens, 'token')} is not from 0 to 2**40")

    @property
    def unit_bytes(self) -> int:
        """The bytes in which pages of both pools can be counted."""
        return self.page_tokens * math.gcd(self.full_token_bytes, self.window_token_bytes)

    def divide(self, total_bytes: int) -> tuple[int, int]:
        """Return the tokens of the two pools in ``total_bytes``, in whole pages.

        SGLang 0.5.13 to 0.5.18 (``HybridSWAPoolConfigurator``): bytes // (full + ratio x window), then the ratio of it.
        """
        full = self._whole(int(total_bytes // (self.full_token_bytes + self.ratio * self.window_token_bytes)))
        return full, self._whole(int(full * self.ratio))

    def bytes_of(self, full_tokens: int, window_tokens: int) -> int:
        """Return the bytes of so many tokens in each pool."""
        return full_tokens * self.full_token_bytes + window_tokens * self.window_token_bytes

    def asked_in_window(self, tokens: int, chunk_tokens: int) -> int:
        """Return the slots of the window's pool that admission asks for: a chunk or a window, and a page beside it."""
        most = self._pages(max(min(chunk_tokens, tokens), self.window_tokens)) + self.page_tokens
        return min(self._pages(tokens), most)

    def most_tokens(self, full: int, window: int, *, in_flight_tokens: int, max_model_len: int) -> int:
        """Return the longest request that pools of so many tokens are sure to serve, even alone.

        Beside the window it may hold a chunk, or what has not gone back yet, and a page on either side.
        """
        low, high = 0, min(max_model_len, full)
        while low < high:
            middle = (low + high + 1) // 2
            ahead = max(min(in_flight_tokens, middle), self.lag_tokens + 1)
            needed = min(self._pages(middle), self._pages(self.window_tokens + ahead) + self.page_tokens)
            fits = self._pages(middle) <= full and needed <= window
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _whole(self, tokens: int) -> int:
        return tokens // self.page_tokens * self.page_tokens

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens) * self.page_tokens
