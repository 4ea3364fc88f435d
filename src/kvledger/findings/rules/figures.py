"""Figures that engines print and people read as something else."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.engines.facts import Engine
from kvledger.findings.evidence import LogCase, MeasureCase
from kvledger.findings.finding import Finding, amount
from kvledger.findings.rule import Rule
from kvledger.ledger import Accuracy
from kvledger.measure.figure import Span
from kvledger.measure.offsets import read_differences
from kvledger.units import agree, counted, format_bytes

__all__ = ["ConcurrencyIsWorstCase", "LostToDisconnects", "PerRank", "TokensAreNoCapacity"]

_SAME_RATIO = 0.01


class TokensAreNoCapacity(Rule):
    """The token count that is printed at start-up is not blocks times block size.

    What it measures:
        vLLM's `KV cache size: N tokens` against the concurrency beside it, or against blocks and block size.

    Why it costs:
        Nothing, but people divide it: it is a capacity at max_model_len (0.20.1 and newer) or the blocks divided by the
        number of groups (0.20.0 and older, hybrid models), and it moves with settings that move no memory.

    Example:
        290,864 tokens and a concurrency of 33.04 at 32,768 tokens stand in one log: 290,864 / 32,768 is 8.9. The
        concurrency is right; the token line divided the blocks by 4 groups.

    What to change:
        Nothing. Compare blocks, and the blocks that one request takes.

    What gets worse:
        Nothing is proposed.

    Known limits:
        The concurrency counts the null block.

    Sources:
        vLLM v1/core/kv_cache_utils.py 0.9 to 0.33; vllm-project/vllm#40691, #54662.
    """

    code = "KV060"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Compare the token line with the concurrency line."""
        check = case.check
        known = check.tokens_source.startswith("as printed")
        if check.engine is not Engine.VLLM or not known or check.tokens is None or check.concurrency is None:
            return
        if check.max_model_len is None or not check.max_model_len.value:
            return
        served = Span(
            int(check.concurrency.low * check.max_model_len.value),
            int(-(-check.concurrency.high * check.max_model_len.value // 1)),
        )
        tokens = int(check.tokens.value)
        if served.low * (1 - _SAME_RATIO) <= tokens <= served.high * (1 + _SAME_RATIO):
            return
        gap = abs(served.low - tokens), abs(served.high - tokens)
        yield self.tell(
            case.subject,
            f"{counted(tokens, 'token')} are printed, and a concurrency of {check.concurrency.value:g} at "
            f"{check.max_model_len.value:,} tokens, which is {served.low:,}: two rules in one log. The "
            "concurrency is the right one; the token line divides the blocks by the groups of layers",
            amount(
                min(gap), max(gap), formula="concurrency * longest request, minus the printed tokens", unit="tokens"
            ),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Compare the tokens that the engine tells with its blocks."""
        shape, engine = case.shape, case.engine
        tokens = engine.count_config("kv_cache_size_tokens") if engine is not None else None
        if shape is None or tokens is None:
            return
        slots = shape.blocks * shape.block_tokens
        if abs(tokens - slots) <= _SAME_RATIO * slots:
            return
        per_request = ""
        if shape.max_model_len is not None and tokens:
            needed = shape.blocks * shape.max_model_len / tokens
            per_request = f"; a request of {counted(shape.max_model_len, 'token')} takes {needed:,.0f} of them"
        yield self.tell(
            case.subject,
            f"the engine says {tokens:,} tokens and has {shape.blocks:,} blocks of {shape.block_tokens:,}"
            f"{per_request}: the first is its concurrency times max_model_len, no number of slots",
            amount(abs(slots - tokens), formula="blocks * block size, minus the tokens told", unit="tokens"),
        )


class ConcurrencyIsWorstCase(Rule):
    """More requests run than the printed maximum concurrency, which is a worst case.

    What it measures:
        Requests running against `Maximum concurrency for L tokens per request`.

    Why it costs:
        Nothing, but it is read as a limit. It assumes that every request is as long as max_model_len and shares
        nothing. Blocks are taken as tokens appear, neither for max_model_len nor for max_tokens.

    Example:
        9.19 is printed for 8,192 tokens, and 31 requests run with 45 % of the pool held: real requests are shorter.

    What to change:
        Nothing. What limits is the pool over the tokens that requests really have, up to max_num_seqs.

    What gets worse:
        Nothing is proposed.

    Known limits:
        Whether more would fit depends on lengths that are still to come.

    Sources:
        vLLM v1/core/kv_cache_utils.py, get_max_concurrency; vllm-project/vllm#27017.
    """

    code = "KV061"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Compare the most that ran with the printed concurrency."""
        printed, tokens, longest = case.check.concurrency, case.pool_tokens, case.check.max_model_len
        running = [int(s.running.value) for s in case.samples if s.running is not None and s.usage_ratio is not None]
        load = case.check.load
        if printed is None or tokens is None or longest is None or not running or load is None or not load.running:
            return
        if max(running) <= printed.high:
            return
        mean = load.held_ratio[1] * printed.value * longest.value / load.running
        spared = (longest.value - mean) * load.running
        yield self.tell(
            case.subject,
            f"{counted(max(running), 'request')} {agree(max(running), 'runs', 'run')}, though a concurrency of "
            f"{printed.value:g} is printed for "
            f"{longest.value:,} tokens each: those at the busiest line hold about {mean:,.0f} tokens each, "
            "of blocks taken as tokens came",
            amount(
                case.amount_of(spared),
                formula="what the running requests would hold at the longest length, minus what they hold",
                unit=case.unit,
                accuracy=Accuracy.DERIVED,
            ),
        )


class LostToDisconnects(Rule):
    """Clients that disconnected left tokens in the counters that nobody holds.

    What it measures:
        Tokens that entered the counters of vLLM and were never counted at an end, less those that are alive.

    Why it costs:
        Nothing in memory: the blocks were freed. But whoever subtracts counters to learn what is inside counts them
        for ever, more with every disconnect.

    Example:
        36 aborted requests left 1,155 prompt and 460 generated tokens in the difference.

    What to change:
        Nothing. The ledger anchors itself whenever the engine is idle, and bounds the rest.

    What gets worse:
        Nothing is proposed.

    Known limits:
        On a server that is never idle the number is an interval.

    Sources:
        vLLM v1/metrics/loggers.py (histograms are observed at the end of a request); tried on 0.32.
    """

    code = "KV062"

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Subtract what is alive from what the counters hold."""
        balance = case.summary.last.balance
        differences = read_differences(case.engine) if case.engine is not None else None
        if balance is None or balance.live is None or differences is None:
            return
        lost = Span.exact(differences.tokens) - balance.live
        if lost.low <= 0:
            return
        yield self.tell(
            case.subject,
            f"{_interval(lost)} tokens of clients that disconnected are still in the counters, and in no block",
            amount(
                case.amount_of(lost.low),
                case.amount_of(lost.high),
                formula="tokens entered minus tokens of ended requests minus live tokens",
                unit=case.unit,
            ),
        )


def _interval(tokens: Span) -> str:
    return f"{tokens.low:,}" if tokens.is_exact else f"{tokens.low:,} to {tokens.high:,}"


class PerRank(Rule):
    """What a log prints about the cache is of one rank; every rank has its own.

    What it measures:
        Start-up lines of an engine with several tensor-parallel or pipeline ranks.

    Why it costs:
        Nothing, but cards are added up and found half empty, or the cache is looked for on the first card only.

    Example:
        `# GPU blocks: 507` with two ranks: both cards hold 507 blocks, each of them half of every token. 8.69 GiB for
        the cache on each of two cards of 24 GB is not what is left of 48.

    What to change:
        Nothing. Tensor parallelism splits every token over all its ranks, pipeline parallelism the layers.

    What gets worse:
        Nothing is proposed.

    Known limits:
        Data-parallel engines print their own lines and have pools of their own.

    Sources:
        vLLM v1/core/kv_cache_utils.py; vllm-project/vllm#5248, #13061.
    """

    code = "KV063"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at the ranks of an engine that printed a pool."""
        startup, check = case.startup, case.check
        if startup is None:
            return
        tp = int(startup.tp.value) if startup.tp is not None else 1
        pp = int(startup.pp.value) if startup.pp is not None else 1
        ranks = tp * pp
        if ranks < 2 or not 0 < ranks <= 2**16:
            return
        how = "half" if tp == 2 else f"one of {counted(tp, 'part')}"
        split = f"{how} of every token" if pp == 1 else "its part of every token"
        if check.size_bytes is not None:
            size = check.size_bytes
            yield self.tell(
                case.subject,
                f"{format_bytes(size.value)} are of one rank: {counted(ranks, 'rank')} have as much each, and each "
                f"holds {split}",
                amount(size.low * ranks, size.high * ranks, formula="bytes of a rank * ranks"),
            )
        elif check.blocks is not None or check.tokens is not None:
            what = check.blocks if check.blocks is not None else check.tokens
            assert what is not None
            name = "block" if check.blocks is not None else "token"
            slots = int(check.tokens.value) if check.tokens is not None else int(what.value)
            yield self.tell(
                case.subject,
                f"each of {counted(ranks, 'rank')} has its own cache of the same {counted(int(what.value), name)} "
                f"and holds {split}; the log prints it once",
                amount(slots, formula="slots of the pool, split over the ranks", unit="tokens"),
            )
