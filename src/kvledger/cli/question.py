"""The options of ``replay``, as one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULTS", "Question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The options of ``replay``, as given."""

    trace: str
    model: str | None
    bytes_per_token: int | None
    kv_dtype: str | None
    layers: int | None
    memory: str | None
    capacity_tokens: int | None
    num_blocks: int | None
    policies: str
    placement: str
    buffer: int
    granularity: int
    grow_step: int
    block_size: int
    watermark: float
    full_sequence_must_fit: bool
    prefix_caching: str
    eviction: str
    swa_full_tokens_ratio: float
    page_size: str
    samples: int | None
    beams: int | None
    beam_turnover: float
    samples_as: str | None
    preemption: str
    swap_space: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    clock: str | None
    block_overhead: float
    restart_every: float
    columns: str | None
    rate: float | None
    session_starts: str
    seed: int
    content: str | None
    tries: tuple[str, ...]
    findings: str
    mitigations: str | None
    layout: bool
    series: str | None
    force: bool
    quiet: bool
    defaulted: frozenset[str] | None = None
    """Options that were not given, so that a recording may tell them; None: all are meant as they stand."""


DEFAULTS: dict[str, Any] = dict.fromkeys(Question.__slots__) | {
    "placement": "best",
    "buffer": 0,
    "granularity": 1,
    "grow_step": 256,
    "block_size": 16,
    "watermark": 0.0,
    "full_sequence_must_fit": True,
    "prefix_caching": "off",
    "eviction": "lru",
    "swa_full_tokens_ratio": 0.8,
    "page_size": "2MiB",
    "beam_turnover": 0.1,
    "preemption": "recompute",
    "swap_space": "4GiB",
    "max_num_seqs": 1024,
    "max_num_batched_tokens": 8192,
    "block_overhead": 0.0,
    "restart_every": 0.0,
    "seed": 0,
    "session_starts": "rate:0.1",
    "tries": (),
    "layout": False,
    "findings": "auto",
    "force": False,
    "quiet": False,
}
"""What ``replay`` takes where an option is not given, for commands that ask only for a part of it."""
