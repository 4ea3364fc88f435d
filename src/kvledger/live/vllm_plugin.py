"""What vLLM loads by itself from an environment that has kvledger: nothing, unless a folder for ledgers is named.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``). With ``KVLEDGER_VLLM_DIR``
set, the ledger then stands in the server's own ``/metrics``. vLLM's stat loggers were no place for it: they see sums,
no block tables, and the mere presence of one switches statistics on in a server told to keep none.
"""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """Add the ledger to the metrics of this process; do nothing when no folder is named, or when called again."""
    from kvledger.live.journal import FOLDER_VARIABLE

    folder = os.environ.get(FOLDER_VARIABLE, "")
    if not folder:
        return
    import time
    from contextlib import suppress
    from pathlib import Path

    from prometheus_client import REGISTRY

    from kvledger.live.vllm_collector import InsideCollector

    with suppress(ValueError):  # it is there already
        REGISTRY.register(InsideCollector(Path(folder), REGISTRY, since_seconds=time.time()))
