"""The lines llama-server prints about its caches, as they stand in the log.

``%7.2f MiB`` is computed in single precision there; the same is done here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvledger.engines.layout import Part
from kvledger.engines.llamacpp.caches import CacheTypes, find_sides, find_state_bytes, row_bytes
from kvledger.engines.llamacpp.context import Context
from kvledger.engines.llamacpp.settings import Build, Flags
from kvledger.engines.plan import PrintedLine
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec
from kvledger.units import MIB, counted

__all__ = ["make_lines", "mib"]


def mib(size_bytes: int) -> float:
    """Return MiB as llama.cpp computes them: the bytes as a 32-bit float, divided by 2**20."""
    return float(np.float32(size_bytes) / np.float32(MIB))


def _level(build: Build) -> str:
    return "-lv 4" if build.quiet else "INFO"


def _side_bytes(part: Part, types: CacheTypes, flags: Flags) -> tuple[int, int]:
    """Bytes of keys and of values of a cache."""
    if part.pool.name == "index":
        return part.rank_bytes(range(2**31), types.storage) * part.pool.units, 0
    keys = sum(
        row_bytes(find_sides(layer, mla_tensors=flags.mla_tensors).key_elements, types.key) for layer in part.layers
    )
    whole = part.rank_bytes(range(2**31), types.storage)
    return keys * part.pool.units, (whole - keys) * part.pool.units


def _size_line(part: Part, context: Context, types: CacheTypes, flags: Flags, build: Build) -> PrintedLine:
    keys, values = _side_bytes(part, types, flags)
    cells = part.pool.units // context.streams
    text = (
        f"{build.cache_name}: size = {mib(keys + values):7.2f} MiB ({cells:6d} cells, {len(part.layers):3d} layers, "
        f"{context.slots:2d}/{context.streams} seqs), K ({types.key_name}): {mib(keys):7.2f} MiB, "
        f"V ({types.value_name}): {mib(values):7.2f} MiB"
    )
    meaning = (
        f"cells of each of {context.streams} strip(s): {counted(part.pool.units, 'cell')} in all, every one "
        "allocated now, whatever the requests need"
    )
    return PrintedLine(text=text, meaning=meaning, accuracy=Accuracy.DERIVED, level=_level(build))


def _buffer_line(name: str, size_bytes: int, device: str, kind: str, level: str) -> PrintedLine:
    return PrintedLine(
        text=f"{name}: {device:>10s} {kind} buffer size = {size_bytes / 1024.0 / 1024.0:8.2f} MiB",
        meaning="the same bytes as the size line, by device: never add both",
        accuracy=Accuracy.DERIVED,
        level=level,
    )


def _state_lines(
    part: Part, model: ModelSpec, context: Context, flags: Flags, build: Build, device: str
) -> list[PrintedLine]:
    rows = context.slots * (1 + flags.rs_seq)
    pairs = [find_state_bytes(layer) for layer in part.layers]
    conv, state = (rows * sum(side) for side in zip(*pairs, strict=True))
    if build.quiet:
        seqs, tail = f"{context.slots:2d} seqs {flags.rs_seq:2d} rs_seq", f", P (f32): {0.0:7.2f} MiB"
    else:
        seqs, tail = f"{context.slots:2d} seqs", ""
    text = (
        f"llama_memory_recurrent: size = {mib(conv + state):7.2f} MiB ({context.slots:6d} cells, "
        f"{model.block_count:3d} layers, {seqs}), R (f32): {mib(conv):7.2f} MiB, S (f32): {mib(state):7.2f} MiB{tail}"
    )
    meaning = (
        f"states of {counted(len(part.layers), 'layer')} (the line counts all {model.block_count}), one for each "
        "slot; they do not grow with the context"
    )
    # b9093 has no tail and b11434 has it; when it came is not known
    known = build.number >= 11434 or not build.quiet
    accuracy = Accuracy.DERIVED if known else Accuracy.MODELLED
    return [
        _buffer_line("llama_memory_recurrent", conv + state, device, "RS", _level(build)),
        PrintedLine(text=text, meaning=meaning, accuracy=accuracy, level=_level(build)),
    ]


def _context_lines(context: Context, build: Build) -> list[PrintedLine]:
    lines = []
    if context.rounded:
        lines.append(
            PrintedLine(
                text="llama_context: n_ctx is not divisible by n_seq_max - rounding down to " + str(context.n_ctx),
                meaning=f"every strip is rounded up to 256 cells; {context.asked_tokens} were asked for",
                accuracy=Accuracy.DERIVED,
                level="WARN",
            )
        )
    facts = (
        ("n_seq_max", str(context.slots), "slots: requests that can run at once"),
        ("n_ctx", str(context.n_ctx), "cells of all slots together, not of one request"),
        ("n_ctx_seq", str(context.n_ctx_seq), "cells one sequence can reach"),
        ("n_batch", str(context.batch_tokens), "tokens submitted at once"),
        ("n_ubatch", str(context.ubatch_tokens), "tokens computed at once; a window cache has room for them"),
        ("kv_unified", str(context.unified).lower(), "true: slots share all cells; false: each owns a strip"),
    )
    width = 21 if build.quiet else 13
    lines += [
        PrintedLine(
            text=f"llama_context: {name:<{width}s} = {value}",
            meaning=meaning,
            accuracy=Accuracy.DERIVED,
            level=_level(build),
        )
        for name, value, meaning in facts
    ]
    return lines


def _server_line(context: Context, build: Build) -> PrintedLine:
    unified = str(context.unified).lower()
    lost = context.n_ctx_seq - context.n_ctx_slot
    meaning = f"the longest request is {counted(context.n_ctx_slot, 'token')}, prompt and answer together"
    if lost > 0 and not context.unified:
        meaning += f"; {counted(lost, 'cell')} of each strip can never be used (training context or per-slot cap)"
    text = f"initializing, n_slots = {context.slots}, n_ctx_slot = {context.n_ctx_slot}, kv_unified = '{unified}'"
    if not build.quiet:
        text = f"initializing slots, n_slots = {context.slots}"
    return PrintedLine(text=text, meaning=meaning, accuracy=Accuracy.DERIVED)


def make_lines(
    parts: Sequence[Part],
    *,
    model: ModelSpec,
    context: Context,
    flags: Flags,
    types: CacheTypes,
    build: Build,
    device: str,
) -> tuple[PrintedLine, ...]:
    """Return the lines in the order of the log, as one device prints them.

    Builds before b6900 print older wordings that differ among themselves; for those only the size line is given.
    """
    lines = _context_lines(context, build) if build.verified else []
    window = any(part.pool.name == "swa" for part in parts)
    index = any(part.pool.name == "index" for part in parts)
    for part in parts:
        cells = part.pool.units // context.streams
        if part.pool.name == "state":
            lines += _state_lines(part, model, context, flags, build, device)
            continue
        announced = {"swa": "    SWA KV", "index": "indexer KV", "full": "non-SWA KV" if window else "main KV"}
        owner = f"{build.cache_name}_{'iswa' if window else 'dsa'}"
        if build.verified and (window or index):
            lines.append(
                PrintedLine(
                    text=f"{owner}: creating {announced[part.pool.name]} cache, size = {cells} cells",
                    meaning="cells of each strip of this cache",
                    accuracy=Accuracy.DERIVED,
                    level=_level(build),
                )
            )
        keys, values = _side_bytes(part, types, flags)
        if build.verified:
            lines.append(_buffer_line(build.cache_name, keys + values, device, "KV", _level(build)))
        lines.append(_size_line(part, context, types, flags, build))
    if build.verified:
        lines.append(_server_line(context, build))
    return tuple(lines)
