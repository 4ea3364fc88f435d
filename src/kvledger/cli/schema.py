"""``kvledger schema``: the JSON Schema of what ``--json`` prints."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import click

from kvledger.cli.output import print_result
from kvledger.errors import Error

__all__ = ["command", "read_tables"]

_HELP = """\
Print the JSON Schema (draft 2020-12) of an output. Without NAME, list the names.

\b
Examples:
  kvledger schema
  kvledger schema replay -o replay.schema.json
  kvledger schema kvledger/measure
"""


@click.command(
    help=_HELP,
    epilog="Exit codes: 0 ran; 2 there is no such schema.",
    context_settings={"max_content_width": 100},
)
@click.argument("name", required=False)
@click.option("-o", "--output", help="Write the schema to a file.")
@click.option("--force", is_flag=True, help="Overwrite the file of --output.")
def command(name: str | None, output: str | None, force: bool) -> None:
    """Print a JSON Schema; the help text is above."""
    from kvledger.report.schema import SCHEMAS, make_schema, read_fields

    if name is None:
        text = "\n".join(f"kvledger/{one}" for one in SCHEMAS)
    else:
        schema = make_schema(name.removeprefix("kvledger/"), read_fields(read_tables()))
        text = json.dumps(schema, indent=2, ensure_ascii=False)
    print_result(text, output=output, force=force)


def read_tables() -> str:
    """Return the documentation of all outputs, which the package carries; a source tree has it in ``docs``.

    Raises:
        Error: Neither is there.
    """
    tree = Path(__file__).parents[3] / "docs" / "json.md"
    for place in (files("kvledger.report") / "json.md", tree):
        if place.is_file():
            return place.read_text("utf-8")
    raise Error("the tables of fields are not in this installation", hint="install the package again")
