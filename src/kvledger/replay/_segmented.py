"""Extents inside segments, for the replays that have them (compiled).

`Core.blocks` has two dimensions where extents lie in segments, and one where they do not. Numba compiles a replay for
each; that without segments holds nothing of them, which halves the time of its compilation.
"""

from __future__ import annotations

from numba.extending import overload

from kvledger.pool import segments
from kvledger.pool.compiled import INLINED
from kvledger.replay._layout import I_ASKED, I_CAPACITY, I_PLACED, META


def has_segments(state):
    """Tell whether extents lie in segments."""
    return state.blocks.ndim == 2


def room_in_segments(state, size):
    """Tell whether a block of ``size`` can be had."""
    return segments.can_allocate(state.blocks, state.space[META], size, state.ints[I_CAPACITY])


def place_in_segments(state, size):
    """Take a block and return its address, its size in ``I_PLACED``; -1 when there is no room."""
    block = segments.allocate(state.blocks, state.space[META], size, state.ints[I_CAPACITY])
    if block < 0:
        return -1
    state.ints[I_PLACED] = state.blocks[segments.SIZE, block]
    return state.blocks[segments.ADDRESS, block]


def give_back_to_segments(state, address):
    """Return a block."""
    segments.release(state.blocks, state.space[META], address)


def external_in_segments(state):
    """Count the free units lost to non-contiguity for the size last asked."""
    return segments.count_external(state.blocks, state.space[META], state.ints[I_ASKED], state.ints[I_CAPACITY])


def _lie_in_segments(state):
    """Tell from the type of the arrays."""
    return state[state.fields.index("blocks")].ndim == 2


@overload(has_segments, jit_options=INLINED)
def _has_segments(state):
    return (lambda state: True) if _lie_in_segments(state) else (lambda state: False)


@overload(room_in_segments, jit_options=INLINED)
def _room_in_segments(state, size):
    return room_in_segments if _lie_in_segments(state) else (lambda state, size: False)


@overload(place_in_segments, jit_options=INLINED)
def _place_in_segments(state, size):
    return place_in_segments if _lie_in_segments(state) else (lambda state, size: -1)


@overload(give_back_to_segments, jit_options=INLINED)
def _give_back_to_segments(state, address):
    return give_back_to_segments if _lie_in_segments(state) else (lambda state, address: None)


@overload(external_in_segments, jit_options=INLINED)
def _external_in_segments(state):
    return external_in_segments if _lie_in_segments(state) else (lambda state: 0)
