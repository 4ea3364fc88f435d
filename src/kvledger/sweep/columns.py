"""The columns of a sweep's results: one row for each policy of each cell. Columns are added, never renamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from kvledger.ledger import Account
from kvledger.replay.outcome import Latency, Outcome, Rejection

__all__ = ["IDENTITY", "RESULTS", "Cell", "Column", "Kind", "result_of", "wasted_ratio"]

Cell = str | int | float | bool | None


class Kind(StrEnum):
    """What a column holds; nullable."""

    TEXT = "string"
    WHOLE = "int64"
    NUMBER = "double"
    FLAG = "bool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``known`` as in the JSON of ``replay``: d(erived), m(odelled), t (as the trace), or empty."""

    name: str
    kind: Kind
    unit: str = ""
    known: str = ""
    meaning: str


def _column(name: str, kind: Kind, unit: str, known: str, meaning: str) -> Column:
    return Column(name=name, kind=kind, unit=unit, known=known, meaning=meaning)


IDENTITY = (
    _column("cell", Kind.TEXT, "", "", "what identifies the cell: its settings, its inputs and the version"),
    _column("policy", Kind.TEXT, "", "", "the memory policy; null when the cell failed before any ran"),
    _column("error_code", Kind.TEXT, "", "", "the error that kept this row from a result; null when it has one"),
    _column("error", Kind.TEXT, "", "", "its message"),
)
"""What a row is."""

_WHERE = (
    _column("model_name", Kind.TEXT, "", "", "the model and the dtype of its cache, or `given`"),
    _column("token_bytes", Kind.WHOLE, "bytes", "d", "what a token costs, all layers"),
    _column("longest_tokens", Kind.WHOLE, "tokens", "", "longest sequence, as the scheduler took it"),
    _column("clock_name", Kind.TEXT, "", "", "which clock"),
    _column("clock_base", Kind.NUMBER, "seconds", "m", "of every step"),
    _column("clock_a", Kind.NUMBER, "seconds", "m", "a prefill token"),
    _column("clock_b", Kind.NUMBER, "seconds", "m", "a decoding sequence"),
    _column("clock_c", Kind.NUMBER, "seconds", "m", "a stored token read"),
    _column("trace_format", Kind.TEXT, "", "d", "name of the format that was found"),
    _column("trace_span_seconds", Kind.NUMBER, "seconds", "t", "first arrival to last"),
    _column("notes", Kind.TEXT, "", "", "what was assumed, one sentence a line"),
)
_COUNTS = (
    _column("meaning", Kind.TEXT, "", "", "what the policy does"),
    _column("capacity_bytes", Kind.WHOLE, "bytes", "d", "the pool in whole units of the policy"),
    _column("unit_tokens", Kind.WHOLE, "tokens", "d", "of a block; 1 for extents"),
    _column("requests", Kind.WHOLE, "count", "d", "of the trace"),
    _column("rejected", Kind.WHOLE, "count", "d", "requests that can never be served"),
    *(
        _column(f"rejected_{reason}", Kind.WHOLE, "count", "d", f"of them for `{reason}`")
        for reason in (Rejection.PROMPT_TOO_LONG, Rejection.LARGER_THAN_POOL, Rejection.CANNOT_GROW)
    ),
    _column("truncated", Kind.WHOLE, "count", "d", "outputs cut at `max_model_len` or `max_tokens`"),
    _column("finished", Kind.WHOLE, "count", "d", "requests served to their end"),
    _column("prompt_tokens", Kind.WHOLE, "tokens", "d", "prompts of finished requests"),
    _column("output_tokens", Kind.WHOLE, "tokens", "d", "outputs of finished requests"),
    _column("steps", Kind.WHOLE, "count", "d", "steps of the scheduler"),
    _column("preemptions", Kind.WHOLE, "count", "d", "requests that lost their memory while running"),
    _column("recomputed_tokens", Kind.WHOLE, "tokens", "d", "computed, lost and to be computed again"),
    _column("copied_tokens", Kind.WHOLE, "tokens", "d", "copied when extents grew"),
    _column("restarts", Kind.WHOLE, "count", "d", "restarts of the server"),
    _column("refused_while_free", Kind.WHOLE, "count", "d", "steps that refused the head although as much was free"),
    _column("makespan_seconds", Kind.NUMBER, "seconds", "m", "first arrival to last end"),
    _column("busy_seconds", Kind.NUMBER, "seconds", "m", "with requests running"),
    _column("saturated_seconds", Kind.NUMBER, "seconds", "m", "with a request waiting after the step's admissions"),
    _column("down_seconds", Kind.NUMBER, "seconds", "m", "away for restarts"),
    _column("mean_running", Kind.NUMBER, "requests", "d", "mean over busy time"),
    _column("saturated_running", Kind.NUMBER, "requests", "d", "mean while a request waits"),
    _column("peak_running", Kind.WHOLE, "requests", "d", "the most at a time"),
    _column("peak_waiting", Kind.WHOLE, "requests", "d", "the longest queue"),
)
_RATIOS = (
    *(_column(f"mean_{a}_ratio", Kind.NUMBER, "ratio", "d", f"`{a}`, of capacity, over busy time") for a in Account),
    *(_column(f"saturated_{a}_ratio", Kind.NUMBER, "ratio", "d", f"`{a}` while a request waits") for a in Account),
    _column("held_up", Kind.FLAG, "", "d", "requests waited for a tenth of the busy time or more"),
    _column("used_ratio", Kind.NUMBER, "ratio", "d", "`used`: while saturated if held up, else over busy time"),
    _column("wasted_ratio", Kind.NUMBER, "ratio", "d", "`reserved` + `internal` + `external`, over the same time"),
    _column("wasted_bytes", Kind.NUMBER, "bytes", "d", "the same in bytes, a mean"),
    _column("never_used_ratio", Kind.NUMBER, "ratio", "d", "reserved and never used, over busy time"),
    _column("shared_saving_ratio", Kind.NUMBER, "ratio", "d", "logical minus physical under prefix caching"),
    _column("stale_ratio", Kind.NUMBER, "ratio", "d", "held for tokens that their layers no longer need"),
    *(
        _column(f"paper_{name}_ratio", Kind.NUMBER, "ratio", "d", "as the PagedAttention paper divides the pool")
        for name in (
            "token_states",
            "reservation",
            "internal_fragmentation",
            "external_and_others",
            "kept_for_reuse",
        )
    ),
    *(
        _column(name, Kind.NUMBER, "ratio", "d", "a factor of the utilisation")
        for name in ("length_ratio", "block_efficiency", "usable_share")
    ),
    _column("prefix_hit_tokens", Kind.WHOLE, "tokens", "d", "found by the prefix cache; null when it is off"),
    _column("prefix_queried_tokens", Kind.WHOLE, "tokens", "d", "of first admissions"),
    _column("prefix_again_tokens", Kind.WHOLE, "tokens", "d", "found again after a preemption"),
    _column("prefix_hit_ratio", Kind.NUMBER, "ratio", "d", "found over queried"),
)
_MOMENTS = {
    "queue": "arrival to first scheduled",
    "first_token": "arrival to first token",
    "end_to_end": "arrival to end",
}
_LATENCIES = tuple(
    _column(f"{what}_{part}_seconds", Kind.NUMBER, "seconds", "m", f"{meaning}, {part}")
    for what, meaning in _MOMENTS.items()
    for part in ("mean", "p50", "p90", "p95", "p99", "max")
)
_RATES = (
    _column("requests_per_second", Kind.NUMBER, "1/s", "m", "finished over the makespan"),
    _column("output_tokens_per_second", Kind.NUMBER, "tokens/s", "m", "output tokens over the makespan"),
)

RESULTS = (*_WHERE, *_COUNTS, *_RATIOS, *_LATENCIES, *_RATES)
"""What a row found; all null in a row with an error."""


def wasted_ratio(ratio: Mapping[Account, float]) -> float:
    """Return the share of the pool that is kept from everybody and holds nothing."""
    return ratio[Account.RESERVED] + ratio[Account.INTERNAL] + ratio[Account.EXTERNAL]


def result_of(outcome: Outcome) -> dict[str, Cell]:
    """Return the columns of a row that one policy's outcome tells."""
    row: dict[str, Cell] = {
        column.name: getattr(outcome, column.name) for column in _COUNTS if not column.name.startswith("rejected")
    }
    row["rejected"] = sum(outcome.rejected.values())
    for reason in (Rejection.PROMPT_TOO_LONG, Rejection.LARGER_THAN_POOL, Rejection.CANNOT_GROW):
        row[f"rejected_{reason}"] = outcome.rejected.get(reason, 0)
    row |= {f"mean_{account}_ratio": outcome.mean_ratio[account] for account in Account}
    row |= {f"saturated_{account}_ratio": outcome.saturated_ratio[account] for account in Account}
    wasted = wasted_ratio(outcome.headline_ratio)
    row |= {
        "held_up": outcome.held_up,
        "used_ratio": outcome.utilisation,
        "wasted_ratio": wasted,
        "wasted_bytes": wasted * outcome.capacity_bytes,
        "never_used_ratio": outcome.never_used_ratio,
        "shared_saving_ratio": outcome.shared_saving_ratio,
        "stale_ratio": outcome.stale_ratio,
    }
    row |= {f"paper_{name}_ratio": value for name, value in asdict(outcome.paper_ratio).items()}
    row |= asdict(outcome.factors)
    if outcome.prefix is not None:
        row |= {f"prefix_{name}": value for name, value in asdict(outcome.prefix).items() if name != "eviction"}
        row["prefix_hit_ratio"] = outcome.prefix.hit_ratio
    for what in _MOMENTS:
        row |= _latency(what, getattr(outcome, what))
    seconds = outcome.makespan_seconds
    if seconds > 0:
        row["requests_per_second"] = outcome.finished / seconds
        row["output_tokens_per_second"] = outcome.output_tokens / seconds
    return row


def _latency(what: str, latency: Latency | None) -> dict[str, Cell]:
    if latency is None:
        return {}
    return {f"{what}_{part}_seconds": value for part, value in asdict(latency).items() if part != "exact"}
