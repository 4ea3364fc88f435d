"""Draw a synthetic workload: block by block, so that memory stays near the size of the result.

Every block of 65,536 conversations has its own random stream, made from the seed and the block's number. The result
therefore depends on the seed alone, and a workload of fewer requests is the beginning of one of more (for one turn a
conversation). Only uniform numbers are taken from numpy's generator (PCG64); laws are inverted by our own tables.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.ledger import Accuracy
from kvledger.replay.workload import Content, SharedPrefix, Workload
from kvledger.traces.record import Trace, TraceAccuracy, TraceFormat
from kvledger.traces.synthetic.recipe import PREFIX, Recipe, parse_recipe
from kvledger.traces.synthetic.turns import chain_identity, in_order
from kvledger.units import counted

__all__ = ["draw", "synthesise"]

BLOCK = 1 << 16
_Ints = NDArray[np.int32]


def synthesise(spec: str, *, seed: int = 0, identity: bool = True) -> Trace:
    """Draw the workload that ``synthetic:NAME[,key=value...]`` describes.

    Raises:
        UsageError: The description cannot be read.

    >>> len(synthesise("synthetic:fixed,requests=3"))
    3
    """
    return draw(parse_recipe(spec, seed=seed), identity=identity)


def draw(recipe: Recipe, *, identity: bool = True) -> Trace:
    """Draw a workload; the same recipe gives the same requests."""
    workload = _turns(recipe, identity=identity) if recipe.turns > 1 else _single(recipe, identity=identity)
    modelled = TraceAccuracy(arrivals=Accuracy.MODELLED, prompts=Accuracy.MODELLED, outputs=Accuracy.MODELLED)
    return Trace(
        workload=workload,
        format=TraceFormat(name=f"{PREFIX}{recipe.kind.name}", sentence=f"synthetic workload: {recipe.shaped_to}"),
        rows_read=recipe.requests,
        notes=recipe.sentences,
        accuracy=modelled,
    ).check()


def _block_stream(recipe: Recipe, block: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=recipe.seed, spawn_key=(block,))))


def _conversations(recipe: Recipe, count: int, *, rate_divisor: int) -> tuple[NDArray[np.float64], _Ints, _Ints]:
    """Return starts (seconds), prompt and output tokens of ``count`` conversations."""
    starts, prompts, outputs = np.empty(count), np.empty(count, np.int32), np.empty(count, np.int32)
    shape, law = recipe.shape, recipe.arrivals
    busy = 0.0
    for block in range(math.ceil(count / BLOCK)):
        low, high = block * BLOCK, min(count, (block + 1) * BLOCK)
        uniform = _block_stream(recipe, block).random((3, BLOCK))[:, : high - low]
        gaps = law.gaps(uniform[0]) * rate_divisor
        gaps[0] += busy
        total = np.cumsum(gaps)
        busy = float(total[-1])
        starts[low:high] = law.clock(total)
        prompt = shape.prompt.draw(uniform[1])
        prompts[low:high] = prompt
        outputs[low:high] = shape.output.draw(uniform[2], shape.total_tokens - prompt if shape.total_tokens else None)
    return starts, prompts, outputs


def _declared(recipe: Recipe, count: int) -> _Ints | None:
    return np.full(count, recipe.max_tokens, dtype=np.int32) if recipe.max_tokens else None


def _single(recipe: Recipe, *, identity: bool) -> Workload:
    starts, prompts, outputs = _conversations(recipe, recipe.requests, rate_divisor=1)
    prompts += np.int32(recipe.shared_prefix_tokens)
    content: Content | None = None
    if identity and recipe.shared_prefix_tokens:
        content = SharedPrefix(tokens=np.full(len(prompts), recipe.shared_prefix_tokens, dtype=np.int32))
    return Workload(
        arrival_seconds=starts,
        prompt_tokens=prompts,
        output_tokens=outputs,
        max_tokens=_declared(recipe, len(prompts)),
        content=content,
    )


def _turns(recipe: Recipe, *, identity: bool) -> Workload:
    """Split every conversation into turns: turn k's prompt is all that was said before it plus its own question."""
    turns, count = recipe.turns, math.ceil(recipe.requests / recipe.turns)
    if count * turns > 20_000_000:
        raise UsageError(
            f"{counted(count * turns, 'request')} in conversations of {counted(turns, 'turn')} are too many",
            hint="lower `requests`",
        )
    starts, prompts, outputs = _conversations(recipe, count, rate_divisor=turns)
    step = np.arange(1, turns + 1)
    asked = prompts[:, None].astype(np.int64) * step // turns
    answered = outputs[:, None].astype(np.int64) * step // turns
    before = np.concatenate((np.zeros((count, 1), np.int64), answered[:, :-1]), axis=1)
    think = np.random.Generator(np.random.PCG64([recipe.seed, 0x7A1C])).random((count, turns))
    waits = -np.log1p(-think) * recipe.think_seconds
    waits[:, 0] = 0
    if math.isinf(recipe.arrivals.rate):
        waits[:] = 0
    arrivals = (starts[:, None] + np.cumsum(waits, axis=1)).ravel()[: recipe.requests]
    prompt = (asked + before).ravel()[: recipe.requests] + recipe.shared_prefix_tokens
    output = (answered - before).ravel()[: recipe.requests]
    session = np.repeat(np.arange(count), turns)[: recipe.requests]
    order = in_order(arrivals)
    content = (
        chain_identity(prompt[order], session[order], shared_tokens=recipe.shared_prefix_tokens) if identity else None
    )
    return Workload(
        arrival_seconds=arrivals[order],
        prompt_tokens=prompt[order].astype(np.int32),
        output_tokens=output[order].astype(np.int32),
        max_tokens=_declared(recipe, recipe.requests),
        session=session[order].astype(np.int32),
        content=content,
    )
