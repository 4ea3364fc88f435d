"""Memory of the device outside the pool: what an out-of-memory error says, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.engines.facts import Notice, NoticeKind
from kvledger.findings.evidence import LogCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.ledger import Accuracy
from kvledger.units import format_bytes

__all__ = ["AllocatorHoles", "HeldByOthers", "RefusedBeforePool"]

_OTHERS_RATIO = 0.1


class AllocatorHoles(Rule):
    """An allocation fails although free and cached memory together would do: holes outside the pool.

    What it measures:
        PyTorch's error: less is free than was wanted, but with what its allocator keeps and no tensor uses it would
        be enough.

    Why it costs:
        The allocator keeps segments of the sizes it once needed. A larger tensor fits into none of them.

    Example:
        546 MiB wanted, 514.19 MiB free, 736.86 MiB reserved and unallocated: together 1.22 GiB.

    What to change:
        `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or 1 to 2 % less `--gpu-memory-utilization`.

    What gets worse:
        Segments that can grow are mapped page by page, which some interconnects and older drivers do not take. A
        lower utilisation takes a little memory from the cache.

    Known limits:
        That the parts would fit together is arithmetic; whether the segments can be merged is the driver's matter.

    Sources:
        PyTorch CUDA semantics, memory management; kaito-project/kaito#976.
    """

    code = "KV070"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Compare what was wanted with what is free and what is cached."""
        notice = _find_refusal(case)
        if notice is None or notice.needed is None or notice.available is None or notice.device is None:
            return
        cached = notice.device.cached
        wanted, free = notice.needed, notice.available
        if cached is None or free.high >= wanted.low or free.low + cached.low < wanted.high:
            return
        size = amount(cached.low, cached.high, formula="reserved and unallocated", accuracy=Accuracy.MEASURED)
        yield self.tell(
            case.subject,
            f"{format_bytes(wanted.value)} were wanted, {format_bytes(free.value)} were free and "
            f"{format_bytes(cached.value)} lay unused in the allocator: together enough, in pieces not. This is "
            "outside the KV pool",
            size,
            Remedy(
                setting="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                returned=size,
                trade=Trade.TRADE_OFF,
                proof=f"free and cached are {format_bytes(free.value + cached.value)}, "
                f"{format_bytes(wanted.value)} are wanted",
                worse="not every driver and interconnect takes segments that grow",
            ),
        )


class HeldByOthers(Rule):
    """The device is full of memory that does not belong to this process.

    What it measures:
        The capacity of the device in PyTorch's error, less what is free and what this process uses: a tenth of the
        device or more.

    Why it costs:
        Nothing this process sets can give that memory back: neither allocator settings nor a smaller cache.

    Example:
        15.51 GiB in all, 0.15 free, 11.65 of this process: 3.7 GiB belong to other processes and to contexts, while
        its own allocator keeps 10 MiB.

    What to change:
        Find the other processes (`nvidia-smi`) and end or move them; or size this one for what they leave.

    What gets worse:
        Nothing is proposed.

    Known limits:
        Inside a container other processes may be invisible and still hold memory.

    Sources:
        PyTorch c10/cuda/CUDACachingAllocator.cpp, the text of the error.
    """

    code = "KV071"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Subtract what is free and what is used here."""
        notice = _find_refusal(case)
        device = notice.device if notice is not None else None
        if notice is None or device is None or device.total is None or device.used_here is None:
            return
        if notice.available is None:
            return
        low = device.total.low - notice.available.high - device.used_here.high
        high = device.total.high - notice.available.low - device.used_here.low
        if low < _OTHERS_RATIO * device.total.value:
            return
        yield self.tell(
            case.subject,
            f"of {format_bytes(device.total.value)} this process uses {format_bytes(device.used_here.value)} and "
            f"{format_bytes(notice.available.value)} are free: {format_bytes(low)} belong to others, and no setting of "
            "the allocator gives them back",
            amount(low, high, formula="capacity - free - this process, as printed", accuracy=Accuracy.MEASURED),
        )


class RefusedBeforePool(Rule):
    """Memory ran out before the KV pool was cut, so its share of memory does not matter.

    What it measures:
        An out-of-memory error of a start that has printed no pool yet.

    Why it costs:
        Weights or the buffers of a profile run do not fit. Lowering the share of memory for the process changes
        nothing: what fails is not part of the cache.

    Example:
        The same error at utilisation 0.8, 0.6 and 0.5: 43.67 GiB allocated and 16.00 GiB wanted on a card of 44.53.

    What to change:
        Less weight on each rank (more ranks, quantised weights), or a smaller profile run
        (`--max-num-batched-tokens`, `--max-num-seqs`, fewer images a prompt).

    What gets worse:
        Nothing is proposed.

    Known limits:
        A log that begins after the start-up lines looks the same, so nothing is said about logs with periodic lines.

    Sources:
        vLLM v1/worker/gpu_worker.py (order of operations); vllm-project/vllm#7721.
    """

    code = "KV072"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look for an error in a start without a pool."""
        notice, startup = _find_refusal(case), case.startup
        if notice is None or notice.needed is None or startup is None or startup.pools or case.samples:
            return
        cached = notice.device.cached if notice.device is not None else None
        free = notice.available
        fits = free is not None and free.low + (cached.low if cached is not None else 0) >= notice.needed.high
        if fits or free is None:
            return
        yield self.tell(
            case.subject,
            f"{format_bytes(notice.needed.value)} were wanted and {format_bytes(free.value)} were free before any KV "
            "pool was cut: weights or a profile run do not fit, and the share of memory for the cache does not matter",
            amount(
                notice.needed.low - free.high,
                notice.needed.high - free.low,
                formula="wanted minus free",
                accuracy=Accuracy.MEASURED,
            ),
        )


def _find_refusal(case: LogCase) -> Notice | None:
    startup = case.startup
    notices = startup.notices if startup is not None else ()
    return next((notice for notice in notices if notice.kind is NoticeKind.OUT_OF_MEMORY), None)
