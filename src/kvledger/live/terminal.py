"""A terminal that is redrawn in place, with single keys; nothing but `rich` and the terminal's own settings."""

from __future__ import annotations

import _thread
import os
import select
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvledger.live.painting import paint_line
from kvledger.report.chips import paint_accounts

__all__ = ["Keys", "Screen"]


class Screen:
    """Lines that replace each other on the terminal."""

    def __init__(self, *, color: bool) -> None:
        self._console = Console(no_color=not color, highlight=False)
        paint_accounts(self._console, os.environ)
        self._live = Live(console=self._console, auto_refresh=False, screen=True)

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._console.width

    def show(self, lines: list[str]) -> None:
        """Draw these lines."""
        shown = Text("\n", no_wrap=True, overflow="crop").join(map(paint_line, lines))
        self._live.update(shown, refresh=True)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class Keys:
    """Calls ``on_key`` for each key pressed while it is open; `q` interrupts the main thread."""

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key
        self._stop = threading.Event()
        self._saved: list[Any] | None = None

    def __enter__(self) -> Keys:
        if sys.stdin.isatty():
            import termios
            import tty

            self._saved = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin.fileno())
            threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._saved is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)

    def _listen(self) -> None:
        while not self._stop.is_set():
            if not select.select([sys.stdin], [], [], 0.2)[0]:
                continue
            key = sys.stdin.read(1)
            if key in ("q", "Q", ""):
                _thread.interrupt_main()
                return
            self._on_key(key)
