"""``kvledger explain``: what a finding measures, why it costs, what to change, and what gets worse."""

from __future__ import annotations

import json

import click

from kvledger.cli.output import print_result, terminal_width, wants_color

__all__ = ["command"]

_HELP = """\
Explain the finding CODE: what it measures, why it costs, what to change, what gets worse. Without CODE, list them.

\b
Examples:
  kvledger explain
  kvledger explain KV001
  kvledger explain KV010 --json
"""


@click.command(
    help=_HELP,
    epilog="Exit codes: 0 ran; 2 there is no such finding.",
    context_settings={"max_content_width": 100},
)
@click.argument("code", required=False)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--no-color", is_flag=True)
def command(code: str | None, format_: str, as_json: bool, no_color: bool) -> None:
    """Explain the finding CODE; the help text is above."""
    from kvledger.findings.catalogue import RULES, find_rule
    from kvledger.findings.rule import read_page
    from kvledger.report.pages import list_text, page_json, page_text
    from kvledger.report.tables import render

    rules = RULES if code is None else (find_rule(code),)
    pages = [read_page(type(rule)) for rule in rules]
    if as_json or format_ == "json":
        print_result(json.dumps(page_json(pages), indent=2), output=None, force=False)
        return
    shown = list_text(pages) if code is None else page_text(pages[0])
    print_result(render(shown, width=terminal_width(), color=wants_color(no_color=no_color)), output=None, force=False)
