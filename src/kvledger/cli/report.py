"""``kvledger report``: one offline HTML page from saved results."""

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
Make one HTML page of RUN that opens offline, anywhere; of two runs, a comparison.

RUN is what `kvledger replay --json`, `demo --json` or `measure --json` wrote, or `-` for one on standard input.
`replay`, `demo` and `measure` write the same page at once with --html FILE.

\b
Examples:
  kvledger report run.json -o run.html
  kvledger report before.json after.json -o compared.html
  kvledger replay log.jsonl --num-blocks 900 --bytes-per-token 131072 --json | kvledger report -
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
@click.option("--force", is_flag=True, help="Overwrite the file of --output.")
def command(runs: tuple[str, ...], output: str | None, language: str, force: bool) -> None:
    """Make one HTML page of saved results."""
    if len(runs) > 2:
        raise UsageError(f"{len(runs)} runs were given", hint="give one run, or two to compare: before, after")
    if output is not None:
        for source in runs:
            refuse_input(Path(output), source)
        refuse_overwrite(Path(output), force=force)
    elif sys.stdout.isatty():
        raise UsageError("the page is no text for a terminal", hint="give -o FILE.html")
    from kvledger.report.html import Language, render_page

    page = render_page([_read(source) for source in runs], language=Language(language))
    print_result(page, output=output, force=force)


def _read(source: str) -> Run:
    from kvledger.report.html import read_run

    name = "standard input" if source == "-" else Path(source).name
    try:
        if source == "-":
            content = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(source).open("rb") as stream:
                content = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a file name"
        raise SourceError(f"`{name[:80]}` cannot be read: {reason}", hint="give a saved result") from None
    return read_run(content, name=name)
