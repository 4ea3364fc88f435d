"""Digests of the files that a grid names, so that a changed input is told from a finished cell."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["digest_of", "place_of"]

_MISSING = "missing"
_CONFIGS = ("config.json", "hf_quant_config.json")


def place_of(text: str, *, folder: Path) -> Path | None:
    """Return the file or folder that a setting names, relative to the grid's folder; None when there is none."""
    path = folder / text
    try:
        return path.absolute() if path.exists() else None
    except (OSError, ValueError):
        return None


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files; ``missing`` where unreadable.

    Of a model's folder only the configuration counts: weights are not read by anybody here.
    """
    try:
        if path.is_file():
            with path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        files = sorted(entry for entry in path.iterdir() if entry.is_file())
        configs = [entry for entry in files if entry.name in _CONFIGS]
        digest = hashlib.sha256()
        for entry in configs or files:
            digest.update(entry.name.encode() + b"\0" + digest_of(entry).encode() + b"\0")
        return digest.hexdigest()
    except OSError:
        return _MISSING
