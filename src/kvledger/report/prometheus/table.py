"""The table of metrics: what `kvledger export` serves, and what its dashboard, alerts and documentation are made from.

Names follow Prometheus: a prefix, the base unit as plural suffix, ``_total`` for counters, ``_info`` for facts. A total
never stands beside its parts: the pool is the sum of its accounts. A number that is not told has no series; one that is
an interval has two, its least (``low``) and its most (``high``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import kvledger
from kvledger.report.prometheus.instant import PoolInstant, SourceInstant
from kvledger.report.prometheus.values import (
    Rows,
    Values,
    read_accounts,
    read_admitted,
    read_available,
    read_bounds,
    read_figures,
    read_one,
    read_requests,
    read_reserved,
    read_reserved_use,
    read_shares,
)  # fmt: skip

__all__ = ["METRICS", "Kind", "Metric", "PoolMetric", "SourceMetric", "build_info"]


class Kind(StrEnum):
    """What Prometheus calls the type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric; ``labels`` are those beside the ones that say whose it is."""

    name: str
    kind: Kind = Kind.GAUGE
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def whose(self) -> tuple[str, ...]:
        """The labels that say what it belongs to."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMetric(Metric):
    """One of each server."""

    read: Callable[[SourceInstant], Values]

    @property
    def whose(self) -> tuple[str, ...]:
        """The server."""
        return ("source",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetric(Metric):
    """One of each pool of each engine."""

    read: Callable[[PoolInstant], Values]

    @property
    def whose(self) -> tuple[str, ...]:
        """The server, the engine in it and the pool of that engine."""
        return ("source", "engine", "pool")


def _pair(
    stem: str,
    unit: str,
    meaning: str,
    labels: tuple[str, ...],
    rows: Rows,
) -> Iterator[PoolMetric]:
    for end, word in (("low", "Least"), ("high", "Most")):
        yield PoolMetric(
            name=f"kvledger_{stem}_{end}_{unit}",
            meaning=f"{word} {meaning}",
            labels=labels,
            read=read_bounds(end, rows),
        )


_LONGEST = 200
"""Characters of a served name that are shown: it comes from outside."""
_FIGURE = ("figure", "accuracy")
_POLICY = ("policy", "accuracy")

METRICS: tuple[Metric, ...] = (
    Metric(
        name="kvledger_build_info",
        kind=Kind.INFO,
        meaning="The version of kvledger that serves these metrics",
        labels=("version",),
    ),
    SourceMetric(
        name="kvledger_source_up",
        meaning="1 when the server answered with metrics that could be read, else 0, and then it has no other series",
        read=lambda source: read_one(int(source.is_up)),
    ),
    SourceMetric(
        name="kvledger_source_scrape_seconds",
        meaning="Time it took to ask the server and to draw up its sheets",
        read=lambda source: read_one(source.seconds),
    ),
    SourceMetric(
        name="kvledger_source_failures_total",
        kind=Kind.COUNTER,
        meaning="Samples for which the server gave no answer that could be read",
        read=lambda source: read_one(source.failures),
    ),
    PoolMetric(
        name="kvledger_engine_info",
        kind=Kind.INFO,
        meaning="Which engine it is, the served name, and how its layers take blocks",
        labels=("server", "model", "structure", "scheduling"),
        read=lambda one: iter([((one.server.value, (one.model or "")[:_LONGEST], one.structure, one.scheduling), 1)]),
    ),
    PoolMetric(
        name="kvledger_ledger_drawn",
        meaning="1 when the engine told enough for a balance sheet, 0 when it answered but has none",
        read=lambda one: read_one(int(one.sheet is not None)),
    ),
    PoolMetric(
        name="kvledger_pool_bytes",
        meaning="Bytes of the pool by account; the accounts sum to the pool. Only where it is known what a token costs",
        labels=("account",),
        read=read_accounts("bytes"),
    ),
    PoolMetric(
        name="kvledger_pool_tokens",
        meaning="Token slots of the pool by account; the accounts sum to the pool. "
        "Only where it is not known what a token costs",
        labels=("account",),
        read=read_accounts("tokens"),
    ),
    PoolMetric(
        name="kvledger_available_bytes",
        meaning="Bytes that requests can still take: free, cached or one of the two",
        read=read_available("bytes"),
    ),
    PoolMetric(
        name="kvledger_available_tokens",
        meaning="Token slots that requests can still take: free, cached or one of the two",
        read=read_available("tokens"),
    ),
    *_pair("figure", "bytes", "bytes that a figure of the sheet can be", _FIGURE, read_figures("bytes")),
    *_pair("figure", "tokens", "tokens that a figure of the sheet can be", _FIGURE, read_figures("tokens")),
    PoolMetric(
        name="kvledger_figure_low_ratio",
        meaning="Least share of the pool that a figure of the sheet can be; of `used` it is the utilisation",
        labels=_FIGURE,
        read=read_shares("low"),
    ),
    PoolMetric(
        name="kvledger_figure_high_ratio",
        meaning="Most share of the pool that a figure of the sheet can be; of `used` it is the utilisation",
        labels=_FIGURE,
        read=read_shares("high"),
    ),
    PoolMetric(name="kvledger_running_requests", meaning="Requests that run", read=lambda one: read_one(one.running)),
    PoolMetric(name="kvledger_waiting_requests", meaning="Requests that wait", read=lambda one: read_one(one.waiting)),
    *_pair(
        "state", "requests", "requests that are preempted, or admitted without a token yet", ("state",), read_requests
    ),
    PoolMetric(
        name="kvledger_preemptions_total",
        kind=Kind.COUNTER,
        meaning="Preemptions, as the engine counts them since it started",
        read=lambda one: read_one(one.preemptions),
    ),
    PoolMetric(
        name="kvledger_restarts_total",
        kind=Kind.COUNTER,
        meaning="Restarts of the engine that were seen",
        read=lambda one: read_one(one.restarts),
    ),
    *_pair(
        "reservation",
        "tokens",
        "token slots that per-request reservation would hold for the requests now running",
        _POLICY,
        read_reserved,
    ),
    PoolMetric(
        name="kvledger_reservation_used_low_ratio",
        meaning="Least share of that reservation that holds tokens",
        labels=_POLICY,
        read=read_reserved_use(0),
    ),
    PoolMetric(
        name="kvledger_reservation_used_high_ratio",
        meaning="Most share of that reservation that holds tokens",
        labels=_POLICY,
        read=read_reserved_use(1),
    ),
    *_pair(
        "admitted",
        "requests",
        "requests like those now running that the pool admits under a policy, or under block tables",
        _POLICY,
        read_admitted,
    ),
)
"""All metrics, in the order in which they are served."""


def build_info() -> Values:
    """Return the value of the metric that belongs to the exporter itself."""
    yield (kvledger.__version__,), 1
