"""From the arrays of a replay between two steps to a snapshot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UnbalancedLedger
from kvledger.ledger import Ledger
from kvledger.pool import buddy, extents, segments
from kvledger.replay import _layout as at
from kvledger.replay._forks import K_SEQUENCES, Forked
from kvledger.replay._group_accounts import fill_blocks
from kvledger.replay._groups import Grouped
from kvledger.replay.simulate import Machine
from kvledger.replay.snapshot import Blocks, Moment, Order, Pieces, Snapshot

__all__ = ["external_units", "held_units", "take_snapshot", "used_bytes"]

Column = NDArray[np.int64]


def take_snapshot(machine: Machine, moment: Moment) -> Snapshot:
    """Return what lies where now; the books of the snapshot balance by themselves.

    Raises:
        UnbalancedLedger: They do not.
    """
    ints, floats, size = machine.state.core.ints, machine.state.core.floats, machine.size
    blocks = _blocks(machine) if machine.tables is not None else None
    pieces = None if blocks is not None else _pieces(machine)
    order = Order.BLOCKS if blocks is not None else _order(ints)
    return Snapshot(
        moment=moment,
        order=order,
        step=int(ints[at.I_STEPS]),
        time_seconds=float(floats[at.F_NOW] - floats[at.F_FIRST_ARRIVAL]),
        running=_running(machine),
        waiting=int(ints[at.I_WAITING]),
        asked_bytes=int(ints[at.I_ASKED]) * size.unit_bytes,
        unit_bytes=size.unit_bytes,
        ledger=_ledger(machine, pieces, blocks).check(),
        pieces=pieces,
        blocks=blocks,
    )


def held_units(machine: Machine) -> int:
    """Return the units that running requests keep from others."""
    ints = machine.state.core.ints
    if ints[at.I_MEMORY] == at.PROMISE:
        return int(ints[at.I_PROMISED])
    if machine.tables is not None:
        return int((_pool(machine).references > 0).sum())
    return int(ints[at.I_HELD]) if ints[at.I_MEMORY] > at.PROMISE else int(ints[at.I_CAPACITY] - ints[at.I_FREE])


def used_bytes(machine: Machine) -> int:
    """Return the bytes that running requests use.

    Groups of layers keep none between two steps: there they are what every running request needs for its next step.
    """
    if isinstance(machine.tables, Grouped):
        return int(_needed(machine, machine.tables).sum())
    return int(machine.state.core.ints[at.I_USED]) * machine.size.token_bytes


def external_units(machine: Machine) -> int:
    """Return the free units lost to non-contiguity for the size last asked; what the kernels keep may be of before."""
    ints, core = machine.state.core.ints, machine.state.core
    asked = int(ints[at.I_ASKED])
    if asked <= 0 or ints[at.I_MEMORY] not in (at.EXTENT, at.GROWING):
        return 0
    meta, capacity = core.space[at.META], int(ints[at.I_CAPACITY])
    if ints[at.I_PLACEMENT] == at.SEGMENTS:
        return int(segments.count_external(core.blocks, meta, asked, capacity))
    if ints[at.I_PLACEMENT] == extents.BUDDY:
        return int(buddy.count_external(core.space[at.COUNTS], buddy.order_of(asked)))
    return int(extents.count_external(core.space[at.SIZES], meta, asked))


def _pool(machine: Machine) -> Any:
    """Return the numbered blocks of a replay that has some."""
    tables: Any = machine.tables
    return tables.tables.pool if isinstance(tables, (Forked, Grouped)) else tables.pool


def _running(machine: Machine) -> int:
    """Return the answers that run: requests, where each asks for one."""
    if isinstance(machine.tables, Forked):
        return int(machine.tables.counts[K_SEQUENCES])
    return int(machine.state.core.ints[at.I_RUNNING])


def _order(ints: Any) -> Order:
    if ints[at.I_MEMORY] <= at.PROMISE:
        return Order.COUNTS
    return Order.SEGMENTS if ints[at.I_PLACEMENT] == at.SEGMENTS else Order.ADDRESSES


def _ledger(machine: Machine, pieces: Pieces | None, blocks: Blocks | None) -> Ledger:
    size, unit = machine.size, machine.size.unit_bytes
    external = external_units(machine) * unit
    if pieces is not None:
        used, reserved = int(pieces.used_bytes.sum()), int(pieces.reserved_bytes.sum())
        held, cached = int(pieces.size_bytes.sum()), 0
    else:
        assert blocks is not None
        used, reserved = int(blocks.used_bytes.sum()), 0
        held, cached = int((blocks.references > 0).sum()) * unit, int(blocks.cached_bytes.sum())
    kept = used_bytes(machine)
    if used != kept or held != held_units(machine) * unit:
        raise UnbalancedLedger(
            f"the map of the pool does not balance at step {machine.state.core.ints[at.I_STEPS]}: it has {used} bytes "
            f"used and {held} held, the replay {kept} and {held_units(machine) * unit}"
        )
    return Ledger(
        capacity=size.capacity_bytes,
        used=used,
        cached=cached,
        reserved=reserved,
        internal=held - used - reserved,
        external=external,
        free=size.capacity_bytes - held - cached - external,
    )


def _computed(machine: Machine) -> tuple[Any, Column]:
    """Return the slots of the running requests and the tokens each has computed."""
    core = machine.state.core
    ints = core.ints
    order = core.lists[at.ORDER, : ints[at.I_RUNNING]]
    rows = core.slots[order]
    computed = rows[:, at.S_COMPUTED].copy()
    if ints[at.I_MEMORY] == at.BATCH:
        step, output = int(ints[at.I_BATCH_STEP]), rows[:, at.S_OUTPUT]
        computed = np.where(output >= step, rows[:, at.S_PROMPT] + step - 1, 0)
    else:  # steady requests are not touched step by step
        steady = slice(0, int(ints[at.I_STEADY]))
        computed[steady] = rows[steady, at.S_OFFSET] + ints[at.I_TICK]
    return rows, computed


def _pieces(machine: Machine) -> Pieces:
    core, size = machine.state.core, machine.size
    ints, memory = core.ints, int(core.ints[at.I_MEMORY])
    rows, computed = _computed(machine)
    kept = rows[:, at.S_KEPT]
    units = rows[:, at.S_UNITS]
    if memory == at.DEMAND:
        units = -(-computed // size.unit_tokens)
    elif memory == at.PROMISE:
        units = -(-(rows[:, at.S_PROMPT] + rows[:, at.S_LIMIT]) // size.unit_tokens)
    elif memory == at.BATCH:
        width = int(ints[at.I_BATCH_PROMPT] + ints[at.I_BATCH_OUTPUT])
        units = np.full(len(rows), width)
        kept = np.where(computed > 0, rows[:, at.S_PROMPT] + ints[at.I_BATCH_OUTPUT], 0)
    sizes = units * size.unit_bytes
    starts = np.cumsum(sizes) - sizes
    if memory in (at.EXTENT, at.GROWING):
        addresses = rows[:, at.S_ADDRESS]
        starts = (_compact(machine, addresses) if core.blocks.ndim == 2 else addresses) * size.unit_bytes
    used = computed * size.token_bytes
    place = np.argsort(starts, kind="stable")
    return Pieces(
        request=_of_trace(machine, rows[place, at.S_REQUEST]),
        start_bytes=starts[place],
        size_bytes=sizes[place],
        used_bytes=used[place],
        reserved_bytes=(np.maximum(kept - computed, 0) * size.token_bytes)[place],
    )


def _of_trace(machine: Machine, requests: Column) -> Column:
    """Return the numbers of requests in the trace, from those of their samples where each became a request."""
    if machine.split is None:
        return requests
    return np.searchsorted(machine.split.firsts, requests, side="right") - 1


def _compact(machine: Machine, addresses: Column) -> Column:
    """Return where addresses in segments come to lie when the segments are put one after the other."""
    core = machine.state.core
    table = core.blocks[:, : core.space[at.META][segments.COUNT]]
    begins, first = np.unique(table[segments.SEGMENT], return_index=True)
    sizes = table[segments.SEGMENT_SIZE][first]
    which = np.searchsorted(begins, addresses, side="right") - 1
    place: Column = (np.cumsum(sizes) - sizes)[which] + addresses - begins[which]
    return place


def _blocks(machine: Machine) -> Blocks:
    size, pool = machine.size, _pool(machine)
    references = pool.references.astype(np.int64)
    idle = (references == 0) & (pool.keys != 0)
    if isinstance(machine.tables, Grouped):
        used, whole = _needed(machine, machine.tables), size.unit_bytes
    else:
        used, whole = _stored(machine, references) * size.token_bytes, size.unit_tokens * size.token_bytes
    return Blocks(used_bytes=used, cached_bytes=np.where(idle, whole, 0), references=references)


def _needed(machine: Machine, grouped: Grouped) -> Column:
    """Return the bytes in each block of several groups that running requests still need."""
    used = np.zeros(len(grouped.tables.pool.references), np.int64)
    fill: Any = fill_blocks
    fill(machine.state.core, grouped.tables, grouped.amounts, used)
    return used


def _stored(machine: Machine, references: Column) -> Column:
    """Return the tokens in each block that running requests refer to."""
    if isinstance(machine.tables, Forked):
        return np.where(references > 0, machine.tables.tables.filled.astype(np.int64), 0)
    return _filled(machine)


def _filled(machine: Machine) -> Column:
    """Return the tokens in each block that a running request refers to, by its table."""
    tables: Any = machine.tables
    size, core = machine.size, machine.state.core
    _, computed = _computed(machine)
    block = size.unit_tokens
    filled = np.zeros(size.units, np.int64)
    slots = core.lists[at.ORDER, : core.ints[at.I_RUNNING]]
    for slot, tokens in zip(slots, computed, strict=True):
        whole, rest = divmod(int(tokens), block)
        filled[tables.tables[slot, :whole]] = block
        if rest:
            filled[tables.tables[slot, whole]] = rest
    return filled
