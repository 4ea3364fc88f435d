"""``synthetic:NAME[,key=value...]`` as a recipe: everything that determines a synthetic workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvledger.errors import UsageError
from kvledger.traces.columns import suggest
from kvledger.traces.synthetic.arrivals import ArrivalLaw
from kvledger.traces.synthetic.catalogue import CATALOGUE, COMMON, Kind, Parameters, Shape
from kvledger.units import counted

__all__ = ["PREFIX", "Recipe", "parse_recipe"]

PREFIX = "synthetic:"
MAX_REQUESTS = 100_000_000
_MAX_TOTAL = 1 << 22
_WHOLE = {
    "requests", "seed", "shared_prefix", "max_tokens", "max_total", "turns", "prompt", "output",
    "prompt_min", "prompt_max", "output_min", "output_max",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that determines a synthetic workload."""

    kind: Kind
    shaped_to: str
    requests: int
    seed: int
    arrivals: ArrivalLaw
    shape: Shape
    shared_prefix_tokens: int = 0
    max_tokens: int = 0
    turns: int = 1
    think_seconds: float = 0.0

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the trace's notes say about it."""
        law, shape = self.arrivals, self.shape
        when = "all arrivals at 0 (a queue that is never empty)"
        if not math.isinf(law.rate):
            when = f"arrivals: {law.rate:g} a second, gaps with a coefficient of variation of {law.cv:g}"
            if law.off_seconds:
                when += f", {law.on_seconds:g} s on and {law.off_seconds:g} s off"
            if law.swing_ratio:
                when += f", the rate swinging by {100 * law.swing_ratio:g} % over each day from its least at 0"
        sentences = [f"synthetic: {self.shaped_to}", f"{when}; seed {self.seed}"]
        if self.turns > 1:
            sentences.append(f"{counted(self.turns, 'turn')} a conversation, {self.think_seconds:g} s apart on average")
        if self.shared_prefix_tokens:
            sentences.append(
                f"a shared prefix of {counted(self.shared_prefix_tokens, 'token')} comes on top of every prompt"
            )
        if shape.total_tokens:
            sentences.append(
                f"prompt + output at most {counted(shape.total_tokens, 'token')}; the means hold after this cut"
            )
        return tuple(sentences)


def parse_recipe(spec: str, *, seed: int) -> Recipe:
    """Read ``synthetic:NAME[,key=value...]``.

    Args:
        spec: The description.
        seed: Used unless the description has its own.

    Raises:
        UsageError: The name, a parameter or a value is unknown or out of range.
    """
    name, *parts = spec.removeprefix(PREFIX).split(",")
    kind = CATALOGUE.get(name.strip())
    if kind is None:
        raise UsageError(
            f"there is no synthetic workload `{name[:40]}`", hint=suggest(name, CATALOGUE, what="the names are")
        )
    values = {**COMMON, **kind.defaults}
    given: set[str] = set()
    for part in parts:
        key, _, text = (piece.strip() for piece in part.partition("="))
        if key not in values:
            raise UsageError(
                f"`{kind.name}` has no parameter `{key[:40]}`", hint=suggest(key, values, what="the parameters are")
            )
        if key in given:
            raise UsageError(f"`{kind.name}` is given `{key}` twice", hint="keep one of the two")
        given.add(key)
        values[key] = _number(key, text)
    _check_ranges(values)
    return Recipe(
        kind=kind,
        shaped_to=kind.shaped_to.format(**values),
        requests=int(values["requests"]),
        seed=int(values["seed"]) if values["seed"] >= 0 else seed,
        arrivals=ArrivalLaw(
            rate=values["rate"],
            cv=values["cv"],
            on_seconds=values["on"],
            off_seconds=values["off"],
            swing_ratio=values["swing"],
        ),
        shape=kind.shape(values),
        shared_prefix_tokens=int(values["shared_prefix"]),
        max_tokens=int(values["max_tokens"]),
        turns=int(values.get("turns", 1)),
        think_seconds=values.get("think", 0.0),
    )


def _number(key: str, text: str) -> float:
    if key == "rate" and text in ("inf", "saturated"):
        return math.inf
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (key in _WHOLE and value != int(value)):
        kind = "whole number" if key in _WHOLE else "number"
        raise UsageError(f"`{key}={text[:40]}` is not a {kind}", hint=f"write `{key}=N`")
    return value


_RANGES: Mapping[str, tuple[float, float]] = {
    "requests": (1, MAX_REQUESTS),
    "seed": (-1, 2**63),
    "rate": (1e-9, math.inf),
    "cv": (0, 20),
    "on": (0, 1e9),
    "off": (0, 1e9),
    "swing": (0, 1),
    "shared_prefix": (0, _MAX_TOTAL),
    "max_tokens": (0, _MAX_TOTAL),
    "max_total": (2, _MAX_TOTAL),
    "turns": (1, 100),
    "think": (0, 1e9),
    "sigma": (0.01, 5),
    "shape": (0.05, 1000),
}


def _exact(value: float) -> str:
    """Write a bound, or what misses it, so that the two can be told apart."""
    return f"{int(value):,}" if abs(value) < 1e15 and value == int(value) else f"{value:g}"


def _check_ranges(values: Parameters) -> None:
    for key, value in values.items():
        low, high = _RANGES.get(key, (1, _MAX_TOTAL))
        if not low <= value <= high:
            raise UsageError(
                f"`{key}={_exact(value)}` is outside {_exact(low)} to {_exact(high)}", hint=f"choose `{key}` within it"
            )
    if bool(values["on"]) != bool(values["off"]):
        raise UsageError("`on` and `off` belong together: seconds with arrivals and seconds without")
    if values["on"] and values["swing"]:
        raise UsageError("`swing` and `on` with `off` are two shapes of the rate", hint="give one of them")
    if values.get("turns", 1) * 2 >= values.get("max_total", math.inf):
        raise UsageError(f"{values['turns']:g} turns do not fit {values['max_total']:g} tokens", hint="raise max_total")
