"""``kvledger report``: one offline HTML page from saved results and recordings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvledger.cli.output import print_result, refuse_input, refuse_overwrite
from kvledger.errors import SourceError, UsageError

if TYPE_CHECKING:
    from kvledger.report.html import Run

__all__ = ["command"]

_MOST_BYTES = 256 * 2**20
_HELP = """\
Make one HTML page of RUN that opens offline, anywhere; of two runs, a comparison: before, after.

RUN is what `kvledger replay --json`, `demo --json` or `measure --json` wrote, a recording of `measure --record`, or `-`
for a result on standard input. `replay`, `demo` and `measure` write the same page at once with --html FILE.

\b
Examples:
  kvledger report run.json -o run.html
  kvledger report before.json after.json -o compared.html
  kvledger report monday.kvr --model llama-3-8b -o monday.html
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
@click.option("--model", help="Of a recording: the served model, if it was not recognised.")
@click.option("--bytes-per-token", type=click.IntRange(1), help="Of a recording: what a token costs, by hand.")
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
        raise UsageError(f"{len(runs)} runs were given", hint="give one run, or two to compare: before, after")
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
    from kvledger.measure.recording import MAGIC
    from kvledger.report.html import read_run

    name = "standard input" if source == "-" else Path(source).name
    try:
        if source == "-":
            content = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(source).open("rb") as stream:
                content = stream.read(len(MAGIC))
                if content == MAGIC:
                    return _measure(source, price)
                content += stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a file name"
        raise SourceError(f"`{name[:80]}` cannot be read: {reason}", hint="give a saved result") from None
    return read_run(content, name=name)


def _measure(source: str, price: dict[str, str | int | None]) -> Run:
    """Measure a recording as `kvledger measure` does without other options."""
    from kvledger.cli.measure import command as measure
    from kvledger.cli.measuring import Session
    from kvledger.report.html import run_of
    from kvledger.report.measure_json import measure_json
    from kvledger.sources.servers import Pace

    options = measure.make_context("measure", [source]).params
    session = Session((source,), options | price, pace=Pace())
    for _ in session.readings():
        pass
    return run_of(measure_json(session.report()), name=Path(source).name)
