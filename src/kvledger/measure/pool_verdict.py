"""What a measurement of another engine than vLLM means, in the settings of that engine."""

from __future__ import annotations

from dataclasses import replace

from kvledger.engines.facts import Engine
from kvledger.measure.pool_meter import PoolMoment
from kvledger.measure.slots import Layout
from kvledger.measure.verdict import WELL_UNDER_RATIO, Diagnosis, Signs, Verdict, judge
from kvledger.units import counted, percent, percents

__all__ = ["in_settings_of", "judge_pool", "leave_between"]

_RESERVED_RATIO = 0.9
_LIMITS = {
    Engine.SGLANG: "look at --max-running-requests, --schedule-conservativeness and --chunked-prefill-size",
    Engine.LLAMACPP: "where every slot works, more slots (-np) let more requests run",
    Engine.TGI: "look at --max-concurrent-requests, --max-batch-prefill-tokens and --waiting-served-ratio",
    Engine.TENSORRT_LLM: "look at max_batch_size and max_num_tokens; GUARANTEED_NO_EVICT also waits for what running "
    "requests may still need",
    Engine.LMDEPLOY: "look at --max-batch-size and max_prefill_token_num",
}
_RESERVES = {
    Engine.LLAMACPP: "each slot owns a strip as long as its context: share the cells with --kv-unified, or give "
    "shorter contexts to more slots",
    Engine.TGI: "requests reserve max_new_tokens at admission: let clients ask for less, or cap it with "
    "--max-total-tokens",
}
_ONE_SLOT = "the one slot owns the whole context: several that share it (-np N --kv-unified) run several requests"
_THRASHING = {
    Engine.SGLANG: "let fewer requests run (--max-running-requests), or raise --schedule-conservativeness",
    Engine.TENSORRT_LLM: "let fewer requests run (max_batch_size), or use GUARANTEED_NO_EVICT",
}


def judge_pool(signs: Signs, last: PoolMoment, *, generated_ratio: float | None = None) -> Verdict:
    """Return the verdict on a window; what is held and not used is told apart from what is full.

    ``generated_ratio``: of the output tokens that requests reserved, the share that was generated.
    """
    engine = last.key.engine
    found = judge(signs)
    if last.cells.window_tokens is not None and last.layout is Layout.STRIPS and found.diagnosis is not Diagnosis.IDLE:
        return _tell_window(signs, last.cells.window_tokens)
    reserves = engine is Engine.TGI or (engine is Engine.LLAMACPP and last.layout is Layout.STRIPS)
    if reserves and found.diagnosis in (Diagnosis.FULL, Diagnosis.BETWEEN):
        advice = _ONE_SLOT if len(last.snapshot.slots) == 1 else _RESERVES[engine]
        return _judge_reservation(found, signs, advice, generated_ratio)
    return in_settings_of(engine, found)


def in_settings_of(engine: Engine, verdict: Verdict) -> Verdict:
    """Return the verdict with the settings of that engine in its advice; vLLM's are there already."""
    match verdict.diagnosis:
        case Diagnosis.OTHER_LIMIT:
            return _advise(verdict, _LIMITS.get(engine))
        case Diagnosis.THRASHING:
            return _advise(verdict, _THRASHING.get(engine))
        case _:
            return verdict


def _tell_window(signs: Signs, window_tokens: int) -> Verdict:
    """Return the verdict on strips for a window: they are held with the slots, whatever is in them."""
    used = percents(signs.peak_used_ratio, signs.peak_used_high_ratio)
    return Verdict(
        diagnosis=Diagnosis.RESERVED,
        sentence=f"strips for a window of {counted(window_tokens, 'token')}: slots that work hold "
        f"{percent(signs.peak_held_ratio)} of the pool, tokens that can still be read {used}",
        advice="what is left of a strip is the buffer of a micro-batch (-ub) and rounding; the slots decide the rest",
    )


def leave_between(shared: Verdict, strips: Verdict) -> Verdict:
    """Return the verdict on slots of which it is not known whether they share their cells."""
    return Verdict(
        diagnosis=Diagnosis.UNKNOWN,
        sentence=f"if the slots share their cells: {shared.sentence}; if each owns a strip: {strips.sentence}",
        advice="say which with --kv-unified or --no-kv-unified, or give the start-up log with --log",
    )


def _judge_reservation(found: Verdict, signs: Signs, advice: str, generated_ratio: float | None) -> Verdict:
    """Tell a pool that is full of tokens from one that is full of promises."""
    if signs.peak_held_ratio < _RESERVED_RATIO:
        return found
    used = percents(signs.peak_used_ratio, signs.peak_used_high_ratio)
    when = "at this one instant, " if signs.samples == 1 else ""
    held = f"{when}{percent(signs.peak_held_ratio)} of the pool is held, and"
    if signs.peak_used_high_ratio < WELL_UNDER_RATIO:
        told = f"at most {percent(signs.peak_used_high_ratio)} of the pool holds tokens"
    elif generated_ratio is not None and generated_ratio < WELL_UNDER_RATIO:
        told = f"requests generated {percent(generated_ratio)} of the output they had reserved"
    elif generated_ratio is None and signs.peak_used_ratio < WELL_UNDER_RATIO:
        return Verdict(
            diagnosis=Diagnosis.UNKNOWN,
            sentence=f"{held} {used} holds tokens: whether it is full or only reserved is not told",
            advice=f"if it is only reserved: {advice}",
        )
    else:
        return found
    return Verdict(
        diagnosis=Diagnosis.RESERVED,
        sentence=f"reserved, not used: {held} {told}",
        advice=advice,
    )


def _advise(verdict: Verdict, advice: str | None) -> Verdict:
    if advice is None:
        return verdict
    prefix = verdict.advice.partition("if it stays so: ")
    return replace(verdict, advice=f"{prefix[0]}{prefix[1]}{advice}" if prefix[1] else advice)
