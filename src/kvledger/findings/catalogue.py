"""Every kind of finding, by its code."""

from __future__ import annotations

from difflib import get_close_matches

from kvledger.errors import UsageError
from kvledger.findings.rule import Rule
from kvledger.findings.rules.blocks import BlockTooLarge
from kvledger.findings.rules.oversize import PoolLargerThanLoad
from kvledger.findings.rules.pressure import PoolFullAndPreempting
from kvledger.findings.rules.reservation import RefusedWhileFree, ReservationDominates

__all__ = ["RULES", "find_rule"]

RULES: tuple[Rule, ...] = (
    ReservationDominates(),
    RefusedWhileFree(),
    BlockTooLarge(),
    PoolFullAndPreempting(),
    PoolLargerThanLoad(),
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
        meant = f"did you mean `{near[0]}`? " if near else ""
        raise UsageError(
            f"there is no finding `{code[:40]}`", hint=f"{meant}`kvledger explain` lists the {len(codes)} that exist"
        )
    return codes[wanted]
