"""The structural ledger: what a planned pool holds at a load, and what it loses by its structure.

The loss here needs no traffic to appear: padding layers, page padding, block tails, the block in which a window begins,
second states, blocks nobody can get, and copies of the same keys and values on several ranks. Any
:class:`~kvledger.engines.plan.Plan` can be drawn up, whatever the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kvledger.engines.plan import Claim, ClaimKind, Plan, RankPlan, UnitContent
from kvledger.errors import CapacityError, UnbalancedLedger, UsageError
from kvledger.ledger import Account, Ledger
from kvledger.units import agree, counted

__all__ = ["Entry", "Moment", "Sheet", "StructuralLedger", "draw_up"]


class Moment(StrEnum):
    """When the sheets are drawn up."""

    ADMISSION = "admission"
    """As the engine counts when it decides how many requests fit: windows are charged for a batch in flight."""
    DECODING = "decoding"
    """While every request decodes its last token: windows hold what they still reach."""


USED = "tokens and states in use"
IN_FLIGHT = "charged for tokens in flight"
STRIP = "reserved strip not filled yet"
PROPOSED = "states of proposed tokens"
TAILS = "block tails"
WINDOW_START = "block in which a window begins"
SECOND_STATE = "second states, for prefix reuse"
PAGE_PADDING = "page padding"
PADDING_LAYERS = "padding layers"
COPIES = "copies on other ranks"
NULL = "null blocks"
FREE = "free"

_ENTRIES = {
    USED: (Account.USED, "keys, values and states that can still be read"),
    IN_FLIGHT: (
        Account.RESERVED,
        "a window is charged for a whole batch of tokens being computed; few requests need it",
    ),
    STRIP: (Account.RESERVED, "held for tokens that may come"),
    PROPOSED: (Account.RESERVED, "one state for each proposed token"),
    TAILS: (Account.INTERNAL, "slots of a request's last block that no token fills"),
    WINDOW_START: (Account.INTERNAL, "one block more, because a window can begin inside a block"),
    SECOND_STATE: (Account.INTERNAL, "states kept so that a prefix can be reused, one page each"),
    PAGE_PADDING: (Account.INTERNAL, "added so that all layers have pages of one size"),
    PADDING_LAYERS: (Account.INTERNAL, "a group with fewer layers still takes a block of full width"),
    COPIES: (Account.INTERNAL, "tensor parallelism cannot split these heads further, so ranks hold the same bytes"),
    NULL: (Account.UNATTRIBUTED, "taken by the engine for ever, no request can get them"),
    FREE: (Account.FREE, "not held by any request of this load"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a sheet: a part of an account and the reason for it."""

    name: str
    account: Account
    value_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The balance sheet of one kind of rank, or of the whole deployment.

    Invariant: the entries of an account sum to the account, and the accounts to the capacity; see :meth:`check`.
    """

    name: str
    ranks: int
    ledger: Ledger
    entries: tuple[Entry, ...]
    unallocated_bytes: int
    """Bytes that were given and are no part of the pool: less than a block, or more than the smallest rank has.

    Negative when the engine allocates more than it was given: a spare page beside the pool, a size rounded up, or
    blocks it was told to have.
    """

    def check(self) -> Sheet:
        """Return the sheet itself when it balances.

        Raises:
            UnbalancedLedger: Entries do not sum to their account, or accounts not to the capacity.
        """
        self.ledger.check()
        for account in Account:
            total = sum(entry.value_bytes for entry in self.entries if entry.account is account)
            if total != self.ledger[account]:
                raise UnbalancedLedger(
                    f"the entries of `{account}` sum to {total} bytes, but the account has {self.ledger[account]}",
                    hint="this is a fault of kvledger; please report it with the command that led here",
                )
        return self

    def find(self, name: str) -> int:
        """Return the bytes of one entry, 0 when the sheet has none of that name."""
        return sum(entry.value_bytes for entry in self.entries if entry.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuralLedger:
    """The sheets of a plan at one load: ``requests`` of ``length_tokens`` each, on every replica."""

    length_tokens: int
    requests: int
    moment: Moment
    ranks: tuple[Sheet, ...]
    deployment: Sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    length: int
    requests: int
    moment: Moment

    def count_units(self, claim: Claim) -> int:
        if self.moment is Moment.DECODING:
            return claim.count_held_units(self.length)
        return claim.count_units(self.length)

    def count_needed(self, claim: Claim) -> int:
        if self.moment is Moment.DECODING and claim.kind is ClaimKind.CHUNK:
            return self.length - claim.find_first_readable(self.length)
        return claim.count_needed_tokens(self.length)


def draw_up(
    plan: Plan,
    *,
    length_tokens: int | None = None,
    requests: int | None = None,
    moment: Moment = Moment.ADMISSION,
) -> StructuralLedger:
    """Draw up the sheets of a load.

    Args:
        plan: What an engine allocates.
        length_tokens: Length of every request; default: the plan's ``max_model_len``.
        requests: How many run at once on one replica; default: as many as the memory holds.
        moment: Whether windows are taken as charged or as held.

    Raises:
        CapacityError: So many requests do not fit.
        UsageError: The length or the number is not positive.
    """
    length = plan.deployment.max_model_len if length_tokens is None else length_tokens
    if length is None or length < 1 or (requests is not None and requests < 0):
        raise UsageError("a load needs a length of at least 1 token and a number of requests of at least 0")
    memory_only = replace(plan, request_limit=None)
    most = memory_only.count_requests(length)
    count = most if requests is None else requests
    if count > most:
        raise CapacityError(
            f"{counted(count, 'request')} of {counted(length, 'token')} {agree(count, 'does', 'do')} not fit: the "
            f"pool holds {most}",
            hint=f"use at most `--concurrency {most}`, shorter requests or more KV memory",
            requests=count,
            most=most,
        )
    load = _Load(length=length, requests=count, moment=moment)
    return StructuralLedger(
        length_tokens=length,
        requests=count,
        moment=moment,
        ranks=tuple(_sheet(plan, [rank], load, name=rank.name, whole=False) for rank in plan.ranks),
        deployment=_sheet(plan, plan.ranks, load, name="deployment", whole=True),
    )


def _sheet(plan: Plan, ranks: Sequence[RankPlan], load: _Load, *, name: str, whole: bool) -> Sheet:
    amounts = dict.fromkeys(_ENTRIES, 0)
    capacity = unallocated = 0
    for rank in ranks:
        times = rank.count if whole else 1
        size = sum(pool.units * rank.unit_bytes[pool.name] for pool in plan.pools)
        capacity += size * times
        unallocated += (rank.kv_bytes - size) * times
        for part, value in _rank_amounts(plan, rank, load, times=times).items():
            amounts[part] += value
        if whole:
            copies = _copies(plan, rank, load)
            amounts[USED] -= copies
            amounts[COPIES] += copies
    amounts[FREE] = capacity - sum(amounts.values())
    entries = tuple(
        Entry(name=part, account=account, value_bytes=amounts[part], why=why)
        for part, (account, why) in _ENTRIES.items()
        if amounts[part] or part in (USED, FREE)
    )
    return Sheet(
        name=name,
        ranks=sum(rank.count for rank in ranks),
        ledger=_ledger(capacity, entries),
        entries=entries,
        unallocated_bytes=unallocated,
    ).check()


def _ledger(capacity: int, entries: Sequence[Entry]) -> Ledger:
    sums = dict.fromkeys(Account, 0)
    for entry in entries:
        sums[entry.account] += entry.value_bytes
    return Ledger(
        capacity=capacity,
        used=sums[Account.USED],
        reserved=sums[Account.RESERVED],
        internal=sums[Account.INTERNAL],
        free=sums[Account.FREE],
        unattributed=sums[Account.UNATTRIBUTED],
    )


def _rank_amounts(plan: Plan, rank: RankPlan, load: _Load, *, times: int) -> dict[str, int]:
    amounts = dict.fromkeys(_ENTRIES, 0)
    contents = {content.claim: content for content in rank.contents}
    for claim in plan.claims:
        content = contents[claim.name]
        units = load.count_units(claim)
        is_state = claim.kind is ClaimKind.STATE
        parts = _state_parts(claim, content, units) if is_state else _token_parts(claim, content, load, times=times)
        for part, value in parts.items():
            amounts[part] += load.requests * value * (times if is_state else 1)
        amounts[PAGE_PADDING] += load.requests * times * units * content.page_padding_bytes
        amounts[PADDING_LAYERS] += load.requests * times * units * content.layer_padding_bytes
    for pool in plan.pools:
        amounts[NULL] += pool.null_units * rank.unit_bytes[pool.name] * times
    return amounts


def _state_parts(claim: Claim, content: UnitContent, units: int) -> dict[str, int]:
    """Split a request's states: the current one, those of proposed tokens, and all that are kept for reuse."""
    payload = content.payload_bytes
    current = claim.state_units or min(1, units - claim.fixed_units)
    return {
        USED: current * payload,
        SECOND_STATE: (units - current - claim.speculative_units) * payload,
        PROPOSED: claim.speculative_units * payload,
    }


def _token_parts(claim: Claim, content: UnitContent, load: _Load, *, times: int) -> dict[str, int]:
    """Split the payload of one request's units, summed over ``times`` ranks; a part of a byte is rounded up."""
    needed = load.count_needed(claim)
    charged = needed if load.moment is Moment.DECODING and claim.window_tokens is not None else None
    if charged is None:
        charged = claim.count_charged_tokens(load.length)
    payload = content.payload_bytes * times
    filled = -(-payload * needed // claim.unit_tokens)
    taken = -(-payload * charged // claim.unit_tokens)
    units = load.count_units(claim)
    beginning = min(claim.extra_units, max(0, units - -(-charged // claim.unit_tokens))) * payload
    return {
        USED: filled,
        (STRIP if claim.reserve_tokens is not None else IN_FLIGHT): taken - filled,
        WINDOW_START: beginning,
        TAILS: units * payload - taken - beginning,
    }


def _copies(plan: Plan, rank: RankPlan, load: _Load) -> int:
    """Return the bytes in use on these ranks that are copies of bytes on other ranks of the stage."""
    copies = 0
    contents = {content.claim: content for content in rank.contents}
    total = _stage_ranks(plan, rank)
    for claim in plan.claims:
        content = contents[claim.name]
        if content.distinct_bytes is None:
            continue
        surplus = content.payload_bytes * total - content.distinct_bytes * plan.deployment.dp
        if surplus <= 0:
            continue
        tokens, grain = (1, 1) if claim.kind is ClaimKind.STATE else (load.count_needed(claim), claim.unit_tokens)
        copies += load.requests * (surplus * tokens * rank.count // (total * grain))
    return copies


def _stage_ranks(plan: Plan, rank: RankPlan) -> int:
    """Return all ranks of the stage: those with the same name, whatever memory they were given."""
    return sum(other.count for other in plan.ranks if other.name == rank.name)
