"""One colour for each account, the same wherever accounts are coloured: in HTML and in dashboards.

Chosen so that any two stay apart for readers with protanopia, deuteranopia and tritanopia too (a test recomputes it
with the matrices of Machado, Oliveira and Fernandes, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.ledger import Account

__all__ = ["PALETTE", "Shade"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """The colour of one account as sRGB ``#rrggbb``: on a light ground (``light``) and on a dark one (``dark``)."""

    light: str
    dark: str


PALETTE: dict[Account, Shade] = {
    Account.USED: Shade(light="#274984", dark="#66affe"),
    Account.CACHED: Shade(light="#90b6d1", dark="#226474"),
    Account.RESERVED: Shade(light="#cfa449", dark="#f6b955"),
    Account.INTERNAL: Shade(light="#ab331f", dark="#e7651f"),
    Account.EXTERNAL: Shade(light="#96709f", dark="#b3819a"),
    Account.FREE: Shade(light="#e8e5de", dark="#303338"),
    Account.UNATTRIBUTED: Shade(light="#272625", dark="#eceae5"),
}
"""Every account, in the order in which they are stacked."""
