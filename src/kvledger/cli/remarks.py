"""What was assumed by a replay, or looks odd in what was asked, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvledger.pool.policy import Kind, Policy, Reservation

if TYPE_CHECKING:
    from kvledger.replay.settings import Pool, Settings
    from kvledger.replay.workload import Workload
    from kvledger.traces import Trace

__all__ = ["OF_MODEL", "notes_on_blocks", "notes_on_content", "notes_on_the_length", "notes_on_the_start"]

OF_MODEL = "the model's"
_FAR = 4
"""A longest sequence so many times the longest request is far from the traffic."""


def notes_on_the_start(policies: list[Policy], pool: Pool, settings: Settings) -> tuple[str, ...]:
    """Say when an engine of block tables would not start, because it must hold one request of max_model_len."""
    paged = next((policy for policy in policies if policy.kind.is_paged and policy.groups is None), None)
    if paged is None:
        return ()
    size = pool.divide(paged)
    tokens = size.units * size.unit_tokens
    if tokens >= settings.max_model_len:
        return ()
    return (
        f"the pool holds {tokens:,} tokens, less than one request of max_model_len {settings.max_model_len:,}: "
        "vLLM would not start like this; give --max-model-len",
    )


def notes_on_blocks(policies: list[Policy], pool: Pool) -> tuple[str, ...]:
    """Say when the pool was counted in blocks of another size than any block table has."""
    paged = [policy for policy in policies if policy.kind.is_paged and policy.groups is None]
    counted = pool.block_size
    if pool.num_blocks is None or counted is None or any(policy.block_size == counted for policy in paged):
        return ()
    return tuple(
        f"--num-blocks counts blocks of {counted:,} tokens, of which {pool.num_blocks:,} hold "
        f"{pool.divide(one).units:,} of `{one.name}`; give --block-size {one.block_size} if its own blocks are meant"
        for one in paged[:1]
    )


def notes_on_the_length(policies: list[Policy], origin: str, settings: Settings, workload: Workload) -> tuple[str, ...]:
    """Say when what `max` reserves is only the length of a model's config, which the traffic never comes near."""
    reserving = [p.name for p in policies if p.kind is Kind.CONTIGUOUS and p.reservation is Reservation.MAX]
    longest = workload.longest_tokens
    if origin != OF_MODEL or not reserving or not longest or settings.max_model_len < _FAR * longest:
        return ()
    return (
        f"`{reserving[0]}` reserves the {settings.max_model_len:,} tokens of the model's config for each request, "
        f"{settings.max_model_len / longest:.0f} times the longest one of this trace ({longest:,}); if the server is "
        f"set to less, give --max-model-len",
    )


def notes_on_content(policies: list[Policy], trace: Trace) -> tuple[str, ...]:
    """Say when a prefix cache has nothing to share."""
    if any(policy.caches for policy in policies) and trace.workload.content is None:
        return (
            "the trace does not tell what its requests share, so the prefix cache can only find a request's own blocks",
        )
    return ()
