"""The lines SGLang prints about its pools; what it calls GB is GiB, and every line speaks for one rank."""

from __future__ import annotations

from kvledger.engines.plan import PrintedLine
from kvledger.engines.sglang.rules import WindowRule
from kvledger.engines.sglang.sizing import Layers, PoolSizes, Sizing
from kvledger.ledger import Accuracy
from kvledger.model import Layer
from kvledger.units import agree, counted

__all__ = ["make_lines"]

_GB = 2**30


def _line(text: str, meaning: str) -> PrintedLine:
    return PrintedLine(text=text, meaning=meaning, accuracy=Accuracy.DERIVED)


def _pool_sides(sizing: Sizing, layers: tuple[Layer, ...], tokens: int) -> tuple[int, int]:
    """Bytes of keys and values of a pool: one page more than its tokens, the dummy page."""
    rows = tokens + sizing.workload.page_tokens
    sides = [sizing.cells.find_printed_sides(layer, sizing.storage) for layer in layers]
    return rows * sum(keys for keys, _ in sides), rows * sum(values for _, values in sides)


def _size_line(sizing: Sizing, layers: tuple[Layer, ...], tokens: int, pool: str) -> PrintedLine:
    keys, values = _pool_sides(sizing, layers, tokens)
    dtype = f" dtype: {sizing.dtype_name}," if sizing.rules.dtype_in_line else ""
    sizes = f"K size: {keys / _GB:.2f} GB, V size: {values / _GB:.2f} GB" if values else f"KV size: {keys / _GB:.2f} GB"
    return _line(
        f"KV Cache is allocated.{dtype} #tokens: {tokens}, {sizes}",
        f"the {pool} pool of one tensor-parallel rank, in GiB; {counted(sizing.workload.page_tokens, 'more token')} "
        f"{agree(sizing.workload.page_tokens, 'is', 'are')} allocated for padding",
    )


def _state_line(sizing: Sizing, layers: Layers, slots: int) -> PrintedLine:
    sides = [sizing.cells.find_state_sides(layer, sizing.storage) for layer in layers.state]
    convolution, recurrent = (sum(side) * (slots + 1) / _GB for side in zip(*sides, strict=True))
    size = f"max_mamba_cache_size: {slots}, " if sizing.rules.read >= (0, 5, 6) else ""
    return _line(
        f"Mamba Cache is allocated. {size}conv_state size: {convolution:.2f}GB, ssm_state size: {recurrent:.2f}GB ",
        f"{counted(slots, 'state')} and one for padding; with the radix cache a running request takes about three "
        "of them",
    )


def _window_lines(sizing: Sizing, layers: Layers, sizes: PoolSizes) -> list[PrintedLine]:
    rules = sizing.rules
    capital = "Sliding" if rules.windows is WindowRule.LAYERS else "sliding"
    lines = []
    if sizing.find_window_cap(layers) is None:
        text = (
            f"Use {capital} window memory pool. full_layer_tokens={sizes.full_tokens}, "
            f"swa_layer_tokens={sizes.window_tokens}"
            if layers.full
            else f"Use sliding window memory pool (all SWA). swa_layer_tokens={sizes.window_tokens}"
        )
        lines.append(
            _line(text, "tokens of each pool; a request beyond its window keeps only the window in the second")
        )
    lines.append(_size_line(sizing, layers.window, sizes.window_tokens, "sliding-window"))
    if layers.full:
        lines.append(_size_line(sizing, layers.full, sizes.full_tokens, "full-attention"))
    if rules.read >= (0, 5, 6):
        sides = (
            *_pool_sides(sizing, layers.window, sizes.window_tokens),
            *_pool_sides(sizing, layers.full, sizes.full_tokens),
        )
        total = sum(sides) / _GB
        usage = f"{total}" if rules.read < (0, 5, 9) else f"{total:.2f}"
        lines.append(
            _line(
                f"SWAKVPool mem usage: {usage} GB, swa size: {sizes.window_tokens}, full size: {sizes.full_tokens}",
                "both pools together, in GiB",
            )
        )
    return lines


def make_lines(sizing: Sizing, layers: Layers, sizes: PoolSizes) -> tuple[PrintedLine, ...]:
    """Return the lines of one rank in the order of the log.

    Free memory stands in some of them and is not known; those lines are given without it.
    """
    lines = []
    if layers.state:
        lines.append(_state_line(sizing, layers, sizes.state_slots))
    if sizing.rules.size_lines:
        if layers.window:
            lines += _window_lines(sizing, layers, sizes)
        else:
            lines.append(_size_line(sizing, layers.full, sizes.full_tokens, "only"))
    work = sizing.workload
    lines.append(
        _line(
            f"max_total_num_tokens={sizes.printed_tokens}, chunked_prefill_size={work.chunk_tokens}",
            "tokens that all running requests and the radix cache share (of the full-attention pool where there are "
            "two); not a limit on one request",
        )
    )
    return tuple(lines)
