"""Where a result goes: standard output, or a file that is either whole or not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import click

from kvledger.errors import UsageError

__all__ = ["hint", "new_file", "print_result", "terminal_width", "wants_color"]


def hint(text: str) -> None:
    """Print a hint to stderr."""
    click.echo(f"hint: {text}", err=True)


def wants_color(*, no_color: bool) -> bool:
    """Tell whether stdout should be coloured (NO_COLOR, FORCE_COLOR, TERM=dumb)."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def terminal_width(*, least: int = 80) -> int:
    """Return the width of the terminal; 100 where there is none."""
    if not sys.stdout.isatty():
        return int(os.environ.get("COLUMNS") or 100) if (os.environ.get("COLUMNS") or "100").isdigit() else 100
    return max(least, os.get_terminal_size().columns)


def print_result(text: str, *, output: str | None, force: bool) -> None:
    """Print a result, or write it to a file and say so."""
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    with new_file(output, force=force) as stream:
        stream.write(text.encode())


@contextmanager
def new_file(path: str, *, force: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is whole.

    Raises:
        UsageError: It exists and ``force`` is off, or its folder cannot be written to.
    """
    target = Path(path)
    refuse_overwrite(target, force=force)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        stream = partial.open("wb")
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {error.strerror}", hint="choose another place") from None
    try:
        with stream:
            yield stream
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    click.echo(f"Wrote {path}", err=True)


def refuse_overwrite(target: Path, *, force: bool) -> None:
    """Raise when ``target`` exists and may not be overwritten, or is a folder."""
    if target.is_dir():
        raise UsageError(f"`{target}` is a folder", hint="give a file name")
    if target.exists() and not force:
        raise UsageError(f"`{target}` exists", hint="add --force to overwrite it")


Writer = Callable[[bytes], None]
