"""Memory that is held only because of the grain of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.findings.evidence import ReplayCase, wasted_bytes
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.ledger import Account
from kvledger.pool.policy import Kind
from kvledger.units import format_bytes

__all__ = ["BlockTooLarge"]

_TAILS_RATIO = 0.02
_SMALL_BLOCK_TOKENS = 16
_TABLES = (Kind.PAGED, Kind.UPFRONT, Kind.NO_EVICT)


class BlockTooLarge(Rule):
    """The block is too large for the lengths that are served.

    What it measures:
        The account `internal` of a policy of block tables whose blocks hold more than 16 tokens: 2 % of the pool or
        more.

    Why it costs:
        The last block of each request is half empty on average: (block size - 1) / 2 slots a request. Short requests
        and many of them make it dear.

    Example:
        Blocks of 128 tokens hold 63.5 empty slots a request on average; with 800 tokens a request that is 7 %.

    What to change:
        vLLM `--block-size 16`, SGLang `--page-size 1`, TensorRT-LLM `tokens_per_block 32`, LMDeploy
        `--cache-block-seq-len 32`. The proof replays blocks of 16.

    What gets worse:
        Each request has more entries in its block table, and kernels read memory in smaller pieces.

    Known limits:
        Some kernels force their block: FlashMLA takes 64, hybrid models what their states need. There
        the setting is refused or has no effect.

    Sources:
        Kwon et al., SOSP 2023, section 7.2 (block size); vLLM 0.32 v1/core/kv_cache_utils.py.
    """

    code = "KV004"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at a policy of block tables with blocks larger than usual."""
        policy, internal = case.scenario.policy, case.bytes_of(Account.INTERNAL)
        suspect = policy.kind in _TABLES and policy.groups is None and policy.block_size > _SMALL_BLOCK_TOKENS
        if not suspect or internal < _TAILS_RATIO * case.outcome.capacity_bytes:
            return
        small = replace(policy, name=f"{policy.kind}@{_SMALL_BLOCK_TOKENS}", block_size=_SMALL_BLOCK_TOKENS)
        pool = replace(case.scenario.pool, block_size=case.scenario.pool.block_size or policy.block_size)
        after = case.replay(replace(case.scenario, policy=small, pool=pool))
        if after is None or wasted_bytes(after) >= wasted_bytes(case.outcome):
            return
        times = policy.block_size // _SMALL_BLOCK_TOKENS
        yield self.tell(
            case.subject,
            f"{format_bytes(internal)} are tails of blocks of {policy.block_size} tokens "
            f"({share(case.outcome.headline_ratio[Account.INTERNAL])} of the pool)",
            amount(internal, formula="mean of the account `internal`"),
            Remedy(
                setting=f"blocks of {_SMALL_BLOCK_TOKENS} tokens (`--block-size`)",
                returned=amount(
                    internal - round(after.headline_ratio[Account.INTERNAL] * after.capacity_bytes),
                    formula="mean of `internal` before, minus after",
                ),
                trade=Trade.TRADE_OFF,
                proof=f"replayed with blocks of {_SMALL_BLOCK_TOKENS}: "
                f"{share(after.headline_ratio[Account.INTERNAL])} of the pool is internal, {after.mean_running:.1f} "
                f"requests run at a time instead of {case.outcome.mean_running:.1f}",
                worse=f"{times} times the entries in each block table, read in smaller pieces",
            ),
        )
