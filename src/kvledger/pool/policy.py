"""The memory policies by name: how a request gets its memory, and who may share it."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, assert_never

from kvledger.errors import UsageError
from kvledger.pool.groups import BlockGroups, GroupKind
from kvledger.pool.two_pools import TwoPools
from kvledger.units import counted

__all__ = [
    "Eviction",
    "Growth",
    "Kind",
    "Placement",
    "Policy",
    "Preemption",
    "PrefixIndex",
    "Reservation",
    "Sampling",
    "parse_policies",
    "parse_policy",
]


class Kind(StrEnum):
    """How a policy hands out memory."""

    CONTIGUOUS = "contiguous"
    """One extent per request, taken at admission, returned at the end."""
    GROW = "grow"
    """One extent per request that is reallocated (new extent, copy, free the old) as it grows."""
    STATIC_BATCH = "static-batch"
    """A batch starts only when the previous one has ended, every row padded to the longest."""
    PAGED = "paged"
    """Blocks on demand, preemption by recompute."""
    UPFRONT = "upfront"
    """The blocks of prompt + max_tokens at admission (TGI)."""
    NO_EVICT = "no-evict"
    """Blocks on demand, but admitted only if prompt + max_tokens is sure to fit (TensorRT-LLM)."""
    VMM = "vmm"
    """Contiguous virtual memory, physical pages mapped on demand (vAttention)."""

    @property
    def is_paged(self) -> bool:
        """Whether memory is interchangeable blocks, so that no external fragmentation exists."""
        return self in (Kind.PAGED, Kind.UPFRONT, Kind.NO_EVICT, Kind.VMM)


class Reservation(StrEnum):
    """How many tokens a contiguous extent is sized for."""

    MAX = "max"
    """max_model_len: the naive Hugging Face deployment; Orca (Max) of the PagedAttention paper."""
    DECLARED = "declared"
    """Prompt + max_tokens of the request."""
    POW2 = "pow2"
    """Prompt + smallest power of two >= output, at most max_model_len: Orca (Pow2)."""
    EXACT = "exact"
    """Prompt + output: Orca (Oracle)."""


class Placement(StrEnum):
    """Where in the free memory an extent goes."""

    BEST = "best"
    FIRST = "first"
    NEXT = "next"
    WORST = "worst"
    BUDDY = "buddy"
    """Sizes rounded up to powers of two: the allocator of the paper's Orca baselines."""


class Growth(StrEnum):
    """By how much a growing extent grows."""

    EXACT = "exact"
    """To the very length needed (DynamicCache concatenates)."""
    DOUBLING = "doubling"
    """To the next power of two."""
    STEP = "step"
    """To the next multiple of a step (256 tokens in MLX)."""


class Sampling(StrEnum):
    """What several answers to one prompt are."""

    FORKS = "forks"
    """Sequences of one request: they share its prompt's blocks, copied on write (PagedAttention, vLLM V0)."""
    REQUESTS = "requests"
    """Requests of their own, which share only what a prefix cache finds (vLLM V1)."""


class Preemption(StrEnum):
    """What happens to the blocks of a preempted request."""

    RECOMPUTE = "recompute"
    """They are given up, and computed again."""
    SWAP = "swap"
    """They are moved to the host where that has room, and back (PagedAttention, section 4.5)."""


class Eviction(StrEnum):
    """Which block goes when a new one needs its place."""

    LRU = "lru"
    """The one used longest ago among those no cached block follows."""
    FIFO = "fifo"
    """The one that came first, even if others that follow it stay."""
    BELADY = "belady"
    """The one whose next use is furthest. It needs to know the future: a bound, not a policy."""


class PrefixIndex(StrEnum):
    """How the blocks of ``paged`` are found again by their content."""

    BLOCKS = "blocks"
    """By the hash of each full block and all before it; one content may be there twice (vLLM)."""
    RADIX = "radix"
    """In a tree of token spans, each content once; pages of one token or more (SGLang)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One memory policy with all its settings. Fields that its kind does not use are ignored.

    ``name`` is what the user wrote and what results are labelled with. ``block_size`` is the tokens of a block; the
    pages of ``vmm`` are sized in bytes, by the pool.
    """

    name: str
    kind: Kind
    reservation: Reservation = Reservation.MAX
    placement: Placement = Placement.BEST
    growth: Growth = Growth.EXACT
    growth_step_tokens: int = 256
    segments: bool = False
    """Extents of ``grow`` lie in segments that round as PyTorch's caching allocator does; one tensor a request."""
    block_size: int = 16
    buffer_tokens: int = 0
    granularity_tokens: int = 1
    watermark_ratio: float = 0.0
    full_sequence_must_fit: bool = True
    prefix_caching: bool = False
    """Full blocks of ``paged`` are kept and shared by content."""
    eviction: Eviction = Eviction.LRU
    """Which cached block of ``paged`` goes first; one that a request refers to never does."""
    index: PrefixIndex = PrefixIndex.BLOCKS
    """How ``paged`` finds what it caches; a radix tree always caches."""
    sampling: Sampling | None = None
    """Samples of ``paged``; None: forks where nothing else shares blocks. Other kinds have requests."""
    preemption: Preemption = Preemption.RECOMPUTE
    """What ``paged`` does with a preempted request."""
    swap_bytes: int = 0
    """Memory of the host that ``paged`` may swap to."""
    two_pools: TwoPools | None = None
    """Pools of ``paged`` sized apart, for layers with and without a window; it has no prefix cache then."""
    has_two_pools: bool = False
    """Whether it is to have `two_pools`, which depend on the model."""
    groups: BlockGroups | None = None
    """Block tables of ``paged`` for groups of layers that keep different tokens; None: all keep every token."""

    def __post_init__(self) -> None:
        """Refuse sizes that no allocator can work with."""
        for name, low in (("growth_step_tokens", 1), ("buffer_tokens", 0), ("granularity_tokens", 1)):
            value = getattr(self, name)
            if not low <= value <= _MOST_TOKENS:
                raise UsageError(f"{name} is {value}, not from {low} to {_MOST_TOKENS} tokens")
        if not 1 <= self.block_size <= MOST_BLOCK_TOKENS:
            raise UsageError(f"block_size is {self.block_size}, not from 1 to {MOST_BLOCK_TOKENS} tokens")
        if not 0 <= self.swap_bytes <= 2**60:
            raise UsageError(f"swap_bytes is {self.swap_bytes}, not from 0 to 2**60")
        if self.is_radix and not self.prefix_caching:
            raise UsageError(f"`{self.name}` is a prefix cache, and prefix_caching is off")
        if not 0 <= self.watermark_ratio <= 1:
            raise UsageError(f"watermark_ratio is {self.watermark_ratio}, not from 0 to 1")

    @property
    def caches(self) -> bool:
        """Whether what ended requests computed is kept and found again."""
        return self.kind is Kind.PAGED and self.prefix_caching

    @property
    def is_radix(self) -> bool:
        """Whether what is cached lies in a radix tree."""
        return self.kind is Kind.PAGED and self.index is PrefixIndex.RADIX

    @property
    def pools_apart(self) -> TwoPools | None:
        """The two pools of a policy that has them."""
        return self.two_pools if self.kind is Kind.PAGED else None

    @property
    def block_groups(self) -> BlockGroups | None:
        """The groups of a policy that has block tables for them; None when one table serves all layers."""
        return self.groups if self.kind is Kind.PAGED else None

    @property
    def block_tokens(self) -> int | None:
        """Tokens of the smallest block that attention reads through a table; None where it reads one extent."""
        if not self.kind.is_paged or self.kind is Kind.VMM:
            return None
        groups = self.block_groups
        if groups is None:
            return self.block_size
        return min((g.block_tokens for g in groups.groups if g.kind is not GroupKind.STATE), default=None)

    @property
    def swaps(self) -> bool:
        """Whether preempted requests are moved to the host."""
        return self.kind is Kind.PAGED and self.preemption is Preemption.SWAP

    @property
    def meaning(self) -> str:
        """What the policy does, in one line."""
        match self.kind:
            case Kind.CONTIGUOUS:
                what = {
                    Reservation.MAX: "reserves max_model_len for each request",
                    Reservation.DECLARED: "reserves prompt + max_tokens for each request",
                    Reservation.POW2: "reserves prompt + the next power of two of the output",
                    Reservation.EXACT: "reserves prompt + output, known by an oracle",
                }[self.reservation]
                return f"{what}; one contiguous extent, {self._where}"
            case Kind.GROW:
                how = {
                    Growth.EXACT: "exactly",
                    Growth.DOUBLING: "by doubling",
                    Growth.STEP: f"in steps of {counted(self.growth_step_tokens, 'token')}",
                }[self.growth]
                where = "in segments, as PyTorch's caching allocator" if self.segments else self._where
                return f"reallocates one contiguous extent, growing {how}; {where}"
            case Kind.STATIC_BATCH:
                return "runs one padded batch at a time; rows wait for the longest"
            case Kind.PAGED:
                if self.has_two_pools:
                    return f"two pools sized apart, {counted(self.block_size, 'token')} a page, and no prefix cache"
                if self.is_radix:
                    return f"radix tree of token spans, {counted(self.block_size, 'token')} a page, allocated on demand"
                if self.groups is not None:
                    return f"{len(self.groups.groups)} block tables over one pool, blocks allocated and given back"
                swapped = "; preempted requests are swapped to the host" if self.swaps else ""
                return f"block table, {counted(self.block_size, 'token')} a block, allocated on demand{swapped}"
            case Kind.UPFRONT:
                return (
                    f"block table, {counted(self.block_size, 'token')} a block, all of prompt + max_tokens at admission"
                )
            case Kind.NO_EVICT:
                return f"block table, {counted(self.block_size, 'token')} a block; admits only what is sure to finish"
            case Kind.VMM:
                return "contiguous virtual memory, physical pages of each layer mapped on demand"
            case _ as never:
                assert_never(never)

    @property
    def _where(self) -> str:
        return "buddy allocator" if self.placement is Placement.BUDDY else f"{self.placement} fit"


TWO_POOLS = "pools"
_MOST_TOKENS = 2**40
MOST_BLOCK_TOKENS = 2**20
MOST_SAMPLES = 1024
"""Most answers to one prompt that are believed."""
_KINDS = {kind.value: kind for kind in Kind if kind is not Kind.CONTIGUOUS}
_NAMES = [*(r.value for r in Reservation), *_KINDS]


def parse_policies(text: str, *, base: Policy | None = None) -> list[Policy]:
    """Read a comma-separated list of policies; ``all`` stands for every one of them.

    Raises:
        UsageError: A name is unknown, or a policy is listed twice.
    """
    names: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        names += _NAMES if part == "all" else [part] if part else []
    if not names:
        raise UsageError("no policy was named", hint=f"the policies are {', '.join(_NAMES)}")
    policies = [parse_policy(name, base=base) for name in names]
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UsageError(f"policy `{name}` is listed {'twice' if count == 2 else f'{count:,} times'}")
    return policies


def parse_policy(text: str, *, base: Policy | None = None) -> Policy:
    """Read one policy: ``NAME[@VARIANT][:INDEX]``, on top of the settings of ``base``.

    The variant is a placement for reservations (``max@buddy``), a growth for ``grow`` (``grow@doubling``) or the
    allocator it grows in (``grow@segments``), and a block size in tokens for block tables (``paged@32``). An index
    gives ``paged`` a prefix cache: ``paged:blocks``, or ``paged:radix``, whose pages have one token unless said.
    ``paged:pools`` has no index, but two pools for layers with and without a window.

    Raises:
        UsageError: The name or the variant is unknown.

    >>> parse_policy("pow2@buddy").meaning
    'reserves prompt + the next power of two of the output; one contiguous extent, buddy allocator'
    """
    base = base or Policy(name="", kind=Kind.PAGED)
    body, colon, index = text.partition(":")
    name, at, variant = body.partition("@")
    if name not in _NAMES:
        near = difflib.get_close_matches(name[:40], _NAMES, n=1)
        meant = f"did you mean `{near[0]}`? " if near else ""
        raise UsageError(f"unknown policy `{name[:40]}`", hint=f"{meant}the policies are {', '.join(_NAMES)}")
    kind = _KINDS.get(name, Kind.CONTIGUOUS)
    changes: dict[str, Any] = {"name": text, "kind": kind}
    if kind is Kind.CONTIGUOUS:
        changes["reservation"] = Reservation(name)
    if colon:
        changes |= _indexed(kind, index, text[:80])
    if at:
        changes |= _variant(kind, variant, text[:80])
    return replace(base, **changes)


def _indexed(kind: Kind, index: str, whole: str) -> dict[str, Any]:
    if kind is not Kind.PAGED:
        raise UsageError(f"policy `{whole}` is unknown: only `paged` finds blocks by an index")
    if index == TWO_POOLS:
        return {"has_two_pools": True, "prefix_caching": False, "block_size": 1}
    if index not in list(PrefixIndex):
        raise UsageError(
            f"unknown index `{index[:40]}` in policy `{whole}`",
            hint=f"the indexes are {', '.join(PrefixIndex)}; {TWO_POOLS} has none",
        )
    page = {"block_size": 1} if index == PrefixIndex.RADIX else {}
    return {"index": PrefixIndex(index), "prefix_caching": True, **page}


def _variant(kind: Kind, variant: str, whole: str) -> dict[str, Any]:
    match kind:
        case Kind.CONTIGUOUS:
            return {"placement": _choice(variant, Placement, whole)}
        case Kind.GROW:
            if variant == "segments":
                return {"segments": True}
            return {"growth": _choice(variant, Growth, whole)}
        case Kind.PAGED | Kind.UPFRONT | Kind.NO_EVICT:
            return {"block_size": _block_size(variant, whole)}
        case Kind.VMM:
            raise UsageError(f"policy `{whole}` is unknown: pages are sized in bytes", hint="give --page-size 64KiB")
        case Kind.STATIC_BATCH:
            raise UsageError(f"policy `{whole}` is unknown: `{kind}` has no variants")
        case _ as never:
            assert_never(never)


def _choice(text: str, enum: type[StrEnum], whole: str) -> StrEnum:
    try:
        return enum(text)
    except ValueError:
        raise UsageError(
            f"unknown variant `{text[:40]}` in policy `{whole}`",
            hint=f"the variants are {', '.join(e.value for e in enum)}",
        ) from None


def _block_size(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and 1 <= int(text) <= MOST_BLOCK_TOKENS):
        raise UsageError(
            f"`{text[:40]}` in policy `{whole}` is not a block size",
            hint=f"write tokens from 1 to {MOST_BLOCK_TOKENS}, such as `paged@32`",
        )
    return int(text)
