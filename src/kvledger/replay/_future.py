"""Who looks for which block next, so that an eviction can know the future (compiled)."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvledger.pool.compiled import compiled

Array = Any  # a numpy array; numba knows its type

NOBODY = -1


class Future(NamedTuple):
    """Every block of known content of every request, a *use* each; request ``i`` owns those from ``offsets[i]`` on."""

    offsets: Array  # (requests + 1,) int64
    after: Array  # (uses,) int32: the next use of the same content that looks for it, or -1
    users: Array  # (uses,) int32: the request of a use


@compiled
def find_next_uses(offsets: Array, nodes: Array, sought: Array, latest: Array, after: Array, users: Array) -> None:
    """Link every use to the next one that looks for the same content.

    ``nodes``: (uses,) int32, equal for equal content. ``sought``: (requests,) int32, the leading blocks that a request
    looks for; it only provides the others. ``latest``: (distinct,) int32, filled with -1.
    """
    for request in range(offsets.shape[0] - 2, -1, -1):
        for i in range(offsets[request], offsets[request + 1]):
            users[i] = request
            after[i] = latest[nodes[i]]
        for i in range(offsets[request], offsets[request] + sought[request]):
            latest[nodes[i]] = i
