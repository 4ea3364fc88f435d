"""What LMDeploy exports (``--enable-metrics``): usage of the pool, requests, lengths; one snapshot an engine."""

from __future__ import annotations

from kvledger.engines.exposition import Series, SeriesTable, expand_names, read_exposition
from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity, exact

__all__ = ["WANTED", "read_metrics"]

_PREFIX = "lmdeploy:"
_GAUGES = ("num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc")
_COUNTERS = ("prompt_tokens_total", "generation_tokens_total")
_OTHERS = ("num_api_requests_waiting", "num_api_requests_routed", "num_requests_succeeded", "num_requests_failed")
_HISTOGRAMS = (
    "request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "request_params_max_tokens",
    "e2e_request_latency_seconds",
)  # fmt: skip
_INFO = _PREFIX + "backend_config_info"
WANTED = expand_names(
    (_PREFIX + name for name in (*_GAUGES, *_COUNTERS, *_OTHERS, "prefix_cache_hit_rate", "backend_config_info")),
    (_PREFIX + name for name in _HISTOGRAMS),
)
"""The names of samples that are read."""


def read_metrics(text: str) -> tuple[EngineSnapshot, ...]:
    """Read a scrape: one snapshot a data-parallel engine.

    Raises:
        SourceError: The text is beyond the bounds of :mod:`kvledger.engines.exposition`.
    """
    groups: dict[tuple[str, str], list[Series]] = {}
    info: list[Series] = []
    for series in read_exposition(text, WANTED).series:
        if series.name == _INFO:
            info.append(series)
        else:
            groups.setdefault((series.labels.get("model_name", ""), series.labels.get("engine", "")), []).append(series)
    return tuple(_read_group(*key, series, info) for key, series in groups.items())


def _read_group(model: str, engine: str, series: list[Series], info: list[Series]) -> EngineSnapshot:
    table = SeriesTable.of(series)

    def find(name: str) -> Quantity | None:
        return table.find(_PREFIX + name)

    pool = PoolReading(
        unit="blocks",
        capacity=_label(info, "num_gpu_blocks"),
        usage_ratio=find("gpu_cache_usage_perc"),
        block_tokens=_label(info, "block_size") or _label(info, "cache_block_seq_len"),
    )
    return EngineSnapshot(
        engine=Engine.LMDEPLOY,
        model=model or None,
        engine_index=int(engine) if engine.isascii() and engine.isdigit() and len(engine) < 6 else 0,
        labels={name: value for name, value in (("model_name", model), ("engine", engine)) if value},
        pools=(pool,) if pool.usage_ratio or pool.capacity else (),
        running=find("num_requests_running"),
        waiting=find("num_requests_waiting"),
        max_running=_label(info, "max_batch_size"),
        max_model_len=_label(info, "session_len"),
        prompt_tokens_total=find("prompt_tokens_total"),
        generation_tokens_total=find("generation_tokens_total"),
        prefix_hit_ratio=find("prefix_cache_hit_rate"),
        histograms=table.find_histograms(_PREFIX + name for name in _HISTOGRAMS),
        others=table.find_others(_PREFIX + name for name in _OTHERS),
        missing=table.find_missing(_PREFIX + name for name in _GAUGES),
    )


def _label(info: list[Series], name: str) -> Quantity | None:
    """Return a number above zero that stands in a label of the configuration."""
    for series in info:
        text = series.labels.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 13 and int(text) > 0:
            return exact(int(text), source=f"{_INFO}{{{name}}}")
    return None
