"""The start-up log of a server that is measured: what its endpoints do not tell."""

from __future__ import annotations

from pathlib import Path

from kvledger.engines.facts import StartupFacts
from kvledger.engines.readers import read_log
from kvledger.errors import SourceError
from kvledger.sources.encoding import decode

__all__ = ["read_startup"]

_MOST_BYTES = 256 * 2**20


def read_startup(path: str) -> StartupFacts:
    """Read the last start in a log of any engine.

    Raises:
        SourceError: It cannot be read, is no log of an engine that is known, or holds no start.
    """
    target = Path(path)
    try:
        with target.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"the log `{target.name[:80]}` cannot be read: {getattr(error, 'strerror', None) or 'no file name'}",
            hint="give --log the file with the server's output",
        ) from None
    if len(content) > _MOST_BYTES:
        raise SourceError(
            f"the log has more than {_MOST_BYTES:,} bytes", hint="give --log the part with the last start of the server"
        )
    log = read_log(decode(content))
    if not log.startups:
        raise SourceError(
            f"the log of {log.engine} holds no start of the server",
            hint="give the part with the start; llama.cpp prints its memory with `-lv 4` only",
        )
    return log.startups[-1]
