"""How the array kernels of this package are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["compiled", "inlined"]

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel with Numba, and keep the machine code on disk.

    Kernels only index arrays that their caller owns, so reference counting inside them is switched off: it made the
    replay ten times slower. Division follows numpy (no exception); kernels guard their divisors.
    """
    kernel: Kernel = numba.njit(cache=True, error_model="numpy", _nrt=False)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """Compile a kernel that other kernels call, and dissolve it in them.

    Passing a dozen arrays by value costs more than what most of these functions do.
    """
    kernel: Kernel = numba.njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)(function)
    return kernel
