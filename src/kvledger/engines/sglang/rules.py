"""What changed in SGLang's sizing from release to release.

Read in the sources of :data:`READ`. A release in between gets the rules of the newest one read before it, and the plan
says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from kvledger.engines.layout import ExtraLayer
from kvledger.engines.release import Release, read_release
from kvledger.model import StateKind

__all__ = ["READ", "Rules", "StateRule", "WindowRule", "find_rules"]

READ = (
    Release(0, 4, 1),
    Release(0, 4, 6),
    Release(0, 4, 10),
    Release(0, 5, 3),
    Release(0, 5, 6),
    Release(0, 5, 9),
    Release(0, 5, 13),
    Release(0, 5, 18),
    Release(0, 5, 23),
)
"""Releases whose source was read (0.4.6 as 0.4.6.post5)."""

_LISTED_0_5_9 = frozenset(
    {
        "Llama4ForConditionalGeneration",
        "GptOssForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2MTP",
        "Step3p5ForCausalLM",
        "Step3p5MTP",
    }
)
_LISTED_0_5_13 = _LISTED_0_5_9 | {
    "MiMoV2ForCausalLM",
    "Step3p7ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "LagunaForCausalLM",
}
_LISTED_0_5_18 = _LISTED_0_5_13 | {
    "MellumForCausalLM",
    "MuseGlimmerForCausalLM",
    "MuseGlimmerForConditionalGeneration",
    "InklingForConditionalGeneration",
    "InklingForConditionalGenerationMTP",
    "UnlimitedOCRForCausalLM",
}
_LISTED_0_5_23 = _LISTED_0_5_18 | {
    "BeamForCausalLM",
    "GraniteSWAForCausalLM",
    "GraniteMoeSWAForCausalLM",
    "IQuestQ1ForCausalLM",
    "IQuestQ1MTP",
    "EmbeddingGemma2Model",
    "DiffusionGemmaForBlockDiffusion",
}


class WindowRule(StrEnum):
    """How sliding-window layers are stored."""

    FULL = "full"
    """Like full attention: one pool."""
    LAYERS = "layers"
    """Two pools; the split counts layers, as if all had the same bytes; any architecture but Llama 4."""
    BYTES = "bytes"
    """Two pools; the split counts bytes; architectures on a list."""


class StateRule(StrEnum):
    """How many state slots there are."""

    NONE = "none"
    """Models with states are not served."""
    REQUESTS = "requests"
    """``max_running_requests``, or 512."""
    SHARE_WITH_RADIX = "share with radix cache"
    """With the radix cache a share of memory, whatever ``max_mamba_cache_size`` says; else as by requests."""
    SHARE = "share"
    """A share of memory; the slot for padding comes on top of the budget."""
    SHARE_WITH_PADDING = "share with padding"
    """A share of memory that pays for the slot for padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one release."""

    asked: Release
    read: Release
    """The release whose source gave the rules."""

    @property
    def between(self) -> bool:
        """The release itself was not read."""
        return self.asked != self.read

    @property
    def size_lines(self) -> bool:
        """``KV Cache is allocated`` is printed."""
        return self.read >= (0, 4, 6)

    @property
    def dtype_in_line(self) -> bool:
        """The size line names the dtype."""
        return self.read >= (0, 5, 13)

    @property
    def separate_value_size(self) -> bool:
        """Values have their own head size; before, they were as wide as keys."""
        return self.read >= (0, 5, 9)

    @property
    def sparse_attention(self) -> bool:
        """Models with an indexer (DeepSeek-V3.2) are served."""
        return self.read >= (0, 5, 3)

    @property
    def index_charged(self) -> bool:
        """The budget pays for the indexer's keys (PR #11309); before, they were allocated on top of it, unprinted."""
        return self.read >= (0, 5, 6)

    @property
    def record_charged(self) -> bool:
        """The budget pays for the fp8 record of 656 bytes; before, for 576 of them."""
        return self.read >= (0, 5, 18)

    @property
    def index_owners_only(self) -> bool:
        """Layers that reuse another layer's selection have no index keys."""
        return self.read >= (0, 5, 18)

    @property
    def draft_charged(self) -> bool:
        """The budget pays for the draft's layers (EAGLE, MTP); before, its pool came on top."""
        return self.read >= (0, 5, 18)

    @property
    def window_cap(self) -> bool:
        """Without radix cache and with a request limit, the window pool has just what those requests need."""
        return self.read >= (0, 5, 18)

    @property
    def window_checked(self) -> bool:
        """A window pool that cannot hold one request stops the start."""
        return self.read >= (0, 5, 23)

    @property
    def windows(self) -> WindowRule:
        """How windows are stored."""
        if self.read < (0, 4, 10):
            return WindowRule.FULL
        return WindowRule.LAYERS if self.read < (0, 5, 9) else WindowRule.BYTES

    @property
    def ratio_before_budget(self) -> bool:
        """The budget is divided by both pools' full cells first and shared afterwards (two roundings)."""
        return self.read == (0, 5, 9)

    @property
    def listed(self) -> frozenset[str]:
        """Architectures that get two pools under :attr:`WindowRule.BYTES`."""
        if self.read >= (0, 5, 23):
            return _LISTED_0_5_23
        if self.read >= (0, 5, 18):
            return _LISTED_0_5_18
        return _LISTED_0_5_13 if self.read >= (0, 5, 13) else _LISTED_0_5_9

    @property
    def states(self) -> StateRule:
        """How states are sized."""
        if self.read < (0, 5, 3):
            return StateRule.NONE
        if self.read < (0, 5, 6):
            return StateRule.REQUESTS
        if self.read < (0, 5, 9):
            return StateRule.SHARE_WITH_RADIX
        return StateRule.SHARE if self.read < (0, 5, 18) else StateRule.SHARE_WITH_PADDING

    def keeps_states_for_reuse(self, kinds: Collection[StateKind]) -> bool:
        """Return whether the radix cache works with these states: in 0.5.6 with delta rules only."""
        if self.read < (0, 5, 6):
            return not kinds
        return self.read >= (0, 5, 9) or set(kinds) <= {StateKind.GDN, StateKind.KDA}

    @property
    def extra_layer(self) -> ExtraLayer:
        """Which pipeline stages get the layers left over."""
        return ExtraLayer.LAST_STAGES if self.read >= (0, 5, 6) else ExtraLayer.LAST_STAGE


def find_rules(version: str) -> Rules:
    """Return the rules of a version.

    Raises:
        UsageError: The text is no version, or its rules are not known.
    """
    release = read_release(version, engine="SGLang", first=READ[0], latest=READ[-1])
    return Rules(asked=release, read=max(known for known in READ if known <= release))
