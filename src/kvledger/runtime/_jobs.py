"""Kernels as jobs: what they work on as a row of numbers, so that threads outside Python can share one (compiled).

A job is an array of int64: two counters, then what the kernel needs, addresses among them. A thread takes the next
items by adding to a counter, which no other thread can come between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "ITEM",
    "LINE_BYTES",
    "THREAD",
    "Job",
    "array_at",
    "as_job",
    "build_prefetch",
    "compiled",
    "inlined",
    "prefetch",
    "take",
]

ITEM, THREAD = 0, 1
"""Places of the counters, zero when a job begins: the next item, and the next thread's own number."""

LINE_BYTES = 64
"""Of a cache line, which is what is fetched ahead."""

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Sums may be reordered, as vector instructions need; nothing here is infinite or no number but the model's own NaN.
_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


def compiled(function: Kernel) -> Kernel:
    """Compile a part of a kernel."""
    kernel: Kernel = numba.njit(**_OPTIONS)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """Compile a part of a kernel into what calls it."""
    kernel: Kernel = numba.njit(inline="always", **_OPTIONS)(function)
    return kernel


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_context: Any, address: Any) -> Any:
    """Return an address as a pointer."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), build


@intrinsic  # type: ignore[untyped-decorator]
def _add(_context: Any, _address: Any, _amount: Any) -> Any:
    """Add to the int64 at an address in one go, and return what was there."""

    def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = context.get_value_type(types.int64)
        pointer = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "monotonic")

    return types.int64(types.int64, types.int64), build


def build_prefetch(builder: Any, place: Any) -> None:
    """Write into a kernel, in LLVM's terms, that the cache line at a pointer is fetched: it will be read soon."""
    word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, in_all_caches, of_data = word(0), word(3), word(1)
    builder.call(function, [builder.bitcast(place, byte), to_read, in_all_caches, of_data])


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, array: Any, _index: Any) -> Any:
    """Fetch the cache line of an element, which will be read soon."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        build_prefetch(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, types.uint64), build


@inlined
def array_at(address, shape, dtype):
    """Return the numbers at an address as an array."""
    return numba.carray(_pointer(address), shape, dtype)


@inlined
def take(job, counter, amount):
    """Take ``amount`` from a counter of a job (mutates); return the first of them."""
    return _add(numba.int64(job.ctypes.data + counter * 8), numba.int64(amount))


class Job:
    """A kernel that any thread may run on a job; compiled when it is first asked for."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @cached_property
    def _kernel(self) -> Any:
        compile_it = numba.cfunc(types.void(types.voidptr), nopython=True, cache=True, error_model="numpy")
        return compile_it(self._function)

    @cached_property
    def address(self) -> int:
        """Where the kernel lies, for threads that are not Python's."""
        return int(self._kernel.address)

    @cached_property
    def run(self) -> Callable[[int], None]:
        """Run the kernel on the job at an address, without Python's lock."""
        run: Callable[[int], None] = self._kernel.ctypes
        return run


def as_job(function: Callable[..., None]) -> Job:
    """Make a kernel of a function of a job's address."""
    return Job(function)
