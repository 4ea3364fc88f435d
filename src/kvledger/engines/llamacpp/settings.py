"""llama-server's settings and build numbers, read strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvledger.engines.plan import Deployment
from kvledger.engines.settings import Reader, boolean, choice, integer, read_settings
from kvledger.errors import UsageError
from kvledger.model import KvFormat, find_kv_format

__all__ = ["Build", "Flags", "find_cache_type", "read_build", "read_flags"]

_CACHE_TYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "q8_0": "q8_0",
    "q5_1": "q5_1",
    "q5_0": "q5_0",
    "q4_1": "q4_1",
    "q4_0": "q4_0",
    "iq4_nl": "iq4_nl",
}
"""Formats a cache may have (``common/arg.cpp``), by our name, with the name that is printed."""

FIRST_BUILD = 5000
LATEST_BUILD = 11434


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What depends on the build number.

    Tried: b9093 and b11434. The borders of older builds are the pull requests' (about b6900: automatic slots,
    PR #16736 and contexts padded to 256, PR #17046; about b9180: quiet library lines, PR #23021); a build within a
    few hundred of a border may differ.
    """

    number: int

    @property
    def automatic_slots(self) -> bool:
        """Without ``-np`` there are 4 slots over one unified cache; before, one slot."""
        return self.number >= 6900

    @property
    def quiet(self) -> bool:
        """The lines about memory need ``-lv 4``."""
        return self.number >= 9180

    @property
    def verified(self) -> bool:
        """The rules were read in this generation's source; older ones are taken from reports."""
        return self.number >= 6900

    @property
    def cache_name(self) -> str:
        """The prefix of the size line."""
        return "llama_kv_cache" if self.automatic_slots else "llama_kv_cache_unified"


_BUILD = re.compile(r"\s*b?(\d{1,6})(?:\.0){0,2}\s*")


def read_build(text: str) -> Build:
    """Read a build number such as ``b11434``.

    Raises:
        UsageError: The text is no build number, or its rules are not known.
    """
    match = _BUILD.fullmatch(text)
    if match is None:
        raise UsageError(
            f"`{text[:40]}` is not a llama.cpp build", hint="write the number of the build, such as `b11434`"
        )
    number = int(match[1])
    if not FIRST_BUILD <= number <= LATEST_BUILD:
        raise UsageError(
            f"the sizing rules of llama.cpp b{number} are not known: they are known from b{FIRST_BUILD} to "
            f"b{LATEST_BUILD}",
            hint=f"plan it as b{LATEST_BUILD} and compare with the lines that `-lv 4` prints",
        )
    return Build(number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """llama-server's flags by their long names; ``None`` is the build's default."""

    ctx_size: int | None = None
    """``-c``: cells of all slots together; 0 is the model's training context."""
    parallel: int | None = None
    """``-np``: slots."""
    kv_unified: bool = False
    """``-kvu``: all slots share the cells."""
    kv_unified_per_slot: int = 0
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    swa_full: bool = False
    flash_attn: str = "auto"
    mla_tensors: bool = True
    """The GGUF file has the tensors for absorbed MLA (converted since 2025-04); without, full heads are stored."""
    rs_seq: int = 0
    """Snapshots of recurrent states kept for a rollback, per slot."""
    log_verbosity: int = 3


_READERS: dict[str, Reader] = {
    "ctx_size": integer,
    "parallel": integer,
    "kv_unified": boolean,
    "kv_unified_per_slot": integer,
    "batch_size": integer,
    "ubatch_size": integer,
    "cache_type_k": str,
    "cache_type_v": str,
    "swa_full": boolean,
    "flash_attn": choice("on", "off", "auto"),
    "mla_tensors": boolean,
    "rs_seq": integer,
    "log_verbosity": integer,
}


def read_flags(deployment: Deployment) -> Flags:
    """Read the flags of a deployment.

    Raises:
        UsageError: A name or a value is not one of llama-server's.
    """
    flags = read_settings(deployment, Flags, _READERS)
    for name, value in (("batch_size", flags.batch_size), ("ubatch_size", flags.ubatch_size)):
        if value < 1:
            raise UsageError(f"`{name}` is {value}, but must be at least 1")
    if flags.parallel is not None and not 1 <= flags.parallel <= 256:
        raise UsageError(f"`parallel` is {flags.parallel}, but llama.cpp takes 1 to 256 sequences")
    if flags.rs_seq > 4096:
        raise UsageError(f"`rs_seq` is {flags.rs_seq}, but must be at most 4096")
    return flags


def find_cache_type(name: str) -> tuple[KvFormat, str]:
    """Return the format of a cache type and the name llama.cpp prints for it; ``auto`` is f16.

    Raises:
        UsageError: llama.cpp has no such cache type.
    """
    kv_format = find_kv_format("float16" if name.strip().lower() == "auto" else name)
    if kv_format.name not in _CACHE_TYPES:
        raise UsageError(
            f"llama.cpp cannot store a cache as `{kv_format.name}`",
            hint="cache types are " + ", ".join(_CACHE_TYPES.values()),
        )
    return kv_format, _CACHE_TYPES[kv_format.name]
