"""``transformers serve`` with a ``/metrics`` that says where its KV cache goes.

The server of Transformers (5.24) tells nothing of its cache, neither by an address nor in its log. This starts the same
server with the same arguments and adds one address::

    python -m kvledger.live.transformers_serve MODEL --continuous-batching --port 8000
    kvledger measure http://localhost:8000

The numbers are counted when they are asked for; the generation loop is not touched.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from kvledger.errors import MissingExtra
from kvledger.live.transformers_pages import PagedCount, count_pages

__all__ = ["PagesCollector", "add_metrics", "main"]

_PREFIX = "kvledger_transformers"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class PagesCollector(Collector):
    """Counts the cache of one ``GenerationState`` whenever it is asked."""

    def __init__(self, generation_state: Any, *, version: str) -> None:
        self._state = generation_state
        self._version = version

    def collect(self) -> Iterator[Any]:
        """Yield what the server is, and its pool once it has one."""
        problem, found = self._count()
        labels = {"version": self._version, "model": self._model(), "problem": problem}
        yield InfoMetricFamily(_PREFIX, "The server, and why it has no pool to speak of", value=labels)
        if found is None:
            return
        pool = GaugeMetricFamily(f"{_PREFIX}_pool_bytes", "Bytes of the pool by account", labels=["account"])
        for account, amount in found.ledger.accounts().items():
            pool.add_metric([account.value], amount)
        yield pool
        yield GaugeMetricFamily(
            f"{_PREFIX}_shared_saving_bytes", "Stored once, used by several", found.ledger.memo.shared_saving
        )
        yield GaugeMetricFamily(f"{_PREFIX}_running_requests", "Requests in the batch", found.running)
        yield GaugeMetricFamily(f"{_PREFIX}_waiting_requests", "Requests that wait", found.waiting)
        yield GaugeMetricFamily(
            f"{_PREFIX}_tokens", "Tokens of running requests, a shared one once for each of them", found.tokens
        )

    def _model(self) -> str:
        """Return the last part of the model's name: output holds no paths."""
        name = str(getattr(self._state, "_cb_model_id", None) or "")
        return name.partition("@")[0].rstrip("/").rpartition("/")[2]

    def _count(self) -> tuple[str, PagedCount | None]:
        if not getattr(self._state, "_continuous_batching", False):
            return "without --continuous-batching each request has a cache of its own, and there is no pool", None
        manager = getattr(getattr(self._state, "_cb_manager", None), "_cb", None)
        processor = getattr(manager, "batch_processor", None)
        if processor is None:
            return "the pool is made at the first request", None
        found = count_pages(processor.cache, processor.scheduler)
        return ("", found) if found is not None else ("the pool never stood still while it was counted", None)


def add_metrics(app: Any, generation_state: Any, *, version: str) -> None:
    """Add ``GET /metrics`` to the FastAPI app of a server."""
    registry = CollectorRegistry()
    registry.register(PagesCollector(generation_state, version=version))
    response = importlib.import_module("fastapi.responses").Response

    @app.get("/metrics")  # type: ignore[untyped-decorator]
    def metrics() -> Any:
        return response(generate_latest(registry), media_type=_TEXT)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start ``transformers serve`` with these arguments, and ``/metrics`` beside them.

    Raises:
        MissingExtra: Transformers with its server is not installed.
    """
    try:
        server: Any = importlib.import_module("transformers.cli.serving.server")
        command = importlib.import_module("transformers.cli.transformers")
        version = importlib.import_module("transformers").__version__
        importlib.import_module("fastapi")
    except ImportError as error:
        raise MissingExtra(
            f"`transformers serve` cannot be started: {error}", hint="pip install 'transformers[serving]>=5.24'"
        ) from error
    build = server.build_server

    def build_with_metrics(*positional: Any, **named: Any) -> Any:
        app = build(*positional, **named)
        add_metrics(app, named["generation_state"], version=version)
        return app

    server.build_server = build_with_metrics
    sys.argv = ["transformers", "serve", *(sys.argv[1:] if arguments is None else arguments)]
    command.app()


if __name__ == "__main__":
    main()
