"""The prefix cache: off where it would help, on where it cannot, and full while a gauge says 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.engines.facts import Engine
from kvledger.findings.evidence import MeasureCase, PoolsCase, ReplayCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.rules.pressure import serves_no_slower, time_words
from kvledger.findings.words import share
from kvledger.ledger import Account, Accuracy
from kvledger.pool.policy import Kind
from kvledger.units import counted, format_bytes

__all__ = ["CacheIsNotUse", "NothingShared", "SharedButOff"]

_WORTH_HITS_RATIO = 0.05
_NO_HITS_RATIO = 0.01
_ENOUGH_REQUESTS = 20
_LOW_USE_RATIO = 0.1
_MUCH_CACHED_RATIO = 0.1


class SharedButOff(Rule):
    """Requests share prefixes, and prefix caching is off.

    What it measures:
        The share of prompt tokens that a prefix cache in the same memory would find, by replaying the traffic with
        one: 5 % or more.

    Why it costs:
        A shared prefix is stored once for each request and computed again for each.

    Example:
        Seventeen requests that share a prompt of 200 tokens store 192 of them 17 times.

    What to change:
        vLLM `--enable-prefix-caching` (the default of V1), SGLang without `--disable-radix-cache`. The proof replays
        it; the bytes are what sharing saves on average.

    What gets worse:
        Blocks are hashed, which takes a little time on the CPU. Models with states keep a second state for each
        request.

    Known limits:
        The trace must tell what its requests share. The first such replay compiles a kernel, so it is run only when
        asked for: `--findings all`, or `--prefix-caching on`.

    Sources:
        vLLM 0.32 v1/core/kv_cache_manager.py.
    """

    code = "KV030"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Replay a policy of block tables with a prefix cache."""
        policy, outcome = case.scenario.policy, case.outcome
        if policy.kind is not Kind.PAGED or policy.prefix_caching or case.workload.content is None:
            return
        after = case.replay(replace(case.scenario, policy=replace(policy, prefix_caching=True)))
        if after is None or after.prefix is None or after.prefix.hit_ratio < _WORTH_HITS_RATIO:
            return
        if not serves_no_slower(outcome, after):
            return
        saved = amount(
            after.shared_saving_ratio * after.capacity_bytes, formula="mean of `shared_saving` with the cache"
        )
        yield self.tell(
            case.subject,
            f"{share(after.prefix.hit_ratio)} of the prompt tokens are prefixes that others have computed; prefix "
            "caching is off",
            saved,
            Remedy(
                setting="--enable-prefix-caching",
                returned=saved,
                trade=Trade.SAFE,
                proof=f"replayed: {after.prefix.hit_tokens:,} of "
                f"{counted(after.prefix.queried_tokens, 'prompt token')} are found{time_words(outcome, after)}",
            ),
        )


class NothingShared(Rule):
    """Prefix caching is on, and finds nothing.

    What it measures:
        Prompt tokens found in the cache over those looked up: below 1 %, over 20 requests or more.

    Why it costs:
        Little. Cached blocks are given up when memory is needed, so turning it off gives back nothing. Hashing takes
        time on the CPU; models with states keep a second state for each request, which does take memory.

    Example:
        A trace without content identities, or prompts that begin with a time stamp: every prefix is new.

    What to change:
        Put what is common first in the prompt. With states: `--no-enable-prefix-caching`, which `kvledger size`
        plans (KV040).

    What gets worse:
        Nothing is proposed.

    Known limits:
        With wide blocks short prompts cannot hit at all (KV032); that is another cause with the same number.

    Sources:
        vLLM 0.32 v1/core/kv_cache_manager.py; vLLM metrics prefix_cache_queries and prefix_cache_hits.
    """

    code = "KV031"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at the hits of a policy with a prefix cache, where the trace tells content."""
        prefix = case.outcome.prefix
        known = case.workload.content is not None and case.outcome.finished >= _ENOUGH_REQUESTS
        if prefix is None or not known or prefix.hit_ratio >= _NO_HITS_RATIO:
            return
        yield self.tell(
            case.subject,
            f"{prefix.hit_tokens:,} of {counted(prefix.queried_tokens, 'prompt token')} ({share(prefix.hit_ratio)}) "
            "are found "
            "in the prefix cache; what it keeps is given up when needed, so turning it off gives back nothing",
            amount(case.bytes_of(Account.CACHED), formula="mean of `cached`"),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at the hits of a window."""
        traffic, shape = case.summary.traffic, case.shape
        enough = traffic.hit_ratio is not None and (traffic.finished or 0) >= _ENOUGH_REQUESTS
        if shape is None or not shape.prefix_caching or not enough or (traffic.hit_ratio or 0.0) >= _NO_HITS_RATIO:
            return
        sheet = case.summary.shown.sheet
        if sheet is None:
            return
        yield self.tell(
            case.subject,
            f"{share(traffic.hit_ratio or 0.0)} of the prompt tokens of {traffic.finished:,} requests were "
            "found in the prefix cache; what it keeps is given up when needed, so turning it off gives back nothing",
            amount(0, sheet.figure("cached").high, formula="the account `cached`", unit=sheet.unit),
        )


class CacheIsNotUse(Rule):
    """A gauge near 0 % does not mean an empty cache, and a full one that nobody uses is no leak.

    What it measures:
        Tokens that no running request refers to and that are kept for reuse, beside a gauge that does not count
        them; or, in older SGLang, usage that stays while nothing runs, because it does.

    Why it costs:
        Nothing: such blocks are given up when memory is needed. What costs is the misreading, a restart against a
        leak that is none, or a smaller pool that loses its prefixes.

    Example:
        vLLM's usage counts blocks of running requests only, so an idle server shows 0 % while its whole pool may
        hold reusable prefixes. Finished requests stay in SGLang's radix tree until their slots are needed.

    What to change:
        Nothing. Read `available` (free or cached) instead of the gauge.

    What gets worse:
        Nothing is proposed.

    Known limits:
        vLLM does not export which free blocks are reusable: the number is the most that can be.

    Sources:
        vLLM v1/core/block_pool.py, get_usage; vllm-project/vllm#5176, #12077; sgl-project/sglang#6778.
    """

    code = "KV033"

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at an engine whose gauge is low and whose cache may be full."""
        shown = case.summary.last
        sheet, usage = shown.sheet, shown.usage_ratio
        when = "" if shown is case.summary.shown else "at the last sample "
        if sheet is None or usage is None or usage > _LOW_USE_RATIO or shown.shape is None:
            return
        cached = sheet.figure("cached")
        if not shown.shape.prefix_caching or cached.high < _MUCH_CACHED_RATIO * sheet.ledger.capacity:
            return
        high = format_bytes(cached.high) if sheet.unit == "bytes" else counted(cached.high, "token")
        yield self.tell(
            case.subject,
            f"{when}the gauge says {share(usage)}, while up to {high} still hold tokens that a later request can "
            "reuse: the gauge counts running requests only",
            amount(cached.low, cached.high, formula="the account `cached`", unit=sheet.unit, cause=cached.cause),
        )

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:
        """Look at what is kept while nothing, or little, runs."""
        snapshot = case.snapshot
        idle = snapshot.running is not None and not snapshot.running.value
        idle = idle and (snapshot.waiting is None or not snapshot.waiting.value)
        for pool in snapshot.pools if idle and snapshot.engine is Engine.SGLANG else ():
            if pool.name != "host" and pool.unit == "tokens" and pool.used is not None and pool.used.low > 0:
                yield self.tell(
                    case.subject,
                    f"{pool.used.value:,} tokens count as used while nothing runs: they belong to requests "
                    "that ended and stay in the radix tree until their slots are needed, which is no leak",
                    amount(
                        pool.used.low, formula="used with nothing running", unit="tokens", accuracy=Accuracy.MEASURED
                    ),
                )
        for sheet in case.sheets:
            held = sheet.figure("held")
            cached = sheet.figure("cached").low
            if cached >= _MUCH_CACHED_RATIO * sheet.ledger.capacity and cached > held.high:
                kept = format_bytes(cached) if sheet.unit == "bytes" else counted(cached, "token")
                yield self.tell(
                    case.subject,
                    f"{kept} are kept for reuse and can be taken, more than the requests that run hold",
                    amount(cached, formula="the account `cached`", unit=sheet.unit, accuracy=Accuracy.MEASURED),
                )
