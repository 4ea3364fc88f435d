"""Models whose layers keep different tokens: states, windows, and the grain they force on everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvledger.engines.facts import NoticeKind
from kvledger.engines.plan import ClaimKind, Plan
from kvledger.engines.structure import PADDING_LAYERS, PAGE_PADDING, Moment, draw_up
from kvledger.findings.evidence import LogCase, MeasureCase, ReplayCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.ledger import Accuracy
from kvledger.units import agree, counted, format_bytes

__all__ = ["FixedCostRules", "HybridManagerOff", "PaddedPages", "WideBlock"]

_FIXED_RATIO = 0.5
_UNUSED_RATIO = 0.75
_PADDED_RATIO = 0.02
_WIDE_TOKENS = 256
_FEW_HITS_RATIO = 0.01


class FixedCostRules(Rule):
    """What a request costs at any length rules the cost of short ones.

    What it measures:
        For requests of the length that was asked for (else 800 tokens): the units that a request of one token takes
        already are half of what it holds or more, and less than three quarters of what it holds is in use.

    Why it costs:
        States take whole pages, and each group of layers pins at least one block as wide as the widest group. A
        short request pays for them like a long one.

    Example:
        A prompt of 12 tokens took a third of a pool: many groups, each pinning a page of 7,808 tokens. On
        Qwen3.5-27B a request of 12 tokens holds 7 blocks of 49 MiB, 343 MiB, and needs 148.

    What to change:
        vLLM `--no-enable-prefix-caching` where nothing is reused: it drops the second state that align mode keeps.
        `--mamba-ssm-cache-dtype float16` halves states and with them the block. Each is planned alone.

    What gets worse:
        No prefix is reused. States in 16 bits are rounded at every step, which can change answers.

    Known limits:
        How many requests of which length there are is not known to a plan: replay the traffic for that.

    Sources:
        vLLM platforms/interface.py (alignment), v1/core/kv_cache_utils.py; vllm-project/vllm#54458, #37124.
    """

    code = "KV040"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Compare one token with the length that was asked for."""
        length, plan = case.length_tokens, case.plan
        held, fixed = plan.count_request_bytes(length), plan.count_request_bytes(1)
        groups = len(plan.claims) > 1 and not any(claim.reserve_tokens for claim in plan.claims)
        needed = next(cost.needed_bytes for cost in case.outcome.costs if cost.length_tokens >= length)
        if not groups or plan.failure is not None or fixed < _FIXED_RATIO * held or needed > _UNUSED_RATIO * held:
            return
        yield self.tell(
            case.subject,
            f"a request of {case.length_words} holds {format_bytes(held)}, of which {format_bytes(fixed)} it would "
            f"hold at one token; {format_bytes(needed)} are in use, and "
            f"{counted(case.count_requests(), 'such request')} {agree(case.count_requests(), 'fits', 'fit')}",
            amount((held - needed) * case.count_requests(), formula="held minus in use, of as many as fit at once"),
            *_lighter(case),
        )


class PaddedPages(Rule):
    """Padding holds memory so that all layers have pages of one size.

    What it measures:
        Padding layers and page padding of a plan, for as many requests of the length that was asked for (else 800
        tokens) as fit: 2 % of the pool or more.

    Why it costs:
        Groups with fewer layers still take blocks of full width, and states are padded up to the attention page.
        None of this is in a metric.

    Example:
        Gemma-3-27B has 52 windowed and 10 full layers: groups of 10, the last of which holds 2 layers and 8 paddings.
        The engine's warning compares with layers of one kind; of the pool it is 11.4 %.

    What to change:
        Nothing that a user can set. It explains where the memory is, and which figure to compare with.

    What gets worse:
        Nothing is proposed.

    Known limits:
        Releases group differently: plan another one with `--engine-version`.

    Sources:
        vLLM docs/design/hybrid_kv_cache_manager.md; PR #29303.
    """

    code = "KV041"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Draw up the load, and take its padding."""
        count = case.count_requests()
        if case.plan.failure is not None or not count:
            return
        load = draw_up(case.plan, length_tokens=case.length_tokens, requests=count, moment=Moment.DECODING)
        padding = load.deployment.find(PADDING_LAYERS) + load.deployment.find(PAGE_PADDING)
        capacity = load.deployment.ledger.capacity
        if padding < _PADDED_RATIO * capacity:
            return
        yield self.tell(
            case.subject,
            f"{format_bytes(padding)} ({share(padding / capacity)} of the pool) are padding when it is full of "
            f"requests of {case.length_words}: layers that do not exist, and pages made equal",
            amount(padding, formula="padding layers and page padding, for as many requests as fit"),
        )


class HybridManagerOff(Rule):
    """Layers with a window keep every token, because the manager of hybrid caches is off.

    What it measures:
        What requests hold with the settings that were given, against a plan in which nothing turns the hybrid manager
        off: KV events (up to 0.19), KV connectors, `--disable-hybrid-kv-cache-manager`, chunked attention up to 0.13.

    Why it costs:
        A windowed layer that is treated as full pays for the whole length. Turning on KV events to measure such a
        server changes what is measured.

    Example:
        Gemma-3-27B at 131,072 tokens takes 14.2 GiB with its windows and 62 GiB without them.

    What to change:
        Leave out what turns it off, or use a release in which it does not. The proof plans the same deployment
        without it.

    What gets worse:
        What was turned on for a reason is off: KV events, the connector.

    Known limits:
        A plan sees what it is told; of a log only the warning is read.

    Sources:
        vLLM config/vllm.py 0.9 to 0.33; vllm-project/vllm#39310.
    """

    code = "KV044"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Plan again without what turns the manager off."""
        if case.plan.deployment.engine != "vllm" or case.plan.failure is not None:
            return
        given = case.outcome.question.deployment.options
        best: tuple[int, str, Plan] | None = None
        for name, values in _SWITCHES.items():
            after = case.replan(options=values) if name in given or name == "allow_chunked_local" else None
            saved = case.saved_bytes(after) if after is not None else 0
            if after is not None and saved > (best[0] if best is not None else 0):
                best = saved, name, after
        if best is None:
            return
        saved, name, after = best
        length = case.plan.deployment.max_model_len or 0
        before_bytes, after_bytes = case.plan.count_request_bytes(length), after.count_request_bytes(length)
        yield self.tell(
            case.subject,
            f"every layer keeps every token: a request of {length:,} tokens holds {format_bytes(before_bytes)} instead "
            f"of {format_bytes(after_bytes)}",
            amount(saved, formula="bytes that the requests of the load shown hold before, minus after"),
            Remedy(
                setting=f"without {_CALLED[name]}",
                returned=amount(saved, formula="bytes that the requests of the load shown hold before, minus after"),
                trade=Trade.TRADE_OFF,
                proof=f"planned: {counted(case.count_requests(after), 'request')} of {case.length_tokens:,} tokens fit "
                f"at once instead of {case.count_requests():,}",
                worse=_PRICES[name],
            ),
        )


class WideBlock(Rule):
    """The block is so wide that short prompts can never be found in the prefix cache.

    What it measures:
        The tokens of a block where states widen it: 256 or more. Only full blocks are kept for reuse.

    Why it costs:
        A prompt below one block never hits, however often it comes. A long one hits in steps of a block.

    Example:
        With blocks of 784 tokens, repeated prompts under 784 tokens had no hits at all. Latent hybrids reach blocks
        of 7,808 tokens.

    What to change:
        vLLM 0.32 `--prefix-match-unit` for finer matches where the model allows it; otherwise nothing. It explains
        a hit rate of 0.

    What gets worse:
        Nothing is proposed.

    Known limits:
        Whether prompts share anything is not known here; `kvledger replay --prefix-caching on` counts hits.

    Sources:
        vLLM v1/core/kv_cache_manager.py (full blocks only); vllm-project/vllm#54607, #48401, #53749.
    """

    code = "KV032"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Count the prompts that are shorter than a block of full attention."""
        policy, groups = case.scenario.policy, case.scenario.policy.block_groups
        if groups is None or not policy.prefix_caching:
            return
        widest = max(group.block_tokens for group in groups.groups)
        short = int((case.workload.prompt_tokens <= widest).sum())
        if widest < _WIDE_TOKENS or not short:
            return
        yield self.tell(
            case.subject,
            f"{short:,} of {counted(len(case.workload), 'prompt')} {agree(short, 'has', 'have')} at most "
            f"{counted(widest, 'token')}, one block: they can never be found in the prefix cache",
            amount(groups.block_bytes, formula="one block"),
        )

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Compare the block with the length that was asked for."""
        full = [c.unit_tokens for c in case.plan.claims if c.kind is ClaimKind.FULL]
        states = any(claim.kind is ClaimKind.STATE for claim in case.plan.claims)
        widest = max(full, default=0)
        caching = case.plan.deployment.prefix_caching
        if not states or not caching or widest < _WIDE_TOKENS or case.length_tokens > widest:
            return
        size = case.plan.count_request_bytes(widest) // max(1, sum(case.plan.count_units(widest).values()))
        yield self.tell(
            case.subject,
            f"a block holds {counted(widest, 'token')}, so prompts of {case.length_tokens:,} can never be found in "
            "the prefix cache",
            amount(size, formula="one block, all ranks"),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at a server whose counters say that next to nothing was found."""
        shape, engine = case.shape, case.engine
        if shape is None or engine is None or not shape.prefix_caching or shape.block_tokens < _WIDE_TOKENS:
            return
        looked_up, found = engine.query_tokens, engine.hit_tokens
        if not looked_up or found is None or found >= _FEW_HITS_RATIO * looked_up:
            return
        yield self.tell(
            case.subject,
            f"a block holds {counted(shape.block_tokens, 'token')}: {_who_never_hits(shape.block_tokens, None)}; "
            f"{int(found):,} of {counted(int(looked_up), 'prompt token')} were found since the server started",
            amount(shape.block_tokens, formula="tokens of a block", unit="tokens", accuracy=Accuracy.MEASURED),
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at the line with which vLLM widens the block."""
        startup = case.startup
        for notice in startup.notices if startup is not None else ():
            if notice.kind is NoticeKind.BLOCK_WIDENED and notice.count is not None and notice.count >= _WIDE_TOKENS:
                off = startup is not None and startup.prefix_caching is not None and not startup.prefix_caching.value
                longest = case.check.max_model_len
                if not off:
                    yield self.tell(
                        case.subject,
                        f"a block holds {counted(notice.count, 'token')}: "
                        + _who_never_hits(notice.count, None if longest is None else int(longest.high))
                        + ", and each group of layers takes at least one block for a request of any length",
                        amount(notice.count, formula="tokens of a block", unit="tokens", accuracy=Accuracy.MEASURED),
                    )
                return


def _who_never_hits(block_tokens: int, longest: int | None) -> str:
    """Say which prompts fill no block: every one, where the longest request is shorter."""
    if longest is not None and longest < block_tokens:
        return f"no prompt of this server, {counted(longest, 'token')} at most, can ever be found in the prefix cache"
    return "a shorter prompt can never be found in the prefix cache"


_SWITCHES: Mapping[str, Mapping[str, str]] = {
    "disable_hybrid_kv_cache_manager": {"disable_hybrid_kv_cache_manager": "false"},
    "kv_events": {"kv_events": "false"},
    "kv_connector": {"kv_connector": "false"},
    "allow_chunked_local": {"allow_chunked_local": "true"},
}
_CALLED = {
    "disable_hybrid_kv_cache_manager": "`--disable-hybrid-kv-cache-manager`",
    "kv_events": "KV events (`--kv-events-config`), or from vLLM 0.20",
    "kv_connector": "a KV connector (`--kv-transfer-config`), or with one that supports groups from vLLM 0.22",
    "allow_chunked_local": "the default, with VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE=1",
}
_PRICES = {
    "disable_hybrid_kv_cache_manager": "what it was turned off for",
    "kv_events": "no events of blocks stored and removed",
    "kv_connector": "no transfer of keys and values",
    "allow_chunked_local": "the release does not trust it yet: slower kernels are possible",
}


def _lighter(case: SizeCase) -> Iterator[Remedy]:
    """Plan what drops or narrows states."""
    if case.plan.deployment.engine != "vllm":
        return
    length, before = case.length_tokens, case.count_requests()
    changes: list[tuple[str, Plan | None, str]] = []
    if case.plan.deployment.prefix_caching and any(claim.checkpoint_units for claim in case.plan.claims):
        off = case.replan(prefix_caching=False)
        changes.append(("--no-enable-prefix-caching", off, "no prefix is found again"))
    if "mamba_ssm_cache_dtype" not in case.outcome.question.deployment.options:
        narrow = case.replan(options={"mamba_ssm_cache_dtype": "float16"})
        changes.append(("--mamba-ssm-cache-dtype float16", narrow, "states are rounded at every step"))
    for setting, after, worse in changes:
        if after is None or after.failure is not None or case.count_requests(after) <= before:
            continue
        saved = case.plan.count_request_bytes(length) - after.count_request_bytes(length)
        yield Remedy(
            setting=setting,
            returned=amount(saved * before, formula="held by one request before minus after, * requests that fit"),
            trade=Trade.TRADE_OFF,
            proof=f"planned: {counted(case.count_requests(after), 'request')} of {length:,} tokens fit at once instead "
            f"of {before:,}",
            worse=worse,
        )
