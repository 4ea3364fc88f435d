"""The settings that only one engine has: the ``options`` of a deployment, read strictly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from kvledger.engines.plan import Deployment
from kvledger.errors import UsageError
from kvledger.units import parse_bytes

__all__ = ["Reader", "boolean", "choice", "integer", "integers", "ratio", "read_settings", "reject", "size"]

Reader = Callable[[str], object]
"""Turns the text of a setting into its value, or raises ``ValueError``."""

_LARGEST = 2**60
_WORDS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}

T = TypeVar("T")


def integer(text: str) -> int:
    """Read a whole number from 0 to 2**60."""
    value = int(text.strip().replace("_", ""))
    if not 0 <= value < _LARGEST:
        raise ValueError("must be 0 to 2**60")
    return value


def integers(text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them, at most 4096."""
    parts = text.split(",")
    if len(parts) > 4096:
        raise ValueError("at most 4096 numbers")
    return tuple(integer(part) for part in parts)


def boolean(text: str) -> bool:
    """Read ``on``, ``true``, ``yes``, ``1`` or their opposites."""
    word = text.strip().lower()
    if word not in _WORDS:
        raise ValueError("must be on or off")
    return _WORDS[word]


def ratio(text: str) -> float:
    """Read a share above 0 and at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1")
    return value


def size(text: str) -> int:
    """Read a size such as ``16GiB``."""
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise ValueError(error.message) from None


def choice(*allowed: str) -> Callable[[str], str]:
    """Return a reader that accepts only the words listed."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            raise ValueError("must be one of " + ", ".join(allowed))
        return word

    return read


def read_settings(deployment: Deployment, into: Callable[..., T], readers: Mapping[str, Reader]) -> T:
    """Read the options of a deployment by name into a record; options that are not given keep its defaults.

    Raises:
        UsageError: A name or a value is not one of the engine's.
    """
    values: dict[str, object] = {}
    for name, text in deployment.options.items():
        if name not in readers:
            close = get_close_matches(name, readers, n=1)
            raise UsageError(
                f"{deployment.engine} has no setting `{name[:60]}`"
                + (f"; did you mean `{close[0]}`?" if close else ""),
                hint="known are " + ", ".join(sorted(readers)),
            )
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise UsageError(f"`{name}` cannot be `{text[:60]}`: {error}") from None
    return into(**values)


def reject(deployment: Deployment, **neutral: object) -> None:
    """Refuse fields of a deployment that the engine does not have.

    Args:
        deployment: The deployment.
        neutral: For each field the value that means "not used".

    Raises:
        UsageError: A field has another value.
    """
    for name, value in neutral.items():
        given = getattr(deployment, name)
        if given != value:
            raise UsageError(
                f"{deployment.engine} has no setting `{name}` (it is {given})",
                hint=f"leave `{name}` out",
            )
