"""``kvledger measure``: the ledger of a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from kvledger.cli.measure_options import read_pace, refuse_own_source, server_options, source_options
from kvledger.cli.output import hint, print_result, refuse_overwrite, render_as, wants_color
from kvledger.cli.paging import check_page, html_option, write_page
from kvledger.errors import SourceError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvledger.cli.measuring import Session
    from kvledger.findings.finding import FindingsReport
    from kvledger.measure.log_check import LogCheck
    from kvledger.report.measure import MeasureReport

__all__ = ["command", "read_log_object"]

_EPILOG = """\b
Exit codes: 0 ran; 2 could not run; 130 interrupted."""

_HELP = """\
Draw up the ledger of a running server: vLLM exactly, other engines as far as they tell.

SOURCE is a URL (several at once), unix:/run/vllm.sock, prometheus:http://host:9090, a saved /metrics text, a folder
of them, a recording, an engine's log, or `-`. Which engine it is, is found out.

\b
Examples:
  kvledger measure http://localhost:8000
  kvledger measure http://a:8000 http://b:8000 --for 10m --record monday.kvr
  kvledger measure http://localhost:8080 --log llama-server.log --model model.gguf
  kvledger measure prometheus:http://localhost:9090 --selector '{job="vllm"}' --since 6h
"""


@click.command(help=_HELP, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--for", "for_", default="0s", help="How long to measure, such as 10m (default: one sample).")
@click.option("--every", default="1s", show_default=True, help="Time between samples.")
@click.option("--record", help="Append every sample to this file, which can be measured again.")
@source_options
@server_options
@click.option("--format", "format_", type=click.Choice(["text", "json", "md"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@html_option
@click.option("-o", "--output", help="Write the result to a file.")
@click.option("--force", is_flag=True, help="Overwrite the files of --output and --html.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no hints.")
@click.option("--no-color", is_flag=True)
def command(**options: Any) -> None:
    """Draw up the ledger of a running server."""
    from pathlib import Path

    from kvledger.cli.measuring import Session

    if options["output"] is not None:
        refuse_overwrite(Path(options["output"]), force=options["force"])
    check_page(options["html"], output=options["output"], force=options["force"])
    refuse_own_source(options["record"], options["sources"])
    session = Session(options["sources"], options, pace=read_pace(options["for_"], options["every"]))
    form = "json" if options["as_json"] else options["format_"]
    color = wants_color(no_color=options["no_color"]) and options["output"] is None
    page: dict[str, Any] | None = None
    name = "log"
    if session.feed.log is not None:
        from kvledger.report.measure_log import log_json, log_text

        if options["record"] is not None:
            raise UsageError("a log has no samples to record", hint="leave `--record` out: the log is the recording")
        checks, told = _read_log(session.feed.log)
        _tell_hints(session, quiet=options["quiet"])
        _tell_unused(options, checks)
        text = _render(lambda: log_json(checks, told), lambda: log_text(checks, told), form=form, color=color)
        page = log_json(checks, told) if options["html"] is not None else None
        name = "standard input" if options["sources"][0] == "-" else Path(options["sources"][0]).name
    else:
        _take_samples(session, options["record"], quiet=options["quiet"])
        _tell_hints(session, quiet=options["quiet"])
        report = session.report()
        text = _write(report, form=form, color=color)
        if options["html"] is not None:
            from kvledger.report.measure_json import measure_json

            page, name = measure_json(report), report.sources[0].name
    print_result(text, output=options["output"], force=options["force"])
    if page is not None:
        write_page(options["html"], page, name=name, force=options["force"])


def _tell_hints(session: Session, *, quiet: bool) -> None:
    hints = session.take_hints()
    for told in [] if quiet else hints:
        hint(told)


def _tell_unused(options: dict[str, Any], checks: Sequence[LogCheck]) -> None:
    """Name the options that a log makes no use of, and what checks it against a model."""
    from kvledger.cli.unused import find_given, unused_by_log
    from kvledger.engines.facts import Engine

    is_vllm = any(check.engine is Engine.VLLM for check in checks)
    for told in [] if options["quiet"] else unused_by_log(find_given(), checked_by_size=is_vllm):
        hint(told)


def read_log_object(content: bytes) -> dict[str, Any]:
    """Return what a log tells as the object of ``--json``."""
    from kvledger.report.measure_log import log_json

    return log_json(*_read_log(content))


def _write(report: MeasureReport, *, form: str, color: bool) -> str:
    from kvledger.report.measure_json import measure_json
    from kvledger.report.measure_text import measure_text

    return _render(lambda: measure_json(report), lambda: measure_text(report), form=form, color=color)


def _read_log(content: bytes) -> tuple[Sequence[LogCheck], FindingsReport]:
    """Read the log of any engine, and look for what would give memory back."""
    from kvledger.cli.looking import look_at_log
    from kvledger.engines.facts import Engine
    from kvledger.engines.readers import read_log
    from kvledger.engines.recognise import TextKind, recognise
    from kvledger.measure.log_check import check_log
    from kvledger.sources.encoding import decode

    text = decode(content)
    found = recognise(text)
    if found is None or found.engine is None or found.kind is not TextKind.LOG:
        raise SourceError(
            "the source is neither metrics nor the log of an engine that is known",
            hint="give a running server, a saved /metrics text, a recording, or an engine's log",
        )
    log = read_log(text, found.engine)
    checks = check_log(log)
    if not checks:
        raise SourceError(
            f"the log of {found.engine} says nothing about its KV pool",
            hint="give it from the start of the server on, with the lines about memory"
            + (", which newer builds print with `-lv 4`" if found.engine is Engine.LLAMACPP else ""),
        )
    return checks, look_at_log(log, checks)


def _render(
    make_object: Callable[[], dict[str, Any]], make_text: Callable[[], RenderableType], *, form: str, color: bool
) -> str:
    if form == "json":
        return json.dumps(make_object(), indent=2, allow_nan=False)
    return render_as(form, make_text(), color=color)


def _take_samples(session: Session, record: str | None, *, quiet: bool) -> None:
    """Take all samples; an interrupt ends the measurement, not the report."""
    with ExitStack() as stack:
        recorder = None
        if record is not None:
            from kvledger.sources.recordings import Recorder

            recorder = stack.enter_context(Recorder(record))
        taken = 0
        try:
            for _ in session.readings(on_sample=recorder.write if recorder is not None else None):
                taken += 1
        except KeyboardInterrupt:
            if not taken:
                raise
            if not quiet:
                hint("interrupted: this is what was measured until now")
