"""``mem_fraction_static``: what share of a device SGLang gives to weights and caches when nobody says.

All sizes in MiB, as ``server_args.py`` counts them; the result is rounded to three decimals, like there.
"""

from __future__ import annotations

from kvledger.engines.plan import Deployment
from kvledger.engines.sglang.rules import Rules
from kvledger.engines.sglang.settings import Settings
from kvledger.units import MIB

__all__ = ["find_chunk_tokens", "find_fraction"]

_OLD_RESERVE_GIB = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5))
"""0.4.10: below so many GiB, reserve so much plus so much for each rank; 32 GiB on larger devices."""


def find_chunk_tokens(total_mib: int, rules: Rules, settings: Settings, deployment: Deployment) -> int:
    """Return the chunked prefill size of a device."""
    given = settings.chunked_prefill_size or deployment.max_num_batched_tokens
    if given:
        return given
    if rules.read < (0, 5, 3):
        return 2048 if total_mib < 25_000 else 8192
    if total_mib < 35 * 1024:
        return 4096 if rules.read >= (0, 5, 23) and total_mib >= 20 * 1024 else 2048
    if total_mib < 60 * 1024:
        return 4096
    return 8192 if total_mib < 160 * 1024 else 16384


def _graph_batch(total_mib: int, rules: Rules, settings: Settings, tp: int) -> int:
    """The largest batch of captured CUDA graphs."""
    if settings.cuda_graph_max_bs is not None:
        return settings.cuda_graph_max_bs
    small_tp = tp < 4
    if total_mib < 20 * 1024:
        return 8
    if total_mib < 35 * 1024:
        if rules.read >= (0, 5, 23):
            return 48 if small_tp else 160
        few = 16 if rules.read < (0, 5, 6) else 24
        return few if small_tp else 80
    if total_mib < 60 * 1024:
        return 32 if small_tp else 160
    if total_mib < 160 * 1024:
        return 256 if small_tp else 512
    return 512


def _count_prefill_graphs(most_tokens: int) -> int:
    """Sizes for which a prefill graph is captured."""
    steps = (
        range(4, 33, 4),
        range(48, 257, 16),
        range(288, 513, 32),
        range(576, 1025, 64),
        range(1280, 4097, 256),
        range(4608, most_tokens + 1, 512),
    )
    return sum(1 for step in steps for size in step if size <= most_tokens)


def _by_constants(total_mib: int, parallel: int) -> float:
    """0.4.1 to 0.4.9."""
    fraction = 0.88
    if total_mib <= 81920:
        for ranks, share in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87)):
            if parallel >= ranks:
                fraction = share
                break
    if total_mib > 96 * 1024:
        wider = fraction + 48 * 1024 * (1 - fraction) / total_mib
        fraction = min(wider, (total_mib - 1024 * 18) / total_mib)
    return fraction


def _by_device(total_mib: int, parallel: int, speculative: bool) -> float:
    """0.4.10 to 0.5.2."""
    reserved = 32.0 * 1024
    for below_gib, base, per_rank in _OLD_RESERVE_GIB:
        if total_mib < below_gib * 1024:
            reserved = (base + parallel * per_rank) * 1024
            break
    reserved += 2048 if speculative else 0
    return round((total_mib - reserved) / total_mib, 3)


def _by_parts(
    total_mib: int, rules: Rules, settings: Settings, deployment: Deployment, *, latent: bool, speculative: bool
) -> float:
    """0.5.3 and newer: activations of a prefill chunk, CUDA graphs, parallelism; at least 10 GiB on large devices."""
    chunk = find_chunk_tokens(total_mib, rules, settings, deployment)
    reserved = 512 + max(chunk, 2048) * 1.5
    reserved += _graph_batch(total_mib, rules, settings, deployment.tp) * 2
    reserved += deployment.tp * deployment.pp / 8 * 1024
    if rules.read >= (0, 5, 13):
        reserved += 1.5 * 1024 if latent else _count_prefill_graphs(chunk) * 8
    if total_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if speculative and rules.read < (0, 5, 18):
        reserved += 4096 if rules.read >= (0, 5, 13) else 2048
    return round((total_mib - reserved) / total_mib, 3)


def find_fraction(
    total_bytes: int, *, rules: Rules, settings: Settings, deployment: Deployment, latent: bool
) -> tuple[float, str]:
    """Return the fraction and where it comes from.

    Multimodal models get a smaller one (0.85 to 1 of it), which is not computed here.
    """
    if settings.mem_fraction_static is not None:
        return settings.mem_fraction_static, "given"
    total_mib = total_bytes // MIB
    parallel = deployment.tp * deployment.pp
    speculative = deployment.speculative_tokens > 0
    if rules.read < (0, 4, 10):
        return _by_constants(total_mib, parallel), f"default of {rules.read} for the device"
    if rules.read < (0, 5, 3):
        return _by_device(total_mib, parallel, speculative), f"default of {rules.read} for the device"
    fraction = _by_parts(total_mib, rules, settings, deployment, latent=latent, speculative=speculative)
    return fraction, f"default of {rules.read}: activations and CUDA graphs of the device"
