"""Fields: typed, bounded access to a configuration that remembers what was read and where it came from.

A configuration comes from outside: every value is checked for type and range before it is used, and nothing is
converted silently. What was never read is known too, so that a reader can refuse a field it does not understand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from kvledger.errors import ModelError
from kvledger.model.storage import Origin

__all__ = ["STATE_BY_HAND", "Fields"]

MAX_INTEGER = 2**40
STATE_BY_HAND = "state the layers by hand, such as `--layers '32x(kv=8,head=128)'`"

T = TypeVar("T")


class Fields:
    """One section of a configuration.

    Reading mutates: each value read is noted in ``origins``. A key that is present with ``null`` counts as given, so
    the class default does not apply (as in Transformers); a missing key falls back to ``defaults``.
    """

    def __init__(
        self,
        raw: Mapping[str, object],
        *,
        path: str = "",
        defaults: Mapping[str, object] | None = None,
        defaults_of: str = "",
        origins: dict[str, Origin] | None = None,
    ) -> None:
        """Wrap ``raw``; ``path`` names the section in messages, ``defaults_of`` the class its defaults come from."""
        self.raw = raw
        self.path = path
        self.defaults = defaults or {}
        self.defaults_of = defaults_of
        self.origins: dict[str, Origin] = {} if origins is None else origins
        self.used: set[str] = set()

    def source(self, name: str) -> str:
        """Return how messages name a field of this section."""
        return f"{self.path}.{name}" if self.path else name

    def note(self, name: str, value: object, source: str) -> None:
        """Record where a derived value came from; the first record of a name stays."""
        self.origins.setdefault(name, Origin(name=name, value=_short(value), source=source))

    def accept(self, *names: str) -> None:
        """Mark fields as understood and without effect on the cache."""
        self.used.update(names)

    def has(self, *names: str) -> bool:
        """Return whether one of the fields is present with a value that is not null."""
        return any(self.raw.get(name) is not None for name in names)

    def integer(self, *names: str, low: int = 1, high: int = MAX_INTEGER, default: int | None = None) -> int | None:
        """Return the first of the named fields that has a value, as an integer within bounds.

        Raises:
            ModelError: The value is no integer, or out of bounds.
        """

        def check(name: str, value: object) -> int:
            if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_INTEGER:
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.refusal(name, value, "is not an integer")
            if not low <= value <= high:
                raise self.refusal(name, value, f"is outside {low} to {high}")
            return value

        found = self._find(names, check)
        return default if found is None else found

    def need_integer(self, *names: str, low: int = 1, high: int = MAX_INTEGER) -> int:
        """Return an integer as :meth:`integer` does, or refuse.

        Raises:
            ModelError: None of the fields has a value, or the value is unusable.
        """
        value = self.integer(*names, low=low, high=high)
        if value is None:
            raise self.missing(*names)
        return value

    def number(self, *names: str, default: float) -> float:
        """Return a finite number.

        Raises:
            ModelError: The value is no finite number.
        """

        def check(name: str, value: object) -> float:
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_INTEGER:
                raise self.refusal(name, value, "is not a finite number")
            return float(value)

        found = self._find(names, check)
        return default if found is None else found

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value.

        Raises:
            ModelError: The value is neither true nor false.
        """

        def check(name: str, value: object) -> bool:
            if value not in (True, False):
                raise self.refusal(name, value, "is neither true nor false")
            return bool(value)

        found = self._find((name,), check)
        return default if found is None else found

    def text(self, *names: str) -> str | None:
        """Return a text.

        Raises:
            ModelError: The value is no text.
        """

        def check(name: str, value: object) -> str:
            if not isinstance(value, str):
                raise self.refusal(name, value, "is not a text")
            return value

        return self._find(names, check)

    def texts(self, *names: str) -> tuple[str, ...] | None:
        """Return a list of texts.

        Raises:
            ModelError: The value is no list of texts.
        """

        def check(name: str, value: object) -> tuple[str, ...]:
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                raise self.refusal(name, value, "is not a list of texts")
            return tuple(value)

        return self._find(names, check)

    def integers(self, *names: str, low: int = 0, high: int = MAX_INTEGER) -> tuple[int, ...] | None:
        """Return a list of integers within bounds (truth values count as 0 and 1).

        Raises:
            ModelError: The value is no list of integers, or one is out of bounds.
        """

        def check(name: str, value: object) -> tuple[int, ...]:
            if not isinstance(value, list | tuple) or not all(isinstance(v, int) and low <= v <= high for v in value):
                raise self.refusal(name, value, f"is not a list of integers from {low} to {high}")
            return tuple(int(v) for v in value)

        return self._find(names, check)

    def sections(self, name: str) -> tuple[Fields, ...] | None:
        """Return a list of sections.

        Raises:
            ModelError: The value is no list of objects.
        """

        def check(name: str, value: object) -> tuple[Fields, ...]:
            if not isinstance(value, list | tuple) or not all(isinstance(v, Mapping) for v in value):
                raise self.refusal(name, value, "is not a list of objects")
            return tuple(Fields(v, path=f"{self.source(name)}[{i}]", origins=self.origins) for i, v in enumerate(value))

        return self._find((name,), check)

    def section(self, name: str) -> Fields | None:
        """Return a section below this one.

        Raises:
            ModelError: The value is no object.
        """

        def check(name: str, value: object) -> Fields:
            if not isinstance(value, Mapping):
                raise self.refusal(name, value, "is not an object")
            return Fields(value, path=self.source(name), origins=self.origins)

        return self._find((name,), check)

    def refusal(self, name: str, value: object, why: str) -> ModelError:
        """Build the error for a field whose value cannot be used."""
        return ModelError(
            f"the config field `{self.source(name)}` = {_short(value)} {why}", hint=STATE_BY_HAND, field=name
        )

    def missing(self, *names: str) -> ModelError:
        """Build the error for a field that has to be there."""
        listed = " or ".join(f"`{self.source(name)}`" for name in names[:4])
        kind = f" and the class `{self.defaults_of}` gives none" if self.defaults_of else ""
        return ModelError(f"the config has no {listed}{kind}", hint=STATE_BY_HAND, field=names[0])

    def _find(self, names: tuple[str, ...], check: Callable[[str, object], T]) -> T | None:
        self.used.update(names)
        for name in names:
            if self.raw.get(name) is not None:
                value = check(name, self.raw[name])
                if not isinstance(value, Fields):
                    self.note(name, self.raw[name], self.source(name))
                return value
        if any(name in self.raw for name in names):
            return None
        for name in names:
            if self.defaults.get(name) is not None:
                value = check(name, self.defaults[name])
                self.note(name, self.defaults[name], f"class default of {self.defaults_of}")
                return value
        return None


def _short(value: object) -> str:
    """Return a value as text of bounded length; lists are run-length encoded."""
    if isinstance(value, list | tuple):
        runs: list[tuple[str, int]] = []
        for item in value[:4096]:
            text = _short(item) if isinstance(item, list | tuple | Mapping) else str(item)[:40]
            if runs and runs[-1][0] == text:
                runs[-1] = (text, runs[-1][1] + 1)
            elif len(runs) == 12:
                return ", ".join(_run(*run) for run in runs) + ", ..."
            else:
                runs.append((text, 1))
        return ", ".join(_run(*run) for run in runs) or "[]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(str(key)[:40] for key in list(value)[:8]) + "}"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return f"a number of {value.bit_length()} bits"
    return f"`{value[:60]}`" if isinstance(value, str) else str(value)[:60]


def _run(text: str, count: int) -> str:
    return f"{count} x {text}" if count > 1 else text
