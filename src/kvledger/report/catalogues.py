"""What is known by name, as text and as JSON: models with what their cache costs, and accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

import kvledger
from kvledger.model.catalogue import CatalogueEntry
from kvledger.model.gpus import Gpu
from kvledger.model.spec import ModelSpec
from kvledger.report.tables import new_table
from kvledger.units import format_bytes

__all__ = ["gpus_json", "gpus_text", "models_json", "models_text"]

SCHEMA = "kvledger/catalogue"
SCHEMA_VERSION = 1


def models_text(models: Sequence[ModelSpec]) -> RenderableType:
    """Return the models of the catalogue as a table."""
    table = new_table("model", "a token", "a sequence, once", "longest request")
    for model in models:
        fixed_bytes = model.fixed_bytes_per_sequence()
        longest = Text("-") if model.max_model_len is None else Text(f"{model.max_model_len.tokens:,}")
        once = format_bytes(fixed_bytes) if fixed_bytes else "-"
        table.add_row(model.name, format_bytes(model.bytes_per_token()), once, longest)
    return table


def models_json(models: Sequence[ModelSpec], entries: Sequence[CatalogueEntry]) -> dict[str, Any]:
    """Return the object of ``size --list models --json``."""
    return _record() | {
        "models": [
            {
                "name": model.name,
                "aliases": list(entry.aliases),
                "token_bytes": model.bytes_per_token(),
                "fixed_bytes": model.fixed_bytes_per_sequence(),
                "longest_tokens": None if model.max_model_len is None else model.max_model_len.tokens,
                "source": entry.source,
            }
            for model, entry in zip(models, entries, strict=True)
        ]
    }


def gpus_text(gpus: Sequence[Gpu]) -> RenderableType:
    """Return the accelerators as a table."""
    table = new_table("accelerator", "memory", "bandwidth", "bf16")
    for gpu in gpus:
        bandwidth = f"{gpu.bandwidth_bytes_per_second / 10**9:,.0f} GB/s"
        table.add_row(gpu.name, format_bytes(gpu.memory_bytes), bandwidth, f"{gpu.bf16_flops / 10**12:,.0f} TFLOP/s")
    return table


def gpus_json(gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Return the object of ``size --list gpus --json``."""
    return _record() | {
        "gpus": [
            {
                "name": gpu.name,
                "aliases": list(gpu.aliases),
                "memory_bytes": gpu.memory_bytes,
                "bandwidth_bytes_per_second": gpu.bandwidth_bytes_per_second,
                "bf16_flops": gpu.bf16_flops,
                "source": gpu.source,
            }
            for gpu in gpus
        ]
    }


def _record() -> dict[str, Any]:
    return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "kvledger_version": kvledger.__version__}
