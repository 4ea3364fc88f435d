"""What carries a log line: Docker, Kubernetes, journald and JSON wrappers, and colours."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import unescape

from kvledger.engines.clock import read_iso

__all__ = ["Carrier"]

_COLOUR = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_=>])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\ufeff]")
# Kubernetes CRI: time, stream, P (partial) or F (full)
_CRI = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (?:stdout|stderr) ([PF]) ?")
# docker compose, kubectl --prefix, stern, systemd
_PREFIXES = (
    re.compile(r"[\w.-]{1,80} {1,40}\| "),
    re.compile(r"\[pod/[\w./-]{1,240}\] "),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,80} [\w./@-]{1,80}(?:\[\d{1,12}\])?: "),
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?[+-]\d\d:?\d\d [\w.-]{1,80} [\w./@-]{1,80}\[\d{1,12}\]: "),
)
_DOCKER_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,9}Z) {1,2}(?=\S)")
_MESSAGES = ("log", "MESSAGE", "message", "msg", "textPayload", "line")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "__REALTIME_TIMESTAMP")
_MAX_PARTIAL = 65_536
_DOCKER_PART = 16_384


@dataclass(slots=True)
class Carrier:
    """Takes the message out of what carried it; remembers the parts of a message that came in pieces."""

    _partial: str = ""

    def unpack(self, line: str) -> tuple[str, float | None] | None:
        """Return the message and the carrier's time, or None while parts are still missing."""
        seconds: float | None = None
        is_partial = False
        if line[:1] == "{" or line[:2] == " {":
            line, seconds, is_partial = _open_json(line)
        dated = line[:2] == "20"
        match = _CRI.match(line) if dated else None
        if match:
            line, seconds, is_partial = line[match.end() :], read_iso(match[1]), match[2] == "P"
        if is_partial and len(self._partial) + len(line) < _MAX_PARTIAL:
            self._partial += line
            return None
        if self._partial:
            line, self._partial = self._partial + line, ""
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        if not line.isprintable():
            line = _CONTROL.sub("", line.replace("\u00a0", " "))  # copied from a page
        if "&#39;" in line or "&quot;" in line:
            line = unescape(line)
        if line[:1] != "(":  # a process tag stands first
            for prefix in _PREFIXES:
                found = prefix.match(line)
                if found:
                    line = line[found.end() :]
                    break
        stamp = _DOCKER_TIME.match(line) if dated else None
        if stamp and not line[stamp.end() :].startswith(("INFO text_", "WARN text_", "ERROR text_")):
            line, seconds = line[stamp.end() :], read_iso(stamp[1])
        return line, seconds


def _open_json(line: str) -> tuple[str, float | None, bool]:
    """Return the message inside a JSON wrapper, its time, and whether it goes on in the next one.

    Docker cuts messages at 16 KiB; only the last part ends with a newline.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line, None, False
    if not isinstance(record, dict):
        return line, None, False
    fields = record.get("fields")
    for holder in (record, fields if isinstance(fields, dict) else {}):
        for name in _MESSAGES:
            message = holder.get(name)
            if isinstance(message, str):
                time = next((record[key] for key in _TIMES if isinstance(record.get(key), str)), "")
                is_partial = len(message) >= _DOCKER_PART and not message.endswith("\n")
                return message.rstrip("\r\n"), read_iso(time), is_partial
    return line, None, False
