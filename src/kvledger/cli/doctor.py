"""``kvledger doctor``: what is installed, whether it works, and what to do about what does not."""

from __future__ import annotations

import json

import click

from kvledger.cli.output import print_result, terminal_width, wants_color

__all__ = ["command"]

_HELP = """\
Say what is installed, whether the kernels compile and are kept, and what to do about each problem.

\b
Examples:
  kvledger doctor
  kvledger doctor --no-compile
  kvledger doctor --json
"""


@click.command(
    help=_HELP,
    epilog="Exit codes: 0 nothing is wrong; 1 something would stop a command; 2 could not run.",
    context_settings={"max_content_width": 100},
)
@click.option(
    "--compile/--no-compile", "compiles", default=True, help="Compile and run the kernels (seconds at first)."
)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--no-color", is_flag=True)
def command(compiles: bool, format_: str, as_json: bool, no_color: bool) -> int:
    """Say what is installed and whether it works; the help text is above."""
    from kvledger.cli.examining import examine
    from kvledger.report.doctor import doctor_json, doctor_text
    from kvledger.report.tables import render

    found = examine(compiles=compiles)
    if as_json or format_ == "json":
        text = json.dumps(doctor_json(found), indent=2)
    else:
        text = render(doctor_text(found), width=terminal_width(), color=wants_color(no_color=no_color))
    print_result(text, output=None, force=False)
    return 1 if found.problems else 0
