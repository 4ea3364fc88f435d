"""One reader a format."""

from kvledger.traces.formats.tables import GUESSED
from kvledger.traces.formats.tables import READERS as _TABLES
from kvledger.traces.registry import Reader

__all__ = ["ALL"]

ALL: tuple[Reader, ...] = (*_TABLES, GUESSED)
"""Every reader, in the order in which they are tried."""
