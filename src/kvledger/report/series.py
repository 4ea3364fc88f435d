"""Every step of a replay as CSV."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv

from kvledger.ledger import Account
from kvledger.replay.outcome import SeriesRows

__all__ = ["SERIES_COLUMNS", "SeriesFile"]

_SHOWN = (Account.USED, Account.CACHED, Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.FREE)
_COUNTS = ("step", "running", "waiting", "preemptions", "used_blocks")
SERIES_COLUMNS = ("step", "time_seconds", "running", "waiting", "preemptions", "used_blocks", *(str(a) for a in _SHOWN))
_SCHEMA = pa.schema([(name, pa.float64() if name == "time_seconds" else pa.int64()) for name in SERIES_COLUMNS])


class SeriesFile:
    """A CSV file of steps: counts, then accounts in bytes. ``time_seconds`` is the start of the step.

    ``preemptions`` counts from the beginning; ``used_blocks`` is 0 for contiguous policies.
    """

    def __init__(self, stream: BinaryIO) -> None:
        stream.write((",".join(SERIES_COLUMNS) + "\n").encode())
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
        self._writer = pyarrow.csv.CSVWriter(stream, _SCHEMA, write_options=options)

    def write(self, rows: SeriesRows) -> None:
        """Append consecutive steps."""
        order = list(Account)
        columns = {name: getattr(rows, name) for name in _COUNTS}
        columns["time_seconds"] = rows.time_seconds
        columns |= {str(account): rows.accounts[:, order.index(account)] for account in _SHOWN}
        self._writer.write_table(pa.table([pa.array(columns[name]) for name in SERIES_COLUMNS], schema=_SCHEMA))

    def close(self) -> None:
        """Finish the file; the stream stays open."""
        self._writer.close()
