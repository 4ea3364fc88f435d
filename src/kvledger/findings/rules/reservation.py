"""Memory that is held for tokens that are not there."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.findings.evidence import ReplayCase, wasted_bytes
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.ledger import Account
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Outcome
from kvledger.units import counted, format_bytes

__all__ = ["RefusedWhileFree", "ReservationDominates"]

_DOMINATES_RATIO = 0.2
_HOLES_RATIO = 0.01
BLOCK_TABLES = "block tables on demand"


class ReservationDominates(Rule):
    """Most of what requests hold is reserved for tokens that are not there.

    What it measures:
        The account `reserved` of a policy that gives each request one extent for its longest possible life: a fifth
        of the pool or more, and more than what its grain and its holes waste.

    Why it costs:
        A reservation is paid from admission to the end, whether its tokens ever come or not. Requests that would fit
        wait outside memory that holds nothing.

    Example:
        An 8B model keeps 131,072 bytes a token. Reserving 4,096 tokens takes 0.5 GiB a request; the average
        conversation ends at 800 tokens, 0.1 GiB. A pool of 50 GiB admits 100 requests and stores 10 GiB.

    What to change:
        Serve with block tables on demand, as vLLM, SGLang, LMDeploy and `transformers serve` have them. The proof
        replays the same traffic with them in the same memory.

    What gets worse:
        Attention reads through block tables. A pool without promises can run full, so requests may be preempted and
        computed again; the replay counts how many.

    Known limits:
        A smaller max_model_len also shrinks reservations, and refuses longer requests: `--mitigations` shows both.

    Sources:
        Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023,
        section 3.1 and figure 2.
    """

    code = "KV001"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at a policy of extents."""
        reserved, waste = case.bytes_of(Account.RESERVED), wasted_bytes(case.outcome)
        large = reserved >= _DOMINATES_RATIO * case.outcome.capacity_bytes and 2 * reserved > waste
        if case.scenario.policy.kind is not Kind.CONTIGUOUS or not large:
            return
        after = case.replay_paged()
        if after is None:
            return
        yield self.tell(
            case.subject,
            f"{format_bytes(reserved)} of {format_bytes(case.outcome.capacity_bytes)} "
            f"({share(case.outcome.headline_ratio[Account.RESERVED])}) are reserved for tokens that are not there",
            amount(reserved, formula="mean of the account `reserved`"),
            to_block_tables(case.outcome, after, Account.RESERVED),
        )


class RefusedWhileFree(Rule):
    """Requests are refused although enough memory is free, because it lies in holes.

    What it measures:
        Steps at whose end the request at the head of the queue was refused although as many bytes were free, and the
        account `external`: what is free but of no use to that request.

    Why it costs:
        An extent needs one hole that is large enough. What extents of different lengths leave behind is not.

    Example:
        `exact` in the demo knows every length in advance, so it reserves nothing for nobody, and still refuses the
        head of its queue at 16,994 steps while 7.5 % of the pool lies in holes.

    What to change:
        Block tables: every free block serves every request. The proof replays the same traffic with them.

    What gets worse:
        Attention reads through block tables, and requests may be preempted; the replay counts how many.

    Known limits:
        Another placement moves the holes and cures nothing, and a restart clears them once: `--mitigations` shows
        both.

    Sources:
        Kwon et al., SOSP 2023, section 3.1.
    """

    code = "KV003"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at a policy of extents, fixed or growing."""
        outcome, external = case.outcome, case.bytes_of(Account.EXTERNAL)
        in_holes = case.scenario.policy.kind in (Kind.CONTIGUOUS, Kind.GROW) and outcome.refused_while_free
        if not in_holes or external < _HOLES_RATIO * outcome.capacity_bytes:
            return
        after = case.replay_paged()
        if after is None:
            return
        yield self.tell(
            case.subject,
            f"the head of the queue is refused at {counted(outcome.refused_while_free, 'step')} of {outcome.steps:,} "
            f"although enough is free: {format_bytes(external)} lie in holes",
            amount(external, formula="mean of the account `external`"),
            to_block_tables(outcome, after, Account.EXTERNAL),
        )


def to_block_tables(before: Outcome, after: Outcome, account: Account) -> Remedy:
    """Return the change to block tables, proved by the outcome with them; what it gives back is of one account.

    The tails of blocks that come with it are taken off, so that findings about one policy count no byte twice.
    """
    gone = _bytes(before, account) - _bytes(after, account)
    tails = max(0, _bytes(after, Account.INTERNAL) - _bytes(before, Account.INTERNAL))
    worse = "attention reads through block tables"
    if after.preemptions > before.preemptions:
        worse += f"; {counted(after.preemptions, 'preemption')} instead of {before.preemptions:,}"
    return Remedy(
        setting=BLOCK_TABLES,
        returned=amount(gone - tails, formula=f"mean of `{account}` before, minus after, less the tails of blocks"),
        trade=Trade.TRADE_OFF,
        proof=f"replayed as `{after.policy}`: {share(after.utilisation)} of the pool holds tokens in use instead of "
        f"{share(before.utilisation)}, {after.mean_running:.1f} requests run at a time instead of "
        f"{before.mean_running:.1f}",
        worse=worse,
    )


def _bytes(outcome: Outcome, account: Account) -> int:
    return round(outcome.headline_ratio[account] * outcome.capacity_bytes)
