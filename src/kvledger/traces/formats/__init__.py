"""One reader a format."""

from kvledger.traces.formats import (
    benchmarks,
    engine_logs,
    kv_cache_tester,
    llmservingsim,
    local_logs,
    nginx,
    nginx_json,
    otlp,
    own,
    ragpulse,
    recording,
    servegen,
    tables,
)
from kvledger.traces.registry import Reader

__all__ = ["ALL", "Reader"]

ALL: tuple[Reader, ...] = (
    own.READER,
    recording.READER,
    servegen.READER,
    kv_cache_tester.READER,
    ragpulse.READER,
    llmservingsim.WORKLOAD,
    llmservingsim.RUN,
    *benchmarks.READERS,
    otlp.READER,
    *tables.READERS,
    engine_logs.VLLM,
    engine_logs.SGLANG,
    local_logs.OLLAMA,
    local_logs.LLAMA_SERVER,
    nginx.READER,
    nginx_json.READER,
    tables.GUESSED,
)
"""Every reader, in the order in which they are tried."""
