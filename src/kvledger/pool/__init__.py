"""Who holds which bytes: the memory policies, as small code over arrays."""

from kvledger.pool.policy import (
    Growth,
    Kind,
    Placement,
    Policy,
    Preemption,
    Reservation,
    Sampling,
    parse_policies,
    parse_policy,
)

__all__ = [
    "Growth",
    "Kind",
    "Placement",
    "Policy",
    "Preemption",
    "Reservation",
    "Sampling",
    "parse_policies",
    "parse_policy",
]
