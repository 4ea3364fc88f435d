"""``kvledger sweep``: a grid of settings over processes or a cluster."""

from __future__ import annotations

import json
from typing import Any

import click

from kvledger.cli.output import hint, terminal_width, wants_color
from kvledger.cli.paging import check_page, html_option, write_page

__all__ = ["command"]

_HELP = """\
Replay every cell of a grid of settings, and show which waste least and which wait least.

GRID is a TOML file: [settings] holds what all cells share, [grid] lists or ranges of values (every combination is a
cell), [[cells]] single cells, [[exclude]] what to leave out. The settings are the options of `replay`.

\b
Examples:
  kvledger sweep grid.toml -o results.parquet
  kvledger sweep grid.toml --html sweep.html
  kvledger sweep grid.toml --dry-run
  kvledger sweep grid.toml -o results.parquet --ray auto
"""


@click.command(
    help=_HELP,
    epilog="Exit codes: 0 ran, even if cells failed; 2 could not run, or no cell has a result; 130 interrupted.",
    context_settings={"max_content_width": 100},
)
@click.argument("grid")
@click.option(
    "-o",
    "--output",
    help="Write all columns of all rows to this Parquet file. A sweep that was stopped goes on where it was.",
)
@click.option("--update", is_flag=True, help="Take over what the file has of an earlier, different grid; replace it.")
@click.option("--force", is_flag=True, help="Start anew, and overwrite the files of --output and --html.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes on this machine (default: one a core).")
@click.option("--ray", "address", metavar="ADDRESS", help="Run on this Ray cluster instead: auto, HOST:PORT.")
@click.option("--dry-run", is_flag=True, help="List the cells and run none.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@html_option
@click.option("-q", "--quiet", is_flag=True, help="No progress and no hints.")
@click.option("--no-color", is_flag=True)
def command(**options: Any) -> None:
    """Replay every cell of a grid of settings, and show which waste least and which wait least."""
    from kvledger.cli.sweeping import Sweep, SweepQuestion

    check_page(options["html"], output=options["output"], force=options["force"], source=options["grid"])
    sweep = Sweep(SweepQuestion(**{name: options[name] for name in SweepQuestion.__slots__}))
    if options["dry_run"]:
        for line in sweep.listed():
            click.echo(line)
        return
    report = sweep.run()
    if options["as_json"] or options["format_"] == "json":
        from kvledger.report.sweep import sweep_json

        click.echo(json.dumps(sweep_json(report), indent=2, allow_nan=False))
    else:
        from kvledger.report.sweep import sweep_text
        from kvledger.report.tables import render

        color = wants_color(no_color=options["no_color"])
        click.echo(render(sweep_text(report), width=terminal_width(), color=color), nl=False, color=True)
    if options["html"] is not None:
        from kvledger.report.sweep import sweep_json

        write_page(options["html"], sweep_json(report), name=report.source, force=options["force"])
    if not options["quiet"]:
        for note in report.notes:
            hint(note)
