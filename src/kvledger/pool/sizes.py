"""How many tokens a request makes a contiguous policy hold: reservation, buffer, rounding (compiled).

``held = align_up(reservation + buffer, granularity)``, rounded up to a power of two by the buddy allocator.
"""

from __future__ import annotations

from kvledger.pool.compiled import shared

MAX, DECLARED, POW2, EXACT = range(4)
GROW_EXACT, GROW_DOUBLING, GROW_STEP = range(3)


@shared
def power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least ``value``."""
    power = 1
    while power < value:
        power *= 2
    return power


@shared
def align_up(value: int, grain: int) -> int:
    """Round up to a multiple of ``grain``."""
    return (value + grain - 1) // grain * grain


@shared
def reserved_tokens(reservation: int, prompt: int, output: int, limit: int, max_model_len: int) -> int:
    """Return the tokens that a reservation is made for (`Reservation` says how)."""
    if reservation == MAX:
        return max_model_len
    if reservation == DECLARED:
        return prompt + limit
    if reservation == POW2:
        return min(prompt + power_of_two(output), max_model_len)
    return prompt + output


@shared
def grown_tokens(growth: int, tokens: int, step: int) -> int:
    """Return the tokens that a growing extent is made for when it must hold ``tokens`` (`Growth` says how)."""
    if growth == GROW_DOUBLING:
        return power_of_two(tokens)
    if growth == GROW_STEP:
        return align_up(tokens, step)
    return tokens


@shared
def previous_grown_tokens(growth: int, tokens: int, step: int) -> int:
    """Return the largest size a growing extent can have before it is reallocated to hold ``tokens``."""
    size = grown_tokens(growth, tokens, step)
    if growth == GROW_DOUBLING:
        return size // 2
    if growth == GROW_STEP:
        return size - step
    return size - 1
