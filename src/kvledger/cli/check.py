"""``kvledger check``: exit code 1 when a running server breaks a limit."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kvledger.cli.measure_options import read_pace, server_options, source_options
from kvledger.cli.output import hint
from kvledger.cli.paging import check_page, html_option, write_page
from kvledger.errors import SourceError, UsageError
from kvledger.units import percent, percents

if TYPE_CHECKING:
    from kvledger.measure.limits import Limit, LimitName
    from kvledger.measure.pool_meter import PoolKey
    from kvledger.report.measure import MeasureReport

__all__ = ["command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """One limit, and whose it is."""

    source: str
    engine: int | None
    """None of a server that never answered: its engines are not known."""
    limit: Limit
    pool: str = ""
    """Of an engine other than vLLM, where it has several pools or ranks."""


_EPILOG = """\b
Exit codes: 0 no limit is broken; 1 a limit is broken; 2 could not run, or judged no limit;
130 interrupted."""
_RATIO = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*(%?)")


def _ratio(text: str) -> float:
    match = _RATIO.fullmatch(text.strip())
    value = float(match[1]) / (100 if match and match[2] else 1) if match else 2.0
    if not 0 <= value <= 1:
        raise UsageError(f"`{text[:40]}` is no share", hint="write it as `10%` or `0.1`")
    return value


_HELP = """\
Check a running server against limits, for CI and alerts.

A limit is broken only when the number is surely beyond it. A number that may lie on either side is `open`, one that is
not told is `unknown`; when no limit of a server could be judged at all, the check fails.

\b
Examples:
  kvledger check http://localhost:8000 --max-held 95% --max-waiting 10
  kvledger check http://localhost:8000 --for 1m --max-internal 10% --min-utilisation 30%
  kvledger check night.kvr --max-preemptions 100 --html night.html
"""


@click.command(help=_HELP, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--max-internal", help="Most of what is held that may be tails of blocks, such as 10%.")
@click.option("--min-utilisation", help="Least share of the pool that must hold tokens, over busy samples.")
@click.option("--max-held", help="Most of the pool that may be held, at any sample.")
@click.option("--max-unattributed", help="Most of the pool that may stay unexplained.")
@click.option("--max-waiting", type=click.IntRange(0), help="Most requests that may wait, in the last sample.")
@click.option("--max-preemptions", type=click.IntRange(0), help="Most preemptions in the window.")
@click.option("--strict", is_flag=True, help="What cannot be told breaks a limit too.")
@click.option("--for", "for_", default="0s", help="How long to measure, such as 1m (default: one sample).")
@click.option("--every", default="1s", show_default=True, help="Time between samples.")
@source_options
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
@html_option
@click.option("--force", is_flag=True, help="Overwrite the file of --html.")
def command(**options: Any) -> int:
    """Check a running server against limits, for CI and alerts."""
    from kvledger.cli.measuring import Session
    from kvledger.measure.limits import Limit, Outcome, check_limits
    from kvledger.measure.pool_limits import check_pool_limits

    bounds = _read_bounds(options)
    check_page(options["html"], output=None, force=options["force"])
    session = Session(options["sources"], options, pace=read_pace(options["for_"], options["every"]))
    for _ in session.readings():
        for told in session.take_hints():
            hint(told)
    report = session.report()
    found = [
        _Found(source=source.name, engine=engine.engine_index, limit=limit)
        for source in report.sources
        for engine in source.engines
        for limit in check_limits(engine, bounds, failing=source.failing)
    ]
    found += [
        _Found(source=source.name, engine=pool.key.index, limit=limit, pool=_name(pool.key))
        for source in report.sources
        for pool in source.pools
        for limit in check_pool_limits(pool, bounds, failing=source.failing)
    ]
    found += [
        _Found(source=source.name, engine=None, limit=Limit(name=name, bound=bound, low=None, high=None, reason=why))
        for source in report.sources
        if not source.engines and not source.pools
        for why in [f"no sample answered: {source.last_error}"]
        for name, bound in bounds.items()
    ]
    bad = {Outcome.BROKEN, Outcome.OPEN, Outcome.UNKNOWN} if options["strict"] else {Outcome.BROKEN}
    if found:
        name = ", ".join(source.name for source in report.sources)
        write_page(options["html"], _as_object(found, report), name=name, force=options["force"])
    if options["as_json"]:
        click.echo(json.dumps(_as_object(found, report), indent=2, allow_nan=False))
    else:
        for one in found:
            click.echo(_line(one, several=report.has_several or len(report.pools) > 1))
    if any(one.limit.outcome in bad for one in found):
        return 1
    for source in report.sources:
        whose = f" of {source.name}" if len(report.sources) > 1 else ""
        _refuse_unjudged([one.limit for one in found if one.source == source.name], whose=whose)
    return 0


def _name(key: PoolKey) -> str:
    """Name a pool of its engine; empty for the only one."""
    return ", ".join([*([key.rank] if key.rank else []), *([f"pool {key.pool}"] if key.pool != "kv" else [])])


def _refuse_unjudged(limits: list[Limit], *, whose: str) -> None:
    """Raise when not one limit of a server could be judged: that is no pass, whatever the others do."""
    from kvledger.measure.limits import Outcome

    if any(limit.outcome is not Outcome.UNKNOWN for limit in limits):
        return
    reasons = dict.fromkeys(limit.reason for limit in limits)
    raise SourceError(
        f"no limit{whose} could be judged: {'; '.join(reasons) or 'no engine was measured'}",
        hint="check the server's own /metrics while it works, and longer with --for 10m",
    )


def _read_bounds(options: dict[str, Any]) -> dict[LimitName, float]:
    from kvledger.measure.limits import LimitName

    bounds: dict[LimitName, float] = {}
    for name in LimitName:
        value = options[name.value.replace("-", "_")]
        if value is not None:
            bounds[name] = float(value) if isinstance(value, int) else _ratio(value)
    if not bounds:
        raise UsageError("no limit was given", hint="give one such as --max-held 95%")
    return bounds


def _line(found: _Found, *, several: bool) -> str:
    limit, pool = found.limit, f", {found.pool}" if found.pool else ""
    engine = "" if found.engine is None else f", engine {found.engine}"
    where = f"{found.source}{engine}{pool}: " if several else ""
    return f"{limit.outcome:8} {where}{limit.name.meaning}: {_value(limit)} (limit {_show(limit, limit.bound)})"


def _value(limit: Limit) -> str:
    if limit.low is None or limit.high is None:
        return f"not known, {limit.reason}"
    if not limit.name.is_count:
        return percents(limit.low, limit.high)
    low, high = _show(limit, limit.low), _show(limit, limit.high)
    return low if low == high else f"{low} to {high}"


def _show(limit: Limit, value: float) -> str:
    return f"{value:,.0f}" if limit.name.is_count else percent(value)


def _as_object(found: list[_Found], report: MeasureReport) -> dict[str, Any]:
    return {
        "schema": "kvledger/check",
        "schema_version": 1,
        "limits": [
            {
                "source": one.source,
                "engine": one.engine,
                "pool": one.pool or None,
                "limit": one.limit.name.value,
                "bound": one.limit.bound,
                "low": one.limit.low,
                "high": one.limit.high,
                "outcome": one.limit.outcome.value,
                "reason": one.limit.reason or None,
            }
            for one in found
        ],
        "notes": list(report.notes),
    }
