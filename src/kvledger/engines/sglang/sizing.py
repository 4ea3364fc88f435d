"""SGLang's pools: how many tokens and state slots a budget gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvledger.engines.sglang.cells import Cells
from kvledger.engines.sglang.rules import Rules, StateRule, WindowRule
from kvledger.engines.sglang.settings import Settings
from kvledger.model import Layer, Storage

__all__ = ["Layers", "PoolSizes", "Sizing", "Workload"]

GB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers of one stage or of the whole model, by the pool they are in."""

    full: tuple[Layer, ...] = ()
    window: tuple[Layer, ...] = ()
    state: tuple[Layer, ...] = ()
    draft: tuple[Layer, ...] = ()
    window_tokens: int = 0

    def within(self, stage: range, *, last: bool) -> Layers:
        """Return the layers of one stage; the draft stands on the last."""

        def cut(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
            return tuple(layer for layer in layers if layer.index in stage)

        return Layers(
            full=cut(self.full),
            window=cut(self.window),
            state=cut(self.state),
            draft=self.draft if last else (),
            window_tokens=self.window_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the pools are sized for."""

    page_tokens: int
    context_tokens: int
    chunk_tokens: int
    max_requests: int | None
    radix: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """Tokens and slots that requests can get, the same on every rank."""

    full_tokens: int
    window_tokens: int
    state_slots: int

    @property
    def printed_tokens(self) -> int:
        """``max_total_num_tokens``."""
        return self.full_tokens or self.window_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The sizing rules of one release, for one model and one set of settings."""

    rules: Rules
    settings: Settings
    cells: Cells
    storage: Storage
    workload: Workload
    dtype_name: str
    """The cache dtype as torch names it, for the size line."""

    def count(self, stages: Sequence[Layers], budgets: Sequence[int]) -> PoolSizes:
        """Return the pools of all ranks: the smallest stage decides (``max_total_num_tokens`` is reduced by MIN)."""
        slot = max(self._sum(layers.state, self.cells.state) for layers in stages)
        slots = min((self._count_slots(slot, budget) for budget in budgets), default=0) if slot else 0
        padding = self.rules.states is StateRule.SHARE_WITH_PADDING
        charge = slot * (slots + padding) if slot else 0
        tokens = min(
            self._count_tokens(layers, int((budget / GB - charge / GB) * GB) if slot else budget)
            for layers, budget in zip(stages, budgets, strict=True)
            if layers.full or layers.window
        )
        if self.settings.max_total_tokens is not None:
            tokens = min(tokens, self.settings.max_total_tokens)
        whole = Layers(
            full=tuple(layer for stage in stages for layer in stage.full),
            window=tuple(layer for stage in stages for layer in stage.window),
            window_tokens=stages[0].window_tokens,
        )
        full, window = self._share(max(0, self._pages(tokens)), whole)
        return PoolSizes(full_tokens=full, window_tokens=window, state_slots=slots)

    def _sum(self, layers: Sequence[Layer], of: Callable[[Layer, Storage], int]) -> int:
        return sum(of(layer, self.storage) for layer in layers)

    def _pages(self, tokens: int) -> int:
        return tokens // self.workload.page_tokens * self.workload.page_tokens

    def _count_slots(self, slot_bytes: int, budget: int) -> int:
        """Slots for states, without the one for padding."""
        given, requests = self.settings.max_mamba_cache_size, self.workload.max_requests
        by_radix = self.rules.states is StateRule.SHARE_WITH_RADIX
        if self.rules.states is StateRule.REQUESTS or (by_radix and not self.workload.radix):
            return given or requests or 512
        if given is not None and not by_radix:
            return given
        if not self.workload.radix and requests is not None:
            return requests
        ratio = self.settings.mamba_full_memory_ratio
        share = budget / GB * ratio / (1 + ratio) * GB
        if self.rules.states is StateRule.SHARE_WITH_PADDING:
            share -= slot_bytes
        return max(0, int(share // slot_bytes))

    def _draft_bytes(self, layers: Layers) -> int:
        """Bytes a token of the draft costs: like the target's full-attention layers, with index keys in each."""
        count = len(layers.draft)
        if not (count and self.rules.draft_charged and layers.full):
            return 0
        if layers.window:
            return count * self.cells.charged(layers.full[0], self.storage)
        index = self._sum(layers.full, self.cells.index)
        draft_index = self._sum(layers.draft, self.cells.index)
        return int((self._sum(layers.full, self.cells.charged) - index) * count / len(layers.full)) + draft_index

    def find_window_cap(self, layers: Layers) -> int | None:
        """Return the window pool's tokens when requests, not a ratio, decide it."""
        work = self.workload
        if not (self.rules.window_cap and layers.window and layers.full):
            return None
        if work.max_requests is None or work.radix:
            return None
        page = work.page_tokens
        trailing = layers.window_tokens + max(1, self.settings.swa_eviction_interval) + page
        cap = (trailing + page) * work.max_requests + 2 * work.chunk_tokens + page
        return -(-cap // page) * page

    def _count_tokens(self, layers: Layers, budget: int) -> int:
        full = self._sum(layers.full, self.cells.charged)
        window = self._sum(layers.window, self.cells.charged)
        ratio = self.settings.swa_full_tokens_ratio
        split = bool(layers.window and layers.full)
        cap = self.find_window_cap(layers)
        if cap is not None:
            return self._pages(int((budget - cap * window) // (full + self._draft_bytes(layers))))
        if split and self.rules.windows is WindowRule.BYTES and not self.rules.ratio_before_budget:
            cell = full + ratio * window
            return self._pages(int(budget // (cell + self._draft_bytes(layers))))
        cell = full + window
        return self._pages(budget // (cell + self._draft_bytes(layers)))

    def _share(self, tokens: int, layers: Layers) -> tuple[int, int]:
        """Split ``max_total_num_tokens`` into the two pools."""
        if not layers.window:
            return tokens, 0
        if not layers.full:
            return 0, tokens
        cap = self.find_window_cap(layers)
        if cap is not None:
            return tokens, min(cap, tokens) if self.settings.max_total_tokens else cap
        ratio = self.settings.swa_full_tokens_ratio
        if self.rules.windows is WindowRule.LAYERS:
            count, windows = len(layers.full), len(layers.window)
            full = int(tokens * (count + windows) / (ratio * windows + count))
            return full, int(full * ratio)
        full = tokens
        if self.rules.ratio_before_budget:
            wide = self._sum(layers.full, self.cells.charged)
            narrow = self._sum(layers.window, self.cells.charged)
            full = int(tokens * (wide + narrow) / (wide + ratio * narrow))
        return self._pages(full), self._pages(int(full * ratio))
