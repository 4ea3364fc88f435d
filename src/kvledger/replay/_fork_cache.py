"""A prefix cache for tables that fork, for the replays that have one (compiled).

`Forked.hits` has one dimension where blocks are found again, and two where they are not. Numba compiles a replay for
each; that without a prefix cache holds nothing of it, and takes no longer to compile.
"""

from __future__ import annotations

from numba.extending import overload

from kvledger.pool import forks
from kvledger.pool.compiled import INLINED, body_of
from kvledger.pool.forks import HOSTED
from kvledger.replay import _cached_forks
from kvledger.replay._layout import I_BLOCK, S_COMPUTED, S_PROMPT


def find_hits(st, fk, slot):
    """Note the leading blocks of a waiting group that are in the pool; return their number, and how many are idle."""


def refer_hits(st, fk, slot, hits):
    """Let a group refer to the blocks that were noted, and count what they save."""


def identify(st, fk, slot, computed, n):
    """Give identities to the blocks that ``n`` more tokens of a group's line fill."""


def swap_in(st, fk, slot):
    """Bring the blocks of a group back, which must have room; return how many the device no longer had."""


def _bring_all_back(st, fk, slot):
    moved = fk.tables.groups[slot, HOSTED]
    forks.swap_in(fk.tables, slot, st.slots[slot, S_PROMPT], st.slots[slot, S_COMPUTED], st.ints[I_BLOCK])
    return moved


def _caches(fk):
    """Tell from the type of the arrays."""
    return fk[fk.fields.index("hits")].ndim == 1


@overload(find_hits, jit_options=INLINED)
def _find_hits(st, fk, slot):
    return body_of(_cached_forks.find_hits) if _caches(fk) else (lambda st, fk, slot: (0, 0))


@overload(refer_hits, jit_options=INLINED)
def _refer_hits(st, fk, slot, hits):
    return body_of(_cached_forks.refer_hits) if _caches(fk) else (lambda st, fk, slot, hits: None)


@overload(identify, jit_options=INLINED)
def _identify(st, fk, slot, computed, n):
    return body_of(_cached_forks.identify) if _caches(fk) else (lambda st, fk, slot, computed, n: None)


@overload(swap_in, jit_options=INLINED)
def _swap_in(st, fk, slot):
    return body_of(_cached_forks.swap_in) if _caches(fk) else _bring_all_back
