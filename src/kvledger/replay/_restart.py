"""Restarts of the server, as every loop takes them (compiled)."""

from __future__ import annotations

from kvledger.pool.compiled import inlined
from kvledger.replay._layout import *


@inlined
def begin_restart(st):
    """Let the time of a restart pass, once everything that ran has lost its memory and waits again.

    Return False when no token has come out since the last restart. Every stretch between two restarts begins with the
    same queue and an empty pool, so none ever will.
    """
    ints, floats = st.ints, st.floats
    progress = 1 + ints[I_OUTPUT] + (ints[I_STUCK] << 40)
    for i in range(ints[I_STACKED]):
        progress += st.slots[st.lists[STACK, i], S_GENERATED]
    if progress == ints[I_PROGRESS]:
        return False
    ints[I_PROGRESS] = progress
    ints[I_RESTARTS] += 1
    floats[F_NOW] += floats[F_RESTART_DOWN]
    floats[F_DOWN] += floats[F_RESTART_DOWN]
    floats[F_RESTART_AT] = floats[F_NOW] + floats[F_RESTART_EVERY]
    return True
