"""The out-of-memory error of PyTorch, which every engine built on it prints alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from kvledger.engines.facts import DeviceMemory, NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.engines.quantity import Quantity, printed_bytes
from kvledger.ledger import Accuracy
from kvledger.units import GIB, KIB, MIB

__all__ = ["OUT_OF_MEMORY"]

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_NEW = re.compile(
    r"Tried to allocate (?P<need>[\d.]{1,12}) (?P<need_unit>[KMG]iB)(?:\.|\s?\()"
    r"(?:.{0,200}?of which (?P<free>[\d.]{1,12}) (?P<free_unit>[KMG]iB) is free"
    r"|.{0,200}? (?P<old_free>[\d.]{1,12}) (?P<old_unit>[KMG]iB) free)?"
)
_SIZE = r"(?P<size>[\d.]{1,12}) (?P<unit>[KMG]iB)"
_PARTS = {
    "total": re.compile(rf"total capacity of {_SIZE}"),
    "used_here": re.compile(rf"(?:this process|Process \d{{1,10}}) has {_SIZE} memory in use"),
    "allocated": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "cached": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
_OLD_PARTS = {
    "total": re.compile(rf"{_SIZE} total capacity;"),
    "allocated": re.compile(rf"{_SIZE} already allocated;"),
    "reserved": re.compile(rf"{_SIZE} reserved in total by PyTorch"),
}
"""Of PyTorch before 2.1: what is reserved holds what is allocated, the rest is cached."""
_THIS = re.compile(rf"this process has {_SIZE} memory in use")
_REACH = 800
"""Characters of the message behind its beginning that are looked at."""


def _device(hit: Hit) -> DeviceMemory | None:
    """Return what the rest of the message says: this process by its name, else the only one named."""
    text = hit.match.string[hit.match.start() : hit.match.start() + _REACH]
    found = {name: pattern.search(text) for name, pattern in _PARTS.items()}
    found["used_here"] = _THIS.search(text) or found["used_here"]
    sizes = _read_sizes(hit, found)
    if not sizes:
        sizes = _read_sizes(hit, {name: pattern.search(text) for name, pattern in _OLD_PARTS.items()})
        reserved, allocated = sizes.pop("reserved", None), sizes.get("allocated")
        if reserved is not None and allocated is not None:
            sizes["cached"] = _subtract(reserved, allocated)
    return DeviceMemory(**sizes) if sizes else None


def _read_sizes(hit: Hit, found: Mapping[str, re.Match[str] | None]) -> dict[str, Quantity]:
    sizes = {
        name: printed_bytes(match["size"], _UNITS[match["unit"]], line=hit.line, origin=hit.origin)
        for name, match in found.items()
        if match is not None
    }
    return {name: size for name, size in sizes.items() if size is not None}


def _subtract(whole: Quantity, part: Quantity) -> Quantity:
    low, value, high = (max(0, a - b) for a, b in zip(_ends(whole), reversed(_ends(part)), strict=True))
    return replace(whole, value=value, low=low, high=high, accuracy=Accuracy.DERIVED)


def _ends(quantity: Quantity) -> tuple[float, float, float]:
    return quantity.low, quantity.value, quantity.high


def _read(builder: LogBuilder, hit: Hit) -> None:
    free = "free" if hit.text("free") else "old_free"
    unit = hit.text("free_unit") or hit.text("old_unit") or "GiB"
    builder.notice(
        hit,
        NoticeKind.OUT_OF_MEMORY,
        is_error=True,
        needed=hit.bytes("need", _UNITS[hit.text("need_unit") or "GiB"]),
        available=hit.bytes(free, _UNITS[unit]),
        device=_device(hit),
    )


OUT_OF_MEMORY = Rule("Tried to allocate", _NEW, _read)
"""Reads the size asked for and the memory that was free."""
