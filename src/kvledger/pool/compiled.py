"""How the array kernels of this package are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["OPTIONS", "called", "compiled", "inlined", "shared"]

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Kernels only index arrays that their caller owns, so reference counting inside them is switched off: it made the
# replay ten times slower. Division follows numpy (no exception); kernels guard their divisors.
OPTIONS = {"cache": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel that Python calls, and keep the machine code on disk."""
    kernel: Kernel = numba.njit(**OPTIONS)(function)
    return kernel


def called(function: Kernel) -> Kernel:
    """Compile a kernel that only kernels call: unpacking its arguments from Python would cost half its compilation."""
    kernel: Kernel = numba.njit(**OPTIONS, no_cpython_wrapper=True)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """Compile a kernel that only kernels call, and dissolve it in them.

    Passing a dozen arrays by value costs more than what most of these functions do.
    """
    kernel: Kernel = numba.njit(**OPTIONS, no_cpython_wrapper=True, forceinline=True)(function)
    return kernel


def shared(function: Kernel) -> Kernel:
    """Compile a kernel that both Python and kernels call, and dissolve it in the latter."""
    kernel: Kernel = numba.njit(**OPTIONS, forceinline=True)(function)
    return kernel
