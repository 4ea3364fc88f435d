"""Requests that are refused for their length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvledger.findings.evidence import ReplayCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Rejection
from kvledger.units import agree, counted

__all__ = ["RefusedByLength"]


class RefusedByLength(Rule):
    """Requests are refused for their length, not for memory.

    What it measures:
        Requests whose prompt leaves no room for a token below max_model_len, while the pool could hold them.

    Why it costs:
        The failures look like pressure on the cache, and no more memory cures them.

    Example:
        A server answers 400 to 4,097 prompt tokens + 4,096 max_tokens with max_model_len 8,192, while 23 to 45 % of
        its cache is used and nothing waits.

    What to change:
        A larger max_model_len (`--max-model-len`), if the model takes it: with block tables it reserves nothing. The
        proof replays the longest request of the trace. Or the clients ask for fewer tokens.

    What gets worse:
        vLLM must hold one request of max_model_len to start, and its profile run may grow (see KV023).

    Known limits:
        Only what a trace says was asked for is seen; a server's log names refusals, which are not read yet.

    Sources:
        vLLM entrypoints/openai/serving_engine.py (maximum context length).
    """

    code = "KV015"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at prompts of max_model_len tokens or more."""
        outcome, scenario = case.outcome, case.scenario
        count = outcome.rejected.get(Rejection.PROMPT_TOO_LONG, 0)
        if scenario.policy.kind is not Kind.PAGED or not count:
            return
        prompts = case.workload.prompt_tokens
        refused = prompts[prompts >= scenario.settings.max_model_len]
        wanted = case.workload.longest_tokens + 1
        needed = int(refused.sum(dtype=np.int64)) * scenario.pool.bytes_per_token
        longer = replace(scenario, settings=replace(scenario.settings, max_model_len=wanted))
        after = case.replay(longer)
        if after is None or after.finished <= outcome.finished:
            return
        yield self.tell(
            case.subject,
            f"{counted(count, 'request')} {agree(count, 'is', 'are')} refused because the prompt has "
            f"{scenario.settings.max_model_len:,} tokens (max_model_len) or more, not for lack of memory",
            amount(needed, formula="bytes of the refused prompts"),
            Remedy(
                setting=f"max_model_len {wanted:,} (`--max-model-len`)",
                returned=amount(0, formula="none: blocks are taken as tokens come"),
                trade=Trade.TRADE_OFF,
                proof=f"replayed: {after.finished:,} of {after.requests:,} are served instead of {outcome.finished:,}",
                worse="the pool must hold one request of that length for the engine to start, and the model must take "
                "it",
                gain="the requests that are rejected",
            ),
        )
