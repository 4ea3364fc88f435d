"""The proof as text and as JSON: the same prompts, the same model, the same memory, held in different ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import kvledger
from kvledger.ledger import Account
from kvledger.report.chips import account_chip
from kvledger.report.tables import heading, new_table, percent
from kvledger.runtime.proof import Agreement, Side, Way
from kvledger.units import counted, format_bytes

__all__ = ["ProveReport", "prove_answer", "prove_json", "prove_text"]

SCHEMA = "kvledger/prove"
SCHEMA_VERSION = 1

_MEANINGS = {
    Way.GENERATE_STATIC: "Transformers' generate, StaticCache of max_model_len, batch after batch",
    Way.GENERATE_DYNAMIC: "Transformers' generate, DynamicCache, as many rows as surely fit",
    Way.GENERATE_BATCH: "Transformers' generate_batch, pages of 256 tokens",
    Way.MAX: "this engine, one extent of max_model_len a request",
    Way.EXACT: "this engine, one extent a request of the length it will get (no server knows it)",
    Way.BLOCKS: "this engine, block tables on demand",
}
_SHOWN = (Account.USED, Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.FREE, Account.UNATTRIBUTED)
_RULES = (
    "bytes: measured on the tensors that each way held, after every forward; shares of the memory given, weighted by "
    "time, while requests waited for memory (all the time where none did)",
    "seconds: measured on this machine, which other programs may have shared; compare them within one run only",
    "tokens/s: all tokens generated, from the first prompt to the last token; decode: the forwards without a prompt",
    "all requests are there from the start; each answer is greedy and has the length that the trace says",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveReport:
    """What was proved. ``agreements`` are with the answers of the first side that has any, by way."""

    model: str
    dtype: str
    threads: int
    trace: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    memory_bytes: int
    token_bytes: int
    max_model_len: int
    block_size: int
    sides: Sequence[Side]
    agreements: dict[Way, Agreement]
    versions: dict[str, str]
    notes: tuple[str, ...] = ()


def prove_text(report: ProveReport) -> RenderableType:
    """Return the whole report, ready to print with rich."""
    return Group(*_sections(report))


def _sections(report: ProveReport) -> Iterator[RenderableType]:
    yield Text(
        f"{report.model}, {report.dtype}: {counted(report.requests, 'request')} of {report.trace}, "
        f"{report.prompt_tokens:,} tokens in and {report.output_tokens:,} out, in {format_bytes(report.memory_bytes)} "
        f"of KV cache ({counted(report.memory_bytes // report.token_bytes, 'token')} of {report.token_bytes:,} bytes), "
        f"max_model_len {report.max_model_len:,}"
    )
    yield Text("\n" + prove_answer(report), style="bold")
    done = [side for side in report.sides if side.error is None]
    yield heading("Where the memory was", "shares of the memory")
    yield _ledgers(done)
    yield heading("What it did")
    yield _speeds(done, report.agreements)
    yield Text("\n".join(f"{side.way}: {_MEANINGS[side.way]}" for side in done), style="dim")
    for side in report.sides:
        if side.error is not None:
            yield Text(f"{side.way} did not run: {side.error.message}")
        for note in side.notes:
            yield Text(f"{side.way}: {note}")
    yield heading("How these numbers are known")
    yield Text("\n".join(f"- {line}" for line in (*_RULES, *report.notes)))


def _ledgers(sides: Sequence[Side]) -> Table:
    table = new_table("way", *map(account_chip, _SHOWN))
    for side in sides:
        ratio = side.ratio
        table.add_row(str(side.way), *("-" if ratio is None else percent(ratio[account]) for account in _SHOWN))
    return table


def _speeds(sides: Sequence[Side], agreements: dict[Way, Agreement]) -> Table:
    table = new_table(
        "way", "running", "at most", "tokens/s", "prefill/s", "decode/s", "seconds", "preempted", "same tokens"
    )
    for side in sides:
        table.add_row(
            str(side.way),
            f"{side.running:.1f}",
            f"{side.peak_running:,}",
            f"{side.tokens_per_second:.1f}",
            f"{side.prefill_tokens_per_second:.0f}",
            f"{side.decode_tokens_per_second:.1f}",
            f"{side.seconds:.1f}",
            f"{side.preemptions:,}",
            _agreement(agreements.get(side.way)),
        )
    return table


def _agreement(agreement: Agreement | None) -> str:
    if agreement is None:
        return "-"
    parts = [f"{agreement.same} same"]
    parts += [f"{n} {word}" for n, word in ((agreement.tie, "tied"), (agreement.different, "DIFFERENT")) if n]
    parts += [f"{agreement.missing} missing"] if agreement.missing else []
    return ", ".join(parts)


def prove_answer(report: ProveReport) -> str:
    """Say in words what was proved: how many more requests ran, how full the memory was, and that tokens agree."""
    sides = {side.way: side for side in report.sides if side.error is None}
    blocks = sides.get(Way.BLOCKS)
    naive = next((sides[way] for way in (Way.MAX, Way.GENERATE_STATIC) if way in sides), None)
    sentences = []
    if blocks is not None and naive is not None:
        theirs, ours = (side.running for side in (naive, blocks))
        used_then, used_now = (_used(side) for side in (naive, blocks))
        sentences.append(
            f"Block tables ran {ours:.1f} requests at a time in the memory where reserving max_model_len ran "
            f"{theirs:.1f}: {ours / theirs:.1f} times as many. {percent(used_now)} of the memory held tokens instead "
            f"of {percent(used_then)}."
        )
        if naive.tokens_per_second:
            ratio = blocks.tokens_per_second / naive.tokens_per_second
            sentences.append(f"It generated {ratio:.1f} times the tokens in a second.")
    compared = list(report.agreements.values())
    if compared:
        different = sum(agreement.different for agreement in compared)
        ties = sum(agreement.tie for agreement in compared)
        if different:
            sentences.append(f"{counted(different, 'answer')} differ without a tie: that is a fault, please report it.")
        else:
            tied = f", but for {counted(ties, 'near tie')} of two tokens that rounding decides" if ties else ""
            sentences.append(f"Every way gave the same tokens{tied}.")
    return " ".join(sentences) or "Too few ways ran for a comparison."


def _used(side: Side) -> float:
    ratio = side.ratio
    return ratio[Account.USED] if ratio is not None else 0.0


def prove_json(report: ProveReport) -> dict[str, Any]:
    """Return the object that ``prove --json`` prints."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kvledger_version": kvledger.__version__,
        "answer": prove_answer(report),
        "model": report.model,
        "dtype": report.dtype,
        "threads": report.threads,
        "versions": report.versions,
        "trace": report.trace,
        "requests": report.requests,
        "prompt_tokens": report.prompt_tokens,
        "output_tokens": report.output_tokens,
        "memory_bytes": report.memory_bytes,
        "token_bytes": report.token_bytes,
        "max_model_len": report.max_model_len,
        "block_size": report.block_size,
        "accuracy": {"bytes": "measured", "seconds": "measured"},
        "notes": list(report.notes),
        "sides": [_side(side, report.agreements.get(side.way)) for side in report.sides],
    }


def _side(side: Side, agreement: Agreement | None) -> dict[str, Any]:
    return {
        "way": str(side.way),
        "meaning": _MEANINGS[side.way],
        "failure": None if side.error is None else {"code": side.error.code, "message": side.error.message},
        "notes": list(side.notes),
        "capacity_bytes": side.capacity_bytes,
        "mean_ratio": _ratios(side.mean_ratio),
        "saturated_ratio": _ratios(side.saturated_ratio),
        "full_ratio": _ratios(side.full_ratio),
        "mean_running": side.mean_running,
        "saturated_running": side.saturated_running,
        "saturated_seconds": side.saturated_seconds,
        "full_running": side.full_running,
        "full_seconds": side.full_seconds,
        "peak_running": side.peak_running,
        "seconds": side.seconds,
        "tokens_per_second": side.tokens_per_second,
        "prefill_tokens": side.prefill_tokens,
        "prefill_seconds": side.prefill_seconds,
        "decode_tokens": side.decode_tokens,
        "decode_seconds": side.decode_seconds,
        "preemptions": side.preemptions,
        "agreement": None
        if agreement is None
        else {
            "same": agreement.same,
            "tie": agreement.tie,
            "different": agreement.different,
            "missing": agreement.missing,
        },
    }


def _ratios(ratio: dict[Account, float] | None) -> dict[str, float] | None:
    return None if ratio is None else {str(account): value for account, value in ratio.items()}
