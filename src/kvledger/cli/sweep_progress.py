"""How far a sweep is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import click

from kvledger.units import counted

__all__ = ["SweepProgress"]

_SECONDS_A_LINE = 10.0


class SweepProgress:
    """Counts finished cells and says so; a context manager."""

    def __init__(self, *, total: int, known: int, quiet: bool) -> None:
        self._total, self._known, self._quiet = total, known, quiet
        self._done = known
        self._failed = 0
        self._began = self._said = time.monotonic()
        self._bar: _Bar | None = None

    def __enter__(self) -> SweepProgress:
        """Say what is there and what is to be done."""
        if not self._quiet:
            if self._known:
                left = f"{self._total - self._known:,} left"
                click.echo(f"{self._known:,} of {counted(self._total, 'cell')} known from before, {left}", err=True)
            if sys.stderr.isatty():
                self._bar = _Bar(self._total, self._done)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, *, has_errors: bool) -> None:
        """Count one more cell."""
        self._done += 1
        self._failed += has_errors
        if self._bar is not None:
            self._bar.move(self._done, self._failed)
        elif not self._quiet and (self._done == self._total or time.monotonic() - self._said >= _SECONDS_A_LINE):
            self._said = time.monotonic()
            click.echo(self._line(), err=True)

    def _line(self) -> str:
        text = f"{self._done:,} of {counted(self._total, 'cell')}"
        if self._failed:
            text += f", {self._failed:,} with errors"
        seconds = time.monotonic() - self._began
        left = self._total - self._done
        if left:
            text += f", about {seconds / (self._done - self._known) * left:,.0f} s left"
        return text


class _Bar:
    def __init__(self, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("cells", total=total, completed=done)
        self._progress.start()

    def move(self, done: int, failed: int) -> None:
        description = f"cells, {failed:,} with errors" if failed else "cells"
        self._progress.update(self._task, completed=done, description=description)

    def close(self) -> None:
        self._progress.stop()
