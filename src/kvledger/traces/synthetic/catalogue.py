"""The synthetic workloads by name, their parameters, and the published figures they are shaped to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvledger.errors import UsageError
from kvledger.traces.synthetic.lengths import (
    IntegerLaw,
    calibrated,
    calibrated_under,
    gamma,
    lognormal,
    uniform_law,
)

__all__ = ["CATALOGUE", "COMMON", "Kind", "Parameters", "Shape"]


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
    """A template over the parameters."""
    defaults: Parameters = field(default_factory=dict)


COMMON: Parameters = {
    "requests": 1000,
    "seed": -1,
    "rate": 1.0,
    "cv": 1.0,
    "on": 0.0,
    "off": 0.0,
    "swing": 0.0,
    "shared_prefix": 0,
    "max_tokens": 0,
}


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


_PAPER = "log-normal prompts (sigma {sigma:g}), gamma outputs (shape {shape:g})"
_GENERIC = {"prompt_mean": 512.0, "output_mean": 256.0, "sigma": 1.0, "max_total": 8192}
CATALOGUE: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="chat",
            shape=_chat,
            shaped_to="shaped to conversations that end at {mean_total:g} tokens on average; " + _PAPER,
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
        Kind(
            name="lognormal",
            shape=_lognormal,
            shaped_to="log-normal lengths (means {prompt_mean:g} in, {output_mean:g} out, sigma {sigma:g})",
            defaults=_GENERIC,
        ),
        Kind(
            name="bursts",
            shape=_lognormal,
            shaped_to="log-normal lengths (means {prompt_mean:g} in, {output_mean:g} out) that arrive in bursts",
            defaults={**_GENERIC, "cv": 4.0},
        ),
    )
}
