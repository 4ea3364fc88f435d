"""The Prometheus exporter: each scrape asks every server once, and draws up their sheets anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from kvledger.errors import Error
from kvledger.measure.meter import Meter
from kvledger.measure.pool_meter import PoolMeter
from kvledger.report.prometheus.instant import PoolInstant, SourceInstant, pool_of_moment, pool_of_reading, tell_apart
from kvledger.report.prometheus.table import METRICS, Metric, PoolMetric, SourceMetric, build_info
from kvledger.sources.endpoints import Answer, Endpoint
from kvledger.sources.http import Access, Address

__all__ = ["Follower", "LedgerCollector", "families_of"]

_MOST_AT_ONCE = 64


class Follower:
    """Follows one server through its scrapes; :meth:`look` mutates, and is called by one thread at a time."""

    def __init__(
        self,
        name: str,
        address: Address,
        access: Access,
        *,
        meter: Meter,
        pools: PoolMeter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._endpoint = Endpoint(address=address, access=access, retries=0)
        self._meter = meter
        self._pools = pools or PoolMeter(window_samples=1)
        self._clock = clock
        self._failures = 0

    def look(self) -> SourceInstant:
        """Ask the server once; whatever it answers, this ends within the timeout and raises nothing of it."""
        began = self._clock()
        try:
            answer = self._endpoint.take()
            pools = self._read(answer, (began + self._clock()) / 2)
            error = ""
        except Error as failed:
            pools, error = (), failed.message
        except Exception as fault:  # of ours; it must not take the other servers down with it
            pools, error = (), f"{type(fault).__name__}: {fault}; this is a fault of kvledger, please report it"
        self._failures += bool(error)
        return SourceInstant(
            name=self.name,
            is_up=not error,
            seconds=max(0.0, self._clock() - began),
            failures=self._failures,
            pools=pools,
            error=error,
        )

    def _read(self, answer: Answer, seconds: float) -> tuple[PoolInstant, ...]:
        if answer.scrape is None:
            moments = self._pools.take(answer.snapshots, seconds=seconds)
            return tell_apart([pool_of_moment(moment) for moment in moments])
        readings, engines = self._meter.take(answer.scrape, seconds=seconds), answer.scrape.engines
        return tuple(pool_of_reading(reading, engine) for reading, engine in zip(readings, engines, strict=True))


class LedgerCollector(Collector):
    """Turns servers into metric families whenever it is scraped.

    Args:
        followers: The servers.
        fresh_seconds: Scrapes closer together than this share one look at the servers.
        on_look: Told of every look, for messages.
    """

    def __init__(
        self,
        followers: Sequence[Follower],
        *,
        fresh_seconds: float = 1.0,
        on_look: Callable[[Sequence[SourceInstant]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._followers = followers
        self._fresh_seconds = fresh_seconds
        self._on_look = on_look
        self._clock = clock
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=min(_MOST_AT_ONCE, max(1, len(followers))))
        self._last: tuple[float, list[SourceInstant]] | None = None

    def collect(self) -> Iterable[Family]:
        """Ask every server, all at once, and return what they say."""
        return families_of(self.look())

    def look(self) -> list[SourceInstant]:
        """Return the present instant of every server, at most ``fresh_seconds`` old."""
        with self._lock:
            if self._last is not None and self._clock() - self._last[0] < self._fresh_seconds:
                return self._last[1]
            sources = list(self._pool.map(Follower.look, self._followers))
            self._last = (self._clock(), sources)
            self._on_look(sources)
            return sources

    def close(self) -> None:
        """Stop the threads that ask."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def families_of(sources: Sequence[SourceInstant]) -> Iterator[Family]:
    """Yield the families of all metrics that have a value."""
    for metric in METRICS:
        stem = metric.name.removesuffix("_info").removesuffix("_total")
        family = Family(stem, metric.meaning, metric.kind.value)
        names = (*metric.whose, *metric.labels)
        for labels, value in _values(metric, sources):
            family.add_sample(metric.name, dict(zip(names, labels, strict=True)), value)
        if family.samples:
            yield family


def _values(metric: Metric, sources: Sequence[SourceInstant]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(metric, SourceMetric):
        for source in sources:
            for labels, value in metric.read(source):
                yield (source.name, *labels), value
    elif isinstance(metric, PoolMetric):
        for source in sources:
            for pool in source.pools:
                for labels, value in metric.read(pool):
                    yield (source.name, pool.engine, pool.pool, *labels), value
    else:
        yield from build_info()
