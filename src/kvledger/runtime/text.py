"""Text from tokens as they come: only what can no longer change, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["TextStream"]

_UNFINISHED = "�"
_CONTEXT = 6
"""Tokens before an answer that its first text may depend on, such as whether a space comes first."""
_MOST_PENDING = 16
"""Tokens without text after which no character can be waiting for its last byte any more."""


class TextStream:
    """The text of one answer.

    A token may be a part of a character, and the text of a token depends on those before it, so the new text is what
    the last tokens decode to with and without the new one. Text that may be the beginning of a stop string is kept
    back until it is clear. A push costs the same however long the answer and whatever is in it.

    Args:
        tokenizer: Decodes tokens; None: there is no text.
        stops: Strings that end the answer, and are cut off it.
        prompt: What comes before; the text goes on from there.
        min_tokens: As many tokens are written before stop strings are looked for.
    """

    def __init__(
        self, tokenizer: Any, stops: tuple[str, ...], *, prompt: Sequence[int] = (), min_tokens: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = [_Stop(stop) for stop in stops]
        self._unwatched = min_tokens
        self._ids: list[int] = []
        if tokenizer is not None and not self._decode(context := list(prompt[-_CONTEXT:])).endswith(_UNFINISHED):
            self._ids = context
        self._begin = 0
        self._read = len(self._ids)
        self._kept = ""
        self.text = ""
        self.is_stopped = False

    def push(self, token: int) -> str:
        """Add a token (mutates); return the text that is now certain. Nothing more comes once `is_stopped`."""
        if self._tokenizer is None:
            return ""
        self._ids.append(token)
        self._unwatched -= 1
        before = self._decode(self._ids[self._begin : self._read])
        now = self._decode(self._ids[self._begin :])
        is_certain = len(now) > len(before) and not now.endswith(_UNFINISHED)
        if not is_certain and len(self._ids) - self._read < _MOST_PENDING:
            return ""
        if now == before:  # special tokens, of which nothing is shown
            del self._ids[self._read :]
            return ""
        del self._ids[: self._read]
        self._begin, self._read = 0, len(self._ids)
        return self._give(now[len(before) :])

    def finish(self) -> str:
        """Return what was kept back (mutates): no more tokens come."""
        if self._tokenizer is None or self.is_stopped:
            return ""
        before = self._decode(self._ids[self._begin : self._read])
        rest = self._decode(self._ids[self._begin :])[len(before) :]
        given = self._give(rest)
        if not self.is_stopped:
            given += self._kept
            self.text += self._kept
        self._kept = ""
        return given

    def _decode(self, ids: list[int]) -> str:
        # Cleaning up would move spaces that were given before.
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _give(self, new: str) -> str:
        """Cut at the first stop string; keep back the longest end that may begin one."""
        if self._unwatched >= 0:
            self.text += new
            return new
        text = self._kept + new
        found = [at for at in (text.find(stop.text) for stop in self._stops) if at >= 0]
        if found:
            self.is_stopped = True
            self._kept, given = "", text[: min(found)]
        else:
            keep = max((stop.follow(new) for stop in self._stops), default=0)
            given, self._kept = text[: len(text) - keep], text[len(text) - keep :]
        self.text += given
        return given


class _Stop:
    """A stop string, and how much of it the text so far ends with (Knuth, Morris and Pratt 1977).

    ``_falls[n]`` is the longest beginning of the string that its first n characters also end with; it is found as far
    as the text has come.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._falls = [0, 0]
        self._matched = 0

    def follow(self, new: str) -> int:
        """Read more text, in which the string does not end (mutates); return how long an end of it may begin it."""
        for letter in new:
            self._matched = self._step(self._matched, letter)
            if self._matched == len(self._falls):
                self._falls.append(self._step(self._falls[-1], self.text[self._matched - 1]))
        return self._matched

    def _step(self, matched: int, letter: str) -> int:
        while matched and self.text[matched] != letter:
            matched = self._falls[matched]
        return matched + (self.text[matched] == letter)
