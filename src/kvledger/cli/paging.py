"""The option ``--html`` of the commands that can write their result as a page, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from kvledger.cli.output import new_file, refuse_input, refuse_overwrite
from kvledger.errors import UsageError

__all__ = ["check_page", "html_option", "write_page"]

Function = Callable[..., Any]


def html_option(function: Function) -> Function:
    """Add the option."""
    return click.option("--html", help="Write the result as one offline HTML page, too.")(function)


def check_page(html: str | None, *, output: str | None, force: bool, source: str | None = None) -> None:
    """Raise, before the work begins, when the page cannot be written."""
    if html is None:
        return
    if html == "-":
        raise UsageError("--html writes a file, not standard output", hint="give --html a file name")
    if source is not None:
        refuse_input(Path(html), source)
    refuse_overwrite(Path(html), force=force)
    if output is not None and Path(output).resolve() == Path(html).resolve():
        raise UsageError(f"--output and --html are the same file `{output}`", hint="give two names")


def write_page(html: str | None, result: Mapping[str, Any], *, name: str, force: bool) -> None:
    """Write the page of one result, which is the object of ``--json``."""
    if html is None:
        return
    from kvledger.report.html import render_page, run_of

    page = render_page([run_of(result, name=name)])
    with new_file(html, force=force) as stream:
        stream.write(page.encode())
