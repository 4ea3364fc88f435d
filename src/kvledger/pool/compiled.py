"""How the array kernels of this package are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["INLINED", "OPTIONS", "body_of", "called", "compiled", "inlined", "shared"]

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Kernels only index arrays that their caller owns, so reference counting inside them is switched off: it made the
# replay ten times slower. Division follows numpy (no exception); kernels guard their divisors.
OPTIONS = {"cache": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}

# What `inlined` gives a kernel, for `numba.extending.overload`.
INLINED = {**OPTIONS, "no_cpython_wrapper": True, "forceinline": True}


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
    kernel: Kernel = numba.njit(**INLINED)(function)
    return kernel


def shared(function: Kernel) -> Kernel:
    """Compile a kernel that both Python and kernels call, and dissolve it in the latter."""
    kernel: Kernel = numba.njit(**OPTIONS, forceinline=True)(function)
    return kernel


def body_of(kernel: Kernel) -> Kernel:
    """Return the function of a kernel, for `numba.extending.overload`: a call of it would be one kernel more."""
    body: Kernel = getattr(kernel, "py_func")  # noqa: B009 - nothing a function has
    return body
