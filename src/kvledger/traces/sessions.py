"""When sessions start, for traces whose clock begins anew in every session."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvledger.errors import UsageError

__all__ = ["SessionStarts", "StartRule"]


class StartRule(StrEnum):
    """How session starts are spread."""

    ZERO = "zero"
    """All sessions start at 0."""
    EVERY = "every"
    """One session every so many seconds."""
    RATE = "rate"
    """Poisson arrivals of sessions at so many a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarts:
    """A modelled choice: the trace does not say when its sessions started. Default: Poisson, 0.1 sessions a second."""

    rule: StartRule = StartRule.RATE
    value: float = 0.1

    @classmethod
    def parse(cls, text: str) -> SessionStarts:
        """Read ``zero``, ``every:SECONDS`` or ``rate:SESSIONS_PER_SECOND``.

        Raises:
            UsageError: It is none of these, or the number is not above 0.

        >>> SessionStarts.parse("every:30").value
        30.0
        """
        rule, _, value = text.strip().partition(":")
        if rule == StartRule.ZERO and not value:
            return cls(rule=StartRule.ZERO, value=0.0)
        try:
            number = float(value)
            start_rule = StartRule(rule)
        except ValueError:
            number, start_rule = math.nan, StartRule.ZERO
        if start_rule is StartRule.ZERO or not 0 < number < math.inf:
            raise UsageError(
                f"`{text[:40]}` does not say when sessions start", hint="write zero, every:SECONDS or rate:PER_SECOND"
            )
        return cls(rule=start_rule, value=number)

    def starts(self, *, seed: int) -> Iterator[float]:
        """Yield the start of one session after the other, in seconds, without end."""
        generator = np.random.default_rng([seed, 0x5E55])
        now = 0.0
        while True:
            match self.rule:
                case StartRule.ZERO:
                    yield 0.0
                case StartRule.EVERY:
                    yield now
                    now += self.value
                case StartRule.RATE:
                    now -= math.log1p(-generator.random()) / self.value
                    yield now

    @property
    def sentence(self) -> str:
        """The choice, in words for the trace's notes."""
        match self.rule:
            case StartRule.ZERO:
                how = "all at 0"
            case StartRule.EVERY:
                how = f"one every {self.value:g} s"
            case StartRule.RATE:
                how = f"Poisson, {self.value:g} sessions a second"
        return f"session starts are modelled ({how}), the trace does not have them; change with --session-starts"
