"""The names of vLLM's series, under every spelling in which they are met.

vLLM writes ``vllm:num_requests_running``. Collectors that allow no colon make ``vllm_num_requests_running`` of it, and
Ray, which exports the metrics of its workers itself, ``ray_vllm_...`` (earlier ``ray_vllm:...``; vLLM
``v1/metrics/ray_wrappers.py``). Some releases of Ray leave the ``_total`` of counters out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "LABELLED",
    "PREFIXES",
    "VALUES",
    "Sample",
    "find_kind",
    "find_replica",
    "is_series",
    "read_number",
    "read_sample",
    "spelling_of",
    "wanted_pattern",
    "wanted_series",
]

PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_")
"""The spellings, in the order in which they are believed when a text has several."""

VALUES = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_requests_swapped": "swapped",
    "kv_cache_usage_perc": "usage_ratio",
    "gpu_cache_usage_perc": "old_usage_ratio",
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generation_tokens",
    "prompt_tokens_cached_total": "cached_tokens",
    "prefix_cache_queries_total": "query_tokens",
    "prefix_cache_hits_total": "hit_tokens",
    "gpu_prefix_cache_queries_total": "old_query_tokens",
    "gpu_prefix_cache_hits_total": "old_hit_tokens",
    "num_preemptions_total": "preemptions",
    "spec_decode_num_draft_tokens_total": "draft_tokens",
}
"""Series that become one number of the engine, and our name for it."""

LABELLED = {
    "request_success_total": ("finished", "finished_reason"),
    "num_requests_waiting_by_reason": ("waiting_by_reason", "reason"),
    "engine_sleep_state": ("sleep_state", "sleep_state"),
}

_HISTOGRAMS = {
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
}
_ENDINGS = ("_bucket", "_sum", "_count")
_TOTAL = "_total"
_REPLICA_LABELS = ("WorkerId", "ReplicaId")
"""Ray's names for the process that holds the engine."""
_MAX_LABELS = 200
_NAME = re.compile(r"[A-Za-z_:][\w:]*", re.ASCII)
_SERIES = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """The labels and the value of one line; the value is None where it is no number."""

    labels: dict[str, str]
    value: float | None


def _wanted_names() -> dict[str, str]:
    wanted = dict.fromkeys(VALUES, "value") | dict.fromkeys(LABELLED, "labelled") | {"cache_config_info": "config"}
    return wanted | dict(_histogram_names(_HISTOGRAMS))


def _histogram_names(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        for ending in _ENDINGS:
            yield f"{name}{ending}", ending


_WANTED = _wanted_names()
_SHORT = {name.removesuffix(_TOTAL): name for name in (*VALUES, *LABELLED) if name.endswith(_TOTAL)}
"""Counters without their ending."""


def wanted_series(*, buckets: bool) -> frozenset[str]:
    """Return the names that are read, without prefix; ``buckets`` adds those of histogram buckets."""
    return frozenset(name for name in _WANTED if buckets or not name.endswith("_bucket"))


def wanted_pattern() -> str:
    """Return a regular expression of the full names that are read, buckets left out, for a Prometheus server."""
    names = sorted({name.removesuffix(_TOTAL) for name in wanted_series(buckets=False)})
    return f"(ray_)?vllm[:_]({'|'.join(names)})({_TOTAL})?"


def spelling_of(name: str) -> str:
    """Return the prefix a name begins with, empty when it is none of vLLM's.

    >>> spelling_of("ray_vllm_prompt_tokens_total")
    'ray_vllm_'
    """
    if not name.startswith(PREFIXES):
        return ""
    return name[:9] if name[0] == "r" else name[:5]


def find_kind(name: str) -> tuple[str, str, bool]:
    """Return (kind, name with its ending, whether the ending was there) of a name without prefix; kind is "" if unread.

    >>> find_kind("prompt_tokens")
    ('value', 'prompt_tokens_total', False)
    """
    kind = _WANTED.get(name)
    if kind is not None:
        return kind, name, True
    full = _SHORT.get(name)
    return ("", name, True) if full is None else (_WANTED[full], full, False)


def is_series(line: str) -> bool:
    """Tell whether a line is a series of vLLM, or its help or type.

    >>> is_series("# TYPE vllm:num_requests_running gauge"), is_series("vllm_1  | INFO a line of a log")
    (True, False)
    """
    name = _NAME.match(line, 7 if line.startswith(("# HELP ", "# TYPE ")) else 0)
    spelling = spelling_of(name[0]) if name else ""
    if not spelling or name is None:
        return False
    return (
        spelling.endswith(":")
        or name[0][len(spelling) :] in _HISTOGRAMS
        or find_kind(name[0][len(spelling) :])[0] != ""
    )


def find_replica(labels: Mapping[str, str]) -> str:
    """Return which process the engine is in, where a collector puts several into one text."""
    return next((labels[name][:80] for name in _REPLICA_LABELS if labels.get(name)), "")


def read_sample(line: str, known: dict[str, dict[str, str]]) -> Sample | None:
    """Read one line, None when it is no sample; ``known`` keeps the label texts that come again and again."""
    match = _SERIES.match(line)
    if match is None:
        return None
    return Sample(_read_labels(match["labels"] or "", known), read_number(match["value"]))


def _read_labels(text: str, known: dict[str, dict[str, str]]) -> dict[str, str]:
    found = known.get(text)
    if found is None:
        pairs = _LABEL.findall(text)[:_MAX_LABELS]
        found = {key: _unescape(value) for key, value in pairs}
        if 'le="' not in text:
            known[text] = found
    return found


def read_number(text: str) -> float | None:
    """Return a finite number of at most 2**60, else None (``NaN``, ``None``, garbage)."""
    try:
        value = float(text[:64])
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= 2**60 else None


def _unescape(text: str) -> str:
    return text if "\\" not in text else text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
