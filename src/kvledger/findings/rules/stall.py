"""A server whose requests run and produce nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvledger.engines.facts import PeriodicSample, SampleKind
from kvledger.findings.evidence import LogCase, MeasureCase
from kvledger.findings.finding import Finding, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.ledger import Accuracy
from kvledger.measure.verdict import Diagnosis
from kvledger.units import agree, counted

__all__ = ["SchedulerStalls", "is_stalled"]

_INTERVALS = 3


class SchedulerStalls(Rule):
    """Requests run, and no token comes.

    What it measures:
        Three periodic lines in a row, or a window, with running requests and not one token computed.

    Why it costs:
        All that these requests hold is held for nothing, and nobody else gets it.

    Example:
        No waiting request fits under the watermark, the running ones can neither grow nor be swapped: Running above 0
        with a throughput of 0 over several intervals, and no preemption.

    What to change:
        Nothing here is proved. Look for a request that needs more than the pool (KV012), at `--watermark`, and for a
        newer release; fewer running requests (`--max-num-seqs`) make it rarer.

    What gets worse:
        Nothing is proposed.

    Known limits:
        A log cannot tell a stall from a server that is stopped, or waits for a transfer.

    Sources:
        vllm-project/vllm#15996, #39734.
    """

    code = "KV013"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look for a run of lines without a token."""
        longest = _find_run(case.samples)
        tokens = case.pool_tokens
        if len(longest) < _INTERVALS:
            return
        usage = longest[-1].usage_ratio
        running, held = longest[-1].running, 0.0 if usage is None else float(usage.value)
        if running is None or tokens is None or not held:
            return
        count = int(running.value)
        yield self.tell(
            case.subject,
            f"{counted(count, 'request')} {agree(count, 'runs and holds', 'run and hold')} {share(held)} of the pool, "
            f"but no token came in {counted(len(longest), 'line')} in a row",
            amount(
                case.amount_of(held * tokens),
                formula="usage * the pool",
                unit=case.unit,
                accuracy=Accuracy.MEASURED,
            ),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at a window without a token."""
        summary = case.summary
        if summary.verdict.diagnosis is not Diagnosis.STALLED or not case.peak_held_tokens:
            return
        yield self.tell(
            case.subject,
            summary.verdict.sentence,
            amount(case.amount_of(case.peak_held_tokens), formula="slots held", unit=case.unit),
        )


def is_stalled(case: LogCase) -> bool:
    """Tell whether a log shows requests that run for several lines without a token."""
    return len(_find_run(case.samples)) >= _INTERVALS


def _find_run(samples: Sequence[PeriodicSample]) -> list[PeriodicSample]:
    """Return the longest run of lines with running requests and no token computed."""
    best: list[PeriodicSample] = []
    run: list[PeriodicSample] = []
    for sample in samples:
        rates = sample.prompt_tokens_per_second, sample.generation_tokens_per_second
        told = sample.kind is SampleKind.INTERVAL and rates[0] is not None and rates[1] is not None
        nothing = told and not any(rate.high > _ROUNDING for rate in rates if rate is not None)
        runs = sample.running is not None and sample.running.value > 0
        run = [*run, sample] if nothing and runs else []
        best = run if len(run) > len(best) else best
    return best


_ROUNDING = 0.05
"""A printed 0.0 tokens/s stands for less than this."""
