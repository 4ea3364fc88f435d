"""The lines vLLM prints at start-up, word for word by version, and what each really means.

Formats from the releases named in :mod:`kvledger.engines.vllm.rules`; only the text after ``[file.py:line]`` is given.
"""

from __future__ import annotations

from kvledger.engines.plan import PrintedLine
from kvledger.engines.vllm.layers import Alignment
from kvledger.engines.vllm.rules import LogStyle, Rules
from kvledger.engines.vllm.sizing import Shortage, Sizing
from kvledger.ledger import Accuracy
from kvledger.units import GIB, counted

__all__ = [
    "alignment_lines",
    "error_text",
    "fit_line",
    "format_gib",
    "group_lines",
    "memory_line",
    "override_line",
    "size_lines",
]

_DOCS = " See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def format_gib(value_bytes: int, rules: Rules) -> str:
    """Write GiB as the release does: ``16.50`` up to 0.13, ``16.5`` later."""
    return f"{round(value_bytes / GIB, 2)}" if rules.short_gib else f"{value_bytes / GIB:.2f}"


def memory_line(kv_bytes: int, rules: Rules, known: Accuracy = Accuracy.DERIVED) -> PrintedLine:
    """Return the line that names the bytes a worker may spend (0.9 and later); ``known`` is how the bytes are."""
    return PrintedLine(
        text=f"Available KV cache memory: {format_gib(kv_bytes, rules)} GiB",
        meaning="bytes one rank may spend on KV blocks, rounded to 0.01 GiB; the whole engine gets the smallest rank's",
        accuracy=known,
    )


def alignment_lines(alignment: Alignment) -> tuple[PrintedLine, ...]:
    """Return the lines about a block that was widened to hold a state (0.10 and later)."""
    lines = []
    if alignment.changed:
        lines.append(
            PrintedLine(
                text=f"Setting attention block size to {alignment.block_tokens} tokens to ensure that attention page "
                "size is >= mamba page size.",
                meaning=f"a state takes {alignment.state_bytes} bytes a layer and must fit into one page, so a block "
                f"holds {counted(alignment.block_tokens, 'token')}: that is the grain of every request and of "
                "prefix reuse",
                accuracy=Accuracy.DERIVED,
            )
        )
    if alignment.page_bytes > alignment.state_bytes:
        lines.append(
            PrintedLine(
                text=f"Padding mamba page size by {100 * alignment.padding_ratio:.2f}% to ensure that mamba page size "
                "and attention page size are exactly equal.",
                meaning=f"{alignment.page_bytes - alignment.state_bytes} bytes of each layer's state page stay empty",
                accuracy=Accuracy.DERIVED,
            )
        )
    return tuple(lines)


def fit_line(sizing: Sizing, rules: Rules, *, asked: int, checked_bytes: int, device: str) -> PrintedLine:
    """Return the line about a fitted length (``--max-model-len auto``, 0.14 and later)."""
    memory = f"{format_gib(checked_bytes, rules)} GiB"
    name = "GPU" if device == "cuda" else device.upper()
    fits = sizing.max_model_len >= asked
    if rules.auto_fit_names_memory:
        where = f"available KV cache memory ({memory} {name})"
    else:
        where = "available GPU memory" + ("" if fits else f" ({memory} available for KV cache)")
    text = (
        f"full model context length {asked} fits in {where}"
        if fits
        else f"reduced from {asked} to {sizing.max_model_len} to fit in {where}"
    )
    return PrintedLine(
        text=f"Auto-fit max_model_len: {text}",
        meaning="the longest length at which one request fits into the memory of the rank that has least",
        accuracy=Accuracy.DERIVED,
    )


def group_lines(sizing: Sizing, rules: Rules) -> tuple[PrintedLine, ...]:
    """Return the warnings about groups."""
    lines = []
    if sizing.groups.promoted and rules.grouping.value != "none":
        lines.append(
            PrintedLine(
                text="Hybrid KV cache manager is disabled for this hybrid model, This means we do not enable any "
                "optimizations for saving KV cache memory (e.g., dropping the KV cache outside the sliding window). "
                "The compute of layers like sliding window is still saved.",
                meaning="layers with a window keep every token: they cost as much as full attention",
                accuracy=Accuracy.DERIVED,
                level="WARNING",
            )
        )
    if sizing.groups.fallback:
        lines.append(
            PrintedLine(
                text="KV cache page sizes cannot be unified; treating sliding-window layers as full attention for "
                "cache allocation. Sliding-window attention compute is unchanged.",
                meaning="layers with a window keep every token, because their pages do not fit beside the latent ones",
                accuracy=Accuracy.DERIVED,
                level="WARNING",
            )
        )
    width = max(len(group.layers) for group in sizing.groups.groups)
    for missing, layers in sizing.groups.padding:
        share = missing / (width * len(sizing.groups.groups))
        lines.append(
            PrintedLine(
                text=f"Add {missing} padding layers, may waste at most {missing / layers * 100:.2f}% KV cache memory",
                meaning=f"one group is {counted(missing, 'layer')} narrower than a block; the percentage compares "
                f"with the {counted(layers, 'layer')} of that kind, of all groups together it is {share:.2%}",
                accuracy=Accuracy.DERIVED,
                level="WARNING",
            )
        )
    return tuple(lines)


def override_line(profiled: int, forced: int) -> PrintedLine:
    """Return the line about forced blocks."""
    return PrintedLine(
        text=f"Overriding num_gpu_blocks={profiled} with num_gpu_blocks_override={forced}",
        meaning=f"the memory is worth {counted(profiled, 'block')}, but {forced} are allocated",
        accuracy=Accuracy.DERIVED,
    )


def size_lines(sizing: Sizing, rules: Rules, *, device: str, shards: tuple[int, int]) -> tuple[PrintedLine, ...]:
    """Return the lines with the pool's size.

    Args:
        sizing: The numbers.
        rules: The release.
        device: ``cuda``, ``cpu``, ``xpu`` ...
        shards: Decode and prefill context-parallel ranks.
    """
    if rules.log_style is LogStyle.BLOCKS:
        return _block_lines(sizing)
    lines = []
    dcp, pcp = shards
    if (
        dcp * pcp > 1
        and not rules.tokens_from_concurrency
        and (len(sizing.groups.groups) == 1 or rules.multiplies_hybrid_by_dcp)
    ):
        lines.append(_multiplied_line(dcp, pcp, rules))
    tokens = f"{sizing.printed_tokens:,}"
    length = f"{sizing.max_model_len:,}"
    name = device.upper() if rules.log_style is LogStyle.ONE_LINE_DEVICE and device != "cuda" else "GPU"
    size = f"{name} KV cache size: {tokens} tokens"
    concurrency = f"Maximum concurrency for {length} tokens per request: {sizing.concurrency:.2f}x"
    size_meaning = _size_meaning(sizing, rules)
    concurrency_meaning = (
        f"{counted(sizing.blocks, 'block')}, the null block included, over the "
        f"{counted(sum(claim.count_units(sizing.max_model_len) for claim in sizing.claims), 'block')} that one "
        f"request of {length} tokens takes at most; shorter requests run in larger numbers"
    )
    if rules.log_style in (LogStyle.ONE_LINE, LogStyle.ONE_LINE_DEVICE):
        lines.append(
            PrintedLine(
                text=f"{size}, {concurrency}",
                meaning=f"{size_meaning}; concurrency: {concurrency_meaning}",
                accuracy=Accuracy.DERIVED,
            )
        )
    else:
        lines.append(PrintedLine(text=size, meaning=size_meaning, accuracy=Accuracy.DERIVED))
        lines.append(PrintedLine(text=concurrency, meaning=concurrency_meaning, accuracy=Accuracy.DERIVED))
    return tuple(lines)


def _block_lines(sizing: Sizing) -> tuple[PrintedLine, ...]:
    """Return the lines of the first V1 releases (0.7)."""
    return (
        PrintedLine(
            text=f"# GPU blocks: {sizing.blocks}",
            meaning="blocks of the pool, the null block included",
            accuracy=Accuracy.DERIVED,
        ),
        PrintedLine(
            text=f"Maximum concurrency for {sizing.max_model_len} tokens per request: {sizing.concurrency:.2f}x",
            meaning="tokens of all blocks over the longest request; shorter requests run in larger numbers",
            accuracy=Accuracy.DERIVED,
        ),
    )


def _multiplied_line(dcp: int, pcp: int, rules: Rules) -> PrintedLine:
    text = (
        f"Multiplying the GPU KV cache size by the cp_world_size {dcp * pcp} (pcp_world_size {pcp} * "
        f"dcp_world_size {dcp})."
        if rules.shards_over_pcp
        else f"Multiplying the GPU KV cache size by the dcp_world_size {dcp}."
    )
    return PrintedLine(
        text=text,
        meaning="the tokens on the next line are already those of all context-parallel ranks together",
        accuracy=Accuracy.DERIVED,
    )


def _size_meaning(sizing: Sizing, rules: Rules) -> str:
    groups = len(sizing.groups.groups)
    if rules.tokens_from_concurrency:
        return (
            "tokens: the concurrency times the longest request, rounded down; no capacity, it changes with "
            "max_model_len, tokens in flight and prefix caching"
        )
    if groups > 1:
        return (
            f"tokens: the blocks shared out evenly among {counted(groups, 'group')}; less than what fits, because a "
            "group with a window or a state takes few blocks"
        )
    return "tokens: all blocks, the null block included, times the tokens of a block"


def error_text(shortage: Shortage, rules: Rules, *, max_model_len: int) -> str:
    """Return the error with which the engine refuses to start, as the release words it."""
    if shortage.available_bytes <= 0:
        return _no_memory_text(rules)
    gpu_only = rules.length_error_spelling == "models's"
    advice = (
        "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        if gpu_only
        else "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or "
        "decreasing `max_model_len` when initializing the engine."
    )
    return (
        f"To serve at least one request with the {rules.length_error_spelling} max seq len ({max_model_len}), "
        f"({format_gib(shortage.needed_bytes, rules)} GiB KV cache is needed, which is larger than the available KV "
        f"cache memory ({format_gib(shortage.available_bytes, rules)} GiB). "
        f"{_named_length(shortage, rules)}{advice}{_docs(rules)}"
    )


def _named_length(shortage: Shortage, rules: Rules) -> str:
    """Return the sentence about the longest length with the space after it (two when there is none, up to 0.13)."""
    gap = "" if rules.short_gib else " "
    if not shortage.largest_length:
        return gap
    if not rules.error_names_length:
        return "Based on the available memory,  "
    return f"Based on the available memory, the estimated maximum model length is {shortage.largest_length}. "


def _docs(rules: Rules) -> str:
    return _DOCS if rules.error_names_docs else ""


def _no_memory_text(rules: Rules) -> str:
    aside = (
        ""
        if rules.length_error_spelling == "models's"
        else (" (this flag also controls CPU memory reservation on the CPU backend, despite its name)")
    )
    return (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
        f"engine{aside}.{_docs(rules)}"
    )
