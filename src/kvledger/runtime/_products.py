"""Products of rows with a matrix on a CPU, for few rows as in decoding as well as for many (compiled).

A matrix lies in panels: the numbers that one input gives to some tens of outputs side by side, input after input. Sums
of a block of rows for the outputs of a panel stay in registers while the panel goes by, fetched ahead; so few rows
take as long as memory takes to be read. Numba leaves such sums in memory, hence the loop is written in LLVM's terms.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from kvledger.runtime._jobs import ITEM, LINE_BYTES, THREAD, array_at, as_job, build_prefetch, compiled, take
from kvledger.runtime._numbers import exp

__all__ = ["GELU", "LANES", "PLAIN", "SILU", "WIDE", "count_scratch", "multiply"]

U = np.uint64

_TRIPLE, _, _FEATURES = cpu_target.target_context.codegen().magic_tuple()
_IS_X86, _HAS_WIDE_VECTORS = _TRIPLE.startswith("x86"), "+avx512f" in _FEATURES
_FUSES = not _IS_X86 or "+fma" in _FEATURES
"""Whether what Numba compiles for can multiply and add in one go: elsewhere LLVM would call a function for each."""
LANES = 16 if _HAS_WIDE_VECTORS else 8 if _FUSES else 4
"""Float32 of a vector."""
WIDE = 2 * LANES
"""Outputs of a panel."""
_ROWS = 8 if _HAS_WIDE_VECTORS else 4
"""Rows of a block: their sums are two vectors each, and all must fit the registers."""
_AHEAD_INPUTS = 32
"""Inputs between those of a panel that are fetched and those that are multiplied."""
PLAIN, SILU, GELU = 0, 1, 2
"""What becomes of the outputs: nothing, or the first half of a panel gates the other through a function."""


def _make_block(rows: int) -> Any:
    """Return the product of a block of so many rows with a panel."""

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply_block(_context: Any, _x: Any, _apart: Any, _panel: Any, _ahead: Any, _inputs: Any, _out: Any) -> Any:
        """Write (rows, WIDE) sums, and fetch as much as a panel from ``ahead``.

        All but ``inputs`` are addresses, and ``apart`` the bytes between rows.
        """

        def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _build_block(builder, rows, *arguments)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 6), build

    return multiply_block


def _build_block(builder: Any, rows: int, x: Any, apart: Any, panel: Any, ahead: Any, inputs: Any, out: Any) -> None:
    word, number = ir.IntType(64), ir.FloatType()
    vector = ir.VectorType(number, LANES)
    kind, name = ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32"
    fma = cgutils.get_or_insert_function(builder.module, kind, name) if _FUSES else None
    lines = [builder.inttoptr(builder.add(x, builder.mul(apart, word(r))), number.as_pointer()) for r in range(rows)]
    before = builder.block
    loop, after = builder.append_basic_block("inputs"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    at = builder.phi(word)
    at.add_incoming(word(0), before)
    zero = ir.Constant(vector, [0.0] * LANES)
    sums = [builder.phi(vector) for _ in range(2 * rows)]
    for old in sums:
        old.add_incoming(zero, before)
    gone = builder.mul(at, word(4 * WIDE))
    place = builder.add(panel, gone)
    _fetch(builder, builder.add(ahead, gone), 4 * WIDE)
    halves = [_load(builder, builder.add(place, word(4 * LANES * half)), vector) for half in range(2)]
    new = []
    for row in range(rows):
        number_at = builder.load(builder.gep(lines[row], [at]))
        spread = builder.insert_element(ir.Constant(vector, ir.Undefined), number_at, ir.IntType(32)(0))
        same = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        spread = builder.shuffle_vector(spread, ir.Constant(vector, ir.Undefined), same)
        for half in range(2):
            old = sums[2 * row + half]
            given = [spread, halves[half], old]
            new.append(builder.call(fma, given) if fma else builder.fadd(builder.fmul(*given[:2]), old))
    following = builder.add(at, word(1))
    at.add_incoming(following, loop)
    for old, one in zip(sums, new, strict=True):
        old.add_incoming(one, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, inputs), loop, after)
    builder.position_at_end(after)
    for i, one in enumerate(new):
        target = builder.inttoptr(builder.add(out, word(4 * LANES * i)), vector.as_pointer())
        builder.store(one, target, align=4)


def _load(builder: Any, address: Any, vector: Any) -> Any:
    return builder.load(builder.inttoptr(address, vector.as_pointer()), align=4)


def _fetch(builder: Any, address: Any, count: int) -> None:
    for line in range(0, count, LINE_BYTES):
        place = builder.add(address, ir.IntType(64)(line))
        build_prefetch(builder, builder.inttoptr(place, ir.IntType(8).as_pointer()))


_block_of_all, _block_of_four = _make_block(_ROWS), _make_block(4)
_block_of_two, _block_of_one = _make_block(2), _make_block(1)


def count_scratch() -> int:
    """Return the float32 of scratch a thread needs."""
    return _ROWS * WIDE


@compiled
def _multiply_rows(x, apart, panel, ahead, inputs, left, sums):
    """Multiply as many rows as make a block; return how many."""
    if left >= _ROWS:
        _block_of_all(x, apart, panel, ahead, inputs, sums)
        return _ROWS
    if left >= 4:
        _block_of_four(x, apart, panel, ahead, inputs, sums)
        return 4
    if left >= 2:
        _block_of_two(x, apart, panel, ahead, inputs, sums)
        return 2
    _block_of_one(x, apart, panel, ahead, inputs, sums)
    return 1


@compiled
def _sigmoid(x):
    e = exp(-abs(x))
    share = np.float32(1.0) / (np.float32(1.0) + e)
    return share if x >= 0 else e * share


@compiled
def _finish_gated(sums, rows, kind, out, first, outputs):
    """Gate the second half of the sums by the first; outputs are half as many as a panel is wide."""
    count = min(LANES, outputs - first)
    for row in range(rows):
        given, to = U(row * WIDE), U(row * outputs + first)
        for i in range(U(count)):
            gate = sums[given + i]
            inner = gate
            if kind == GELU:
                inner = np.float32(1.5957691216057308) * (gate + np.float32(0.044715) * gate * gate * gate)
            out[to + i] = gate * _sigmoid(inner) * sums[given + U(LANES) + i]


@compiled
def _finish(sums, rows, bias, out, first, outputs):
    """Add the bias to the sums, where there is one."""
    count = min(WIDE, outputs - first)
    for row in range(rows):
        given, to = U(row * WIDE), U(row * outputs + first)
        for i in range(U(count)):
            out[to + i] = sums[given + i]
        if len(bias):
            for i in range(U(count)):
                out[to + i] += bias[U(first) + i]


@as_job
def multiply(address):
    """Multiply rows by a matrix.

    Job: rows, inputs, outputs, panels, panels at a time, what becomes of the outputs, whether there is a bias;
    addresses of the rows (rows, inputs), the panels (panels, inputs, WIDE), the bias (outputs), the scratch (threads,
    `count_scratch`), and the answer (rows, outputs). An item is a panel.
    """
    job = numba.carray(address, (14,), np.int64)
    rows, inputs, outputs, panels, step, kind = job[2], job[3], job[4], job[5], job[6], job[7]
    bias = array_at(job[11], (outputs * job[8],), np.float32)
    lies = job[12] + take(job, THREAD, 1) * _ROWS * WIDE * 4
    sums = array_at(lies, (_ROWS * WIDE,), np.float32)
    line, long = WIDE * 4, inputs * WIDE * 4
    item = take(job, ITEM, step)
    while item < panels:
        for at in range(item, min(panels, item + step)):
            panel = job[10] + at * long
            row = 0
            while row < rows:
                is_last = rows - row <= _ROWS and row > 0
                ahead = panel + long if is_last else panel + _AHEAD_INPUTS * line
                given = job[9] + row * inputs * 4
                done = _multiply_rows(given, inputs * 4, panel, ahead, inputs, rows - row, lies)
                out = array_at(job[13] + row * outputs * 4, (done * outputs,), np.float32)
                if kind == PLAIN:
                    _finish(sums, done, bias, out, at * WIDE, outputs)
                else:
                    _finish_gated(sums, done, kind, out, at * LANES, outputs)
                row += done
        item = take(job, ITEM, step)
