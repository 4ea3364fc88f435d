"""Sharing a kernel's work among threads: those that PyTorch's own operators run on, wherever they can be had.

Between two operators the threads of OpenMP spin, for a few milliseconds, in the hope of more work. Threads of our own
would have to share the processors with them. On Linux, PyTorch brings GNU's OpenMP with it, whose entry
``GOMP_parallel`` (the one that compilers call) lets a kernel be one more operator to them.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvledger.runtime._jobs import Job

__all__ = ["Team", "address_of"]

_WORTH_SHARING = 2**15
"""Numbers that a job reads above which sharing it pays: going through the team takes some 3 microseconds."""
_COUNTERS = (0, 0)
"""What every job begins with: the next item, and the next thread."""


class Team:
    """Runs jobs on up to ``threads`` threads; several teams may live in a process."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._parallel = _find_parallel() if threads > 1 else None
        is_alone = threads < 2 or self._parallel is not None
        self._workers = None if is_alone else ThreadPoolExecutor(threads - 1, "kvledger-attention")

    def run(self, kernel: Job, *given: int, numbers: int) -> None:
        """Run a kernel on the job of what is given, which reads about so many numbers; return when all is done.

        Everything whose address is given must live until then.
        """
        job = array("q", _COUNTERS + given)
        address = job.buffer_info()[0]
        if numbers < _WORTH_SHARING or self.threads == 1:
            kernel.run(address)
        elif self._parallel is not None:
            self._parallel(kernel.address, address, self.threads, 0)
        else:
            assert self._workers is not None
            waits = [self._workers.submit(kernel.run, address) for _ in range(self.threads - 1)]
            kernel.run(address)
            for wait in waits:
                wait.result()

    def close(self) -> None:
        """Let threads of our own end (mutates)."""
        if self._workers is not None:
            self._workers.shutdown()


def address_of(numbers: NDArray[Any]) -> int:
    """Return where the numbers of an array lie."""
    address: int = numbers.__array_interface__["data"][0]
    return address


def _find_parallel() -> Any:
    """Return the entry of the OpenMP that PyTorch runs on, or None."""
    import torch

    folder = Path(torch.__file__).parent
    for path in sorted([*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")]):
        try:
            entry = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
        except (OSError, AttributeError):
            continue
        entry.restype = None
        entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return entry
    return None
