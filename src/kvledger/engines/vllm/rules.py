"""What changed in vLLM's planner, release by release.

One row of ``_CHANGES`` is a release and the rules that first hold in it; :func:`find_rules` folds the rows up to a
version. Each rule was read in the released packages named here and compared with their neighbours: 0.8.5, 0.9.2,
0.10.2, 0.11.0 to 0.11.2, 0.12.0, 0.13.0, 0.14.0 to 0.15.1, 0.16.0, 0.17.0 to 0.19.1, 0.20.0 to 0.20.2, 0.21.0,
0.22.0 to 0.28.0, 0.29.0 to 0.33.0 (``kv_cache_utils.py``, ``kv_cache_planning.py`` and ``kv_cache_interface.py`` in
``v1``; ``platforms/interface.py``; ``config/vllm.py``). A row is the first release read that has the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType

from kvledger.engines.vllm.version import Version

__all__ = ["Check", "Grouping", "LogStyle", "Rules", "find_rules"]


class Grouping(StrEnum):
    """How layers of several kinds become groups."""

    NONE = "none"
    """No groups: windowed layers beside full ones are sized as full (0.8)."""
    CONTIGUOUS = "contiguous"
    """Runs of neighbouring layers, each pipeline stage for itself (0.9, 0.10)."""
    STRIDED = "strided"
    """Every n-th layer, once for the whole model (0.11 and later)."""


class Check(StrEnum):
    """What is compared with the available memory before the engine starts."""

    LAYERS = "layers"
    """The layers of each worker, without padding (up to 0.13)."""
    MODEL = "model"
    """The groups of the whole model against the worker with least memory (0.14 to 0.16): rejects pipelines that fit."""
    WORKER = "worker"
    """The groups of each worker (0.17 and later)."""


class LogStyle(StrEnum):
    """How sizes are printed."""

    BLOCKS = "blocks"
    """``# GPU blocks: N, # CPU blocks: M`` (V0 and the first V1 releases)."""
    TWO_LINES = "two lines"
    ONE_LINE = "one line"
    """Tokens and concurrency on one line (0.28 and later)."""
    ONE_LINE_DEVICE = "one line, device"
    """The same, beginning with the device's name instead of ``GPU`` (0.30 and later)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The sizing rules of one release."""

    core_v1: bool = False
    grouping: Grouping = Grouping.NONE
    wide_group_ratio: Fraction = Fraction(0)
    """Groups get the width of the larger bucket when it is narrower than this times the smaller one; 0: never."""
    merges_buckets: bool = False
    """Full-attention layers that differ only in their window share a bucket."""
    uniform_types: bool = False
    """Layers of one kind but different widths form one group."""
    unifies_pages: bool = False
    """Smaller pages are brought to the largest one by larger blocks (0.12 and later), else refused."""
    separate_value_size: bool = False
    """Values may be narrower than keys (0.14 and later); before, both take the size of the keys."""
    pads_attention_pages: bool = False
    """A page that does not divide the largest one is padded instead of refused (0.24 and later; until 0.28 only for
    backends that address pages by their stride, such as FlashAttention)."""
    pads_state_pages: bool = False
    """A state page that is smaller than the largest page is padded while pages are unified."""
    promotes_beside_latent: bool = False
    """Windowed layers beside latent ones whose pages cannot be unified are sized as full attention."""
    state_blocks_by_length: bool = False
    """A state takes ``ceil(max_len / state block)`` blocks; without prefix caching the state block is max_len
    (0.11.1 to 0.14)."""
    state_modes: bool = False
    """Cache modes none, align and all exist (0.15 and later)."""
    all_mode: bool = False
    """States may be kept for every block of tokens (0.11.1 to 0.31)."""
    prefers_all_mode: bool = False
    """With prefix caching Mamba-1 and Mamba-2 default to mode all (0.15 to 0.27), later to align."""
    all_mode_speculative: bool = False
    """Mode all adds the speculative blocks (0.22 and later)."""
    reads_state_dtype: bool = False
    """The state's dtype is read from the config (0.13 and later); before, it is that of the convolution."""
    checkpoint_blocks: bool = False
    """Align mode counts blocks for exporting a prefill's last state where a layer can (0.29 and later)."""
    mamba2_checkpoint_blocks: int = 0
    """Blocks Mamba-2 adds in align mode so that a prefill can export its last state (0.32 and later)."""
    hybrid_prefix_caching: bool = False
    """Prefix caching is on by default for models with states (0.28 and later)."""
    counts_batches_in_flight: bool = False
    """Tokens in flight are counted once for every batch that may run concurrently (0.26 and later)."""
    windows_take_smallest_block: bool = False
    """Windowed layers begin with the kernel's smallest block, whatever ``--block-size`` says (0.25 to 0.30)."""
    shards_over_pcp: bool = False
    """Prefill context parallelism divides the tokens of full attention (0.12 to 0.25)."""
    divides_by_whole_model: bool = False
    """A group of layers of different widths divides each stage's memory by the pages of the whole model, so a pipeline
    of p stages gets about 1/p of the blocks that fit (0.11 to 0.16)."""
    check: Check = Check.LAYERS
    override_replaces_memory: bool = False
    """With ``num_gpu_blocks_override`` the check uses the forced blocks (0.20.1 and later)."""
    check_counts_first_group: bool = False
    """Only the first group's blocks are counted, so models with several groups can start without room for one
    request (0.14 to 0.18)."""
    check_keeps_null_block: bool = False
    """The null block is taken off before the check (0.29 and later)."""
    tokens_from_concurrency: bool = False
    """The printed tokens are ``int(concurrency * max_model_len)`` (0.20.1 and later)."""
    log_style: LogStyle = LogStyle.BLOCKS
    auto_fit: bool = False
    """``--max-model-len auto`` exists (0.14 and later)."""
    auto_fit_names_memory: bool = False
    """The auto-fit line names the memory and its device (0.32 and later)."""
    short_gib: bool = False
    """GiB are printed with at most two decimals, trailing zeros dropped (0.14 and later)."""
    error_names_docs: bool = False
    """The error ends with a link to the documentation (0.13 and later)."""
    error_names_length: bool = False
    """The error names the longest length that fits (0.9 and later; in 0.8 the sentence breaks off)."""
    length_error_spelling: str = "models's"
    chunked_local_hybrid: bool = False
    """Chunked local attention keeps the hybrid manager on by default (0.14 and later)."""
    events_disable_hybrid: bool = True
    """KV events switch the hybrid manager off (up to 0.19)."""
    connectors_disable_hybrid: bool = True
    """Every KV connector switches the hybrid manager off (up to 0.21); later only those without support."""
    latent_alignment_tokens: int = 64
    """Alignment of the block when a latent cache stands beside states: 64, from 0.27 at least 128."""
    aligns_to_block: bool = False
    """Beside states, the block is a multiple of ``--block-size`` as well as of the kernel's block (0.20 and later)."""
    async_scheduling: bool = False
    large_gpu_defaults: bool = False
    """GPUs of 160 GiB and more get 16,384 batched tokens (0.28 and later)."""
    small_defaults_of: tuple[str, ...] = ()
    """Devices that keep the smaller defaults in spite of 70 GiB: the A100 (0.9 and later), GB10 (0.33 and later)."""
    v2_runner_dense: bool = False
    """Model runner V2 is the default of dense models without states: p stages run p + 1 batches (0.26 and later)."""
    v2_runner: bool = False
    """Model runner V2 is the default of every pipeline with async scheduling (0.31 and later)."""
    utilisation_ratio: float = 0.9
    subtracts_cuda_graphs: bool = False
    """The estimate of CUDA graph memory is taken off the budget (0.20 and later)."""
    lists_blocks: bool = True
    """``--block-size`` is one of a list, of which 1 and 8 are no multiples of 16 (up to 0.17)."""
    flex_takes_any_block: bool = False
    """Blocks that are no multiple of 16 fall to FlexAttention, which takes them (0.11 to 0.20)."""
    triton_latent_takes_any_block: bool = True
    """Triton's kernel for latent caches takes blocks that are no multiple of 16 (up to 0.17)."""
    cpu_block_tokens: int = 16
    cpu_widens_states: bool = False
    """On the CPU, Gated DeltaNet keeps its state in float32 (0.26 and later)."""
    multiplies_hybrid_by_dcp: bool = False
    """The printed tokens of several groups are multiplied by the context-parallel ranks, too (0.11 to 0.19)."""


_CHANGES: tuple[tuple[Version, Mapping[str, object]], ...] = tuple(
    (version, MappingProxyType(change))
    for version, change in (
        (Version(0, 8), {"core_v1": True, "log_style": LogStyle.TWO_LINES}),
        (
            Version(0, 9),
            {"grouping": Grouping.CONTIGUOUS, "error_names_length": True, "small_defaults_of": ("a100",)},
        ),
        (
            Version(0, 11),
            {
                "grouping": Grouping.STRIDED,
                "uniform_types": True,
                "divides_by_whole_model": True,
                "async_scheduling": True,
                "multiplies_hybrid_by_dcp": True,
                "flex_takes_any_block": True,
            },
        ),
        (Version(0, 11, 1), {"state_blocks_by_length": True, "all_mode": True, "cpu_block_tokens": 128}),
        (Version(0, 12), {"wide_group_ratio": Fraction(5, 4), "shards_over_pcp": True, "unifies_pages": True}),
        (Version(0, 13), {"error_names_docs": True, "reads_state_dtype": True}),
        (
            Version(0, 14),
            {
                "check": Check.MODEL,
                "check_counts_first_group": True,
                "short_gib": True,
                "chunked_local_hybrid": True,
                "auto_fit": True,
                "separate_value_size": True,
            },
        ),
        (Version(0, 15), {"state_blocks_by_length": False, "state_modes": True, "prefers_all_mode": True}),
        (Version(0, 17), {"check": Check.WORKER, "divides_by_whole_model": False}),
        (
            Version(0, 18),
            {
                "wide_group_ratio": Fraction(3, 2),
                "lists_blocks": False,
                "triton_latent_takes_any_block": False,
            },
        ),
        (Version(0, 19), {"check_counts_first_group": False}),
        (
            Version(0, 20),
            {
                "aligns_to_block": True,
                "events_disable_hybrid": False,
                "utilisation_ratio": 0.92,
                "subtracts_cuda_graphs": True,
            },
        ),
        (Version(0, 20, 1), {"tokens_from_concurrency": True, "override_replaces_memory": True}),
        (Version(0, 21), {"flex_takes_any_block": False}),
        (
            Version(0, 22),
            {"length_error_spelling": "model's", "connectors_disable_hybrid": False, "all_mode_speculative": True},
        ),
        (Version(0, 24), {"pads_attention_pages": True}),
        (Version(0, 25), {"windows_take_smallest_block": True}),
        (
            Version(0, 26),
            {
                "counts_batches_in_flight": True,
                "pads_state_pages": True,
                "shards_over_pcp": False,
                "cpu_widens_states": True,
                "v2_runner_dense": True,
            },
        ),
        (
            Version(0, 27),
            {"merges_buckets": True, "promotes_beside_latent": True, "latent_alignment_tokens": 128},
        ),
        (
            Version(0, 28),
            {
                "log_style": LogStyle.ONE_LINE,
                "hybrid_prefix_caching": True,
                "large_gpu_defaults": True,
                "prefers_all_mode": False,
            },
        ),
        (Version(0, 29), {"check_keeps_null_block": True, "checkpoint_blocks": True}),
        (Version(0, 30), {"log_style": LogStyle.ONE_LINE_DEVICE}),
        (Version(0, 31), {"v2_runner": True, "windows_take_smallest_block": False}),
        (Version(0, 32), {"all_mode": False, "mamba2_checkpoint_blocks": 1, "auto_fit_names_memory": True}),
        (Version(0, 33), {"small_defaults_of": ("a100", "gb10")}),
    )
)


def find_rules(version: Version) -> Rules:
    """Return the rules that hold in a release."""
    rules = Rules()
    for first, change in _CHANGES:
        if version >= first:
            rules = replace(rules, **change)  # type: ignore[arg-type]
    return rules
