"""Reading vLLM's start-up log: the bytes, the flags and the figures it printed.

The patterns tolerate every prefix (process tag, level, time, file and line), which change with each release. A printed
``16.50 GiB`` stands for an interval of 0.01 GiB, ``16.5`` too (trailing zeros are dropped from 0.14 on).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvledger.engines.plan import KvMemory
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy
from kvledger.units import GIB

__all__ = ["StartUp", "read_start_up"]

MAX_LINES = 2_000_000
_MAX_LINE = 100_000
_NUMBER = r"(\d{1,15}(?:\.\d{1,6})?|\d{1,3}(?:,\d{3}){1,5})"
_SIZE = re.compile(rf"([A-Z]{{2,12}})(?: \+ host)? KV cache size: {_NUMBER} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x")
_BLOCKS = re.compile(r"# (\w{2,12}) blocks: (\d{1,12})(?:, # CPU blocks: (\d{1,12}))?")
_AVAILABLE = re.compile(r"Available KV cache memory: (-?\d{1,6}(?:\.\d{1,3})?) GiB")
_RESERVED = re.compile(r"reserved (\d{1,6}(?:\.\d{1,3})?) GiB memory for KV Cache as specified by")
_CPU = re.compile(r"(?:Explicitly|Auto) set \((\d{1,6}(?:\.\d{1,3})?)/\d[\d.]{0,12}\) GiB for KV cache")
_V0 = re.compile(r"the rest of the memory reserved for KV Cache is (\d{1,6}(?:\.\d{1,3})?)GiB")
_IN_USE = re.compile(r"[Cc]urrent kv cache memory in use is (\d{1,6}(?:\.\d{1,3})?) GiB")
_OVERRIDE = re.compile(r"Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})")
_BLOCK_SIZE = re.compile(r"Setting attention block size to (\d{1,7}) tokens")
_NEED = re.compile(
    r"max seq len \((\d{1,12})\)[^(]{0,40}\(?(\d[\d.]{0,12}) GiB KV cache is needed"
    r".{0,120}?memory \((-?\d[\d.]{0,12}) GiB\)"
    r"(?:.{0,200}?maximum model length is (\d{1,12}))?"
)
_V0_NEED = re.compile(r"max seq len \((\d{1,12})\) is larger than the maximum number of tokens .{0,60}?\((\d{1,12})\)")
_VERSION = re.compile(r"LLM engine \(v?(\d+\.\d+[\w.+-]{0,40})\) with config")
_FLAGS = {
    "max_model_len": re.compile(r"max_seq_len=(\d{1,12})"),
    "tp": re.compile(r"tensor_parallel_size=(\d{1,6})"),
    "pp": re.compile(r"pipeline_parallel_size=(\d{1,6})"),
    "dp": re.compile(r"data_parallel_size=(\d{1,6})"),
    "dcp": re.compile(r"decode_context_parallel_size=(\d{1,6})"),
}
_KV_DTYPE = re.compile(r"kv_cache_dtype='?(\w{1,40})")
_CACHING = re.compile(r"enable_prefix_caching=(True|False)")
_BATCHED = re.compile(r"[Cc]hunked prefill is enabled with max_num_batched_tokens=(\d{1,12})")
_WORDS = ("KV", "kv cache", "blocks", "LLM engine", "max seq len", "unked prefill", "block size")
"""A line without any of these says nothing about the memory."""
_HYBRID_OFF = re.compile(r"Hybrid KV cache manager is disabled for this hybrid model")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What a start-up log says; ``None`` is what it does not say."""

    version: str | None = None
    available: tuple[tuple[int, int], ...] = ()
    """Bytes of each rank's line, as intervals."""
    tokens: int | None = None
    concurrency: float | None = None
    max_model_len: int | None = None
    blocks: int | None = None
    """Printed blocks (V0 and 0.7), or forced ones."""
    cpu_blocks: int | None = None
    override: int | None = None
    block_tokens: int | None = None
    needed: tuple[int, int] | None = None
    """Bytes of the error that a request of ``max_model_len`` does not fit, as an interval."""
    estimated_length: int | None = None
    flags: tuple[tuple[str, int], ...] = ()
    kv_dtype: str | None = None
    prefix_caching: bool | None = None
    max_num_batched_tokens: int | None = None
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


def read_start_up(lines: Iterable[str]) -> StartUp:
    """Read the last start-up in a log.

    Args:
        lines: The lines of the log, at most two million are read.

    Raises:
        SourceError: The log holds none of vLLM's start-up lines.
    """
    found: dict[str, object] = {}
    available: list[tuple[int, int]] = []
    flags: dict[str, int] = {}
    for number, line in enumerate(lines):
        if number >= MAX_LINES:
            break
        if any(word in line for word in _WORDS):
            _read_line(line[:_MAX_LINE], found, available, flags)
    if not found and not available:
        raise SourceError(
            "this is no start-up log of vLLM: none of its memory lines was found",
            hint="give the log from the start of the server, with INFO lines",
        )
    return StartUp(available=tuple(available), flags=tuple(flags.items()), **found)  # type: ignore[arg-type]


def _read_line(line: str, found: dict[str, object], available: list[tuple[int, int]], flags: dict[str, int]) -> None:
    if match := _VERSION.search(line):
        found["version"] = match[1]
        available.clear()
        for name, pattern in _FLAGS.items():
            if flag := pattern.search(line):
                flags[name] = int(flag[1])
        if dtype := _KV_DTYPE.search(line):
            found["kv_dtype"] = dtype[1]
        if caching := _CACHING.search(line):
            found["prefix_caching"] = caching[1] == "True"
    for pattern in (_AVAILABLE, _RESERVED, _CPU, _V0):
        if match := pattern.search(line):
            available.append(_interval(match[1]))
            if pattern is _CPU:
                found["device"] = "cpu"
    if (match := _IN_USE.search(line)) and not available:
        available.append(_interval(match[1]))
    if match := _BATCHED.search(line):
        found["max_num_batched_tokens"] = int(match[1])
    if match := _BLOCK_SIZE.search(line):
        found["block_tokens"] = int(match[1])
    if match := _OVERRIDE.search(line):
        found["override"] = int(match[2])
    if _HYBRID_OFF.search(line):
        found["hybrid_off"] = True
    _read_figures(line, found, available)


def _read_figures(line: str, found: dict[str, object], available: list[tuple[int, int]]) -> None:
    if match := _BLOCKS.search(line):
        found["blocks"] = int(match[2])
        if match[3] is not None:
            found["cpu_blocks"] = int(match[3])
    if match := _SIZE.search(line):
        tokens = _count(match[2])
        known = found.get("tokens")
        found["tokens"] = min(tokens, known) if isinstance(known, int) else tokens
    if match := _CONCURRENCY.search(line):
        found["max_model_len"] = _count(match[1])
        found["concurrency"] = float(match[2].replace(",", ""))
    if match := _NEED.search(line):
        found["max_model_len"] = int(match[1])
        found["needed"] = _interval(match[2])
        if not available:
            available.append(_interval(match[3]))
        if match[4]:
            found["estimated_length"] = int(match[4])
    if match := _V0_NEED.search(line):
        found["max_model_len"] = int(match[1])
        found["tokens"] = int(match[2])


def _interval(text: str) -> tuple[int, int]:
    """Return the bytes a printed number of GiB can stand for."""
    value = float(text)
    return max(0, round((value - 0.005) * GIB)), max(0, round((value + 0.005) * GIB))


def _count(text: str) -> int:
    return int(float(text.replace(",", "")))
