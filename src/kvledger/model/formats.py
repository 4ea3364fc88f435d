"""How numbers are stored: the dtypes of weights and states, and the formats of cached keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType

from kvledger.errors import ModelError, UsageError
from kvledger.units import counted

__all__ = ["FP8_INDEX", "KV_FORMATS", "Dtype", "KvFormat", "find_dtype", "find_kv_format"]


class Dtype(StrEnum):
    """A plain element type, as weights, states and unquantised caches use it."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}[self.value]

    @property
    def served(self) -> Dtype:
        """The type an engine computes in: float32 checkpoints are served in 16 bits (vLLM 0.8 to 0.33)."""
        return Dtype.FLOAT16 if self is Dtype.FLOAT32 else self


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """How one side (keys or values) of one head of one token is stored.

    A head of ``size`` elements takes ``ceil(size * bits / 8)`` bytes, plus ``group_bytes`` for each started group of
    ``group_elements``, plus ``head_bytes``. Latent (MLA) caches may instead be packed into one record, whose bytes are
    known only for the shapes listed in ``records``.
    """

    name: str
    bits: int
    """Bits of one element."""
    group_elements: int = 0
    """Elements that share a scale; 0 for none."""
    group_bytes: int = 0
    """Bytes of scale (and zero point) of each group."""
    head_bytes: int = 0
    """Bytes of scale each head adds on each side."""
    records: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Packed records: (latent elements, rope elements) to bytes of a token and layer."""
    source: str = ""
    """Where the layout is defined."""

    def side_bytes(self, size: int) -> int:
        """Return the bytes of ``size`` elements of one head, one side and one token.

        Raises:
            ModelError: The format packs latent records and has no layout for plain keys and values.

        >>> KV_FORMATS["nvfp4"].side_bytes(128)
        72
        """
        if self.records:
            raise ModelError(
                f"`{self.name}` stores latent records only, not keys and values of {counted(size, 'element')}",
                hint="use `fp8`, `bfloat16` or another format that stores keys and values",
                kv_dtype=self.name,
            )
        return self._elements_bytes(size) + (self.head_bytes if size else 0)

    def latent_bytes(self, latent: int, rope: int) -> int:
        """Return the bytes of one token's latent vector and its rope part in one layer.

        Raises:
            ModelError: The format is packed and this shape is not among its records.

        >>> KV_FORMATS["fp8_ds_mla"].latent_bytes(512, 64)
        656
        """
        if not self.records:
            return self._elements_bytes(latent + rope) + self.head_bytes
        if (latent, rope) not in self.records:
            known = ", ".join(f"{a}+{b}" for a, b in self.records)
            raise ModelError(
                f"`{self.name}` has no known record for a latent of {latent}+{rope:,} elements (known: {known})",
                hint="use `bfloat16` or `fp8`, whose size follows from the number of elements",
                kv_dtype=self.name,
            )
        return self.records[latent, rope]

    def _elements_bytes(self, size: int) -> int:
        groups = -(-size // self.group_elements) if self.group_elements else 0
        return -(-size * self.bits // 8) + groups * self.group_bytes


def _plain(name: str, bits: int) -> KvFormat:
    return KvFormat(name=name, bits=bits, source="element size")


def _ggml(name: str, bits: int, scale: int) -> KvFormat:
    return KvFormat(name=name, bits=bits, group_elements=32, group_bytes=scale, source="ggml block of 32 elements")


_FORMATS = (
    _plain("float32", 32),
    _plain("float16", 16),
    _plain("bfloat16", 16),
    _plain("fp8", 8),
    _plain("int8", 8),
    KvFormat(name="int8_per_token_head", bits=8, head_bytes=4, source="vLLM Triton cache, fp32 scale a side"),
    KvFormat(name="fp8_per_token_head", bits=8, head_bytes=4, source="vLLM Triton cache, fp32 scale a side"),
    KvFormat(name="int4_per_token_head", bits=4, head_bytes=4, source="vLLM Triton cache, fp32 scale a side"),
    KvFormat(name="nvfp4", bits=4, group_elements=16, group_bytes=1, source="vLLM kv_cache_dtype nvfp4"),
    KvFormat(
        name="fp8_ds_mla",
        bits=8,
        # 512 fp8 + 4 fp32 scales + 64 bf16 rope; DeepSeek-V4: 448 fp8 + 8 scales + 64 bf16 rope.
        records=MappingProxyType({(512, 64): 656, (448, 64): 584}),
        source="vLLM kv_cache_dtype fp8_ds_mla",
    ),
    KvFormat(
        name="nvfp4_ds_mla",
        bits=4,
        # 512 fp4 + 32 fp8 scales + 64 rope elements of one byte.
        records=MappingProxyType({(512, 64): 352}),
        source="vLLM kv_cache_dtype nvfp4_ds_mla",
    ),
    _ggml("q8_0", 8, 2),
    _ggml("q5_1", 5, 4),
    _ggml("q5_0", 5, 2),
    _ggml("q4_1", 4, 4),
    _ggml("q4_0", 4, 2),
    _ggml("iq4_nl", 4, 2),
)

KV_FORMATS: Mapping[str, KvFormat] = MappingProxyType({f.name: f for f in _FORMATS})
"""Every format whose bytes are known, by name."""

FP8_INDEX = KvFormat(
    name="fp8_index", bits=8, group_elements=128, group_bytes=4, source="DeepSeek sparse attention: 128 fp8 + 1 fp32"
)
"""Keys of a sparse-attention indexer: 132 bytes for 128 elements."""

_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "torch.float16": "float16",
    "bf16": "bfloat16",
    "torch.bfloat16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
    "torch.float32": "float32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "torch.float8_e4m3fn": "fp8",
    "torch.float8_e5m2": "fp8",
}


def find_kv_format(name: str | KvFormat) -> KvFormat:
    """Find the format of a cache dtype as engines and checkpoints name it.

    Raises:
        UsageError: The name is not known, so its bytes cannot be predicted.

    >>> find_kv_format("fp8_e4m3").name
    'fp8'
    """
    if isinstance(name, KvFormat):
        return name
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key == FP8_INDEX.name:
        return FP8_INDEX
    if key not in KV_FORMATS:
        raise UsageError(
            f"the bytes of the KV dtype `{name[:60]}` are not known" + _did_you_mean(key),
            hint="known are " + ", ".join(KV_FORMATS),
            kv_dtype=name[:60],
        )
    return KV_FORMATS[key]


def find_dtype(name: str | Dtype) -> Dtype:
    """Find a plain element type by any of its usual names.

    Raises:
        UsageError: The name is not known.

    >>> find_dtype("torch.bfloat16")
    <Dtype.BFLOAT16: 'bfloat16'>
    """
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    try:
        return Dtype(key)
    except ValueError:
        raise UsageError(
            f"the dtype `{name[:60]}` is not known" + _did_you_mean(key),
            hint="known are " + ", ".join(Dtype),
            dtype=name[:60],
        ) from None


def _did_you_mean(key: str) -> str:
    close = get_close_matches(key[:60], [*KV_FORMATS, *Dtype], n=1)
    return f"; did you mean `{close[0]}`?" if close else ""
