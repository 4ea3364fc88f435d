"""Results of commands that replay and measure nothing, small and made by hand."""

from __future__ import annotations

import copy
from typing import Any

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
