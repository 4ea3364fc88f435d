"""The errors kvledger raises, as one tree.

::

Error:
    ├── UsageError        a setting or argument that cannot be used
    ├── SourceError       a file, URL or stream that cannot be read
    │   └── TraceError    a trace that was read but cannot be understood
    ├── ModelError        a model configuration that cannot be priced
    ├── CapacityError     something that cannot fit in the memory given
    ├── MissingExtra      an optional package that is not installed
    └── UnbalancedLedger  accounts that do not sum to the pool: our bug
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = [
    "CapacityError",
    "Error",
    "MissingExtra",
    "ModelError",
    "SourceError",
    "TraceError",
    "UnbalancedLedger",
    "UsageError",
]


class Error(Exception):
    """Base of every error kvledger raises on purpose.

    Args:
        message: What happened, with the numbers, and why.
        hint: What to do next, as a command or a setting.
        attributes: Machine-readable facts; printed with ``--json``.
    """

    code = "KVE000"

    def __init__(self, message: str, *, hint: str | None = None, **attributes: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.attributes = attributes

    def as_record(self) -> dict[str, object]:
        """Return the error as the object that ``--json`` prints."""
        record: dict[str, object] = {"code": self.code, "error": type(self).__name__, "message": self.message}
        if self.hint:
            record["hint"] = self.hint
        if self.attributes:
            record["attributes"] = _plain(self.attributes)
        return record


class UsageError(Error):
    """A setting or argument cannot be used."""

    code = "KVE001"


class SourceError(Error):
    """A file, URL or stream cannot be read."""

    code = "KVE002"


class TraceError(SourceError):
    """A trace was read but cannot be understood."""

    code = "KVE003"


class ModelError(Error):
    """A model configuration cannot be priced without guessing."""

    code = "KVE004"


class CapacityError(Error):
    """Something cannot fit in the memory given."""

    code = "KVE005"


class MissingExtra(Error):
    """An optional package is not installed."""

    code = "KVE006"

    @classmethod
    def for_package(cls, package: str, *, extra: str) -> MissingExtra:
        """Build the error for ``package``, which ``kvledger[extra]`` installs."""
        return cls(
            f"this needs the package `{package}`, which is not installed",
            hint=f"pip install 'kvledger[{extra}]'",
            package=package,
            extra=extra,
        )


class UnbalancedLedger(Error):
    """Accounts do not sum to the pool: a fault in kvledger itself."""

    code = "KVE007"


def _plain(value: object) -> object:
    """Return what JSON can hold of ``value``: numbers, text, lists and objects of them; anything else as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
