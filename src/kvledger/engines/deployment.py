"""How an engine is run: what its planner is told beside the model and the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvledger.errors import UsageError
from kvledger.units import counted

__all__ = ["LONGEST_TOKENS", "MOST_RANKS", "Deployment"]

LONGEST_TOKENS = 2**40
"""More tokens than any request has."""
MOST_RANKS = 2**16
"""More accelerators than any engine runs as one deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The settings of one deployment; ``None`` means the engine's own default for its version.

    ``options`` holds settings that only one engine has, by that engine's own names (``mem_fraction_static``,
    ``disable_hybrid_kv_cache_manager``, ``parallel`` ...); a planner rejects names it does not know.
    """

    engine: str
    version: str
    device: str = "cuda"
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp: int = 1
    kv_dtype: str = "auto"
    block_tokens: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    prefix_caching: bool | None = None
    speculative_tokens: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what no engine accepts."""
        self._check_ranks()
        for name in ("block_tokens", "max_model_len", "max_num_seqs"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LONGEST_TOKENS:
                raise UsageError(f"`{name}` is {value}, but must be at least 1 and at most 2**40")
        batched = self.max_num_batched_tokens
        if batched is not None and not 1 <= batched <= LONGEST_TOKENS:
            raise UsageError(f"`max_num_batched_tokens` is {batched}, but must be at least 1 and at most 2**40")
        if not 0 <= self.speculative_tokens <= 1024:
            raise UsageError(f"`speculative_tokens` is {self.speculative_tokens}, but must be 0 to 1024")

    def _check_ranks(self) -> None:
        for name in ("tp", "pp", "dcp", "pcp", "dp"):
            value = getattr(self, name)
            if not 1 <= value <= MOST_RANKS:
                raise UsageError(f"`{name}` is {value:,}, but must be at least 1 and at most {MOST_RANKS:,}")
        if self.ranks > MOST_RANKS:
            factors = " x ".join(f"`{name}` {getattr(self, name):,}" for name in ("tp", "pp", "pcp", "dp"))
            raise UsageError(
                f"{factors} are {counted(self.ranks, 'rank')}, but at most {MOST_RANKS:,} are planned",
                hint="each of these holds memory of its own; one replica (`dp` 1) tells what each of them does",
            )

    @property
    def ranks(self) -> int:
        """Processes that hold KV memory: ``tp * pp * pcp * dp`` (``dcp`` splits tokens inside the ``tp`` ranks)."""
        return self.tp * self.pp * self.pcp * self.dp
