"""What a measurement means: memory is full, has room, or something else is the limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kvledger.units import agree, counted, percent, percents

__all__ = ["Diagnosis", "Signs", "Verdict", "judge", "leave_open", "tell_missed"]

WELL_UNDER_RATIO = 0.45
NEAR_FULL_RATIO = 0.70
"""Where "well under 50 %" ends and "near 80 %" begins."""
_THRASHING = 0.2
"""Preemptions for each request that ended, beyond which a server works in circles."""
_FEW_PREEMPTIONS = 4
"""So many prove nothing, whatever ended: few requests end in a short window. They are told beside the verdict."""


class Diagnosis(StrEnum):
    """What limits the server."""

    IDLE = "idle"
    ROOM = "room"
    BETWEEN = "between"
    FULL = "full"
    THRASHING = "thrashing"
    OTHER_LIMIT = "other-limit"
    STALLED = "stalled"
    RESERVED = "reserved"
    """Held by running requests, and hardly used: promises fill the memory, not tokens."""
    UNKNOWN = "unknown"
    """No sample has a ledger, so memory cannot be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What the verdict rests on, over the window."""

    samples: int
    """Samples that tell what is held."""
    peak_held_ratio: float
    """Most held at once, of the whole pool."""
    peak_used_ratio: float
    """Most tokens stored at once (at least), of the whole pool."""
    peak_used_high_ratio: float
    """The same, at most."""
    peak_waiting: int | None
    """None where no sample tells it, as the next."""
    peak_running: int | None
    waiting_ratio: float
    """Share of samples at which requests waited."""
    held_ratio_while_waiting: float | None
    preemptions: int | None
    finished: int | None
    generated_tokens: int | None
    """Tokens generated in the window; None with one sample."""
    seconds: float
    is_used_told: bool = True
    """False of a log without a block size: then the tokens stored are taken to be what is held, and may be fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One sentence with its numbers, and what to look at next."""

    diagnosis: Diagnosis
    sentence: str
    advice: str


def leave_open(problem: str, *, hint: str = "measure the server's own /metrics") -> Verdict:
    """Return the verdict on a window without a ledger; ``problem`` says why there is none, ``hint`` what may help."""
    return Verdict(
        diagnosis=Diagnosis.UNKNOWN,
        sentence=f"no ledger: {problem}",
        advice=f"without a ledger nothing is said about memory: {hint}",
    )


def judge(signs: Signs, *, is_log: bool = False) -> Verdict:
    """Return the verdict on a window.

    The three-minute check: tokens in use over capacity. Well under 50 %, block tables leave room; near 80 %, the load
    fills the memory. What waits while memory is free waits for something else. One sample is one instant, and says so.
    The samples of a log are its periodic lines: more of them come from a longer log, not from measuring longer.
    """
    if signs.peak_running == 0 and not signs.peak_waiting and signs.finished and signs.generated_tokens is not None:
        return Verdict(
            diagnosis=Diagnosis.IDLE,
            sentence=f"{counted(signs.finished, 'request')} ended, but none ran at the moment of a sample",
            advice="sample more often with --every, or longer with --for",
        )
    if signs.peak_running == 0 and not signs.peak_waiting:
        return Verdict(
            diagnosis=Diagnosis.IDLE,
            sentence="no request ran or waited: there is nothing to judge",
            advice="give a log of the server at work"
            if is_log
            else "measure while the server works, or longer with --for 10m",
        )
    if signs.generated_tokens == 0 and signs.seconds >= 5 and signs.peak_running:
        return Verdict(
            diagnosis=Diagnosis.STALLED,
            sentence=f"{counted(signs.peak_running, 'request')} {agree(signs.peak_running, 'runs', 'run')}, but no "
            f"token came in {signs.seconds:.0f} s",
            advice="the scheduler stalls: a request may need more blocks than the pool has; look at the server's log",
        )
    most = max(_FEW_PREEMPTIONS, _THRASHING * (signs.finished or 0))
    if signs.finished is not None and (signs.preemptions or 0) > most:
        return Verdict(
            diagnosis=Diagnosis.THRASHING,
            sentence=f"memory is full and works in circles: {counted(signs.preemptions or 0, 'preemption')} "
            f"for {counted(signs.finished, 'request')} that ended",
            advice="let fewer requests run (max_num_seqs), admit only what fits, or give the pool more memory",
        )
    verdict = _judge_memory(signs)
    return verdict if signs.samples > 1 else _tell_instant(verdict, is_log=is_log)


def _tell_instant(verdict: Verdict, *, is_log: bool) -> Verdict:
    """Return a verdict on memory that rests on one sample, saying so."""
    only = "one sample is no verdict on a server: measure longer with --for 10m"
    if is_log:
        only = "one line is no verdict on a server: give a longer log"
    return replace(
        verdict,
        sentence=f"at this one instant, {verdict.sentence}",
        advice=f"{only}; if it stays so: {verdict.advice}",
    )


def _judge_memory(signs: Signs) -> Verdict:
    held, used = percent(signs.peak_held_ratio), percents(signs.peak_used_ratio, signs.peak_used_high_ratio)
    if not signs.is_used_told:
        used = f"at most {percent(signs.peak_used_high_ratio)}"
    at_peak = " at the peak" if signs.samples > 1 else ""
    while_waiting = signs.held_ratio_while_waiting
    if signs.peak_waiting and while_waiting is not None and while_waiting < NEAR_FULL_RATIO:
        return Verdict(
            diagnosis=Diagnosis.OTHER_LIMIT,
            sentence=f"{_write_waiting(signs)} while at most {percent(while_waiting)} of the pool is held: "
            "memory is not the limit",
            advice="look at max_num_seqs, max_num_batched_tokens and the time a prefill takes",
        )
    if signs.peak_used_ratio >= NEAR_FULL_RATIO or signs.peak_held_ratio >= 0.9:
        return Verdict(
            diagnosis=Diagnosis.FULL,
            sentence=f"near full: {used} of the pool holds tokens, {held} is held: the load fills the memory"
            + _write_preemptions(signs),
            advice="look at batching and prefix caching, a smaller KV dtype, or more memory",
        )
    if signs.peak_used_high_ratio < WELL_UNDER_RATIO and not signs.peak_waiting:
        return Verdict(
            diagnosis=Diagnosis.ROOM,
            sentence=f"well under 50 %: {used} of the pool holds tokens{at_peak}, and "
            + ("whether requests wait is not told" if signs.peak_waiting is None else "nothing waits for memory"),
            advice="the pool has room: more requests can run at once, or it can be smaller",
        )
    return Verdict(
        diagnosis=Diagnosis.BETWEEN,
        sentence=f"in between: {used} of the pool holds tokens{at_peak}, {held} is held"
        + (f", and {_write_waiting(signs)}" if signs.peak_waiting else ""),
        advice="measure at the busiest hour before changing anything",
    )


def _write_preemptions(signs: Signs) -> str:
    count = signs.preemptions
    return f", and {count:,} preemption{'s' * (count != 1)} took it from running requests" if count else ""


def tell_missed(verdict: Verdict, *, answered: int, samples: int, error: str) -> Verdict:
    """Return the verdict on a window of which most samples failed, saying so first."""
    if 2 * answered >= samples:
        return verdict
    sentence = f"only {answered:,} of {counted(samples, 'sample')} answered"
    if verdict.diagnosis is Diagnosis.IDLE:
        advice = f"the server was gone, so nothing is said about memory: {error}"
        return Verdict(diagnosis=Diagnosis.UNKNOWN, sentence=sentence, advice=advice)
    return replace(verdict, sentence=f"{sentence}; {verdict.sentence}")


def _write_waiting(signs: Signs) -> str:
    most = signs.peak_waiting or 0
    count = f"{most:,} request{'s' * (most != 1)}"
    several = signs.samples > 1
    return f"{'up to ' * several}{count} {'waits' if most == 1 else 'wait'}"
