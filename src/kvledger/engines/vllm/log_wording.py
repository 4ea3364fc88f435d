"""The newest release that words a line as a log does: what is known of a version that no line names.

Read in the releases named in :mod:`kvledger.engines.vllm.rules`: each wording ended with the release after.
"""

from __future__ import annotations

import re

from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.engines.quantity import Fact
from kvledger.engines.vllm.version import parse_version

__all__ = ["WORDING_RULES"]

_BLOCKS = re.compile(r"(?:# (?P<device>\w{1,12})|(?<!# )\bGPU) blocks: \d{1,12}(?P<host>, # CPU blocks: \d)?")
_V0_MEMORY = re.compile(r"the rest of the memory reserved for KV Cache is|Memory profiling results: total_gpu_memory=")
_V0_ERROR = re.compile(r"larger than the maximum number of tokens that can be stored in KV cache")
_TWO_LINES = re.compile(r"(?<!tokens, )Maximum concurrency for \d{1,3}(?:,\d{3}){1,6} tokens per request")
_NO_SEPARATORS = re.compile(r"Maximum concurrency for \d{4,12} tokens per request")
_LAST_ZERO = re.compile(r"Available KV cache memory: -?\d{1,6}\.\d0 GiB|KV cache memory \(-?\d{1,6}\.\d0 GiB\)")
_MODELS = re.compile(r"models's max seq len")
_LAST_V0 = "0.10"


def _until(anchor: str, pattern: re.Pattern[str], version: str) -> Rule:
    return Rule(anchor, pattern, lambda builder, hit: _keep(builder, hit, version))


def _blocks(builder: LogBuilder, hit: Hit) -> None:
    """A device is ``GPU`` up to 0.6 and where 0.7 previews V1, in capitals in 0.7, later as the platform calls it."""
    device = hit.text("device") or "GPU"
    newest = "0.7" if device.isupper() else _LAST_V0
    _keep(builder, hit, "0.6" if device == "GPU" and hit.text("host") else newest)


def _keep(builder: LogBuilder, hit: Hit, version: str) -> None:
    known = builder.get("newest_version")
    if not isinstance(known, Fact) or parse_version(version) < parse_version(known.value):
        builder.set(hit, newest_version=Fact(value=version, line=hit.line, origin=hit.origin))


WORDING_RULES = (
    Rule(" blocks: ", _BLOCKS, _blocks),
    _until("KV Cache is", _V0_MEMORY, _LAST_V0),
    _until("Memory profiling results", _V0_MEMORY, _LAST_V0),
    _until("stored in KV cache", _V0_ERROR, _LAST_V0),
    _until("Maximum concurrency", _NO_SEPARATORS, _LAST_V0),
    _until("Maximum concurrency", _TWO_LINES, "0.27"),
    _until("0 GiB", _LAST_ZERO, "0.13"),
    _until("models's max seq len", _MODELS, "0.21"),
)
"""Rules that bound the version from above; they run after those that may begin a new start."""
