"""Whether a request can have been preempted, and may still be computed again: it runs, but lacks a part of its tokens.

A running request is preempted when blocks are asked for and none is free. That is supposed to be possible only around a
sample at which one of the longest requests would not fit; between two samples that are close, and where it is told what
was asked for, also if a request can have left with its blocks. And then not if between them no more was asked for than
was free: blocks for all tokens that were written or were due.

Who is computed again emits nothing. So if the same requests ran at two samples, and there were as many tokens as steps
times requests between them, nobody was, whatever was possible before. With asynchronous scheduling a sample shows the
requests of the next step already: one that waited may have taken the place of one whose client left, and has emitted
nothing yet. There the proof holds only when nobody waited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.measure.balance import Balance, Scheduling
from kvledger.measure.pool import PoolShape

__all__ = ["RECOMPUTED_SECONDS", "PressureTracker"]

RECOMPUTED_SECONDS = 60.0
"""A request that runs again after a preemption has computed its tokens by then."""
_CLOSE_SECONDS = 2.0
"""Between samples further apart, more is written than most pools hold, so that any could have been full in between."""
_LONGEST_SHARE = 4
"""Where the longest request is not known, a quarter of the pool stands for it."""


@dataclass(frozen=True, slots=True)
class _Mark:
    held_blocks: int
    running: int
    waiting: int | None
    generated: int
    queries: int | None
    """Prompt tokens of admitted requests; None where they do not tell what was asked for."""
    due: int
    """Prompt tokens of admitted requests that have emitted nothing."""
    started: int
    ended: int | None
    steps: int | None
    """Steps that handed out tokens."""


@dataclass(slots=True)
class PressureTracker:
    """Follows one engine from sample to sample; :meth:`ask` and :meth:`note` mutate, once a sample each."""

    pressed_seconds: float = -math.inf
    """When a preemption was last possible."""
    last: _Mark | None = None
    last_seconds: float = -math.inf
    is_pressed: bool = False

    def ask(
        self,
        shape: PoolShape,
        engine: VllmEngine | None,
        *,
        held_blocks: int,
        seconds: float,
        scheduling: Scheduling = Scheduling.UNKNOWN,
    ) -> bool:
        """Tell whether a request may be computed again at this sample; ``engine`` is None where its counters lie."""
        mark = None if engine is None else _read(engine, held_blocks)
        is_close, self.last_seconds = seconds - self.last_seconds <= _CLOSE_SECONDS, seconds
        if mark is not None and self.last is not None and _all_emitted(self.last, mark, scheduling):
            self.last, self.is_pressed, self.pressed_seconds = mark, False, -math.inf
            return False
        asked = None if mark is None or self.last is None else _most_asked(shape, self.last, mark)
        self.is_pressed = _is_near_full(shape, held_blocks)
        if asked is not None:
            can_have_been_full = self.is_pressed or (is_close and _can_have_left(self.last, mark))
            self.is_pressed = can_have_been_full and asked > shape.usable_blocks
        self.last = mark
        return self.is_pressed or seconds - self.pressed_seconds < RECOMPUTED_SECONDS

    def note(self, balance: Balance, *, is_idle: bool, seconds: float) -> None:
        """Take what the balance of the same sample says."""
        if is_idle:
            self.pressed_seconds = -math.inf
        elif self.is_pressed or balance.preempted.high:
            self.pressed_seconds = seconds


def _all_emitted(then: _Mark, now: _Mark, scheduling: Scheduling) -> bool:
    if scheduling is not Scheduling.IN_STEP and then.waiting != 0:
        return False
    same = (then.running, then.started, then.ended) == (now.running, now.started, now.ended)
    if not same or then.steps is None or now.steps is None or now.ended is None:
        return False
    steps = now.steps - then.steps
    return steps > 0 and now.generated - then.generated == steps * now.running


def _can_have_left(then: _Mark | None, now: _Mark | None) -> bool:
    """Whether a request can have gone since, and its blocks with it: the pool may have been full before that."""
    if then is None or now is None:
        return False
    return (then.started, then.ended) != (now.started, now.ended) or now.running < then.running


def _most_asked(shape: PoolShape, then: _Mark, now: _Mark) -> int | None:
    """Return the most blocks that can have been held and asked for at once between two samples; None: not told."""
    if then.queries is None or now.queries is None:
        return None
    under_way = 2 * (then.running + now.running)  # of steps that were scheduled and are not counted, or not any more
    tokens = now.generated - then.generated + then.due + now.queries - then.queries + under_way
    requests = then.running + now.running + max(0, now.started - then.started)
    return then.held_blocks + -(-max(0, tokens) // shape.block_tokens) + requests


def _read(engine: VllmEngine, held_blocks: int) -> _Mark | None:
    prompt, generated, queries = engine.prompt_tokens, engine.generation_tokens, engine.query_tokens
    started = engine.count("time_to_first_token_seconds")
    caching = engine.cache_config.get("enable_prefix_caching") == "True"  # else admissions are not counted
    if prompt is None or generated is None or queries is None or started is None or engine.running is None:
        return None
    return _Mark(
        held_blocks=held_blocks,
        running=engine.running,
        waiting=engine.waiting,
        generated=generated,
        queries=queries if caching and not engine.draft_tokens else None,  # proposed tokens take blocks, too
        due=max(0, queries - prompt),
        started=started,
        ended=engine.count("request_prompt_tokens"),
        steps=None if engine.draft_tokens else engine.count("iteration_tokens_total"),
    )


def _is_near_full(shape: PoolShape, held_blocks: int) -> bool:
    longest = shape.max_model_len or shape.usable_tokens // _LONGEST_SHARE
    return held_blocks + -(-longest // shape.block_tokens) > shape.usable_blocks
