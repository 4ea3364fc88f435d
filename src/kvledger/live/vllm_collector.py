"""The ledger in a vLLM server's own ``/metrics``: from its scheduler when that writes one, else from its counters.

The metrics are those of ``kvledger export``; their label ``source`` says which of the two it is.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from kvledger.engines.facts import Engine
from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.engines.vllm.series import wanted_series
from kvledger.ledger import Account, Accuracy, Ledger, Memo
from kvledger.live.exporter import families_of
from kvledger.live.journal import NEWEST
from kvledger.measure.balance import Balance
from kvledger.measure.figure import Figure, Span
from kvledger.measure.meter import Meter
from kvledger.measure.pool import Structure
from kvledger.measure.sheet import Sheet, Unexplained
from kvledger.report.prometheus.instant import PoolInstant, SourceInstant, pool_of_reading
from kvledger.report.prometheus.table import METRICS

__all__ = ["InsideCollector", "pool_of_inside"]

_MAX_ENGINES = 4096
_MAX_BYTES = 64 * 2**20
_LOGGER = logging.getLogger("vllm.kvledger")


class InsideCollector(Collector):
    """Yields the ledger anew for each scrape; a scrape never fails because of it."""

    def __init__(self, folder: Path, registry: CollectorRegistry, *, since_seconds: float) -> None:
        self._folder, self._registry, self._since = folder, registry, since_seconds
        self._meter = Meter()
        self._series = [f"vllm:{name}" for name in wanted_series(buckets=True)] + ["process_start_time_seconds"]
        self._failures = 0

    def describe(self) -> list[Family]:
        """Return the names alone, so that registering draws up no ledger."""
        return [Family(metric.name, metric.meaning, metric.kind.value) for metric in METRICS]

    def collect(self) -> list[Family]:
        """Return what is known now; nothing in an engine core or a worker, whose metrics nobody reads."""
        began = time.time()
        name, pools = "counters", tuple[PoolInstant, ...]()
        try:
            pools = tuple(pool_of_inside(found) for found in self._read_newest())
            name = "scheduler" if pools else "counters"
            pools = pools or self._measure(began)
        except Exception:
            self._failures += 1
            _LOGGER.exception("kvledger has no ledger for this scrape")
        if not pools:
            return []
        took = time.time() - began
        source = SourceInstant(name=name, is_up=True, seconds=took, failures=self._failures, pools=pools)
        return list(families_of([source]))

    def _read_newest(self) -> Iterator[dict[str, Any]]:
        """Yield the newest ledger of each engine that this server has written."""
        for path in sorted(self._folder.glob(NEWEST))[:_MAX_ENGINES]:
            with path.open("rb") as stream:
                found = json.loads(stream.read(_MAX_BYTES))
            if found["seconds"] >= self._since:
                yield found

    def _measure(self, seconds: float) -> tuple[PoolInstant, ...]:
        text = generate_latest(self._registry.restricted_registry(self._series)).decode()
        if "vllm:num_requests_running" not in text:
            return ()
        scrape = read_vllm_metrics(text)
        readings = self._meter.take(scrape, seconds=seconds)
        return tuple(pool_of_reading(reading, engine) for reading, engine in zip(readings, scrape.engines, strict=True))


def pool_of_inside(found: dict[str, Any]) -> PoolInstant:
    """Return the pool of a ledger that a scheduler has written: every number is measured.

    Raises:
        UnbalancedLedger: Its accounts do not sum to its pool.
    """
    ledger = Ledger(
        capacity=found["capacity_bytes"],
        **{account.value: found["accounts"][f"{account}_bytes"] for account in Account},
        memo=Memo(shared_saving=found["shared_saving_bytes"], stale=found["stale_bytes"]),
    ).check()
    amounts = {account.value: ledger[account] for account in Account if account is not Account.UNATTRIBUTED}
    amounts |= {"held": ledger.held, "shared_saving": ledger.memo.shared_saving}
    slots = found["block_tokens"]
    if slots:
        blocks = found["held_blocks"] + found["cached_blocks"] + found["free_blocks"] + 1
        amounts["live"] = found["live_tokens"] * (ledger.capacity // blocks) // slots
    return PoolInstant(
        engine=str(found["engine"]),
        pool="kv",
        server=Engine.VLLM,
        model=found["model"],
        running=found["running"],
        waiting=found["waiting"],
        structure=(Structure.ONE_GROUP if slots else Structure.GROUPS).value,
        scheduling=found["scheduling"],
        sheet=Sheet(
            ledger=ledger,
            unit="bytes",
            unattributed=tuple(Unexplained(amount=p["amount_bytes"], cause=p["cause"]) for p in found["unattributed"]),
            figures=tuple(_measured(name, amount) for name, amount in amounts.items()),
            available=ledger.free + ledger.cached,
        ),
        balance=_balance(found, slots) if slots else None,
    )


def _measured(name: str, amount: int) -> Figure:
    return Figure(
        name=name,
        span=Span.exact(amount),
        unit="bytes",
        accuracy=Accuracy.MEASURED,
        formula="block tables of the scheduler",
    )


def _balance(found: dict[str, Any], slots: int) -> Balance:
    used = Span.exact(found["used_tokens"])
    return Balance(
        held=found["held_blocks"] * slots,
        used=used,
        live=Span.exact(found["live_tokens"]),
        stored=used,
        shared_saving=Span.exact(found["saved_tokens"]),
        preempted=Span.exact(found["preempted"]),
        prefilling=Span.exact(found["prefilling"]),
        causes=(),
    )
