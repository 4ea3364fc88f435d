"""The lines of `watch` with the accounts on the ground of their colour; the letters stay, for those who see none."""

from __future__ import annotations

import re

from rich.text import Text

from kvledger.ledger import Account
from kvledger.report.chips import account_style
from kvledger.report.tables import printable

__all__ = ["paint_line"]

_LETTERS = {
    "u": Account.USED,
    "c": Account.CACHED,
    "r": Account.RESERVED,
    "i": Account.INTERNAL,
    ".": Account.FREE,
    "?": Account.UNATTRIBUTED,
}
_STRIP = re.compile(r"\[([ucri?.]{10,})\]")
_LEGEND = re.compile(r"(?:^|   )([ucri?.]) (?=used|cached|reserved|internal|held|not told|free)")
_ROW = re.compile(rf"({'|'.join(Account)}) {{2,}}\S")


def paint_line(line: str) -> Text:
    """Return a line as text with styles: the cells of a strip, the letters of its legend, the name of a row."""
    text = Text(printable(line))
    if strip := _STRIP.fullmatch(line):
        for cells in re.finditer(r"(.)\1*", strip[1]):
            text.stylize(account_style(_LETTERS[cells[1]]), 1 + cells.start(), 1 + cells.end())
    elif row := _ROW.match(line):
        text.stylize(account_style(Account(row[1])), 0, row.end(1))
    else:
        for entry in _LEGEND.finditer(line):
            text.stylize(account_style(_LETTERS[entry[1]]), entry.start(1), entry.end(1))
    return text
