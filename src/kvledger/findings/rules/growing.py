"""Extents that grow by copying, and batches that are padded."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.findings.evidence import ReplayCase, wasted_bytes
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.rules.reservation import BLOCK_TABLES
from kvledger.findings.words import share
from kvledger.ledger import Account
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Outcome
from kvledger.units import counted, format_bytes

__all__ = ["GrowsByCopying", "PaddedBatch"]

_PADDING_RATIO = 0.2


class GrowsByCopying(Rule):
    """A cache that grows by copying needs twice its memory, and leaves holes behind.

    What it measures:
        Tokens copied from an old extent into a larger one, and the largest extent that had to exist twice.

    Why it costs:
        Concatenation makes a new tensor while the old one is still there: the peak is twice the cache, and each old
        size leaves a hole that no later, larger tensor fits into. Copying a cache of 100 MB to add 1 MB takes time.

    Example:
        `generate()` of Transformers peaks at twice the cache; a 30B model fits with a fixed cache and not with the
        library's growing one.

    What to change:
        A cache that is not copied: block tables, as `transformers serve --continuous-batching` and vLLM have them,
        or a static cache (`cache_implementation="static"`), which reserves instead. The proof replays block tables.

    What gets worse:
        Attention reads through block tables. A static cache holds its longest length from the beginning.

    Known limits:
        PyTorch's segments return more of a hole than one extent of exact size does: replay `grow@segments` for them.

    Sources:
        Transformers 5.24 cache_utils.py, DynamicLayer; huggingface/transformers#30536; oobabooga/textgen#2444.
    """

    code = "KV006"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at extents that grow."""
        if case.scenario.policy.kind is not Kind.GROW or not case.outcome.copied_tokens:
            return
        after = case.replay_paged()
        if after is None or not case.outcome.finished:
            return
        twice = _longest(case) * case.scenario.pool.bytes_per_token
        tails = case.bytes_of(Account.INTERNAL) - _internal(after)
        yield self.tell(
            case.subject,
            f"{counted(case.outcome.copied_tokens, 'token')} are copied to grow; the longest request needs a second "
            f"extent of up to {format_bytes(twice)} while it is copied",
            amount(twice, formula="the longest request, once more"),
            Remedy(
                setting=BLOCK_TABLES,
                returned=amount(
                    twice + max(0, tails),
                    formula="the second extent of the longest request, and `internal` before minus after",
                ),
                trade=Trade.TRADE_OFF,
                proof=f"replayed as `{after.policy}`: nothing is copied, {share(after.utilisation)} of the pool holds "
                f"tokens in use instead of {share(case.outcome.utilisation)}",
                worse="attention reads through block tables",
            ),
        )


class PaddedBatch(Rule):
    """A batch that is padded to its longest row holds memory for rows that have ended.

    What it measures:
        What a naive `generate(batch)` holds and does not use: rows padded to the longest, and rows that have ended
        and wait for the rest of the batch. A fifth of the pool or more.

    Why it costs:
        The next batch starts only when the last row of this one has ended, however short the others were.

    Example:
        In the demo `static-batch` fills 3.9 % of the pool with tokens in use and takes nearly nine times as long as
        block tables.

    What to change:
        Continuous batching with block tables: vLLM, SGLang, `transformers serve --continuous-batching`.

    What gets worse:
        Attention reads through block tables, and requests may be preempted; the replay counts how many.

    Known limits:
        Batches of equal prompts and answers waste little, and are not found.

    Sources:
        Yu et al., Orca, OSDI 2022, section 3.1; Transformers 5.24 generation/utils.py.
    """

    code = "KV007"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at padded batches."""
        waste = wasted_bytes(case.outcome)
        padded = case.scenario.policy.kind is Kind.STATIC_BATCH and case.outcome.finished
        if not padded or waste < _PADDING_RATIO * case.outcome.capacity_bytes:
            return
        after = case.replay_paged()
        if after is None:
            return
        faster = case.outcome.makespan_seconds / after.makespan_seconds if after.makespan_seconds else 1.0
        yield self.tell(
            case.subject,
            f"{format_bytes(waste)} hold padding and rows that have ended "
            f"({share(waste / case.outcome.capacity_bytes)} of the pool)",
            amount(waste, formula="means of `reserved`, `internal` and `external`"),
            Remedy(
                setting="continuous batching with block tables",
                returned=amount(
                    waste - wasted_bytes(after),
                    formula="mean bytes reserved, internal and external, before minus after",
                ),
                trade=Trade.TRADE_OFF,
                proof=f"replayed as `{after.policy}`: {share(after.utilisation)} of the pool holds tokens in use "
                f"instead of {share(case.outcome.utilisation)}, and the traffic is served {faster:.1f} times as fast",
                worse=f"attention reads through block tables; {counted(after.preemptions, 'preemption')}",
            ),
        )


def _longest(case: ReplayCase) -> int:
    return min(case.workload.longest_tokens, case.scenario.settings.max_model_len)


def _internal(outcome: Outcome) -> int:
    return round(outcome.headline_ratio[Account.INTERNAL] * outcome.capacity_bytes)
