"""How long a step takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.errors import UsageError
from kvledger.ledger import Accuracy

__all__ = ["Clock", "parse_clock"]

_FIELDS = ("base", "a", "b", "c", "d")
MOST_SECONDS = 1e6
MOST_OVERHEAD_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Seconds of a step: ``base + a * prefill_tokens + b * decode_sequences + c * kv_tokens_read``.

    A scheduled request that computes its last known token after having generated some is one decode sequence; every
    other one adds its tokens to ``prefill_tokens``. ``kv_tokens_read`` sums the stored tokens of those scheduled.
    Every token of a block that is moved between the GPU and its host takes ``d`` on top. Reading a block of a block
    table takes as long as ``block_overhead_tokens`` more tokens would, so ``c`` grows as blocks get smaller.
    """

    base: float
    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    d: float = 0.0
    block_overhead_tokens: float = 0.0
    name: str = "given"
    accuracy: Accuracy = Accuracy.MODELLED

    def __post_init__(self) -> None:
        """Refuse what no time can be counted with."""
        for name in _FIELDS:
            value = getattr(self, name)
            if not 0 <= value <= MOST_SECONDS:
                raise UsageError(f"`{name}` of the clock is {value}, not from 0 to {MOST_SECONDS:g} seconds")
        if not 0 <= self.block_overhead_tokens <= MOST_OVERHEAD_TOKENS:
            raise UsageError(
                f"a block takes as long to read as {self.block_overhead_tokens:g} tokens more, not from 0 to "
                f"{MOST_OVERHEAD_TOKENS}"
            )
        if self.base == 0:
            raise UsageError("`base` of the clock is 0, so time could stand still", hint="give each step some seconds")

    def per_token_read(self, block_tokens: int | None) -> float:
        """Return the seconds to read a stored token, in blocks of so many tokens (None: not through a block table)."""
        return self.c if block_tokens is None else self.c * (1.0 + self.block_overhead_tokens / block_tokens)

    def with_overhead(self, tokens: float, *, block_tokens: int) -> Clock:
        """Return the clock with this overhead of a block, as fast as before in blocks of ``block_tokens``."""
        c = self.per_token_read(block_tokens) / (1.0 + tokens / block_tokens)
        return replace(self, c=c, block_overhead_tokens=tokens)

    def seconds(self, *, prefill_tokens: int, decode_sequences: int, kv_tokens_read: int) -> float:
        """Return the duration of one step, with the arithmetic of the compiled replay."""
        return self.base + self.a * prefill_tokens + self.b * decode_sequences + self.c * kv_tokens_read


STEPS = Clock(base=1.0, name="steps")
"""Every step takes one second: time is counted in steps."""


def parse_clock(text: str) -> Clock:
    """Read ``steps``, or four or five numbers ``base,a,b,c[,d]`` in seconds.

    Raises:
        UsageError: There are not so many numbers from 0 to a million, or every step would take no time.

    >>> parse_clock("0.008,2e-5,1e-5,1e-8").seconds(prefill_tokens=0, decode_sequences=10, kv_tokens_read=0)
    0.0081
    """
    if text == "steps":
        return STEPS
    parts = text.split(",")
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) not in (len(_FIELDS) - 1, len(_FIELDS)):
        raise UsageError(f"`{text[:80]}` is not a clock", hint="write `steps`, a preset, or `base,a,b,c` in seconds")
    base, a, b, c, d = (*values, 0.0)[: len(_FIELDS)]
    return Clock(base=base, a=a, b=b, c=c, d=d)


def roofline_clock(
    *,
    name: str,
    parameters: float,
    bandwidth_bytes_per_second: float,
    flops_per_second: float,
    bytes_per_token: float,
    weight_bytes: float | None = None,
    host_bytes_per_second: float | None = None,
) -> Clock:
    """Model a clock from what the hardware can do at best, at 80 % of its bandwidth and 50 % of its FLOP/s.

    A step reads the weights once (``weight_bytes``, else 2 bytes a parameter) and the stored keys and values of every
    scheduled request, and computes 2 FLOP a parameter and token; 1 ms is added for launching it. Blocks move to the
    host and back at 80 % of the link's rate (None: in no time). This is a roofline, not a measurement.
    """
    bandwidth = 0.8 * bandwidth_bytes_per_second
    per_token = 2 * parameters / (0.5 * flops_per_second)
    return Clock(
        base=1e-3 + (2 * parameters if weight_bytes is None else weight_bytes) / bandwidth,
        a=per_token,
        b=per_token,
        c=bytes_per_token / bandwidth,
        d=bytes_per_token / (0.8 * host_bytes_per_second) if host_bytes_per_second else 0.0,
        name=name,
    )
