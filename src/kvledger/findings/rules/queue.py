"""Requests that wait: because memory is full of tokens, or although it is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.engines.facts import Engine, StartupFacts
from kvledger.findings.evidence import LogCase, MeasureCase, PoolsCase, ReplayCase, wasted_bytes
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.rules.pressure import count_seats, serves_no_slower, time_words
from kvledger.findings.rules.stall import is_stalled
from kvledger.findings.words import share
from kvledger.ledger import Account, Accuracy
from kvledger.measure.verdict import Diagnosis
from kvledger.pool.policy import Kind
from kvledger.units import agree, counted, format_bytes

__all__ = ["LoadFillsMemory", "SeatsNotMemory"]

_FULL_RATIO = 0.8
_HELD_RATIO = 0.9
_LITTLE_WASTE_RATIO = 0.1
_THRASHING_RATIO = 0.1
_FREE_RATIO = 0.3
_SEATS_SPARE = 0.9


class LoadFillsMemory(Rule):
    """The load fills the memory, and paging has nothing more to give.

    What it measures:
        Tokens in use: 80 % of the pool or more while requests wait, with less than a tenth wasted and few
        preemptions.

    Why it costs:
        It does not: this is what block tables are for. What gives more from here is computing less or storing less,
        not another way of managing the memory.

    Example:
        The paper's block tables hold token states in 96.3 % of the memory, where reservations hold 20.4 to 38.2 %.

    What to change:
        Prefix caching, where requests share prefixes; fp8 KV; larger batches of computation; more memory. The first
        two are replayed where the trace and the model allow it.

    What gets worse:
        fp8 rounds keys and values. A prefix cache costs nothing in memory: its blocks are given up when needed.

    Known limits:
        Of a running server the share in use is measured and no change is proved.

    Sources:
        Kwon et al., SOSP 2023, figure 2; the three-minute check of this tool.
    """

    code = "KV011"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at block tables whose memory is full of tokens in use."""
        outcome = case.outcome
        full = outcome.held_up and outcome.utilisation >= _FULL_RATIO
        few = outcome.preemptions < max(1, _THRASHING_RATIO * outcome.finished)
        little = wasted_bytes(outcome) < _LITTLE_WASTE_RATIO * outcome.capacity_bytes
        if case.scenario.policy.kind is not Kind.PAGED or not (full and few and little):
            return
        used = case.bytes_of(Account.USED)
        yield self.tell(
            case.subject,
            f"{share(outcome.utilisation)} of the pool holds tokens in use while requests wait: the load fills the "
            "memory, and its management has nothing more to give",
            amount(used, formula="mean of `used` while requests wait"),
            *self._remedies(case),
        )

    def _remedies(self, case: ReplayCase) -> Iterator[Remedy]:
        small = case.recast(case.scenario, "fp8")
        if small is None or small.pool.bytes_per_token >= case.scenario.pool.bytes_per_token:
            return
        after = case.replay(small)
        if after is None or not serves_no_slower(case.outcome, after):
            return
        saved = 1 - small.pool.bytes_per_token / case.scenario.pool.bytes_per_token
        yield Remedy(
            setting="fp8 KV (`--kv-cache-dtype fp8`)",
            returned=amount(
                saved * case.bytes_of(Account.USED),
                formula="mean of `used`, in the bytes of a token before minus after",
            ),
            trade=Trade.TRADE_OFF,
            proof=f"replayed: {after.mean_running:.1f} requests run at a time instead of "
            f"{case.outcome.mean_running:.1f}{time_words(case.outcome, after)}",
            worse="keys and values are rounded to fp8, which can change answers",
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at a server that is full of tokens."""
        shares = case.summary.shares
        full = shares is not None and shares.used_of_pool[0] >= _FULL_RATIO
        if case.summary.verdict.diagnosis is not Diagnosis.FULL or not full or shares is None or case.shape is None:
            return
        used = case.amount_of(case.shape.capacity_tokens * shares.used_of_pool[0])
        yield self.tell(
            case.subject,
            f"{share(shares.used_of_pool[0])} of the pool holds tokens in use over the busy samples: the load fills "
            "the memory, and its management has nothing more to give",
            amount(used, formula="least mean share in use * the pool", unit=case.unit),
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at periodic lines whose pool is full."""
        load, tokens, startup = case.check.load, case.pool_tokens, case.startup
        if load is None or tokens is None or not load.running or load.held_ratio[0] < _HELD_RATIO:
            return
        if (load.preemptions or 0) >= load.running or load.verdict.diagnosis is not Diagnosis.FULL or is_stalled(case):
            return
        held = load.held_ratio[0] * tokens
        yield self.tell(
            case.subject,
            f"{counted(load.running, 'request')} {agree(load.running, 'holds', 'hold')} {share(load.held_ratio[0])} "
            f"of the pool, about {held / load.running:,.0f} tokens each: the load fills the memory",
            amount(case.amount_of(held), formula="usage * the pool", unit=case.unit, accuracy=Accuracy.MEASURED),
            *_half(case, held, startup),
        )


def _half(case: LogCase, held: float, startup: StartupFacts | None) -> Iterator[Remedy]:
    """Propose fp8 where the log says that keys and values take 16 bits."""
    stored = startup.kv_dtype.value if startup is not None and startup.kv_dtype is not None else ""
    computed = startup.dtype.value if startup is not None and startup.dtype is not None else ""
    wide = computed.removeprefix("torch.") in ("bfloat16", "float16") and stored in ("auto", "bfloat16", "float16")
    if case.log.engine is not Engine.VLLM or not wide:
        return
    yield Remedy(
        setting="--kv-cache-dtype fp8",
        returned=amount(case.amount_of(held / 2), formula="half of what is held: 8 bits for 16", unit=case.unit),
        trade=Trade.TRADE_OFF,
        proof=f"the same tokens take {case.amount_of(held / 2):,.0f} {case.unit} instead of "
        f"{case.amount_of(held):,.0f}: twice as many fit",
        worse="keys and values are rounded to fp8, which can change answers",
    )


class SeatsNotMemory(Rule):
    """Requests wait although memory is free: another limit holds them back.

    What it measures:
        Waiting requests while 30 % of the memory or more is free. In a replay, and in a log that says its limit, as
        many run as max_num_seqs allows.

    Why it costs:
        Memory that was paid for stands empty while users wait.

    Example:
        An SGLang server queues 2,826 requests with 28 % of its pool used: what limits it is the number of running
        requests or a careful admission, not memory.

    What to change:
        vLLM `--max-num-seqs`, SGLang `--max-running-requests` and `--schedule-conservativeness`, llama.cpp
        `--parallel`. The proof replays as many seats as requests of the mean length fit, less a tenth.

    What gets worse:
        More sequences share each step, so each token takes longer; with too many the pool runs full and preempts.

    Known limits:
        A server may also wait for prefill computation (max_num_batched_tokens), for adapters or for transfers; of a
        running server the limit is not told, so no change is proved.

    Sources:
        vLLM 0.32 v1/core/sched/scheduler.py; SGLang srt/managers/scheduler.py.
    """

    code = "KV014"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at a policy that runs as many requests as it may."""
        outcome, seats = case.outcome, case.scenario.settings.max_num_seqs
        free = outcome.headline_ratio[Account.FREE] + outcome.headline_ratio[Account.CACHED]
        limited = outcome.held_up and outcome.saturated_running >= 0.99 * seats
        wanted = int(_SEATS_SPARE * count_seats(case))
        if not limited or free < _FREE_RATIO or wanted <= seats:
            return
        settings = replace(case.scenario.settings, max_num_seqs=wanted)
        after = case.replay(replace(case.scenario, settings=settings))
        if after is None or not serves_no_slower(outcome, after):
            return
        idle = round(free * outcome.capacity_bytes)
        left = after.headline_ratio[Account.FREE] + after.headline_ratio[Account.CACHED]
        yield self.tell(
            case.subject,
            f"{outcome.saturated_running:.0f} requests run, as many as max_num_seqs {seats:,} allows, while "
            f"{format_bytes(idle)} ({share(free)}) stay free and others wait",
            amount(idle, formula="means of `free` and `cached` while requests wait"),
            Remedy(
                setting=f"max_num_seqs {wanted:,} (`--max-num-seqs`)",
                returned=amount(
                    idle - round(left * after.capacity_bytes), formula="free and cached before, minus after: put to use"
                ),
                trade=Trade.TRADE_OFF,
                proof=f"replayed: {after.mean_running:.1f} requests run at a time instead of "
                f"{outcome.mean_running:.1f}{time_words(outcome, after)}",
                worse=f"more sequences share each step; {counted(after.preemptions, 'preemption')}",
            ),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at a server whose requests wait while memory is free."""
        summary = case.summary
        if summary.verdict.diagnosis is not Diagnosis.OTHER_LIMIT or case.shape is None or summary.samples < 2:
            return
        free = case.shape.usable_tokens - case.peak_held_tokens
        yield self.tell(
            case.subject,
            f"{summary.verdict.sentence}",
            amount(case.amount_of(free), formula="usable slots, minus the most held at once", unit=case.unit),
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at periodic lines with waiting requests and free memory."""
        load, tokens = case.check.load, case.pool_tokens
        if load is None or load.lines < 2 or load.verdict.diagnosis is not Diagnosis.OTHER_LIMIT or tokens is None:
            return
        free = (1 - load.held_ratio[1]) * tokens
        figure = amount(case.amount_of(free), formula="the pool, minus the most held at once", unit=case.unit)
        yield self.tell(case.subject, load.verdict.sentence, figure, *_more_seats(case))

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:
        """Look at an engine of one pool whose requests wait while memory is free."""
        pool = case.only
        sheet = pool.last.sheet if pool is not None else None
        if pool is None or sheet is None or not pool.last.running:
            return
        waiting = pool.last.waiting or 0
        crowd = pool.samples == 1 and waiting >= pool.last.running
        if not crowd and (pool.samples == 1 or pool.verdict.diagnosis is not Diagnosis.OTHER_LIMIT):
            return
        if sheet.available < _FREE_RATIO * sheet.ledger.capacity:
            return
        sentence = f"{counted(waiting, 'request')} wait and {pool.last.running:,} run"
        free = share(sheet.available / sheet.ledger.capacity)
        yield self.tell(
            case.subject,
            f"{sentence if crowd else pool.verdict.sentence}; {free} of the memory can be taken: it is not the limit",
            amount(sheet.available, formula="free or cached", unit=sheet.unit, accuracy=Accuracy.MEASURED),
        )


def _more_seats(case: LogCase) -> Iterator[Remedy]:
    """Propose more seats where the log says that all of them are taken."""
    load, startup, tokens = case.check.load, case.startup, case.pool_tokens
    seats = startup.max_running if startup is not None else None
    if load is None or tokens is None or seats is None or load.running < seats.value or not load.held_ratio[1]:
        return
    wanted = int(_SEATS_SPARE * load.running / load.held_ratio[1])
    if wanted <= seats.value:
        return
    used = (wanted / load.running - 1) * load.held_ratio[1] * tokens
    yield Remedy(
        setting=f"--max-num-seqs {wanted:,}",
        returned=amount(
            case.amount_of(used),
            formula="what the further requests would hold, each as much as those running",
            unit=case.unit,
            accuracy=Accuracy.MODELLED,
        ),
        trade=Trade.TRADE_OFF,
        proof=f"{counted(load.running, 'request')}, all that may run, hold {share(load.held_ratio[1])} of the pool: "
        f"{wanted:,} like them hold {share(wanted / load.running * load.held_ratio[1])}",
        worse="more sequences share each step",
    )
