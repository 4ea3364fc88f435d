"""``kvledger report``: one offline HTML page from saved results and recordings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvledger.cli.output import hint, print_result, refuse_input, refuse_overwrite
from kvledger.cli.unused import find_given, name_unused, unused_by_log
from kvledger.errors import SourceError, UsageError
from kvledger.units import counted

if TYPE_CHECKING:
    from kvledger.report.html import Run

__all__ = ["command"]

_MOST_BYTES = 256 * 2**20
_MOST_HEAD = 4096
_PARQUET = b"PAR1"
_HELP = """\
Make one HTML page of RUN that opens offline, anywhere; of two runs, a comparison: before, after.

RUN is what `size`, `replay`, `demo`, `measure`, `check`, `trace`, `cache`, `prove` or `sweep` wrote with --json (`-`:
on standard input), the Parquet file of a sweep, or what `measure` reads: a recording, a saved /metrics text, a folder
of them, an engine's log. The same commands write the same page at once with --html FILE.

\b
Examples:
  kvledger report run.json -o run.html
  kvledger report before.json after.json -o compared.html
  kvledger report monday.kvr --model llama-3-8b -o monday.html
  kvledger report vllm.log -o log.html
"""


@click.command(
    help=_HELP,
    epilog="Exit codes: 0 ran; 2 could not run; 130 interrupted.",
    context_settings={"max_content_width": 100},
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN]")
@click.option("-o", "--output", help="Write the page to this file.")
@click.option(
    "--language",
    type=click.Choice(["en", "zh"]),
    default="en",
    show_default=True,
    help="Language the page opens in; it can be changed there.",
)
@click.option("--model", help="Of what is measured: the served model, if it was not recognised.")
@click.option("--bytes-per-token", type=click.IntRange(1), help="Of what is measured: what a token costs, by hand.")
@click.option("--force", is_flag=True, help="Overwrite the file of --output.")
def command(
    runs: tuple[str, ...],
    output: str | None,
    language: str,
    model: str | None,
    bytes_per_token: int | None,
    force: bool,
) -> None:
    """Make one HTML page of saved results and recordings."""
    if len(runs) > 2:
        raise UsageError(
            f"{counted(len(runs), 'run')} were given", hint="give one run, or two to compare: before, after"
        )
    if runs.count("-") > 1:
        raise UsageError("standard input holds one run, not two", hint="give one of them as a file")
    if output is not None:
        for source in runs:
            refuse_input(Path(output), source)
        refuse_overwrite(Path(output), force=force)
    elif sys.stdout.isatty():
        raise UsageError("the page is no text for a terminal", hint="give -o r.html")
    from kvledger.report.html import Language, render_page

    price = {"model": model, "bytes_per_token": bytes_per_token}
    page = render_page([_read(source, price) for source in runs], language=Language(language))
    print_result(page, output=output, force=force)


def _read(source: str, price: dict[str, str | int | None]) -> Run:
    from kvledger.report.html import read_run
    from kvledger.sources.servers import is_server

    if source == "-":
        _tell_unused("standard input")
        return read_run(sys.stdin.buffer.read(_MOST_BYTES + 1), name="standard input")
    if is_server(source):
        raise UsageError(
            f"`{source[:80]}` is a server, not a result",
            hint="measure it and write the page at once: `kvledger measure URL --for 10m --html r.html`",
        )
    path = Path(source)
    try:
        if path.is_dir():
            return _measure(source, price)
        with path.open("rb") as stream:
            head = stream.read(_MOST_HEAD)
            if head.startswith(_PARQUET):
                _tell_unused(path.name)
                return _sweep(path)
            if not head.lstrip().startswith(b"{") and head.strip():
                return _measure(source, price)
            content = head + stream.read(_MOST_BYTES + 1 - len(head))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a file name"
        raise SourceError(f"`{path.name[:80]}` cannot be read: {reason}", hint="give a saved result") from None
    _tell_unused(path.name)
    return read_run(content, name=path.name)


def _tell_unused(name: str) -> None:
    """Say that a saved result is shown as it is."""
    for told in name_unused(("model", "bytes_per_token"), find_given(), f"`{name[:80]}` is a result, shown as it is"):
        hint(told)


def _sweep(path: Path) -> Run:
    from kvledger.cli.sweep_gathering import read_sweep
    from kvledger.report.html import run_of
    from kvledger.report.sweep import sweep_json

    return run_of(sweep_json(read_sweep(path)), name=path.name)


def _measure(source: str, price: dict[str, str | int | None]) -> Run:
    """Measure a recording, a saved text or a log as `kvledger measure` does without other options."""
    from kvledger.cli.measure import command as measure
    from kvledger.cli.measure import read_log_object
    from kvledger.cli.measuring import Session
    from kvledger.report.html import run_of
    from kvledger.report.measure_json import measure_json
    from kvledger.sources.servers import Pace

    options = measure.make_context("measure", [source]).params
    session = Session((source,), options | price, pace=Pace())
    name = Path(source).name
    if session.feed.log is not None:
        for told in unused_by_log(find_given(), checked_by_size=False):
            hint(told)
        return run_of(read_log_object(session.feed.log), name=name)
    for _ in session.readings():
        pass
    return run_of(measure_json(session.report()), name=name)
