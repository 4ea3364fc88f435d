"""Values that callers give as settings: of the right type and in range, or refused with what they may be."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from kvledger.errors import UsageError

__all__ = ["read_choice", "require_flags", "require_number", "require_whole"]

Choice = TypeVar("Choice", bound=StrEnum)


def require_whole(name: str, value: Any, low: int, high: int) -> None:
    """Refuse what is no whole number from ``low`` to ``high``.

    Raises:
        UsageError: It is named, with what it may be.
    """
    if type(value) is not int:
        raise UsageError(f"{name} is {_show(value)}, not a whole number")
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}, not from {low} to {high}")


def require_number(name: str, value: Any) -> None:
    """Refuse what is no number.

    Raises:
        UsageError: It is named.
    """
    if type(value) not in (int, float):
        raise UsageError(f"{name} is {_show(value)}, not a number")


def require_flags(**flags: Any) -> None:
    """Refuse flags that are neither True nor False.

    Raises:
        UsageError: The first such flag is named.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {_show(value)}, not True or False")


def read_choice(name: str, value: Any, kind: type[Choice]) -> Choice:
    """Return a choice, given as itself or by its name.

    Raises:
        UsageError: It is none of them; they are listed.
    """
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} is {_show(value)}, not one of {', '.join(kind)}") from None


def _show(value: Any) -> str:
    """Return a value as a message shows it: cut, and a text told from a number."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
