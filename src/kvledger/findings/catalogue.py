"""Every kind of finding, by its code."""

from __future__ import annotations

from difflib import get_close_matches

from kvledger.errors import UsageError
from kvledger.findings.rule import Rule
from kvledger.findings.rules.asked import LoadDoesNotFit
from kvledger.findings.rules.blocks import BlockTooLarge, GrainAboveHalf
from kvledger.findings.rules.context import CacheRefused, WindowForgets
from kvledger.findings.rules.copies import LatentReplicated, MoreRanksThanHeads
from kvledger.findings.rules.device import AllocatorHoles, HeldByOthers, RefusedBeforePool
from kvledger.findings.rules.exhausted import SharedCellsRanOut
from kvledger.findings.rules.figures import ConcurrencyIsWorstCase, LostToDisconnects, PerRank, TokensAreNoCapacity
from kvledger.findings.rules.growing import GrowsByCopying, PaddedBatch
from kvledger.findings.rules.heads import EveryHeadCached, LatentExpanded
from kvledger.findings.rules.hybrid import FixedCostRules, HybridManagerOff, PaddedPages, WideBlock
from kvledger.findings.rules.lengths import LongerThanTraffic
from kvledger.findings.rules.oversize import PoolLargerThanLoad
from kvledger.findings.rules.pools import PoolsOutOfBalance
from kvledger.findings.rules.prefix import CacheIsNotUse, NothingShared, SharedButOff
from kvledger.findings.rules.pressure import PoolFullAndPreempting
from kvledger.findings.rules.promises import PromisedNotGenerated
from kvledger.findings.rules.queue import LoadFillsMemory, SeatsNotMemory
from kvledger.findings.rules.reservation import RefusedWhileFree, ReservationDominates
from kvledger.findings.rules.slots import ContextSplit, ParallelContexts
from kvledger.findings.rules.stall import SchedulerStalls
from kvledger.findings.rules.startup import ProfileRunGrew, ShareOfFree, UnevenRanks
from kvledger.findings.rules.too_large import LargerThanPool
from kvledger.findings.rules.too_long import RefusedByLength

__all__ = ["RULES", "find_rule"]

RULES: tuple[Rule, ...] = (
    ReservationDominates(),
    PromisedNotGenerated(),
    RefusedWhileFree(),
    BlockTooLarge(),
    GrainAboveHalf(),
    GrowsByCopying(),
    PaddedBatch(),
    PoolFullAndPreempting(),
    LoadFillsMemory(),
    LargerThanPool(),
    SchedulerStalls(),
    SeatsNotMemory(),
    RefusedByLength(),
    LoadDoesNotFit(),
    SharedCellsRanOut(),
    CacheRefused(),
    PoolLargerThanLoad(),
    LongerThanTraffic(),
    ShareOfFree(),
    ProfileRunGrew(),
    SharedButOff(),
    NothingShared(),
    WideBlock(),
    CacheIsNotUse(),
    WindowForgets(),
    FixedCostRules(),
    PaddedPages(),
    MoreRanksThanHeads(),
    LatentReplicated(),
    HybridManagerOff(),
    UnevenRanks(),
    EveryHeadCached(),
    LatentExpanded(),
    ContextSplit(),
    ParallelContexts(),
    PoolsOutOfBalance(),
    TokensAreNoCapacity(),
    ConcurrencyIsWorstCase(),
    LostToDisconnects(),
    PerRank(),
    AllocatorHoles(),
    HeldByOthers(),
    RefusedBeforePool(),
)
"""In the order of their codes."""


def find_rule(code: str) -> Rule:
    """Return the kind of finding of that code, however it is written.

    Raises:
        UsageError: There is none.
    """
    wanted = code.strip().upper()
    codes = {rule.code: rule for rule in RULES}
    if wanted not in codes:
        near = get_close_matches(wanted[:20], codes, n=1)
        meant = f"did you mean `{near[0]}`?" if near else ""
        what = "KVE codes are errors, each with its own hint:" if wanted.startswith("KVE") else meant
        raise UsageError(
            f"there is no finding `{code[:40]}`",
            hint=" ".join(filter(None, (what, f"`kvledger explain` lists the {len(codes)} that exist"))),
        )
    return codes[wanted]
