"""Text from tokens as they come: only what can no longer change, and nothing of a stop string."""

from __future__ import annotations

from typing import Any

__all__ = ["TextStream"]

_UNFINISHED = "�"


class TextStream:
    """The text of one answer.

    A token may be a part of a character, and the text of a token depends on those before it, so the new text is what
    the last tokens decode to with and without the new one. Text that may be the beginning of a stop string is kept
    back until it is clear.
    """

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._ids: list[int] = []
        self._begin = 0
        self._read = 0
        self._kept = ""
        self.text = ""
        self.is_stopped = False

    def push(self, token: int) -> str:
        """Add a token (mutates); return the text that is now certain. Nothing more comes once `is_stopped`."""
        if self._tokenizer is None:
            return ""
        self._ids.append(token)
        before = self._decode(self._ids[self._begin : self._read])
        now = self._decode(self._ids[self._begin :])
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._begin, self._read = self._read, len(self._ids)
        return self._give(self._kept + now[len(before) :])

    def finish(self) -> str:
        """Return what was kept back (mutates): no more tokens come."""
        if self._tokenizer is None or self.is_stopped:
            return ""
        before = self._decode(self._ids[self._begin : self._read])
        rest = self._decode(self._ids[self._begin :])[len(before) :]
        given = self._give(self._kept + rest)
        if not self.is_stopped:
            given += self._kept
            self.text += self._kept
        self._kept = ""
        return given

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _give(self, text: str) -> str:
        """Cut at the first stop string; keep back the longest end that may begin one."""
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.is_stopped = True
            self._kept, given = "", text[: min(found)]
        else:
            keep = max((_overlap(text, stop) for stop in self._stops), default=0)
            given, self._kept = text[: len(text) - keep], text[len(text) - keep :]
        self.text += given
        return given


def _overlap(text: str, stop: str) -> int:
    """Return the longest end of ``text`` that ``stop`` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
