"""How an engine is set, and what a request may ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvledger.errors import UsageError
from kvledger.runtime.settings import read_choice, require_flags, require_number, require_whole

__all__ = ["Attention", "Generation", "Linear", "Options", "Preemption", "Reservation"]

_MOST_TOKENS = 2**31 - 1
_MOST_SAMPLES = 4096
_MOST_STOPS = 64
_LONGEST_STOP = 4096
_MOST_LIKELY = 20


class Preemption(StrEnum):
    """What happens to the keys and values of a request that must make room for others."""

    RECOMPUTE = "recompute"
    """They are dropped, and computed again when the request comes back."""
    SWAP = "swap"
    """They are copied to host memory as long as `swap_bytes` allows, else dropped."""


class Reservation(StrEnum):
    """What a request holds from its admission on."""

    BLOCKS = "blocks"
    """Blocks on demand, by a block table: the cure."""
    MAX = "max"
    """One contiguous extent of `max_model_len` tokens: the naive way."""
    POW2 = "pow2"
    """One extent of the prompt and the smallest power of two that holds `max_tokens`."""
    DECLARED = "declared"
    """One extent of the prompt and `max_tokens`."""


class Attention(StrEnum):
    """How attention over block tables is computed."""

    AUTO = "auto"
    """The compiled kernel on a CPU, FlashInfer on CUDA where it is installed, else gathering."""
    COMPILED = "compiled"
    """Decoding through a kernel that reads the blocks in place (CPU)."""
    GATHER = "gather"
    """Blocks are gathered into one tensor for PyTorch's own attention: the reference, on any device."""
    FLASHINFER = "flashinfer"
    """The paged kernels of FlashInfer (CUDA)."""


class Linear(StrEnum):
    """What multiplies matrices of float32 on a CPU."""

    AUTO = "auto"
    """On processors by AMD, where PyTorch's MKL is half as fast: packed where the copy takes less than an eighth of the
    machine's memory, else oneDNN. PyTorch's choice elsewhere."""
    TORCH = "torch"
    """PyTorch's choice."""
    ONEDNN = "onednn"
    """oneDNN, which is in PyTorch's wheels, on the weights as they are."""
    PACKED = "packed"
    """A compiled kernel on a copy of the weights laid out for it: decoding takes half of oneDNN's time, or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The limits of the scheduler (vLLM's names), and what the cache does.

    ``max_model_len`` of None is what the model and the pool allow, whichever is less. A ``reservation`` other than
    blocks is contiguous: it needs ``block_size=1``, and has no prefix cache.
    """

    max_model_len: int | None = None
    reservation: Reservation = Reservation.BLOCKS
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    watermark_ratio: float = 0.0
    full_sequence_must_fit: bool = True
    prefix_caching: bool = True
    preemption: Preemption = Preemption.RECOMPUTE
    swap_bytes: int = 0
    attention: Attention = Attention.AUTO
    linear: Linear = Linear.AUTO

    def __post_init__(self) -> None:
        """Refuse what no engine can run with; a choice may be given by its name."""
        if self.max_model_len is not None:
            require_whole("max_model_len", self.max_model_len, 2, 2**30)
        require_whole("max_num_seqs", self.max_num_seqs, 1, 2**16)
        require_whole("max_num_batched_tokens", self.max_num_batched_tokens, 1, 2**24)
        require_flags(full_sequence_must_fit=self.full_sequence_must_fit, prefix_caching=self.prefix_caching)
        require_number("watermark_ratio", self.watermark_ratio)
        kinds = {"reservation": Reservation, "preemption": Preemption, "attention": Attention, "linear": Linear}
        for name, kind in kinds.items():
            object.__setattr__(self, name, read_choice(name, getattr(self, name), kind))
        if self.reservation is not Reservation.BLOCKS and self.prefix_caching:
            raise UsageError(
                f"the reservation is `{self.reservation}`, and extents have no prefix cache",
                hint="give prefix_caching=False",
            )
        if not 0 <= self.watermark_ratio < 1:
            raise UsageError(f"watermark_ratio is {self.watermark_ratio}, not from 0 to below 1")
        if type(self.swap_bytes) is not int:
            raise UsageError(f"swap_bytes is {self.swap_bytes!r}, not a whole number of bytes")
        if self.swap_bytes < 0 or (self.swap_bytes > 0) != (self.preemption is Preemption.SWAP):
            raise UsageError(
                f"swap_bytes is {self.swap_bytes} and preemption is `{self.preemption}`",
                hint="give `preemption=Preemption.SWAP` together with the bytes of host memory it may take",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a request asks for. The defaults are greedy: temperature 0 takes the likeliest token.

    ``samples`` answers are drawn from one prompt, whose blocks they share. ``stop`` are strings that end an answer and
    are cut off it; they need a tokenizer. ``max_tokens`` of None is as many as ``max_model_len`` leaves. Before
    ``min_tokens`` nothing ends an answer but that. ``logprobs`` of N tells of every token how likely it was, and the N
    likeliest beside it; None tells nothing.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    samples: int = 1
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled; a single stop string may be given as itself."""
        if self.max_tokens is not None:
            require_whole("max_tokens", self.max_tokens, 1, _MOST_TOKENS)
        most = _MOST_TOKENS if self.max_tokens is None else self.max_tokens
        require_whole("min_tokens", self.min_tokens, 0, most)
        require_number("temperature", self.temperature)
        require_number("top_p", self.top_p)
        require_flags(ignore_eos=self.ignore_eos)
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise UsageError(f"temperature is {self.temperature}, not from 0 to 100")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}, not above 0 and up to 1")
        require_whole("top_k", self.top_k, 0, _MOST_TOKENS)
        require_whole("samples", self.samples, 1, _MOST_SAMPLES)
        if self.logprobs is not None:
            require_whole("logprobs", self.logprobs, 0, _MOST_LIKELY)
        if self.seed is not None:
            require_whole("seed", self.seed, 0, 2**64 - 1)
        self._read_stops()

    def _read_stops(self) -> None:
        stop: Any = self.stop
        stop = (stop,) if isinstance(stop, str) else stop
        for name, found, kind in (("stop", stop, str), ("stop_token_ids", self.stop_token_ids, int)):
            if not isinstance(found, list | tuple) or any(type(one) is not kind for one in found):
                what = "text or a tuple of texts" if kind is str else "a tuple of whole numbers"
                raise UsageError(f"{name} is {found!r}, not {what}")
            object.__setattr__(self, name, tuple(found))
        if len(self.stop) > _MOST_STOPS or any(not 1 <= len(text) <= _LONGEST_STOP for text in self.stop):
            raise UsageError(
                f"the {len(self.stop)} stop strings are not up to {_MOST_STOPS} of 1 to {_LONGEST_STOP} characters"
            )
