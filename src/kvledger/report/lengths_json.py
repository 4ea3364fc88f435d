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
        **{
            name: {"requests": counts.tolist(), **asdict(lengths)}
            for name, counts, lengths in (
                ("prompt", table.prompt_requests, table.prompt),
                ("output", table.output_requests, table.output),
                ("total", table.total_requests, table.total),
            )
        },
        "block_sizes": [asdict(tail) for tail in table.tails],
    }
