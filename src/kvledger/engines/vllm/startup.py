"""What a start-up log of vLLM says about the plan: the bytes, the flags and the figures it printed.

The lines are read by :mod:`kvledger.engines.vllm.log`; here the last start is taken, and of its ranks the smallest,
because that one decides for the whole engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvledger.engines.facts import Notice, NoticeKind, StartupFacts
from kvledger.engines.plan import KvMemory
from kvledger.engines.quantity import Quantity
from kvledger.engines.vllm.log import read_log
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy

__all__ = ["StartUp", "read_start_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What a start-up log says; ``None`` is what it does not say."""

    version: str | None = None
    newest_version: str | None = None
    """The newest release that words its lines so, where no line names the version."""
    core: str | None = None
    """``v0`` or ``v1``, where a line is of one of them only."""
    available: tuple[tuple[int, int], ...] = ()
    """Bytes of each rank's line, as intervals: a printed ``16.50 GiB`` is 0.01 GiB wide."""
    tokens: int | None = None
    concurrency: float | None = None
    concurrency_ends: tuple[float, float] = (0.0, math.inf)
    """What the printed concurrency may have been before it was rounded, to the digits that are there."""
    max_model_len: int | None = None
    blocks: int | None = None
    """Printed blocks (V0 and 0.7)."""
    cpu_blocks: int | None = None
    override: int | None = None
    needed: tuple[int, int] | None = None
    """Bytes of the error that a request of ``max_model_len`` does not fit, as an interval."""
    estimated_length: int | None = None
    flags: tuple[tuple[str, int], ...] = ()
    kv_dtype: str | None = None
    prefix_caching: bool | None = None
    max_num_batched_tokens: int | None = None
    speculative_tokens: int | None = None
    speculative_method: str | None = None
    block_tokens: int | None = None
    """The block that was widened to hold a state."""
    hybrid_off: bool = False
    device: str = "cuda"

    def flag(self, name: str) -> int | None:
        """Return a parallelism flag by its field name in :class:`~kvledger.engines.plan.Deployment`."""
        return dict(self.flags).get(name)

    def memory(self) -> KvMemory:
        """Return the bytes of the rank that has least.

        Raises:
            SourceError: No line names the memory.
        """
        if not self.available:
            raise SourceError(
                "the log has no line that names the KV memory",
                hint="look for `Available KV cache memory` (0.9 and later), or give `--kv-memory`",
            )
        low = min(low for low, _ in self.available)
        high = min(high for _, high in self.available)
        return KvMemory(
            per_rank_bytes=((low + high) // 2,),
            accuracy=Accuracy.MEASURED,
            source=f"the log ({len(self.available)} line{'s' if len(self.available) > 1 else ''}), to 0.01 GiB",
            low_bytes=low,
            high_bytes=high,
        )


def read_start_up(lines: str | Iterable[str]) -> StartUp:
    """Read the last start in a log.

    Raises:
        SourceError: The log holds none of vLLM's start-up lines.
    """
    startups = read_log(lines).startups
    if not startups:
        raise SourceError(
            "this is no start-up log of vLLM: none of its memory lines was found",
            hint="give the log from the start of the server, with INFO lines",
        )
    return _take(startups[-1])


def _take(facts: StartupFacts) -> StartUp:
    error = _find(facts, NoticeKind.TOO_LONG)
    forced = _find(facts, NoticeKind.BLOCKS_FORCED)
    widened = _find(facts, NoticeKind.BLOCK_WIDENED)
    tokens = _integer(facts.find_smallest("tokens"))
    concurrency = facts.find_smallest("concurrency")
    v0_error = error is not None and error.needed is None
    if tokens is None and error is not None and v0_error:
        tokens = error.longest
    return StartUp(
        version=facts.version.value if facts.version else None,
        newest_version=facts.newest_version.value if facts.newest_version else None,
        core=_core(facts, v0_error=v0_error),
        available=_available(facts, error),
        tokens=tokens,
        concurrency=None if concurrency is None else float(concurrency.value),
        concurrency_ends=(0.0, math.inf) if concurrency is None else (concurrency.low, concurrency.high),
        max_model_len=_integer(facts.find_smallest("longest_tokens"))
        or (error.asked if error else None)
        or _integer(facts.max_model_len),
        blocks=_integer(facts.find_smallest("blocks")),
        cpu_blocks=_integer(facts.find_smallest("host_blocks")),
        override=forced.count if forced else None,
        needed=_interval(error.needed) if error and error.needed else None,
        estimated_length=error.longest if error and not v0_error else None,
        flags=tuple(
            (name, value) for name in ("tp", "pp", "dp", "dcp") if (value := _integer(getattr(facts, name))) is not None
        ),
        kv_dtype=facts.kv_dtype.value if facts.kv_dtype else None,
        prefix_caching=facts.prefix_caching.value if facts.prefix_caching else None,
        max_num_batched_tokens=_integer(facts.batch_tokens),
        speculative_tokens=_tokens_of(facts.options.get("speculative_tokens", "")),
        speculative_method=facts.options.get("speculative_method"),
        block_tokens=widened.count if widened is not None else None,
        hybrid_off=_find(facts, NoticeKind.HYBRID_DISABLED) is not None,
        device="cpu" if facts.device and facts.device.value.lower() == "cpu" else "cuda",
    )


def _core(facts: StartupFacts, *, v0_error: bool) -> str | None:
    """Return the core that prints such lines: V0 names blocks on the host, the first V1 blocks of the device alone."""
    if v0_error or facts.find_smallest("host_blocks") is not None:
        return "v0"
    if facts.find_smallest("blocks") is not None and _find(facts, NoticeKind.BLOCKS_FORCED) is None:
        return "v1" if facts.find_smallest("tokens") is None else None
    return None


def _tokens_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None


def _available(facts: StartupFacts, error: Notice | None) -> tuple[tuple[int, int], ...]:
    found = tuple(_interval(pool.size_bytes) for pool in facts.pools if pool.size_bytes is not None)
    if not found and error is not None and error.available is not None:
        return (_interval(error.available),)
    return found


def _find(facts: StartupFacts, kind: NoticeKind) -> Notice | None:
    return next((notice for notice in reversed(facts.notices) if notice.kind is kind), None)


def _interval(quantity: Quantity) -> tuple[int, int]:
    return max(0, round(quantity.low)), max(0, round(quantity.high))


def _integer(quantity: Quantity | None) -> int | None:
    return None if quantity is None else round(quantity.value)
