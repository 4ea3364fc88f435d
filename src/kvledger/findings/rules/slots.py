"""Servers with a fixed number of slots: llama.cpp and Ollama."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.engines.facts import Engine, PoolFacts, StartupFacts
from kvledger.engines.plan import Plan
from kvledger.findings.evidence import LogCase, PoolsCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.ledger import Accuracy
from kvledger.measure.figure import Figure
from kvledger.units import counted, format_bytes

__all__ = ["ContextSplit", "ParallelContexts", "count_cells", "read_slots"]

_NO_FIGURE = "none: the same cells, shared"
_WAITS = "a long request takes cells that the other slots then lack"


class ContextSplit(Rule):
    """The context of llama.cpp is cut into strips, one for each slot.

    What it measures:
        Slots that own a strip of the cells each: `n_ctx_slot` is what one request can reach, `--ctx-size` what all
        slots hold together.

    Why it costs:
        A strip is memory of its slot, whether it runs a request or not. A request longer than a strip fails while
        the others stand empty.

    Example:
        `--ctx-size 163840 --parallel 6` gives each request 27,306 tokens and no more. An explicit `--parallel` also
        turns off the unified cache that the automatic number of slots comes with.

    What to change:
        `--kv-unified` beside `--parallel`: all slots share all cells. Or for X tokens in each of N slots ask for
        `--ctx-size` X * N. The proof plans the first at the load that was asked for.

    What gets worse:
        A long request takes cells that the other slots then lack.

    Known limits:
        In builds around b7079 four automatic slots replaced one for a while, whatever `-np` said: the lines about
        slots in the log are the truth, not the command line.

    Sources:
        llama.cpp tools/server and src/llama-context.cpp; ggml-org/llama.cpp#11681, #17300.
    """

    code = "KV048"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Plan the same slots over shared cells."""
        plan, length = case.plan, case.length_tokens
        strips = [claim.reserve_tokens for claim in plan.claims if claim.reserve_tokens is not None]
        slots = plan.request_limit
        if plan.deployment.engine != "llama.cpp" or not strips or slots is None or slots < 2:
            return
        strip, longest = max(strips), plan.length_limit_tokens or max(strips)
        held = plan.count_request_bytes(length)
        cells = max(strip, slots * length)
        shared = case.replan(max_model_len=None, options={"kv_unified": "true", "ctx_size": str(cells)})
        after = None if shared is None else _pool_bytes(shared)
        remedies = []
        if after is not None and shared is not None and shared.failure is None and after < held * slots:
            remedies.append(
                Remedy(
                    setting=f"--kv-unified --ctx-size {cells}",
                    returned=amount(held * slots - after, formula="cells of all strips, minus cells that are shared"),
                    trade=Trade.TRADE_OFF,
                    proof=f"planned: {cells:,} shared cells hold {counted(slots, 'request')} of {length:,} tokens, or "
                    f"one of {strip:,}",
                    worse=_WAITS,
                )
            )
        yield self.tell(
            case.subject,
            f"{counted(slots * strip, 'cell')} are cut into {counted(slots, 'strip')}: no request reaches more than "
            f"{longest:,}, and one of {counted(length, 'token')} holds {format_bytes(held)}",
            amount(held * (slots - 1), formula="the strips of the other slots, which a request cannot reach"),
            *remedies,
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at the lines about slots."""
        startup = case.startup
        found = read_slots(startup) if startup is not None else None
        if startup is None or found is None or case.log.engine is not Engine.LLAMACPP:
            return
        slots, strip = found
        pool = next(iter(startup.find_pools("kv")), None)
        total = count_cells(startup, pool)
        if slots < 2 or (startup.unified is not None and startup.unified.value) or total is None or total <= strip:
            return
        yield self.tell(
            case.subject,
            f"{counted(slots, 'slot')} own {counted(strip, 'token')} each: no request can be longer, though "
            f"{total:,} are there together",
            _strips(pool, total, slots - 1, slots),
            _reach_further(startup, pool, total, slots),
        )

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:
        """Look at what the strips of busy slots hold and do not use."""
        sheet = next(iter(case.sheets), None)
        if case.snapshot.engine is not Engine.LLAMACPP or sheet is None or not sheet.ledger.reserved:
            return
        reserved, slots = sheet.ledger.reserved, len(case.snapshot.slots)
        if slots < 2:
            return
        figure = amount(reserved, formula="strips of busy slots, minus their tokens", unit=sheet.unit)
        own = format_bytes(reserved) if sheet.unit == "bytes" else f"{reserved:,} {sheet.unit}"
        yield self.tell(
            case.subject,
            f"busy slots own {own} that their requests do not use: each of {counted(slots, 'slot')} has a strip "
            "of its own",
            figure,
            Remedy(
                setting="--kv-unified",
                returned=figure,
                trade=Trade.TRADE_OFF,
                proof="shared cells are taken as tokens come: the busy slots would hold their tokens and no more",
                worse=_WAITS,
            ),
        )


class ParallelContexts(Rule):
    """Ollama reserves the whole context for every parallel request when the model is loaded.

    What it measures:
        `num_ctx` times `OLLAMA_NUM_PARALLEL` tokens of cache, allocated at once.

    Why it costs:
        Parallel requests that never come, and contexts that are never filled, are paid for as long as the model is
        loaded.

    Example:
        num_ctx 4,096 and OLLAMA_NUM_PARALLEL 4 reserve 16,384 tokens. For gpt-oss-20b at 131,072 tokens a further
        parallel request costs 3 GiB of cache or a little more; what grows beyond that is the compute graph.

    What to change:
        `OLLAMA_NUM_PARALLEL` to the requests that really come together, `num_ctx` (`OLLAMA_CONTEXT_LENGTH`) to the
        longest conversation, `OLLAMA_KV_CACHE_TYPE q8_0`. Each is planned alone.

    What gets worse:
        Further requests wait. Longer conversations are cut. q8_0 rounds keys and values.

    Known limits:
        Unset, older releases chose 4 or 1 by the memory there was. The compute graph grows with both numbers, too, and
        is not part of the cache.

    Sources:
        Ollama llm/llama_server.go (2026-08-21); ollama/ollama#9246, #12097.
    """

    code = "KV049"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Plan fewer parallel requests, a shorter context and a narrower cache."""
        plan, options = case.plan, case.plan.deployment.options
        if plan.deployment.engine != "ollama":
            return
        parallel, context = int(options["num_parallel"]), int(options["num_ctx"])
        before = _pool_bytes(plan)
        remedies = []
        for setting, changed, worse in _ollama_changes(case, parallel, context):
            after = _pool_bytes(changed)
            if after < before:
                remedies.append(
                    Remedy(
                        setting=setting,
                        returned=amount(before - after, formula="the cache before, minus after"),
                        trade=Trade.TRADE_OFF,
                        proof=f"planned: {format_bytes(after)} of cache instead of {format_bytes(before)}",
                        worse=worse,
                    )
                )
        if parallel < 2 and not remedies:
            return
        yield self.tell(
            case.subject,
            f"{parallel} x {context:,} tokens of context are reserved when the model is loaded: {format_bytes(before)}",
            amount(before, formula="cells of all contexts"),
            *remedies,
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at the context and the slots that Ollama starts with."""
        startup = case.startup
        found = read_slots(startup) if startup is not None else None
        if startup is None or found is None or case.log.engine is not Engine.OLLAMA or found[0] < 2:
            return
        slots, context = found
        pool = next(iter(startup.find_pools("kv")), None)
        spare = _strips(pool, slots * context, slots - 1, slots)
        yield self.tell(
            case.subject,
            f"{slots} x {context:,} = {counted(slots * context, 'token')} of context are reserved when the model is "
            "loaded",
            _strips(pool, slots * context, slots, slots),
            Remedy(
                setting="OLLAMA_NUM_PARALLEL=1",
                returned=spare,
                trade=Trade.TRADE_OFF,
                proof=f"{counted(context, 'token')} of context instead of {slots * context:,}",
                worse="one request at a time, the others wait",
            ),
        )


def read_slots(startup: StartupFacts) -> tuple[int, int] | None:
    """Return the slots, and the tokens that one of them can reach."""
    slots, length = startup.max_running, startup.max_model_len
    return None if slots is None or length is None else (int(slots.value), int(length.value))


def count_cells(startup: StartupFacts, pool: PoolFacts | None) -> int | None:
    """Return the cells of all slots together: as set, else as allocated."""
    text = startup.options.get("n_ctx", "")
    if text.isascii() and text.isdigit() and len(text) < 13:
        return int(text)
    if pool is not None and pool.cells is not None and pool.streams is not None:
        return int(pool.cells.value * pool.streams.value)
    found = read_slots(startup)
    split = startup.unified is not None and not startup.unified.value
    return found[0] * found[1] if found is not None and split else None


def _reach_further(startup: StartupFacts, pool: PoolFacts | None, total: int, slots: int) -> Remedy:
    """Propose shared cells where the build has them, else more cells."""
    nothing = amount(0, formula=_NO_FIGURE, unit="bytes" if _has_bytes(pool) else "tokens")
    if startup.unified is not None:
        return Remedy(
            setting="--kv-unified",
            returned=nothing,
            trade=Trade.TRADE_OFF,
            proof=f"every slot can reach all {counted(total, 'token')}, with no memory more; split, that takes "
            f"--ctx-size {total * slots}",
            worse=_WAITS,
            gain="longer requests",
        )
    return Remedy(
        setting=f"--ctx-size {total * slots}",
        returned=nothing,
        trade=Trade.TRADE_OFF,
        proof=f"{counted(total, 'token')} for each of {counted(slots, 'slot')} are {counted(total * slots, 'cell')}",
        worse=f"{counted(slots, 'time')} the memory of the cache",
        gain="longer requests",
    )


def _has_bytes(pool: PoolFacts | None) -> bool:
    return pool is not None and pool.size_bytes is not None


def _strips(pool: PoolFacts | None, tokens: int, part: int, whole: int) -> Figure:
    """Return a part of the strips: in bytes where the log tells them, else in tokens."""
    if pool is not None and pool.size_bytes is not None:
        low, high = pool.size_bytes.low * part / whole, pool.size_bytes.high * part / whole
        return amount(low, high, formula="size of the cache * strips / slots", accuracy=Accuracy.DERIVED)
    return amount(tokens * part / whole, formula="tokens of the strips", unit="tokens", accuracy=Accuracy.DERIVED)


def _ollama_changes(case: SizeCase, parallel: int, context: int) -> Iterator[tuple[str, Plan, str]]:
    given = case.outcome.question.deployment
    asked = case.outcome.question.length_tokens
    plans: list[tuple[str, Plan | None, str]] = []
    if parallel > 1:
        one = {"num_parallel": "1"} if given.max_num_seqs is None else {}
        changed = case.replan(options=one, max_num_seqs=None if one else 1)
        plans.append(("OLLAMA_NUM_PARALLEL=1", changed, "one request at a time, the others wait"))
    if asked is not None and asked < context:
        short = {"num_ctx": str(asked)} if given.max_model_len is None else {}
        changed = case.replan(options=short, max_model_len=None if short else asked)
        plans.append((f"num_ctx {asked:,}", changed, "longer conversations are cut"))
    if given.options.get("kv_cache_type", "f16") == "f16" and given.kv_dtype == "auto":
        changed = case.replan(options={"kv_cache_type": "q8_0"})
        plans.append(("OLLAMA_KV_CACHE_TYPE=q8_0", changed, "keys and values are rounded to q8_0"))
    yield from ((setting, plan, worse) for setting, plan, worse in plans if plan is not None)


def _pool_bytes(plan: Plan) -> int:
    return sum(rank.count * pool.units * rank.unit_bytes[pool.name] for rank in plan.ranks for pool in plan.pools)
