"""GGUF headers: the metadata of a GGUF file, read from a stream with every length bounded.

Layout (GGUF versions 2 and 3): magic, version, tensor count, key count, then keys with typed values. Only the keys are
read; tensors never are, and long arrays (tokenizers) are walked over without being kept.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

from kvledger.errors import ModelError

__all__ = ["GgufValue", "read_gguf_header"]

GgufValue = int | float | bool | str | tuple[int | float | bool, ...]
"""A scalar, or a numeric array; arrays of texts are dropped."""

_MAX_KEYS = 10_000
_MAX_TEXT = 2**20
_MAX_ARRAY = 2**22
_MAX_KEPT = 4096
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(slots=True)
class _Cursor:
    stream: BinaryIO

    def take(self, size: int) -> bytes:
        data = self.stream.read(size)
        if len(data) != size:
            raise ModelError("the GGUF file ends inside its header", hint="is the download complete?")
        return data

    def number(self, code: str) -> int:
        value: int = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]
        return value

    def text(self) -> str:
        size = self.number("Q")
        if size > _MAX_TEXT:
            raise ModelError(
                f"the GGUF header has a text of {size} bytes, more than {_MAX_TEXT}", hint="is it damaged?"
            )
        return self.take(size).decode("utf-8", "replace")


def read_gguf_header(stream: BinaryIO) -> dict[str, GgufValue]:
    """Read the metadata at the start of a GGUF stream.

    Raises:
        ModelError: The stream is no GGUF file, ends early, or has lengths out of bounds.
    """
    cursor = _Cursor(stream)
    if stream.read(4) != b"GGUF":
        raise ModelError("the file is not GGUF: it does not start with `GGUF`", hint="give a .gguf file")
    version = cursor.number("I")
    if version not in (2, 3):
        raise ModelError(f"the GGUF version is {version}; 2 and 3 are read", hint="convert the file again")
    cursor.number("Q")
    count = cursor.number("Q")
    if count > _MAX_KEYS:
        raise ModelError(f"the GGUF header has {count} keys, more than {_MAX_KEYS}", hint="is it damaged?")
    found: dict[str, GgufValue] = {}
    for _ in range(count):
        key = cursor.text()
        value = _read_value(cursor, cursor.number("I"), key)
        if value is not None:
            found[key] = value
    return found


def _read_value(cursor: _Cursor, kind: int, key: str) -> GgufValue | None:
    if kind in _SCALARS:
        scalar: int | float | bool = struct.unpack(f"<{_SCALARS[kind]}", cursor.take(struct.calcsize(_SCALARS[kind])))[
            0
        ]
        return scalar
    if kind == _STRING:
        return cursor.text()
    if kind == _ARRAY:
        return _read_array(cursor, key)
    raise ModelError(f"the GGUF key `{key[:80]}` has the unknown type {kind}", hint="is the file damaged?")


def _read_array(cursor: _Cursor, key: str) -> tuple[int | float | bool, ...] | None:
    kind, size = cursor.number("I"), cursor.number("Q")
    if size > _MAX_ARRAY:
        raise ModelError(f"the GGUF array `{key[:80]}` has {size} items, more than {_MAX_ARRAY}", hint="is it damaged?")
    if kind == _STRING:
        for _ in range(size):
            cursor.text()
        return None
    if kind not in _SCALARS:
        raise ModelError(f"the GGUF array `{key[:80]}` has items of the unknown type {kind}", hint="is it damaged?")
    data = cursor.take(size * struct.calcsize(_SCALARS[kind]))
    return struct.unpack(f"<{size}{_SCALARS[kind]}", data) if size <= _MAX_KEPT else None
