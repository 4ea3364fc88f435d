"""How long the requests of a trace are, as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvledger.traces.lengths import LengthTable

__all__ = ["lengths_json"]


def lengths_json(table: LengthTable) -> dict[str, Any]:
    """Return the histograms, their statistics, and the tails of blocks."""
    return {
        "edges_tokens": table.edges.tolist(),
        "prompt_requests": table.prompt_requests.tolist(),
        "output_requests": table.output_requests.tolist(),
        "total_requests": table.total_requests.tolist(),
        "prompt": asdict(table.prompt),
        "output": asdict(table.output),
        "total": asdict(table.total),
        "block_sizes": [asdict(tail) for tail in table.tails],
    }
