"""The colours of the accounts as CSS, made from the one palette."""

from __future__ import annotations

from kvledger.report.palette import PALETTE

__all__ = ["account_style"]


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
