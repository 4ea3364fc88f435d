"""Every kind of finding, by its code."""

from __future__ import annotations

import re
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

_NUMBERED = re.compile(r"(?:KV)?[\s_-]*(?P<number>[0-9]{1,6})", re.IGNORECASE)
_LETTERS_LIKE_DIGITS = str.maketrans("OIL", "011")

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
    """Return the kind of finding of that code, however it is written: ``KV001``, ``kv-1`` and ``1`` are the same.

    Raises:
        UsageError: There is none.
    """
    rules = {rule.code: rule for rule in RULES}
    numbered = _NUMBERED.fullmatch(code.strip())
    wanted = f"KV{int(numbered['number']):03}" if numbered else code.strip().upper()
    if wanted in rules:
        return rules[wanted]
    raise UsageError(
        f"there is no finding `{code[:40]}`",
        hint=" ".join(filter(None, (_meant(wanted), f"`kvledger explain` lists the {len(rules)} that exist"))),
    )


def _meant(wanted: str) -> str:
    """Say what may have been meant by a code that no finding has."""
    if wanted.startswith("KVE"):
        return "KVE codes are errors, each told with its own hint;"
    codes = [rule.code for rule in RULES]
    if numbered := _NUMBERED.fullmatch(wanted.translate(_LETTERS_LIKE_DIGITS)):
        number = int(numbered["number"])
        below = [one for one in codes if int(one[2:]) <= number][-1:]
        above = [one for one in codes if int(one[2:]) > number][:1]
        near = below if below and int(below[0][2:]) == number else below + above
    else:
        near = get_close_matches(wanted[:20], codes, n=1)
    return f"did you mean {' or '.join(f'`{one}`' for one in near)}?" if near else ""
