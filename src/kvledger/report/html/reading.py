"""From the bytes of a saved result to a run that a page can be made of; the file may come from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kvledger.errors import SourceError
from kvledger.report.html.checks import Result, check_result
from kvledger.report.html.clean import clean_text, clean_value
from kvledger.report.html.saved import SavedReplay
from kvledger.report.html.saved_check import SavedCheck
from kvledger.report.html.saved_log import SavedLog
from kvledger.report.html.saved_measure import SavedMeasure
from kvledger.report.html.saved_prove import SavedProve
from kvledger.report.html.saved_sharing import SavedSharing
from kvledger.report.html.saved_size import SavedSize
from kvledger.report.html.saved_sweep import SavedSweep
from kvledger.report.html.saved_traffic import SavedCache, SavedTraceFile

__all__ = ["Run", "read_run", "run_of"]

_MOST_BYTES = 256 * 2**20
_MOST_ITEMS = 20_000
_MOST_ROWS = 2_000_000
_SCHEMAS: Mapping[str, type[Result]] = {
    "kvledger/replay": SavedReplay,
    "kvledger/measure": SavedMeasure,
    "kvledger/measure-log": SavedLog,
    "kvledger/prove": SavedProve,
    "kvledger/sweep": SavedSweep,
    "kvledger/sharing": SavedSharing,
    "kvledger/size": SavedSize,
    "kvledger/cache": SavedCache,
    "kvledger/trace": SavedTraceFile,
    "kvledger/check": SavedCheck,
}
_HINT = (
    "give what `size`, `replay`, `demo`, `measure`, `check`, `trace`, `cache`, `prove` or `sweep` wrote with --json, a "
    "recording, a saved /metrics text or an engine's log"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One result, and what to call it."""

    name: str
    result: Result


def read_run(content: bytes, *, name: str) -> Run:
    """Read a saved result.

    Raises:
        SourceError: It is no such result, is damaged, or its accounts do not sum to the pool.
    """
    if len(content) > _MOST_BYTES:
        raise SourceError(
            f"`{name}` has {len(content):,} bytes, more than the {_MOST_BYTES:,} that are read", hint=_HINT
        )
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_lines(content, name)
        raise SourceError(f"`{name}` is not JSON: {error}", hint=_HINT) from None
    if not isinstance(value, dict):
        raise SourceError(f"`{name}` is not the result of a command, which is a JSON object", hint=_HINT)
    return run_of(value, name=name)


def _refuse_lines(content: bytes, name: str) -> None:
    """Raise for the lines that `watch --json` prints, which are no result."""
    try:
        value = msgspec.json.decode(content.partition(b"\n")[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if isinstance(value, dict) and value.get("schema") in ("kvledger/watch", "kvledger/watch-pool"):
        raise SourceError(
            f"`{name}` holds the readings of `watch`, one a line, of which there is no page",
            hint="record them with `kvledger watch URL --record FILE`, and give that file",
        )


def run_of(value: Mapping[str, Any], *, name: str) -> Run:
    """Return the run of a result that is decoded already.

    Raises:
        SourceError: It is not the result of a command, or its accounts do not sum to the pool.
    """
    schema = value.get("schema")
    kind = _SCHEMAS.get(schema) if isinstance(schema, str) else None
    if kind is None:
        found = "has no `schema`" if schema is None else f"has the schema `{clean_text(str(schema), longest=60)}`"
        raise SourceError(f"`{name}` {found}, of which there is no page", hint=_HINT)
    if value.get("schema_version") != 1:
        raise SourceError(
            f"`{name}` has version {str(value.get('schema_version'))[:20]} of {schema}; this kvledger reads version 1",
            hint="update kvledger, or run the command again",
        )
    try:
        items = _MOST_ROWS if kind is SavedSweep else _MOST_ITEMS
        result = msgspec.convert(clean_value(value, most_items=items), kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise SourceError(f"`{name}` is damaged: {error}", hint="run the command that wrote it again") from None
    check_result(result, name)
    return Run(name=clean_text(name, longest=120), result=result)
