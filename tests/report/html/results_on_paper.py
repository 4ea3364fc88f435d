"""Results of commands that replay and measure nothing, small and made by hand."""

from __future__ import annotations

import copy
from typing import Any

from .results import lengths

GIB = 2**30


def term(name: str, size: int, *, spread: int = 0, accuracy: str = "modelled") -> dict[str, Any]:
    """Return one addend of a memory estimate."""
    return {
        "name": name,
        "value_bytes": size,
        "low_bytes": size - spread,
        "high_bytes": size + spread,
        "accuracy": accuracy,
        "why": "weights on one rank, as loaded",
    }


def sheet(name: str = "rank", *, ranks: int = 1, unallocated: int = 4096) -> dict[str, Any]:
    """Return the sheet of a rank: three quarters used, an eighth for grain, an eighth free."""
    whole = ranks * 8 * GIB
    accounts = dict.fromkeys(("used", "cached", "reserved", "internal", "external", "free", "unattributed"), 0)
    accounts |= {"used": 6 * whole // 8, "internal": whole // 8, "free": whole // 8}
    entries = [
        ("tokens and states in use", "used", "keys, values and states that can still be read"),
        ("block tails", "internal", "slots of a request's last block that no token fills"),
        ("free", "free", "not held by any request of this load"),
    ]
    return {
        "name": name,
        "ranks": ranks,
        "capacity_bytes": whole,
        "accounts": {f"{account}_bytes": size for account, size in accounts.items()},
        "entries": [
            {"name": part, "account": account, "value_bytes": accounts[account], "why": why}
            for part, account, why in entries
        ],
        "unallocated_bytes": unallocated,
    }


def structure(moment: str = "admission", **changes: Any) -> dict[str, Any]:
    """Return the sheets of two ranks at a load."""
    return {
        "length_tokens": 8192,
        "requests": 12,
        "moment": moment,
        "accuracy": "modelled",
        "ranks": [sheet(ranks=2)],
        "deployment": sheet("deployment", ranks=2),
    } | changes


def planned(engine: str = "vllm", **changes: Any) -> dict[str, Any]:
    """Return what one engine makes of a model."""
    claim = {
        "name": "full #1",
        "kind": "full",
        "pool": "blocks",
        "layers": 24,
        "unit_tokens": 16,
        "window_tokens": None,
        "reach_tokens": None,
        "fixed_units": 0,
        "content_bytes": 3 * 2**19,
        "padding_bytes": 0,
        "request_units": 512,
        "request_bytes": 3 * 2**28,
    }
    window = claim | {
        "name": "window 128 #1", "kind": "window", "layers": 8, "window_tokens": 128, "padding_bytes": 4096,
        "request_units": 9, "request_bytes": 9 * 2**19,
    }  # fmt: skip
    state = claim | {"name": "state #1", "kind": "state", "unit_tokens": 0, "layers": 4}
    return {
        "engine": engine,
        "version": "0.33.0",
        "answer": "The memory holds 12 requests of 8,192 tokens at once, or 130 of 800.",
        "settings": {"tp": 2, "pp": 1, "kv_dtype": "auto", "max_model_len": 8192, "options": {}},
        "memory": {
            "per_rank_bytes": [8 * GIB],
            "low_bytes": 7 * GIB,
            "high_bytes": 9 * GIB,
            "accuracy": "modelled",
            "source": "estimated from the device, the utilisation and the weights",
            "terms": [
                term("requested", 22 * GIB, accuracy="derived"),
                term("weights", -12 * GIB, accuracy="derived"),
                term("activations", -2 * GIB, spread=GIB),
            ],
        },
        "model_cost": {"growth_bytes_per_token": 98304, "fixed_bytes_per_sequence": 2**20, "accuracy": "derived"},
        "plan": {
            "accuracy": "modelled",
            "pools": [{"name": "blocks", "units": 4097, "unit": "block", "null_units": 1}],
            "claims": [claim, window, state],
            "ranks": [],
            "lines": [
                {
                    "level": "INFO",
                    "text": "GPU KV cache size: 65,536 tokens",
                    "meaning": "the pool, shared by all running requests",
                    "accuracy": "modelled",
                }
            ],
            "failure": None,
            "notes": ["a note on the plan"],
        },
        "plan_low": {"pools": [], "printed_tokens": 60_000, "printed_concurrency": None},
        "plan_high": {"pools": [], "printed_tokens": 70_000, "printed_concurrency": None},
        "requests": [
            {
                "length_tokens": length,
                "units": length // 16,
                "held_bytes": length * 98304,
                "needed_bytes": length * 49152,
                "used_ratio": 0.5,
                "requests": count,
                "accuracy": "modelled",
            }
            for length, count in ((800, 130), (8192, 12))
        ],
        "largest_max_model_len": 131_072,
        "request_limit": 100,
        "structure": structure(),
        "load": structure("decoding", requests=5, length_tokens=800),
        "fitted": None,
    } | changes


def size(**changes: Any) -> dict[str, Any]:
    """Return what a model costs under one engine on one kind of device."""
    result = {
        "schema": "kvledger/size",
        "schema_version": 1,
        "kvledger_version": "1.2.3",
        "model": "small-llama",
        "gpu": {"name": "a10", "memory_bytes": 24 * GIB},
        "engines": [planned()],
        "notes": ["the weights were estimated from the parameters; give `--weights` for a closer estimate"],
    }
    return copy.deepcopy(result | changes)


def sizes() -> dict[str, Any]:
    """Return what several engines make of a model; one of them nothing."""
    other = planned("llama.cpp", request_limit=4, structure=None, load=None)
    broken = {"engine": "tgi", "version": "3.3", "error": {"code": "KVE003", "message": "not a model it serves"}}
    return size(engines=[planned(), other, broken])


def trace_lengths(mean: float) -> dict[str, Any]:
    """Return the statistics of one column."""
    return {
        "count": 10, "mean_tokens": mean, "min_tokens": 1, "p50_tokens": 3, "p90_tokens": 5, "p95_tokens": 6,
        "p99_tokens": 6, "max_tokens": 6, "sum_tokens": 30,
    }  # fmt: skip


def trace(**changes: Any) -> dict[str, Any]:
    """Return what a trace holds whose requests share prefixes."""
    result = {
        "schema": "kvledger/trace",
        "schema_version": 1,
        "format": {"name": "mooncake", "sentence": "lines with hash ids"},
        "rows_read": 12,
        "requests": 10,
        "dropped": {"no output": 2},
        "adjusted": {"arrival went back": 1},
        "notes": ["a note on the trace"],
        "accuracy": {
            "arrivals": "measured",
            "prompts": "measured",
            "outputs": "modelled",
            "error_band_ratio": {"prompts": [0.9, 1.1], "outputs": [0.5, 2.0]},
        },
        "span_seconds": 300.0,
        "rate_per_second": {"mean": 0.0333, "peak_10_seconds": 0.5, "peak_60_seconds": None},
        "arrival_cv": 1.25,
        "prompt": trace_lengths(3.0),
        "output": trace_lengths(2.0),
        "total": trace_lengths(5.0),
        "declared_max_tokens": trace_lengths(9.0),
        "lengths": lengths(),
        "sessions": 4,
        "answers": 12,
        "beam_searches": 1,
        "identity": "hash_ids",
        "infinite_cache_prefix": {"prompt_tokens": 30, "shared_tokens": 12, "ratio": 0.4},
    }
    return copy.deepcopy(result | changes)


def cache(**changes: Any) -> dict[str, Any]:
    """Return what a prefix cache of three sizes would find."""

    def found(name: str, ratio: float, *, filled: bool = True) -> dict[str, Any]:
        return {"eviction": name, "hit_ratio": ratio, "whole_hit_ratio": 0.0, "filled": filled}

    def live(budget: int, ratio: float | None) -> dict[str, Any]:
        running = None if ratio is None else 3.5
        return {
            "budget_bytes": budget, "blocks": 4, "eviction": "lru", "alone_hit_ratio": 0.2, "live_hit_ratio": ratio,
            "mean_running": running, "preemptions": None if ratio is None else 2, "makespan_seconds": running,
        }  # fmt: skip

    result = {
        "schema": "kvledger/cache",
        "schema_version": 1,
        "kvledger_version": "1.2.3",
        "trace": {"format": "mooncake", "requests": 10, "rows_read": 12, "dropped": {"no output": 2}, "notes": []},
        "model": "llama-3.1-70b",
        "bytes_per_token": 327_680,
        "block_tokens": 512,
        "block_bytes": 160 * 2**20,
        "distinct_blocks": 40,
        "warm_up_ratio": 0.5,
        "first_measured_request": 5,
        "answer": "A cache that forgets nothing would find 40.0 % of the prompt tokens. "
        "`lru` reaches nine tenths of that with 4.00 GiB.",
        "accuracy": {"alone": "derived", "live": "modelled"},
        "ceiling": {"hit_ratio": 0.4, "whole_hit_ratio": 0.1},
        "budgets": [
            {"budget_bytes": GIB, "blocks": 6, "evictions": [found("lru", 0.1), found("belady", 0.3)]},
            {"budget_bytes": 4 * GIB, "blocks": 25, "evictions": [found("lru", 0.37), found("belady", 0.39)]},
            {
                "budget_bytes": 64 * GIB,
                "blocks": 400,
                "evictions": [found("lru", 0.4, filled=False), found("belady", 0.4, filled=False)],
            },
        ],
        "live": [live(GIB, None), live(4 * GIB, 0.15)],
        "notes": ["a note on the cache"],
    }
    return copy.deepcopy(result | changes)


def limit(name: str, outcome: str, low: float | None, high: float | None, **changes: Any) -> dict[str, Any]:
    """Return one limit of one engine."""
    return {
        "source": "server",
        "engine": 0,
        "pool": None,
        "limit": name,
        "bound": 0.5,
        "low": low,
        "high": high,
        "outcome": outcome,
        "reason": None,
    } | changes


def check(**changes: Any) -> dict[str, Any]:
    """Return limits of which each has become something else."""
    result = {
        "schema": "kvledger/check",
        "schema_version": 1,
        "limits": [
            limit("max-internal", "kept", 0.01, 0.02),
            limit("max-held", "broken", 0.97, 0.97),
            limit("min-utilisation", "open", 0.4, 0.6),
            limit("max-waiting", "unknown", None, None, bound=10, reason="no sample answered: refused"),
            limit("max-preemptions", "kept", 0, 3, bound=100, engine=None, pool="swa"),
            limit("max-unattributed", "broken", 0.7, 0.8),
        ],
        "notes": ["a note on the server"],
    }
    return copy.deepcopy(result | changes)
