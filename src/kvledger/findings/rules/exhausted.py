"""Slots that share their cells, and together ask for more than there are."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.engines.facts import Engine, NoticeKind
from kvledger.findings.evidence import LogCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.rules.slots import count_cells, read_slots
from kvledger.ledger import Accuracy
from kvledger.units import counted

__all__ = ["SharedCellsRanOut"]


class SharedCellsRanOut(Rule):
    """Slots share their cells, each may take all of them, and together they ran out.

    What it measures:
        Requests that llama.cpp ended with "Context size has been exceeded" while several slots share one cache: each
        slot is told the whole context, but there is only one.

    Why it costs:
        Nothing is set aside for a running request. When no cell is free all that run are ended, whatever they have
        computed, and the client sees an error of the server.

    Example:
        `--ctx-size 131072` without `--parallel` makes 4 slots that share 131,072 cells and are told 131,072 tokens
        each. Four long conversations end each other.

    What to change:
        `--parallel` given by itself: every slot owns its part of the same cells. Or a `--ctx-size` that holds what all
        slots may reach. Newer builds also limit each slot of a shared cache with `--kv-unified-per-slot`.

    What gets worse:
        A request can no longer be as long as the whole context; or the cache takes as many times the memory.

    Known limits:
        The log does not say how long the requests were: fewer cells may do.

    Sources:
        llama.cpp tools/server/server-context.cpp; ggml-org/llama.cpp#23652, #24124, lemonade-sdk/lemonade#3276.
    """

    code = "KV017"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Count the requests that were ended."""
        startup = case.startup
        found = None if startup is None else read_slots(startup)
        if startup is None or found is None or case.log.engine is not Engine.LLAMACPP:
            return
        slots, reach = found
        ended = sum(notice.kind is NoticeKind.POOL_EXHAUSTED for notice in startup.notices)
        split = startup.unified is not None and not startup.unified.value
        if not ended or slots < 2 or split:
            return
        total = count_cells(startup, next(iter(startup.find_pools("kv")), None)) or reach
        if reach * slots <= total:
            return
        missing = amount(
            case.amount_of(reach * slots - total),
            formula="what all slots may reach, minus the cells they share",
            unit=case.unit,
            accuracy=Accuracy.DERIVED,
        )
        nothing = amount(0, formula="none: the same cells, cut into strips", unit=case.unit)
        yield self.tell(
            case.subject,
            f"requests were ended {counted(ended, 'time')} because no cell was free: {counted(slots, 'slot')} may "
            f"reach {reach:,} tokens each, and share {total:,}",
            missing,
            Remedy(
                setting=f"--parallel {slots} (given by itself, without --kv-unified)",
                returned=nothing,
                trade=Trade.TRADE_OFF,
                proof=f"each slot owns {total // slots:,} of the {total:,} cells, which no other can take",
                worse=f"no request is longer than {counted(total // slots, 'token')}",
                gain="requests that end by themselves",
            ),
            Remedy(
                setting=f"--ctx-size {reach * slots}",
                returned=nothing,
                trade=Trade.TRADE_OFF,
                proof=f"{reach:,} tokens for each of {slots} slots are {reach * slots:,} cells",
                worse=f"{reach * slots / total:.3g} times the memory of the cache",
                gain="requests that end by themselves",
            ),
        )
