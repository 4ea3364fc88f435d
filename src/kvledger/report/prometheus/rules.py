"""Recording rules for Prometheus: the records, the pieces of PromQL they share, and how a rule file is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["HOST", "Rule", "RuleGroup", "at_least", "at_most", "label_as_number", "with_label", "write_rules"]

HOST = ("cluster", "namespace", "job", "pod", "instance", "WorkerId", "ReplicaId")
"""The labels that tell servers apart, as far as a Prometheus has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One recording rule."""

    record: str
    meaning: str
    expr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleGroup:
    """Rules that are evaluated one after the other, each with what those before it have just recorded."""

    name: str
    rules: tuple[Rule, ...]


def label_as_number(info: str, label: str, *, keep: Sequence[str]) -> str:
    """Return the PromQL that reads a label of an info series as a number, by the labels to ``keep``.

    PromQL has no function for that, but ``histogram_quantile`` reads one label, ``le``: a histogram whose observations
    all lie beyond its highest finite bucket has that bucket's edge for its median (Prometheus ``promql/quantile.go``;
    tried on 2.42).
    """
    labels = ", ".join((*keep, label))
    series = f'max by ({labels}) ({info}{{{label}=~"[0-9]+([.][0-9]+)?(e[+-]?[0-9]+)?"}})'
    return (
        f"max by ({', '.join(keep)}) (histogram_quantile(0.5,\n"
        f'  label_replace(0 * {series}, "le", "$1", "{label}", "(.*)")\n'
        f'  or label_replace({series}, "le", "+Inf", "", "")\n))'
    )


def with_label(expr: str, label: str, value: str) -> str:
    """Return the PromQL that gives every result a label."""
    return f'label_replace({expr}, "{label}", "{value}", "", "")'


def at_most(one: str, other: str) -> str:
    """Return the PromQL of the lesser of two expressions with the same labels; of nothing where one is missing."""
    return f"((({one}) <= ({other})) or (({other}) and ({one})))"


def at_least(one: str, other: str) -> str:
    """Return the PromQL of the greater of two expressions with the same labels; of nothing where one is missing."""
    return f"((({one}) >= ({other})) or (({other}) and ({one})))"


def write_rules(groups: Sequence[RuleGroup], *, heading: Sequence[str]) -> str:
    """Return a rule file; what a rule means stands above it as a comment."""
    lines = [*(f"# {line}".rstrip() for line in heading), "groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", "    rules:"]
        for rule in group.rules:
            lines += [f"      # {rule.meaning}", f"      - record: {rule.record}", "        expr: |-"]
            lines += [f"          {line}" for line in rule.expr.strip().splitlines()]
    return "\n".join(lines) + "\n"
