"""Where a result goes: standard output, or a file that is either whole or not there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kvledger.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "hint",
    "new_file",
    "print_result",
    "refuse_input",
    "refuse_overwrite",
    "render_as",
    "terminal_width",
    "wants_color",
]


def hint(text: str) -> None:
    """Print a hint to stderr."""
    click.echo(f"hint: {text}", err=True)


def wants_color(*, no_color: bool) -> bool:
    """Tell whether stdout should be coloured (NO_COLOR, FORCE_COLOR, TERM=dumb)."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return os.environ.get("FORCE_COLOR", "0") not in ("", "0") or sys.stdout.isatty()


def terminal_width() -> int:
    """Return the width to print for, from 80 to 500: COLUMNS, else the terminal's, else 100."""
    return min(500, max(80, shutil.get_terminal_size(fallback=(100, 24)).columns))


def render_as(form: str, report: RenderableType, *, color: bool) -> str:
    """Return a report as text for the terminal, or as Markdown (``md``)."""
    if form == "md":
        from kvledger.report.markdown import markdown

        return markdown(report)
    from kvledger.report.tables import render

    return render(report, width=terminal_width(), color=color)


def print_result(text: str, *, output: str | None, force: bool) -> None:
    """Print a result, or write it to a file and say so."""
    if output is None:
        click.echo(text, nl=not text.endswith("\n"), color=True)  # as it is: whether it has colours was decided
        return
    with new_file(output, force=force) as stream:
        stream.write(text.encode())


@contextmanager
def new_file(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is whole.

    A device or a named pipe is written to as it is; a link is followed.

    Raises:
        UsageError: It exists and ``force`` is off, or it cannot be written.
    """
    refuse_overwrite(Path(path), force=force)
    target = Path(path).resolve()
    direct = target.exists() and not target.is_file()
    partial = target if direct else target.with_name(f".{target.name[:200]}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
        if not direct:
            partial.replace(target)
    except BaseException as error:
        if not direct:
            with suppress(OSError):
                partial.unlink()
            if isinstance(error, KeyboardInterrupt):
                error.add_note("nothing half-written was left")
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise UsageError(f"`{path}` cannot be written: {error.strerror}", hint="choose another place") from error
        raise
    click.echo(f"Wrote {path}", err=True)


def refuse_input(target: Path, source: str) -> None:
    """Raise when a result would be written over the file it is made from, with or without --force."""
    try:
        same = target.exists() and Path(source).exists() and target.samefile(source)
    except OSError:
        return
    if same:
        raise UsageError(f"`{target}` is the input itself", hint="write the result to another file")


def refuse_overwrite(target: Path, *, force: bool) -> None:
    """Raise when ``target`` cannot be written: it exists, is a folder, or its folder is not there.

    Called before the work begins, so that an answer of minutes is not lost to a name.
    """
    if "\0" in str(target):
        raise UsageError(f"`{str(target)[:80]!r}` is not a file name", hint="give one without zero bytes")
    try:
        if target.is_dir():
            raise UsageError(f"`{target}` is a folder", hint="give a file name")
        if target.is_file() and not force:
            raise UsageError(f"`{target}` exists", hint="add --force to overwrite it")
        folder = target.parent
        if not folder.is_dir():
            raise UsageError(f"`{target}` cannot be written: there is no folder `{folder}`", hint="create it first")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"`{target}` cannot be written: `{folder}` is read-only", hint="choose another place")
    except OSError as error:
        raise UsageError(f"`{str(target)[:80]}` cannot be written: {error.strerror}", hint="shorten it") from None
