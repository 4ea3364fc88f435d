"""What is sent to a worker for one cell, what comes back, and what identifies a cell between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from kvledger.errors import CapacityError, ModelError, UsageError
from kvledger.sweep.columns import Cell
from kvledger.sweep.grid import Values

__all__ = ["Job", "JobResult", "failed", "key_of"]

_FINAL = (None, UsageError.code, ModelError.code, CapacityError.code)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: its settings, the folder in which they look for files, and the version that may run it.

    ``inputs``: digests of these files; another digest is another file of that name.
    """

    key: str
    version: str
    inputs: tuple[str, ...]
    folder: str
    values: Values


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one cell; a row with an error has nothing else."""

    key: str
    rows: list[dict[str, Cell]]

    @property
    def is_final(self) -> bool:
        """Whether doing the cell again would give the same: each row has a result, or settings that cannot have one."""
        return all(row.get("error_code") in _FINAL for row in self.rows)

    @property
    def has_errors(self) -> bool:
        """Whether a row has no result."""
        return any(row.get("error_code") is not None for row in self.rows)


def key_of(values: Values, *, inputs: Mapping[str, str], version: str) -> str:
    """Return what identifies a cell: equal keys mean equal settings, equal bytes of all inputs, and the same version.

    Args:
        values: The settings as the grid says them.
        inputs: Digests by name of the files that the settings name.
        version: Of kvledger.
    """
    settings = sorted((name, type(value).__name__, repr(value)) for name, value in values.items())
    text = msgspec.json.encode([version, settings, sorted(inputs.items())])
    return hashlib.sha256(text).hexdigest()[:24]


def failed(key: str, *, code: str, message: str) -> JobResult:
    """Return the result of a cell that has none."""
    return JobResult(key=key, rows=[{"policy": None, "error_code": code, "error": message}])
