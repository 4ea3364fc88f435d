"""Results for the page to show, small and made by hand, so that no test here waits for a replay."""

from __future__ import annotations

import copy
from typing import Any

RATIO = {
    "used": 0.25,
    "cached": 0.0,
    "reserved": 0.5,
    "internal": 0.05,
    "external": 0.1,
    "free": 0.1,
    "unattributed": 0.0,
}
PAGED = {
    "used": 0.9,
    "cached": 0.0,
    "reserved": 0.0,
    "internal": 0.02,
    "external": 0.0,
    "free": 0.08,
    "unattributed": 0.0,
}


def point(start: float, ratio: dict[str, float], *, seconds: float = 1.0, running: float = 3.0) -> dict[str, Any]:
    """Return one stretch of a timeline."""
    return {
        "start_seconds": start,
        "seconds": seconds,
        "steps": 2,
        "ratio": ratio,
        "running": running,
        "waiting": 1.0,
        "peak_used_ratio": ratio.get("used", 0.0),
        "peak_held_ratio": 1 - ratio.get("free", 0.0),
        "peak_external_ratio": ratio.get("external", 0.0),
        "peak_running": 4,
        "peak_waiting": 2,
        "preemptions": 0,
    }


def policy(name: str, ratio: dict[str, float], *, points: int = 20) -> dict[str, Any]:
    """Return what one policy did."""
    latency = {"mean": 1.0, "p50": 1.0, "p90": 2.0, "p95": 2.0, "p99": 3.0, "max": 4.0, "exact": True}
    return {
        "policy": name,
        "meaning": "block table, 16 tokens a block, allocated on demand",
        "capacity_bytes": 2**30,
        "unit_tokens": 16,
        "requests": 10,
        "rejected": {"prompt_too_long": 1},
        "truncated": 0,
        "finished": 9,
        "prompt_tokens": 100,
        "output_tokens": 100,
        "steps": 2 * points,
        "preemptions": 3,
        "recomputed_tokens": 0,
        "copied_tokens": 0,
        "restarts": 0,
        "refused_while_free": 7,
        "makespan_seconds": float(points),
        "busy_seconds": float(points),
        "saturated_seconds": float(points),
        "down_seconds": 0.0,
        "mean_running": 3.0,
        "saturated_running": 3.0,
        "peak_running": 4,
        "peak_waiting": 2,
        "mean_ratio": ratio,
        "saturated_ratio": ratio,
        "memo": {"reserved_never_used": 0.4, "saturated_reserved_never_used": 0.4, "shared_saving": 0.0, "stale": 0.0},
        "paper_ratio": {
            "token_states": 0.25,
            "reservation": 0.1,
            "internal_fragmentation": 0.4,
            "external_and_others": 0.25,
        },
        "factors": {"length_ratio": 0.33, "block_efficiency": 0.94, "usable_share": 0.8, "product": 0.25},
        "prefix": None,
        "layouts": [],
        "latency_seconds": {"queue": latency, "first_token": latency, "end_to_end": None},
        "timeline": [point(float(i), ratio) for i in range(points)],
    }


def replay(**changes: Any) -> dict[str, Any]:
    """Return a replay of two policies."""
    result = {
        "schema": "kvledger/replay",
        "schema_version": 1,
        "kvledger_version": "1.2.3",
        "answer": "`max` runs 3.0 requests at a time and fills 25.0 % of the pool with tokens in use.",
        "trace": {
            "source": "log.jsonl",
            "format": "own",
            "format_sentence": "x",
            "requests": 10,
            "rows_read": 10,
            "dropped": {},
            "adjusted": {},
            "span_seconds": 1.0,
            "longest_tokens": 40,
            "lengths": lengths(),
            "notes": [],
        },
        "pool": {
            "model": "llama-3-8b",
            "bytes_per_token": 131072,
            "memory_bytes": 2**30,
            "capacity_tokens": None,
            "num_blocks": None,
        },
        "settings": {"max_model_len": 4096, "clock": {"name": "steps", "base": 1.0, "a": 0.0, "b": 0.0, "c": 0.0}},
        "accuracy": {
            "lengths": "measured",
            "arrivals": "measured",
            "ratios": "derived",
            "counts": "derived",
            "seconds": "derived",
        },
        "notes": ["a note"],
        "policies": [policy("max", RATIO), policy("paged", PAGED)],
        "mitigations": {
            "max": [
                {
                    "change": "first fit",
                    "price": "none",
                    "saturated_ratio": RATIO,
                    "headline_ratio": RATIO,
                    "effect": dict.fromkeys(RATIO, 0.0) | {"used": 0.1, "reserved": -0.1},
                    "mean_running": 3.0,
                    "saturated_running": 3.0,
                    "rejected": {},
                    "truncated": 0,
                    "preemptions": 0,
                }
            ]
        },
        "what_ifs": None,
    }
    return copy.deepcopy(result | changes)


def finding(**changes: Any) -> dict[str, Any]:
    """Return one finding with one remedy."""
    size = {"low": 2**29, "high": 2**29, "unit": "bytes", "accuracy": "derived", "formula": "reserved x capacity"}
    remedy = {
        "setting": "block tables of 16",
        "returned": size | {"high": 2**29 + 2**20},
        "trade": "trade-off",
        "proof": "replayed with block tables",
        "worse": "attention reads through block tables",
    }
    return {
        "code": "KV101",
        "title": "memory is reserved for tokens that never come",
        "subject": "max",
        "sentence": "half of the pool is reserved",
        "returned_bytes": 2**29,
        "size": size,
        "remedies": [remedy],
    } | changes


def layout(moment: str = "most-waste", *, pieces: int = 2) -> dict[str, Any]:
    """Return a map of one GiB: pieces of equal size with a hole behind each, the first of request 7."""
    step = 2**30 // pieces
    size = step // 4 * 3
    hole = (step - size) * pieces
    return {
        "moment": moment,
        "order": "addresses",
        "step": 12,
        "time_seconds": 6.0,
        "running": pieces,
        "waiting": 3,
        "asked_bytes": step,
        "unit_bytes": 1,
        "accounts_bytes": {
            "used": size // 2 * pieces,
            "cached": 0,
            "reserved": size // 4 * pieces,
            "internal": (size - size // 2 - size // 4) * pieces,
            "external": hole,
            "free": 2**30 - size * pieces - hole,
            "unattributed": 0,
        },
        "pieces": {
            "joined": 1,
            "request": list(range(7, 7 + pieces)),
            "start_bytes": [i * step for i in range(pieces)],
            "end_bytes": [i * step + size for i in range(pieces)],
            "size_bytes": [size] * pieces,
            "used_bytes": [size // 2] * pieces,
            "reserved_bytes": [size // 4] * pieces,
        },
        "blocks": None,
    }


def lengths() -> dict[str, Any]:
    """Return the lengths of ten requests."""
    column = {
        "count": 10,
        "mean_tokens": 3.0,
        "min_tokens": 1,
        "p50_tokens": 3,
        "p90_tokens": 5,
        "p95_tokens": 6,
        "p99_tokens": 6,
        "max_tokens": 6,
        "sum_tokens": 30,
    }
    return {
        "edges_tokens": [1, 2, 4, 8],
        "prompt_requests": [2, 5, 3],
        "output_requests": [2, 5, 3],
        "total_requests": [0, 5, 5],
        "prompt": column,
        "output": column,
        "total": column,
        "block_sizes": [{"block_tokens": 16, "tail_tokens": 7.5, "tail_ratio": 0.25}],
    }


def prove(**changes: Any) -> dict[str, Any]:
    """Return a proof of three ways, one of which did not run."""

    def side(way: str, ratio: dict[str, float] | None, **more: Any) -> dict[str, Any]:
        return {
            "way": way,
            "meaning": "this engine, block tables on demand",
            "failure": None,
            "notes": [],
            "capacity_bytes": 2**30,
            "mean_ratio": ratio,
            "saturated_ratio": ratio,
            "mean_running": 3.0,
            "saturated_running": 4.0,
            "peak_running": 7,
            "seconds": 12.0,
            "tokens_per_second": 50.0,
            "prefill_tokens": 900,
            "prefill_seconds": 3.0,
            "decode_tokens": 500,
            "decode_seconds": 8.0,
            "preemptions": 0,
            "agreement": None,
        } | more

    agreement = {"same": 9, "tie": 1, "different": 0, "missing": 0}
    failure = {"code": "KVE004", "message": "no page fits"}
    return {
        "schema": "kvledger/prove",
        "schema_version": 1,
        "kvledger_version": "1.2.3",
        "answer": "Block tables ran 9.0 requests at a time in the memory where reserving max_model_len ran 4.0: 2.3 "
        "times as many. Every way gave the same tokens.",
        "model": "small-llama",
        "dtype": "float32",
        "threads": 2,
        "versions": {"python": "3.12", "torch": "2.13.0", "transformers": "5.24.0"},
        "trace": "synthetic:chat",
        "requests": 10,
        "prompt_tokens": 900,
        "output_tokens": 600,
        "memory_bytes": 2**30,
        "token_bytes": 131072,
        "max_model_len": 1024,
        "block_size": 16,
        "accuracy": {"bytes": "measured", "seconds": "measured"},
        "notes": ["prompts are random tokens"],
        "sides": [
            side("generate-static", RATIO),
            side("generate-batch", None, failure=failure, capacity_bytes=0, saturated_ratio=None),
            side("blocks", PAGED, agreement=agreement, tokens_per_second=100.0, notes=["a note"]),
            side("hidden", None, agreement=agreement | {"tie": 0}),
        ],
    } | changes


def sweep(*, rates: tuple[Any, ...] = (2.0, "inf"), **changes: Any) -> dict[str, Any]:
    """Return a sweep of two policies, three block sizes and some rates; `paged` with small blocks beats all."""
    rows, demands = [], []
    for rate in rates:
        mine = [
            {
                "cell": f"cell-{rate}-{block}",
                "policy": policy,
                "values": {"policy": policy, "rate": rate, "block-size": block, "prefix-caching": block > 16},
                "used_ratio": 0.5,
                "wasted_ratio": block / 1024 if policy == "paged" else 0.5,
                "wasted_bytes": 2**20 * (block if policy == "paged" else 512),
                "queue_mean_seconds": 1.0,
                "queue_p99_seconds": 0.0 if block == 256 else 8.0,
                "first_token_p99_seconds": 9.0,
                "end_to_end_p99_seconds": 20.0,
                "requests_per_second": 3.0,
                "output_tokens_per_second": 1234.0,
                "mean_running": 4.0,
                "preemptions": 0,
                "prefix_hit_ratio": None,
                "rejected": 0,
                "truncated": 1 if policy == "max" and block == 64 else 0,
                "finished": 10,
            }
            for policy in ("max", "paged")
            for block in (16, 64, 256)
        ]
        names = [{"cell": f"cell-{rate}-{block}", "policy": "paged"} for block in (16, 256)]
        rows += mine
        best = {"wasted_bytes": names[0], "queue_p99_seconds": names[1]}
        demands.append({"values": {"rate": rate}, "rows": 6, "left_out": 1, "pareto": names, "best": best})
    return {
        "schema": "kvledger/sweep",
        "schema_version": 1,
        "kvledger_version": "1.2.3",
        "grid": "grid.toml",
        "output": None,
        "cells": 3 * len(rates),
        "known_cells": 0,
        "varying": ["policy", "rate", "block-size", "prefix-caching"],
        "answer": "For rate 2: `paged` (block-size 16) wastes 16.00 MiB and waits 8 s (p99), "
        "the least and the shortest.",
        "rows": rows,
        "demands": demands,
        "failures": [
            {
                "cell": "cell-x",
                "policy": None,
                "values": {"block-size": 0},
                "code": "KVE001",
                "message": "block size 0",
            }
        ],
        "notes": ["a note"],
    } | changes


def sharing(**changes: Any) -> dict[str, Any]:
    """Return what sharing saves, for samples and for beams."""

    def row(workload: str, turnover: float | None, scale: float) -> dict[str, Any]:
        return {
            "workload": workload,
            "beam_turnover": turnover,
            "block_saving_ratio": {"2": scale, "6": 2 * scale},
            "running_forked": {"2": 40.0, "6": 120.0},
            "running_alone": {"2": 30.0, "6": 33.0},
            "published_low_ratio": 0.1,
            "published_high_ratio": 0.5,
        }

    return {
        "schema": "kvledger/sharing",
        "schema_version": 1,
        "kvledger_version": "1.2.3",
        "model": "opt-13b",
        "memory_bytes": 12 * 2**30,
        "block_size": 16,
        "requests": 1000,
        "seed": 0,
        "rows": [row("alpaca", None, 0.05), row("sharegpt", 0.1, 0.37)],
    } | changes


def log(**changes: Any) -> dict[str, Any]:
    """Return what the log of two engines tells, one of which only started."""

    def quantity(value: float, rounded: float = 0) -> dict[str, Any]:
        return {"value": value, "low": value - rounded, "high": value + rounded, "accuracy": "measured"}

    load = {
        "lines": 7,
        "running": 38,
        "waiting": 2,
        "held_ratio": [0.8, 0.82],
        "used_ratio": [0.75, 0.82],
        "mean_held_ratio": 0.6,
        "reserved_ratio": 8.8,
        "preemptions": 3,
        "verdict": {
            "diagnosis": "full",
            "sentence": "near full: 80 % of the pool holds tokens, 82 % is held: the load fills the memory",
            "advice": "look at batching and prefix caching, a smaller KV dtype, or more memory",
        },
    }
    engine = {
        "engine": "vllm",
        "engine_index": 0,
        "version": "0.32.0",
        "model": "Llama-3.1-8B-Instruct",
        "tokens": quantity(140_976),
        "tokens_source": "blocks * block size",
        "size_bytes": quantity(18_479_096_791, 5_368_709),
        "blocks": quantity(8811),
        "block_tokens": quantity(16),
        "max_model_len": quantity(32_768),
        "concurrency": quantity(4.3, 0.005),
        "errors": [],
        "notes": ["2 earlier starts in this log are left out"],
        "load": load,
    }
    started = engine | {"engine_index": 1, "load": None, "notes": []}
    silent = dict.fromkeys(("tokens", "tokens_source", "size_bytes", "blocks", "block_tokens", "max_model_len"))
    nothing = started | silent | {"engine_index": 2, "concurrency": None}
    bare = started | {"engine_index": 3, "concurrency": None}
    failed = nothing | {"engine_index": 4, "errors": ["no memory left for the cache"]}
    nothing_back = finding()["size"] | {"low": 0, "high": 0}
    longer = finding()["remedies"][0] | {"returned": nothing_back, "gain": "longer requests"}
    return {
        "schema": "kvledger/measure-log",
        "schema_version": 1,
        "engines": [engine, started, nothing, bare, failed],
        "findings": {"told": [finding(remedies=[longer])], "unproved": []},
    } | changes
