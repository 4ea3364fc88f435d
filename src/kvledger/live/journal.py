"""Ledgers on their way to files: lines that are appended, and the newest one in a file of its own.

Writing happens in a thread of its own, so a slow disk never holds up an engine: what does not fit into the queue is
dropped and counted. Two files of lines are kept, so the disk never holds more than twice the limit.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["FOLDER_VARIABLE", "NEWEST", "Journal"]

FOLDER_VARIABLE = "KVLEDGER_VLLM_DIR"
"""Names the folder that the ledgers of a server are written to."""
NEWEST = "engine-*.json"
"""The files that hold the newest ledger of each engine."""
MAX_LINES_BYTES = 64 * 2**20
_QUEUE = 1024
_END = None


class Journal:
    """Appends lines to ``engine-N.jsonl`` and replaces ``engine-N.json``; :meth:`write` never waits nor raises."""

    def __init__(self, folder: Path, engine: int, *, max_bytes: int = MAX_LINES_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._newest = folder / f"engine-{engine}.json"
        self._lines = folder / f"engine-{engine}.jsonl"
        self._before = folder / f"engine-{engine}.1.jsonl"
        self._max_bytes = max_bytes
        self._queue: queue.Queue[str | None] = queue.Queue(_QUEUE)
        self._thread = threading.Thread(target=self._work, name="kvledger-journal", daemon=True)
        self.dropped = 0
        """Lines that were not written, because the disk was too slow or refused them."""
        self._thread.start()

    def write(self, line: str) -> None:
        """Hand over one line."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is left, for at most a second, and stop."""
        with suppress(queue.Full):
            self._queue.put(_END, timeout=1)
        self._thread.join(1)

    def _work(self) -> None:
        is_open = True
        while is_open:
            lines = [self._queue.get()]
            with suppress(queue.Empty):
                while len(lines) < _QUEUE:
                    lines.append(self._queue.get_nowait())
            is_open = _END not in lines
            whole = [line for line in lines if line is not None]
            try:
                self._put(whole)
            except OSError:
                self.dropped += len(whole)

    def _put(self, lines: list[str]) -> None:
        if not lines:
            return
        with suppress(FileNotFoundError):
            if self._lines.stat().st_size > self._max_bytes:
                self._lines.replace(self._before)
        with self._lines.open("a", encoding="utf-8") as stream:
            stream.write("".join(line + "\n" for line in lines))
        draft = self._newest.with_suffix(".draft")
        draft.write_text(lines[-1], encoding="utf-8")
        draft.replace(self._newest)
