"""How much memory this machine can still give, and what was asked of it when it gave none."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

from kvledger.errors import CapacityError
from kvledger.units import format_bytes

__all__ = ["available_bytes", "explain_memory"]

_MEMINFO = Path("/proc/meminfo")
_LONGEST = 64 * 2**10


def available_bytes(meminfo: Path = _MEMINFO) -> int | None:
    """Return the bytes that processes can still get without swapping, as far as the system tells; else None."""
    try:
        with meminfo.open("rb") as stream:
            lines = stream.read(_LONGEST).split(b"\n")
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable:")), None)
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def explain_memory(error: MemoryError, *, available: int | None) -> CapacityError:
    """Return the error to show: what was asked for at once, where the library says it, and what is available."""
    needed = _asked_bytes(error)
    told = ["the machine has not enough memory for this"]
    if needed is not None:
        told.append(f"{format_bytes(needed)} were asked for at once")
    if available is not None:
        told.append(f"{format_bytes(available)} {'are' if needed is not None else 'are still'} available")
    sentence = told[0] + (": " + ", and ".join(told[1:]) if len(told) > 1 else "")
    return CapacityError(
        sentence,
        hint="take a smaller part (fewer requests, a coarser grid, a shorter window) or a machine with more memory",
        needed_bytes=needed,
        available_bytes=available,
    )


def _asked_bytes(error: MemoryError) -> int | None:
    """Return the bytes of the array that NumPy could not allocate; None for any other lack of memory."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        return None
    return prod(int(size) for size in shape) * int(dtype.itemsize)
