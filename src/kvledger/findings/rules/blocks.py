"""Memory that is held only because of the grain of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.findings.evidence import MeasureCase, ReplayCase, wasted_bytes
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.ledger import Account
from kvledger.pool.policy import Kind, Placement, Policy
from kvledger.replay.what_if import Scenario
from kvledger.units import KIB, counted, format_bytes

__all__ = ["BlockTooLarge", "GrainAboveHalf"]

_TAILS_RATIO = 0.02
_SMALL_BLOCK_TOKENS = 16
_SMALL_PAGE_BYTES = 64 * KIB
_ABOVE_RATIO = 1.5
_TABLES = (Kind.PAGED, Kind.UPFRONT, Kind.NO_EVICT)


class BlockTooLarge(Rule):
    """The block is too large for the lengths that are served.

    What it measures:
        The account `internal` of a policy of block tables whose blocks hold more than 16 tokens, or of `vmm` with
        pages above 64 KiB: 2 % of the pool or more.

    Why it costs:
        The last block of each request is half empty on average: (block size - 1) / 2 slots a request. Short requests
        and many of them make it dear.

    Example:
        Blocks of 128 tokens hold 63.5 empty slots a request on average; with 800 tokens a request that is 7 %.

    What to change:
        vLLM `--block-size 16`, SGLang `--page-size 1`, TensorRT-LLM `tokens_per_block 32`, LMDeploy
        `--cache-block-seq-len 32`, vAttention pages of 64 KiB. The proof replays blocks of 16, or such pages.

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
        finer = _find_finer(case)
        if finer is None or internal < _TAILS_RATIO * case.outcome.capacity_bytes:
            return
        scenario, name, setting, times = finer
        after = case.replay(scenario)
        if after is None or wasted_bytes(after) >= wasted_bytes(case.outcome):
            return
        yield self.tell(
            case.subject,
            f"{format_bytes(internal)} are tails of {_called(policy, case)} "
            f"({share(case.outcome.headline_ratio[Account.INTERNAL])} of the pool)",
            amount(internal, formula="mean of the account `internal`"),
            Remedy(
                setting=setting,
                returned=amount(
                    internal - round(after.headline_ratio[Account.INTERNAL] * after.capacity_bytes),
                    formula="mean of `internal` before, minus after",
                ),
                trade=Trade.TRADE_OFF,
                proof=f"replayed with {name}: "
                f"{share(after.headline_ratio[Account.INTERNAL])} of the pool is internal, {after.mean_running:.1f} "
                f"requests run at a time instead of {case.outcome.mean_running:.1f}",
                worse=f"{times:,} times the entries in each table, read in smaller pieces",
            ),
        )


class GrainAboveHalf(Rule):
    """More is held for the sake of grain than half a grain for each request.

    What it measures:
        `internal` per running request against half of what memory is rounded to: the granularity of extents, or the
        block of a running server. One and a half times that or more, and 2 % of the pool or more.

    Why it costs:
        Half a grain is what lengths spread evenly leave. More means that a buffer is added, that extents are rounded
        to powers of two, that prompts end just above a block, or that an engine holds blocks for tokens it only
        proposes.

    Example:
        A buffer of 256 tokens beside each reservation takes 4.9 points of the demo's pool. Prompts of 17 tokens in
        blocks of 16 leave 15 slots empty, not 7.5.

    What to change:
        No buffer and no rounding of extents; the proof replays what applies. With blocks: a block that fits the
        lengths (`--block-size`), see KV004.

    What gets worse:
        Without a buffer a growing request has nowhere to grow. Extents of all sizes leave holes.

    Known limits:
        On a running server speculative decoding holds a block ahead for each request, which is counted here, and
        the price of another block is not known, so no change is proved.

    Sources:
        Design of the ledger, account `internal`.
    """

    code = "KV005"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Compare the mean internal bytes with half a grain for each running request."""
        outcome, policy = case.outcome, case.scenario.policy
        internal, token = case.bytes_of(Account.INTERNAL), case.scenario.pool.bytes_per_token
        running = outcome.saturated_running if outcome.held_up else outcome.mean_running
        grain = policy.granularity_tokens
        expected = running * (grain - 1) / 2 * token
        if (
            policy.kind is not Kind.CONTIGUOUS
            or internal < _TAILS_RATIO * outcome.capacity_bytes
            or internal < _ABOVE_RATIO * expected
        ):
            return
        remedies = tuple(_finer(case))
        if not remedies:
            return
        yield self.tell(
            case.subject,
            f"{format_bytes(internal)} are held only for grain: buffers and rounding of extents"
            + (f"; half of {counted(grain, 'token')} a request would be {format_bytes(expected)}" if grain > 1 else ""),
            amount(internal - expected, formula="mean of `internal`, minus half a grain for each running request"),
            *remedies,
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Compare the slots of tail for each running request with half a block."""
        found, shape = case.summary.internal_per_request_tokens, case.shape
        peak = case.summary.peak
        if found is None or shape is None or peak is None or not peak.running or case.summary.samples < 2:
            return
        expected = (shape.block_tokens - 1) / 2
        if shape.block_tokens < 2 or found[0] < _ABOVE_RATIO * expected or found[0] < shape.block_tokens:
            return
        extra = (found[0] - expected) * peak.running
        yield self.tell(
            case.subject,
            f"each running request holds {found[0]:.1f} slots beside its tokens or more; half a block of "
            f"{shape.block_tokens} would be {expected:.1f}: blocks are held ahead, or the block is larger than told",
            amount(
                case.amount_of(extra),
                formula="slots of tail per request, minus half a block, * requests running at the peak",
                unit=case.unit,
            ),
        )


def _find_finer(case: ReplayCase) -> tuple[Scenario, str, str, int] | None:
    """Return the same policy with a finer grain, how that and its setting are called, and how much finer it is."""
    policy, pool = case.scenario.policy, case.scenario.pool
    if policy.kind is Kind.VMM and pool.vmm_page_bytes > _SMALL_PAGE_BYTES:
        name = f"pages of {format_bytes(_SMALL_PAGE_BYTES)}"
        small_pages = replace(pool, vmm_page_bytes=_SMALL_PAGE_BYTES)
        return replace(case.scenario, pool=small_pages), name, name, pool.vmm_page_bytes // _SMALL_PAGE_BYTES
    if policy.kind not in _TABLES or policy.groups is not None or policy.block_size <= _SMALL_BLOCK_TOKENS:
        return None
    small = replace(policy, name=f"{policy.kind}@{_SMALL_BLOCK_TOKENS}", block_size=_SMALL_BLOCK_TOKENS)
    same = replace(pool, block_size=pool.block_size or policy.block_size)
    name = f"blocks of {_SMALL_BLOCK_TOKENS} tokens"
    setting = f"{name} (`--block-size`)"
    return replace(case.scenario, policy=small, pool=same), name, setting, policy.block_size // _SMALL_BLOCK_TOKENS


def _called(policy: Policy, case: ReplayCase) -> str:
    if policy.kind is Kind.VMM:
        return f"pages of {format_bytes(case.scenario.pool.vmm_page_bytes)}"
    return f"blocks of {counted(policy.block_size, 'token')}"


def _finer(case: ReplayCase) -> Iterator[Remedy]:
    policy = case.scenario.policy
    changes = []
    if policy.kind is Kind.CONTIGUOUS and policy.buffer_tokens:
        changes.append(("no buffer", replace(case.scenario, policy=replace(policy, buffer_tokens=0)), ""))
    if policy.kind is Kind.CONTIGUOUS and policy.granularity_tokens > 1:
        exact = replace(case.scenario, policy=replace(policy, granularity_tokens=1))
        changes.append(("extents of whole tokens", exact, ""))
    if policy.kind is Kind.CONTIGUOUS and policy.placement is Placement.BUDDY:
        fit = replace(case.scenario, policy=replace(policy, placement=Placement.BEST))
        changes.append(("best fit instead of powers of two", fit, "extents of all sizes leave holes"))
    before = case.bytes_of(Account.INTERNAL)
    for setting, changed, worse in changes:
        after = case.replay(changed)
        if after is None:
            continue
        gone = before - round(after.headline_ratio[Account.INTERNAL] * after.capacity_bytes)
        if gone > 0 and wasted_bytes(after) < wasted_bytes(case.outcome):
            yield Remedy(
                setting=setting,
                returned=amount(gone, formula="mean of `internal` before, minus after"),
                trade=Trade.TRADE_OFF if worse else Trade.SAFE,
                proof=f"replayed: {share(after.headline_ratio[Account.INTERNAL])} of the pool is internal, "
                f"{after.mean_running:.1f} requests run at a time instead of {case.outcome.mean_running:.1f}",
                worse=worse,
            )
