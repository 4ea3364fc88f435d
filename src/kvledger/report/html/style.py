"""The colours of the accounts as CSS, made from the one palette."""

from __future__ import annotations

from kvledger.ledger import Account
from kvledger.report.html.markup import Markup, element
from kvledger.report.palette import PALETTE

__all__ = ["account_style", "hatches"]

_STEP = 5


def hatches() -> Markup:
    """Return the patterns of the accounts that are hatched: memory nobody can take, and what nobody can explain."""
    patterns = [
        element(
            "pattern",
            element("rect", width=_STEP, height=_STEP, class_="s-free"),
            element("rect", width=line, height=_STEP, fill=f"var(--{account})"),
            id=f"hatch-{account}",
            width=_STEP,
            height=_STEP,
            patternUnits="userSpaceOnUse",
            patternTransform=f"rotate({angle})",
        )
        for account, angle, line in ((Account.EXTERNAL, 45, 2), (Account.UNATTRIBUTED, -45, 1))
    ]
    return element("svg", element("defs", *patterns), class_="hatches", aria_hidden="true")


def account_style() -> str:
    """Return custom properties for both grounds, and a class for each account."""
    light = "".join(f"--{account}:{shade.light};" for account, shade in PALETTE.items())
    dark = "".join(f"--{account}:{shade.dark};" for account, shade in PALETTE.items())
    classes = "".join(f".s-{a}{{fill:var(--{a});background-color:var(--{a})}}" for a in PALETTE)
    return (
        f":root{{{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}"
        f"{classes}"
    )
