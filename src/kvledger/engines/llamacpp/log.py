"""What llama.cpp's server logs, in all its namings: from ``KV self size`` to ``llama_kv_cache_iswa``.

Since about b9180 the memory lines appear only with ``-lv 4``. Sizes are MiB with two decimals. Lines by device restate
the size line of the same cache and are never added to it; where the size line is missing their sum stands in for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog
from kvledger.engines.llamacpp.log_caches import CACHE_RULES
from kvledger.engines.llamacpp.log_server import SERVER_RULES
from kvledger.engines.log_reader import read_engine_log

__all__ = ["BEGINS", "RULES", "read_log"]

BEGINS = re.compile(
    r"\s{0,8}(?:[a-z_]\w{2,60}(?:\(\))?: |(?:srv|slot|que|main|cmn|spec|set|get)\s{1,4}\S{1,40}: |build: \d"
    r"|build_info: |ggml_\w{1,60}: |KV self size|system info|\[GIN\]|time=)"
)
"""Beginnings of messages: llama.cpp names the function that logs."""
RULES = (*SERVER_RULES, *CACHE_RULES)
"""Rules for all lines of llama.cpp."""


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of llama.cpp's server: a text, or its lines in order."""
    return read_engine_log(lines, engine=Engine.LLAMACPP, rules=RULES, begins=BEGINS, own_headers=False)
