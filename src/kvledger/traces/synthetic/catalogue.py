"""The synthetic workloads by name, their parameters, and the published figures they are shaped to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvledger.errors import UsageError
from kvledger.traces.columns import suggest
from kvledger.traces.synthetic.arrivals import ArrivalLaw
from kvledger.traces.synthetic.lengths import (
    IntegerLaw,
    calibrated,
    calibrated_under,
    gamma,
    lognormal,
    uniform_law,
)

__all__ = ["CATALOGUE", "PREFIX", "Recipe", "Shape", "parse_recipe"]

PREFIX = "synthetic:"
MAX_REQUESTS = 100_000_000
_MAX_TOTAL = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Laws of the two lengths. ``total_tokens`` > 0: an output is drawn so that prompt + output stay within it."""

    prompt: IntegerLaw
    output: IntegerLaw
    total_tokens: int = 0


Parameters = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A named workload: its own parameters with defaults, its laws, and what it is shaped to."""

    name: str
    shape: Callable[[Parameters], Shape]
    shaped_to: str
    defaults: Parameters = field(default_factory=dict)


COMMON: Parameters = {
    "requests": 1000,
    "seed": -1,
    "rate": 1.0,
    "cv": 1.0,
    "on": 0.0,
    "off": 0.0,
    "shared_prefix": 0,
    "max_tokens": 0,
}
_WHOLE = {
    "requests", "seed", "shared_prefix", "max_tokens", "max_total", "turns", "prompt", "output",
    "prompt_min", "prompt_max", "output_min", "output_max",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that determines a synthetic workload."""

    kind: Kind
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
        sentences = [f"synthetic: {self.kind.shaped_to}", f"{when}; seed {self.seed}"]
        if self.turns > 1:
            sentences.append(f"{self.turns} turns a conversation, {self.think_seconds:g} s apart on average")
        if self.shared_prefix_tokens:
            sentences.append(f"a shared prefix of {self.shared_prefix_tokens:,} tokens comes on top of every prompt")
        if shape.total_tokens:
            sentences.append(f"prompt + output at most {shape.total_tokens:,} tokens; the means hold after this cut")
        return tuple(sentences)


def _of_means(prompt_mean: float, output_mean: float, values: Parameters, *, smallest: int = 1) -> Shape:
    """Log-normal prompts (sigma 1) and gamma outputs (shape 1.2), together at most ``max_total``."""
    total = int(values["max_total"])
    prompt = calibrated(lognormal(values["sigma"]), prompt_mean, smallest=smallest, largest=total - smallest)
    output = calibrated_under(gamma(values["shape"]), output_mean, others=prompt, total=total)
    return Shape(prompt=prompt, output=output, total_tokens=total)


def _sharegpt(values: Parameters) -> Shape:
    """Mean input 161.31, mean output 337.99: the PagedAttention paper (SOSP'23), figure 11, ShareGPT with OPT-13B."""
    return _of_means(161.31, 337.99, values)


def _alpaca(values: Parameters) -> Shape:
    """Mean input 19.31, mean output 58.45: the PagedAttention paper (SOSP'23), figure 11, Alpaca."""
    return _of_means(19.31, 58.45, values)


def _chat(values: Parameters) -> Shape:
    """Conversations that end at 800 tokens on average, at most 4,096, split as ShareGPT's means (161.31 : 337.99)."""
    prompt_share = 161.31 / (161.31 + 337.99)
    mean = values["mean_total"]
    return _of_means(mean * prompt_share, mean * (1 - prompt_share), values, smallest=int(values["turns"]))


def _lognormal(values: Parameters) -> Shape:
    """Log-normal prompts and outputs of the means and sigma given, together at most ``max_total``."""
    total, law = int(values["max_total"]), lognormal(values["sigma"])
    prompt = calibrated(law, values["prompt_mean"], largest=total - 1)
    return Shape(
        prompt=prompt,
        output=calibrated_under(law, values["output_mean"], others=prompt, total=total),
        total_tokens=total,
    )


def _uniform(values: Parameters) -> Shape:
    """Lengths between a smallest and a largest, all alike."""
    low, high, out_low, out_high = (
        int(values[name]) for name in ("prompt_min", "prompt_max", "output_min", "output_max")
    )
    if low > high or out_low > out_high:
        raise UsageError(f"a smallest length is above the largest: {low}..{high}, {out_low}..{out_high}")
    return Shape(prompt=uniform_law(low, high), output=uniform_law(out_low, out_high))


def _fixed(values: Parameters) -> Shape:
    """Every prompt and every output of one length."""
    prompt, output = int(values["prompt"]), int(values["output"])
    return Shape(prompt=uniform_law(prompt, prompt), output=uniform_law(output, output))


_PAPER = "log-normal prompts (sigma 1), gamma outputs (shape 1.2)"
_GENERIC = {"prompt_mean": 512.0, "output_mean": 256.0, "sigma": 1.0, "max_total": 8192}
CATALOGUE: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="chat",
            shape=_chat,
            shaped_to="chat shaped to conversations that end at 800 tokens on average, at most 4,096; " + _PAPER,
            defaults={"mean_total": 800.0, "max_total": 4096, "sigma": 1.0, "shape": 1.2, "turns": 1, "think": 30.0},
        ),
        Kind(
            name="sharegpt",
            shape=_sharegpt,
            shaped_to="shaped to ShareGPT's published means (161.31 in, 337.99 out); it is not ShareGPT; " + _PAPER,
            defaults={"max_total": 2048, "sigma": 1.0, "shape": 1.2, "rate": 2.0},
        ),
        Kind(
            name="alpaca",
            shape=_alpaca,
            shaped_to="shaped to Alpaca's published means (19.31 in, 58.45 out); it is not Alpaca; " + _PAPER,
            defaults={"max_total": 2048, "sigma": 1.0, "shape": 1.2, "rate": 30.0},
        ),
        Kind(
            name="fixed",
            shape=_fixed,
            shaped_to="every request has the same lengths",
            defaults={"prompt": 512, "output": 128},
        ),
        Kind(
            name="uniform",
            shape=_uniform,
            shaped_to="all lengths between two bounds are alike",
            defaults={"prompt_min": 1, "prompt_max": 1024, "output_min": 1, "output_max": 512},
        ),
        Kind(name="lognormal", shape=_lognormal, shaped_to="log-normal lengths of given means", defaults=_GENERIC),
        Kind(
            name="bursts",
            shape=_lognormal,
            shaped_to="log-normal lengths that arrive in bursts",
            defaults={**_GENERIC, "cv": 4.0},
        ),
    )
}


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
    for part in parts:
        key, _, text = (piece.strip() for piece in part.partition("="))
        if key not in values:
            raise UsageError(
                f"`{kind.name}` has no parameter `{key[:40]}`", hint=suggest(key, values, what="the parameters are")
            )
        values[key] = _number(key, text)
    _check_ranges(values)
    return Recipe(
        kind=kind,
        requests=int(values["requests"]),
        seed=int(values["seed"]) if values["seed"] >= 0 else seed,
        arrivals=ArrivalLaw(rate=values["rate"], cv=values["cv"], on_seconds=values["on"], off_seconds=values["off"]),
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
    "shared_prefix": (0, _MAX_TOTAL),
    "max_tokens": (0, _MAX_TOTAL),
    "max_total": (2, _MAX_TOTAL),
    "turns": (1, 100),
    "think": (0, 1e9),
    "sigma": (0.01, 5),
    "shape": (0.05, 1000),
}


def _check_ranges(values: Parameters) -> None:
    for key, value in values.items():
        low, high = _RANGES.get(key, (1, _MAX_TOTAL))
        if not low <= value <= high:
            raise UsageError(f"`{key}={value:g}` is outside {low:g} to {high:g}", hint=f"choose `{key}` within it")
    if bool(values["on"]) != bool(values["off"]):
        raise UsageError("`on` and `off` belong together: seconds with arrivals and seconds without")
    if values.get("turns", 1) * 2 >= values.get("max_total", math.inf):
        raise UsageError(f"{values['turns']:g} turns do not fit {values['max_total']:g} tokens", hint="raise max_total")
