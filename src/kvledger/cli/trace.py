"""``kvledger trace``: what a trace is, what it holds, and its conversion to Parquet."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from kvledger.cli.answer import source_name
from kvledger.cli.output import terminal_width
from kvledger.cli.paging import check_page, html_option, write_page
from kvledger.errors import UsageError
from kvledger.report.lengths_json import lengths_json
from kvledger.sources.files import load_trace
from kvledger.traces import Trace, with_rate
from kvledger.traces.formats.own import write_trace
from kvledger.traces.lengths import tabulate_lengths
from kvledger.traces.prefix import content_kind
from kvledger.traces.statistics import Lengths, TraceStatistics, describe
from kvledger.units import counted

__all__ = ["command", "trace_record"]

SCHEMA = "kvledger/trace"
SCHEMA_VERSION = 1


_HELP = """Tell a trace's format by its content and show what it holds.

FILE is a file (gzip and zstd are undone), a folder, `-` for standard input, or `synthetic:NAME[,key=value...]`.

\b
Examples:
  kvledger trace conversation_trace.jsonl.gz --html traffic.html
  kvledger trace mine.csv --columns arrival=ts:ms,prompt=in,output=out
  kvledger trace synthetic:sharegpt,requests=100000 --to sharegpt.parquet
"""


@click.command(
    name="trace",
    help=_HELP,
    short_help="Look at a request trace, or convert it.",
    epilog="Exit codes: 0 read, 2 could not be read, 130 interrupted. Formats: docs/traces.md",
)
@click.argument("file")
@click.option("--columns", metavar="MAPPING", help="Name the columns: arrival=t:ms,prompt=in,output=out[,...]")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Seed of what is drawn, 0 by default")
@click.option(
    "--session-starts",
    default="rate:0.1",
    metavar="RULE",
    help="For traces without a common clock: zero, every:SECONDS or rate:PER_SECOND",
)
@click.option("--rate", type=float, metavar="PER_SECOND", help="Draw Poisson arrivals anew; inf: all at 0")
@click.option("--format", "output_format", type=click.Choice(["text", "json"]), default="text", help="Default: text")
@click.option("--json", "as_json", is_flag=True, help="Short for --format json")
@click.option("--to", "target", metavar="OUT.parquet", help="Write the trace as Parquet, with everything it holds")
@html_option
@click.option("--force", is_flag=True, help="Overwrite OUT.parquet and the file of --html")
def command(
    file: str,
    columns: str | None,
    seed: int,
    session_starts: str,
    rate: float | None,
    output_format: str,
    as_json: bool,
    target: str | None,
    html: str | None,
    force: bool,
) -> None:
    """Tell a trace's format by its content and show what it holds."""
    if target is not None:
        _require_free(Path(target), force=force)
    check_page(html, output=target, force=force, source=file)
    trace = load_trace(file, columns=columns, seed=seed, session_starts=session_starts)
    if rate is not None:
        trace = with_rate(trace, rate, seed=seed)
    record = trace_record(trace, describe(trace.workload))
    if target is not None:
        with _replacing(Path(target), force=force) as out:
            write_trace(trace, out)
    write_page(html, record, name=source_name(file), force=force)
    if as_json or output_format == "json":
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo(_text(record))
    if target is not None:
        click.echo(f"Wrote {target}", err=True)
    elif trace.dropped:
        count = sum(trace.dropped.values())
        click.echo(f"hint: {counted(count, 'row')} dropped; the reasons are above", err=True)


def _require_free(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise UsageError(f"`{path.name}` exists", hint="give --force to overwrite it, or another name")


@contextmanager
def _replacing(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Write a file next to its place and move it there when it is complete; nothing is left behind otherwise."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as out:
            yield out
        _require_free(path, force=force)
        temporary.replace(path)
    except KeyboardInterrupt as error:
        error.add_note("nothing half-written was left")
        raise
    except OSError as error:
        raise UsageError(f"`{path.name}` cannot be written: {error.strerror}", hint="choose another place") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _lengths(lengths: Lengths | None) -> dict[str, Any] | None:
    if lengths is None:
        return None
    return {name: getattr(lengths, name) for name in Lengths.__slots__}


def trace_record(trace: Trace, statistics: TraceStatistics) -> dict[str, Any]:
    """Return a trace's summary as the object that ``--json`` prints."""
    accuracy, share = trace.accuracy, statistics.prefix
    bands = {
        name: [band.low_ratio, band.high_ratio]
        for name, band in (("prompts", accuracy.prompt_band), ("outputs", accuracy.output_band))
        if band is not None
    }
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "format": {"name": trace.format.name, "sentence": trace.format.sentence},
        "rows_read": trace.rows_read,
        "requests": statistics.requests,
        "dropped": dict(trace.dropped),
        "adjusted": dict(trace.adjusted),
        "notes": list(trace.notes),
        "accuracy": {
            "arrivals": accuracy.arrivals.value,
            "prompts": accuracy.prompts.value,
            "outputs": accuracy.outputs.value,
            "error_band_ratio": bands,
        },
        "span_seconds": statistics.span_seconds,
        "rate_per_second": {
            "mean": statistics.mean_rate,
            "peak_10_seconds": statistics.peak_10s_rate,
            "peak_60_seconds": statistics.peak_60s_rate,
        },
        "arrival_cv": statistics.arrival_cv,
        "prompt": _lengths(statistics.prompt),
        "output": _lengths(statistics.output),
        "total": _lengths(statistics.total),
        "declared_max_tokens": _lengths(statistics.declared),
        "lengths": lengths_json(tabulate_lengths(trace.workload)) if len(trace.workload) else None,
        "sessions": statistics.sessions,
        "answers": trace.workload.sequences,
        "beam_searches": 0 if trace.workload.beams is None else int(trace.workload.beams.mask.sum()),
        "identity": content_kind(trace.workload.content),
        "infinite_cache_prefix": None
        if share is None
        else {"prompt_tokens": share.prompt_tokens, "shared_tokens": share.shared_tokens, "ratio": share.ratio},
    }


def _text(record: Mapping[str, Any]) -> str:
    lines = [f"{record['format']['name']}: {record['format']['sentence']}", ""]
    kept, read = record["requests"], record["rows_read"]
    lines.append(f"requests   {kept:,}" + (f" of {counted(read, 'row')}" if read != kept else ""))
    lines += _arrival_lines(record)
    if record["sessions"]:
        lines.append(f"sessions   {record['sessions']:,}")
    if record["answers"] != kept:
        searches = f"; {record['beam_searches']:,} by beam search" if record["beam_searches"] else ""
        lines.append(f"answers    {record['answers']:,} to {counted(kept, 'request')}{searches}")
    lines += ["", *_length_table(record), ""]
    lines.append(f"identity   {record['identity']}")
    if share := record["infinite_cache_prefix"]:
        lines.append(
            f"prefix     {100 * share['ratio']:.1f} % of prompt tokens, with an infinite cache over the whole trace"
        )
    accuracy = record["accuracy"]
    lines.append(
        f"accuracy   arrivals {accuracy['arrivals']}, prompts {accuracy['prompts']}, outputs {accuracy['outputs']}"
    )
    for name, (low, high) in accuracy["error_band_ratio"].items():
        lines.append(f"           true {name} are {low:.2g} to {high:.2g} times the estimate")
    for title, counts in (("dropped", record["dropped"]), ("adjusted", record["adjusted"])):
        lines += [f"{title:<10} {count:,}  {reason}" for reason, count in counts.items()]
    for note in record["notes"]:
        lines += _wrap(f"note       {note}")
    return "\n".join(lines)


def _wrap(line: str) -> list[str]:
    """Break a line between words where the terminal ends, under what its name stands before."""
    return textwrap.wrap(
        line, terminal_width(), subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False
    )


def _arrival_lines(record: Mapping[str, Any]) -> list[str]:
    rate = record["rate_per_second"]
    lines = [f"span       {record['span_seconds']:,.1f} s"]
    if rate["mean"] is not None:
        windows = (("peak_60_seconds", "in the busiest minute"), ("peak_10_seconds", "in the busiest 10 s"))
        known = [("mean", "mean"), *(window for window in windows if rate[window[0]] is not None)]
        lines.append("rate       " + ", ".join(f"{rate[key]:.3g}/s {name}" for key, name in known))
    if record["arrival_cv"] is not None:
        lines.append(f"gaps       coefficient of variation {record['arrival_cv']:.2f} (Poisson: 1)")
    return lines


def _length_table(record: Mapping[str, Any]) -> list[str]:
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    lines = [f"{'tokens':<12}" + "".join(f"{name:>11}" for name in names)]
    rows = (("prompt", "prompt"), ("output", "output"), ("total", "total"), ("declared", "declared_max_tokens"))
    for title, key in rows:
        if (lengths := cast("dict[str, Any] | None", record[key])) is None:
            continue
        values = [f"{lengths['mean_tokens']:,.1f}", *(f"{lengths[f'{name}_tokens']:,}" for name in names[1:])]
        lines.append(f"{title:<12}" + "".join(f"{value:>11}" for value in values))
    return lines
