"""What Text Generation Inference exports: budgets reserved at admission, and lengths of ended requests.

A request holds blocks for its prompt and all tokens it may generate, so the budget of the batch is what is held.
"""

from __future__ import annotations

from kvledger.engines.exposition import SeriesTable, expand_names
from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity, exact

__all__ = ["WANTED", "read_metrics"]

_GAUGES = ("tgi_batch_current_size", "tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens", "tgi_queue_size")
_OTHERS = ("tgi_request_count", "tgi_request_success", "tgi_request_failure", "tgi_batch_inference_count")
_HISTOGRAMS = (
    "tgi_request_input_length", "tgi_request_generated_tokens", "tgi_request_max_new_tokens", "tgi_batch_next_size",
    "tgi_request_duration",
)  # fmt: skip
WANTED = expand_names((*_GAUGES, *_OTHERS), _HISTOGRAMS)
"""The names of samples that are read."""


def read_metrics(text: str) -> tuple[EngineSnapshot, ...]:
    """Read a scrape: one snapshot, or none when the text has no sample of TGI.

    Raises:
        SourceError: The text is beyond the bounds of :mod:`kvledger.engines.exposition`.
    """
    table = SeriesTable.read(text, WANTED)
    if table is None:
        return ()
    reserved = table.find("tgi_batch_current_max_tokens")
    capacity = table.find("tgi_batch_max_total_tokens")
    if capacity is not None and capacity.value <= 1:
        capacity = None
    histograms = table.find_histograms(_HISTOGRAMS)
    return (
        EngineSnapshot(
            engine=Engine.TGI,
            pools=(PoolReading(capacity=capacity, used=reserved),) if capacity or reserved else (),
            running=table.find("tgi_batch_current_size"),
            waiting=table.find("tgi_queue_size"),
            reserved_tokens=reserved,
            prompt_tokens_total=_total(table, "tgi_request_input_length_sum"),
            generation_tokens_total=_total(table, "tgi_request_generated_tokens_sum"),
            histograms=histograms,
            others=table.find_others(_OTHERS),
            missing=table.find_missing(_GAUGES),
        ),
    )


def _total(table: SeriesTable, name: str) -> Quantity | None:
    """Return a sum of whole tokens; those of requests that have ended."""
    found = table.find(name)
    return None if found is None else exact(round(found.value), source=name)
