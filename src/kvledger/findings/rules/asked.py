"""A load that was asked for, and does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.engines.size import Fit, answer_size
from kvledger.errors import Error
from kvledger.findings.evidence import SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.units import agree, counted, format_bytes

__all__ = ["LoadDoesNotFit"]


class LoadDoesNotFit(Rule):
    """The load that was asked for does not fit into the memory.

    What it measures:
        `--concurrency` requests of `--length` tokens against how many the planned pool holds at once.

    Why it costs:
        The requests that do not fit wait, or push out others that must then be computed again.

    Example:
        QwQ-32B keeps 256 KiB a token: 8 GiB hold 32,768 tokens, two reasoning chains of 16,000. The pool is at 100 %
        with two requests.

    What to change:
        fp8 KV (`--kv-cache-dtype fp8`) halves a token; shorter outputs (max_tokens of the clients) make a request
        smaller; more memory. Each is planned alone.

    What gets worse:
        fp8 rounds keys and values. Longer answers are cut. Memory costs memory.

    Known limits:
        All requests are taken at their full length at the same time, without shared prefixes: replay the traffic for
        what really meets.

    Sources:
        The engine's own rules for blocks a request; vllm-project/vllm#14412.
    """

    code = "KV016"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Compare what was asked for with what fits."""
        question = case.outcome.question
        length, wanted = question.length_tokens, question.concurrency
        if length is None or wanted is None or question.fit is not None or case.plan.failure is not None:
            return
        fits = case.count_requests()
        if fits >= wanted:
            return
        missing = case.plan.count_request_bytes(length) * (wanted - fits)
        yield self.tell(
            case.subject,
            f"{counted(wanted, 'request')} of {counted(length, 'token')} {agree(wanted, 'was', 'were')} asked for, "
            f"{fits:,} {agree(fits, 'fits', 'fit')} at once",
            amount(missing, formula="bytes of the requests that do not fit"),
            *self._remedies(case, length, wanted),
        )

    def _remedies(self, case: SizeCase, length: int, wanted: int) -> Iterator[Remedy]:
        before, held = case.count_requests(), case.plan.count_request_bytes(length)
        small = case.replan(kv_dtype="fp8") if case.plan.deployment.engine in ("vllm", "sglang") else None
        if small is not None and small.failure is None and case.count_requests(small) > before:
            yield Remedy(
                setting="--kv-cache-dtype fp8",
                returned=amount(
                    (held - small.count_request_bytes(length)) * wanted,
                    formula="bytes of the requests asked for, before minus after",
                ),
                trade=Trade.TRADE_OFF,
                proof=f"planned: {case.count_requests(small):,} fit at once instead of {before:,}",
                worse="keys and values are rounded to fp8, which can change answers",
            )
        longest = replace(case.plan, request_limit=None).find_longest_tokens(requests=wanted)
        if 1 < longest < length:
            yield Remedy(
                setting=f"at most {counted(longest, 'token')} a request (max_tokens)",
                returned=amount(
                    (held - case.plan.count_request_bytes(longest)) * wanted,
                    formula="bytes of the requests asked for, before minus after",
                ),
                trade=Trade.TRADE_OFF,
                proof=f"planned: {counted(wanted, 'request')} of {counted(longest, 'token')} "
                f"{agree(wanted, 'fits', 'fit')} at once",
                worse="longer answers are cut",
            )
        try:
            needed = answer_size(case.planner, replace(case.outcome.question, memory=None, fit=Fit.MEMORY)).fitted
        except Error:
            return
        if needed is not None:
            more = needed.value - case.outcome.memory.smallest_bytes
            yield Remedy(
                setting=f"{format_bytes(needed.value)} of KV memory a rank",
                returned=amount(0, formula="none: it takes memory"),
                trade=Trade.TRADE_OFF,
                proof=f"planned: {counted(wanted, 'request')} of {counted(length, 'token')} "
                f"{agree(wanted, 'fits', 'fit')} at once",
                worse=f"it takes {format_bytes(more)} more on every rank",
                gain="the requests that were asked for",
            )
