"""``kvledger watch``: the ledger of a running server, again every second."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from kvledger.cli.measure_options import parse_duration, refuse_own_source, server_options, source_options
from kvledger.cli.output import hint, wants_color
from kvledger.cli.unused import find_given, name_unused
from kvledger.errors import UsageError

if TYPE_CHECKING:
    from kvledger.cli.measuring import Session
    from kvledger.measure.recording import RecordedSample

__all__ = ["command"]

_HEAD = {"schema": "kvledger/watch", "schema_version": 1}
_POOL_HEAD = {"schema": "kvledger/watch-pool", "schema_version": 1}

_EPILOG = """\b
Keys: q quit, p pause, t tokens or bytes.
Exit codes: 0 ran; 2 could not run; 130 interrupted."""
_HELP = """\
Watch the ledger of a running server; off a terminal, one line a sample.

\b
Examples:
  kvledger watch http://localhost:8000
  kvledger watch http://a:8000 http://b:8000 --every 5s
  kvledger watch http://localhost:8000 --json | jq .tokens
"""


@click.command(help=_HELP, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--every", default="1s", show_default=True, help="Time between samples.")
@click.option("--for", "for_", default=None, help="Stop after this time (default: when told to).")
@click.option("--record", help="Append every sample to this file.")
@source_options
@server_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, instead of a view.")
@click.option("--lines", is_flag=True, help="One line a sample, also on a terminal.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Only ASCII characters.")
@click.option("--no-color", is_flag=True)
def command(**options: Any) -> None:
    """Watch the ledger of a running server; off a terminal, one line a sample."""
    from kvledger.cli.measuring import Session
    from kvledger.sources.servers import Pace

    every = parse_duration(options["every"])
    if not 0.05 <= every <= 86400:
        raise UsageError(f"--every is {every:g} s, but must be 0.05 s to one day")
    for_seconds = None if options["for_"] is None else parse_duration(options["for_"])
    refuse_own_source(options["record"], options["sources"])
    session = Session(options["sources"], options, pace=Pace(every_seconds=every, for_seconds=for_seconds))
    if session.feed.log is not None:
        session.report()
    if options["as_json"]:
        for told in name_unused(("lines", "ascii_only"), find_given(), "--json prints one object a line"):
            hint(told)
    with ExitStack() as stack:
        recorder = None
        if options["record"] is not None:
            from kvledger.sources.recordings import Recorder

            recorder = stack.enter_context(Recorder(options["record"]))
        view = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        if view and session.feed.is_live and not options["lines"] and not options["as_json"]:
            _draw(session, options, recorder)
        else:
            _print(session, recorder, as_json=options["as_json"])


def _print(session: Session, recorder: Any, *, as_json: bool) -> None:
    from kvledger.live.pool_view import moment_line
    from kvledger.live.view import line_of
    from kvledger.measure.pool_meter import PoolMoment
    from kvledger.report.measure_json import reading_json
    from kvledger.report.measure_pools import moment_json

    def take(sample: RecordedSample) -> None:
        if recorder is not None:
            recorder.write(sample)
        if sample.has_failed:
            click.echo(f"hint: a sample failed: {sample.error}", err=True)

    for number, reading in session.readings(on_sample=take):
        name = session.feed.names[number]
        for told in session.take_hints():
            hint(told)
        if as_json:
            is_pool = isinstance(reading, PoolMoment)
            found = moment_json(reading) if isinstance(reading, PoolMoment) else reading_json(reading)
            head = {**(_POOL_HEAD if is_pool else _HEAD), "source": name}
            click.echo(json.dumps({**head, **found}, allow_nan=False))
        else:
            click.echo(moment_line(name, reading) if isinstance(reading, PoolMoment) else line_of(name, reading))
        sys.stdout.flush()


def _draw(session: Session, options: dict[str, Any], recorder: Any) -> None:
    from kvledger.live.terminal import Keys, Screen
    from kvledger.live.view import WatchModel

    model = WatchModel(ascii_only=options["ascii_only"])
    state = {"paused": False, "tokens": False}

    def press(key: str) -> None:
        if key in ("p", "t"):
            name = "paused" if key == "p" else "tokens"
            state[name] = not state[name]

    def take(sample: RecordedSample) -> None:
        if recorder is not None:
            recorder.write(sample)
        if sample.has_failed:
            model.fail(sample.error)

    try:
        with Screen(color=wants_color(no_color=options["no_color"])) as screen, Keys(press):
            for number, reading in session.readings(on_sample=take):
                model.add(session.feed.names[number], number, reading)
                if not state["paused"]:
                    screen.show(model.lines(width=screen.width, show_tokens=state["tokens"]))
    except KeyboardInterrupt:
        return
    finally:
        for told in session.take_hints():
            hint(told)
