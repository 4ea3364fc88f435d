"""The ledger: every byte of a pool in exactly one account, and the accounts sum to the pool."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import assert_never

from kvledger.errors import UnbalancedLedger

__all__ = ["Account", "Accuracy", "Ledger", "LedgerIntegral", "Memo", "PaperView"]


class Account(StrEnum):
    """The seven accounts of a pool, in the order in which they are shown."""

    USED = "used"
    CACHED = "cached"
    RESERVED = "reserved"
    INTERNAL = "internal"
    EXTERNAL = "external"
    FREE = "free"
    UNATTRIBUTED = "unattributed"

    @property
    def meaning(self) -> str:
        """What the bytes of this account do, in one line."""
        match self:
            case Account.USED:
                return "keys and values a running request has computed and still needs"
            case Account.CACHED:
                return "computed tokens no running request refers to, kept for reuse, evictable"
            case Account.RESERVED:
                return "held by a running request for tokens it has not computed"
            case Account.INTERNAL:
                return "held only because of grain: block tails, alignment, buffers, padding"
            case Account.EXTERNAL:
                return "free, but in holes too small for the next request"
            case Account.FREE:
                return "free and usable"
            case Account.UNATTRIBUTED:
                return "what the source does not let us explain"
            case _ as never:
                assert_never(never)


class Accuracy(StrEnum):
    """How a number is known."""

    MEASURED = "measured"
    """Read from the engine itself."""
    DERIVED = "derived"
    """Follows exactly from measured or given numbers by a stated formula."""
    MODELLED = "modelled"
    """Follows from an assumption that is stated with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """Lines beside the balance sheet, never inside it (bytes)."""

    shared_saving: int = 0
    """Logical minus physical bytes under prefix sharing."""
    reserved_never_used: int = 0
    """The part of ``reserved`` (and beyond) that no token will ever fill; known in replay only."""
    stale: int = 0
    """Bytes of tokens outside every attention window but still held."""

    def __add__(self, other: Memo) -> Memo:
        """Add line by line."""
        return Memo(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One balance sheet of one pool at one instant, integers in bytes.

    Invariant (law 1): no account is negative and the accounts sum to ``capacity``; see :meth:`check`.
    """

    capacity: int
    used: int = 0
    cached: int = 0
    reserved: int = 0
    internal: int = 0
    external: int = 0
    free: int = 0
    unattributed: int = 0
    memo: Memo = field(default_factory=Memo)

    def __getitem__(self, account: Account) -> int:
        """Return the bytes of one account."""
        value: int = getattr(self, account.value)
        return value

    def accounts(self) -> dict[Account, int]:
        """Return the bytes of every account, in the order of :class:`Account`."""
        return {account: self[account] for account in Account}

    @property
    def held(self) -> int:
        """Bytes that running requests keep from others: used, reserved and internal."""
        return self.used + self.reserved + self.internal

    @property
    def utilisation(self) -> float:
        """Share of the pool that holds tokens in use (0-1)."""
        return self.used / self.capacity if self.capacity else 0.0

    def check(self) -> Ledger:
        """Return the ledger itself when it balances.

        Raises:
            UnbalancedLedger: An account is negative or no integer, or the sum is not the capacity;
                every addend is listed.
        """
        accounts = self.accounts()
        whole = all(isinstance(v, int) and v >= 0 for v in (*accounts.values(), self.capacity))
        total = sum(accounts.values())
        if not whole or total != self.capacity:
            addends = " + ".join(f"{account} {value}" for account, value in accounts.items())
            raise UnbalancedLedger(
                f"the books do not balance: {addends} = {total}, but the pool has {self.capacity} bytes",
                hint="this is a fault of kvledger; please report it with the command that led here",
                capacity=self.capacity,
                **{str(account): value for account, value in accounts.items()},
            )
        return self

    def __add__(self, other: Ledger) -> Ledger:
        """Consolidate two pools into one sheet, account by account."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Ledger(**sums).check()


@dataclass(slots=True, kw_only=True)
class LedgerIntegral:
    """Ledgers weighted by time (byte-seconds), for means over time.

    ``add`` mutates; ``mean_ratio`` does not. Folding two stretches one after the other equals folding their
    concatenation.
    """

    seconds: float = 0.0
    capacity_byte_seconds: float = 0.0
    byte_seconds: dict[Account, float] = field(default_factory=lambda: dict.fromkeys(Account, 0.0))

    def add(self, ledger: Ledger, *, seconds: float) -> None:
        """Add one ledger that stood for ``seconds``."""
        self.seconds += seconds
        self.capacity_byte_seconds += ledger.capacity * seconds
        for account, value in ledger.accounts().items():
            self.byte_seconds[account] += value * seconds

    def merge(self, other: LedgerIntegral) -> None:
        """Add what another integral has gathered."""
        self.seconds += other.seconds
        self.capacity_byte_seconds += other.capacity_byte_seconds
        for account, value in other.byte_seconds.items():
            self.byte_seconds[account] += value

    def mean_ratio(self) -> dict[Account, float]:
        """Return the time-weighted share of each account (0-1); zeros when no time has passed."""
        whole = self.capacity_byte_seconds
        return {account: (value / whole if whole else 0.0) for account, value in self.byte_seconds.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperView:
    """The categories of Figure 2 of the PagedAttention paper (SOSP'23, section 3), as ratios of the pool.

    They sum to 1. ``token_states`` is our ``used``; ``reservation`` is the part of ``reserved`` that will still be
    used; ``internal_fragmentation`` is what is reserved and never used; the rest (allocator rounding, holes, remainder,
    free memory while a request waits) is ``external_and_others``. The paper has no prefix cache; our ``cached`` is kept
    apart, as ``kept_for_reuse``.
    """

    token_states: float
    reservation: float
    internal_fragmentation: float
    external_and_others: float
    kept_for_reuse: float = 0.0
