"""The out-of-memory error of PyTorch, which every engine built on it prints alike."""

from __future__ import annotations

import re

from kvledger.engines.facts import NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.units import GIB, KIB, MIB

__all__ = ["OUT_OF_MEMORY"]

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_NEW = re.compile(
    r"Tried to allocate (?P<need>[\d.]{1,12}) (?P<need_unit>[KMG]iB)(?:\.|\s?\()"
    r"(?:.{0,200}?of which (?P<free>[\d.]{1,12}) (?P<free_unit>[KMG]iB) is free"
    r"|.{0,200}? (?P<old_free>[\d.]{1,12}) (?P<old_unit>[KMG]iB) free)?"
)


def _read(builder: LogBuilder, hit: Hit) -> None:
    free = "free" if hit.text("free") else "old_free"
    unit = hit.text("free_unit") or hit.text("old_unit") or "GiB"
    builder.notice(
        hit,
        NoticeKind.OUT_OF_MEMORY,
        is_error=True,
        needed=hit.bytes("need", _UNITS[hit.text("need_unit") or "GiB"]),
        available=hit.bytes(free, _UNITS[unit]),
    )


OUT_OF_MEMORY = Rule("Tried to allocate", _NEW, _read)
"""Reads the size asked for and the memory that was free."""
