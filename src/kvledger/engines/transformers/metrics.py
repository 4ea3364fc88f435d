"""The ``/metrics`` of ``python -m kvledger.live.transformers_serve``; Transformers' own server has none (5.24).

Its accounts are counted inside the process and sum to the pool.
"""

from __future__ import annotations

from kvledger.engines.exposition import SeriesTable
from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity, add
from kvledger.engines.strict_json import find_object, read_json
from kvledger.errors import SourceError

__all__ = ["WANTED", "is_serve_api", "read_metrics"]

_PREFIX = "kvledger_transformers_"
WANTED = frozenset(
    _PREFIX + name
    for name in ("info", "pool_bytes", "shared_saving_bytes", "running_requests", "waiting_requests", "tokens")
)
"""The names of samples that are read."""
_ACCOUNTS = ("used", "cached", "reserved", "internal", "external", "free", "unattributed")


def read_metrics(text: str) -> tuple[EngineSnapshot, ...]:
    """Read a scrape: one snapshot, or none when the text has no sample of this server.

    Raises:
        SourceError: The text is beyond the bounds of :mod:`kvledger.engines.exposition`.
    """
    table = SeriesTable.read(text, WANTED)
    if table is None:
        return ()
    info = next((series.labels for series in table.by_name.get(_PREFIX + "info", ())), {})
    accounts = {name: table.find(_PREFIX + "pool_bytes", account=name) for name in _ACCOUNTS}
    whole = add(accounts.values())
    pool = PoolReading(
        unit="bytes",
        capacity=whole,
        used=add([accounts["used"], accounts["internal"], accounts["reserved"]]),
        stored=accounts["used"],
        cached=accounts["cached"],
        free=accounts["free"],
        lost=accounts["unattributed"],
        shared_saving=table.find(_PREFIX + "shared_saving_bytes"),
    )

    def find(name: str) -> Quantity | None:
        return table.find(_PREFIX + name)

    return (
        EngineSnapshot(
            engine=Engine.TRANSFORMERS,
            model=info.get("model", "")[:300] or None,
            version=info.get("version", "")[:40] or None,
            pools=(pool,) if whole is not None else (),
            running=find("running_requests"),
            waiting=find("waiting_requests"),
            live_tokens=find("tokens"),
            problem=info.get("problem", "")[:400],
        ),
    )


def is_serve_api(text: str) -> bool:
    """Tell from ``/openapi.json`` whether a server is ``transformers serve``."""
    try:
        paths = find_object(read_json(text, what="the answer of /openapi.json"), "paths")
    except SourceError:
        return False
    return {"/load_model", "/reset", "/v1/chat/completions"} <= set(paths)
