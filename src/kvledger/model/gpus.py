"""Accelerators by name: memory as the driver reports it, bandwidth, and dense matrix rates."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import msgspec

from kvledger.errors import UsageError
from kvledger.model.nearest import did_you_mean
from kvledger.units import MIB

__all__ = ["Gpu", "find_gpu", "gpus"]

_VENDORS = re.compile(r"^(nvidia|amd|intel|apple|tesla|geforce|instinct)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator.

    An engine sees up to 1 % less than ``memory_bytes``: the driver keeps some for itself.
    """

    name: str
    memory_bytes: int
    memory_source: str
    """Which tool reports this total (``NVML`` is what nvidia-smi shows)."""
    bandwidth_bytes_per_second: int
    bf16_flops: int
    """Dense bf16 (or fp16) matrix rate, operations a second."""
    fp8_flops: int | None
    """Dense fp8 matrix rate; None where the hardware has none."""
    source: str
    host_bytes_per_second: int | None = None
    """Nominal rate of its link to the host, one way; None where it is not known, or memory is shared."""
    aliases: tuple[str, ...] = ()


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    memory_mib: int
    memory_source: str
    bandwidth_gb_per_second: int
    bf16_tflops: int
    source: str
    fp8_tflops: int | None = None
    host_gb_per_second: int | None = None
    aliases: tuple[str, ...] = ()


@cache
def gpus() -> Mapping[str, Gpu]:
    """Return every accelerator by its name, in the order of the data file."""
    data = files("kvledger.model").joinpath("data", "gpus.toml").read_text("utf-8")
    rows = msgspec.convert(tomllib.loads(data)["gpu"], type=list[_Row])
    return MappingProxyType({row.name: _from_row(row) for row in rows})


def _from_row(row: _Row) -> Gpu:
    return Gpu(
        name=row.name,
        memory_bytes=row.memory_mib * MIB,
        memory_source=row.memory_source,
        bandwidth_bytes_per_second=row.bandwidth_gb_per_second * 10**9,
        bf16_flops=row.bf16_tflops * 10**12,
        fp8_flops=row.fp8_tflops * 10**12 if row.fp8_tflops is not None else None,
        source=row.source,
        host_bytes_per_second=row.host_gb_per_second * 10**9 if row.host_gb_per_second is not None else None,
        aliases=row.aliases,
    )


@cache
def _by_key() -> Mapping[str, str]:
    return MappingProxyType({_key(name): gpu.name for gpu in gpus().values() for name in (gpu.name, *gpu.aliases)})


def _key(name: str) -> str:
    """Return a name without vendor, case and punctuation: ``NVIDIA H100 80GB HBM3`` becomes ``h10080gbhbm3``."""
    return _VENDORS.sub("", re.sub(r"[^a-z0-9]", "", name[:200].lower()))


def find_gpu(name: str) -> Gpu:
    """Find an accelerator by name, as people or drivers write it.

    Raises:
        UsageError: The catalogue has no such accelerator; the nearest names are told.

    >>> find_gpu("NVIDIA H100 80GB HBM3").memory_bytes // 2**20
    81559
    """
    found = _by_key().get(_key(name))
    if found is None:
        raise UsageError(
            f"the catalogue has no accelerator `{name[:80]}`{did_you_mean(_key(name), _by_key())}",
            hint=f"give the bytes of the pool instead; `kvledger size --list gpus` shows the {len(gpus())} known",
            gpu=name[:80],
        )
    return gpus()[found]
