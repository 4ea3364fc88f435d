"""Who holds which bytes: the memory policies, as small code over arrays."""

from kvledger.pool.policy import (
    Eviction,
    Growth,
    Kind,
    Placement,
    Policy,
    Preemption,
    PrefixIndex,
    Reservation,
    Sampling,
    parse_policies,
    parse_policy,
)

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
