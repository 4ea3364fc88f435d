"""The names of accounts on a terminal: on the ground of their colour, which is that of the page and the dashboards.

A terminal that has millions of colours, or 256, gets those of `PALETTE`; one of 16 gets the nearest names. Without
colour the names alone are printed, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text
from rich.theme import Theme

from kvledger.ledger import Account
from kvledger.report.palette import PALETTE

__all__ = ["account_chip", "account_style", "paint_accounts"]

_SIXTEEN: Mapping[Account, str] = {
    Account.USED: "white on blue",
    Account.CACHED: "black on cyan",
    Account.RESERVED: "black on yellow",
    Account.INTERNAL: "white on red",
    Account.EXTERNAL: "white on magenta",
    Account.FREE: "white on bright_black",
    Account.UNATTRIBUTED: "black on white",
}
_LIGHT_GROUNDS = ("7", "15")
_DARKEST_GROUND = 0.18
"""Relative luminance from which black is read better than white (WCAG 2.2, where both contrasts are equal)."""


def account_style(account: Account) -> str:
    """Return the name of the style of an account, which `paint_accounts` defines."""
    return f"account.{account}"


def account_chip(account: Account, text: str = "") -> Text:
    """Return the name of an account, or another text that stands for it, on the ground of its colour."""
    return Text(text or str(account), style=account_style(account))


def paint_accounts(console: Console, environment: Mapping[str, str]) -> None:
    """Define the styles of all accounts for what a console can show."""
    if console.color_system == "standard":
        styles = dict(_SIXTEEN)
    else:
        # Terminals that tell their ground do it here, as `foreground;background` of the 16 colours.
        is_light = environment.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_GROUNDS
        colours = {account: shade.light if is_light else shade.dark for account, shade in PALETTE.items()}
        styles = {account: f"{_ink(colour)} on {colour}" for account, colour in colours.items()}
    console.push_theme(Theme({account_style(account): style for account, style in styles.items()}))


def _ink(ground: str) -> str:
    """Return black or white, whichever is read better on a colour.

    >>> _ink("#274984"), _ink("#f6b955")
    ('#ffffff', '#000000')
    """
    channels = [int(ground[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > _DARKEST_GROUND else "#ffffff"
