"""Restarts: the books are cleared, everything that ran is computed again, and nothing is cured."""

from dataclasses import replace

import numpy as np
import pytest

from kvledger.errors import UsageError
from kvledger.pool import Kind, Policy, parse_policies, parse_policy
from kvledger.replay import Clock, Pool, Settings, SharedPrefix, replay

from .by_hand import run, workload


@pytest.mark.parametrize("policy", ["exact", "paged@2", "grow", "upfront@2", "no-evict@2"])
def test_a_restart_by_hand(policy):
    """One request of 2 + 5, a restart every 3 s that takes 10.

    Three steps compute 2, 3, 4 tokens. At 3 s all 4 are lost; at 13 s the 2 + 3 known tokens are computed in one step,
    then one more: it ends at 15 s after 5 busy seconds.
    """
    outcome, rows = run([(0, 2, 5)], policy, tokens=20, restart_every_seconds=3, restart_down_seconds=10)
    assert [row[0] for row in rows] == [2, 3, 4, 5, 6]
    assert (outcome.restarts, outcome.recomputed_tokens, outcome.preemptions) == (1, 4, 0)
    assert (outcome.busy_seconds, outcome.down_seconds, outcome.makespan_seconds) == (5.0, 10.0, 15.0)
    assert outcome.finished == 1


def test_a_restart_loses_a_whole_batch_by_hand():
    """Batches of one: 2 + 2, then 2 + 3. A restart after 4 s, two steps into the second, loses its 2 + 2 - 1 tokens."""
    outcome, rows = run(
        [(0, 2, 2), (0, 2, 3)], "static-batch", tokens=20, restart_every_seconds=4, restart_down_seconds=10,
        max_num_seqs=1,
    )  # fmt: skip
    assert [row[0] for row in rows] == [2, 3, 2, 3, 2, 3, 4]
    assert (outcome.restarts, outcome.recomputed_tokens, outcome.preemptions) == (1, 3, 0)
    assert (outcome.finished, outcome.makespan_seconds) == (2, 17.0)


def test_a_restart_empties_the_prefix_cache_by_hand():
    """Two requests of the same 8 tokens and one output, in blocks of 4; the second comes after a restart.

    Without one it finds the first block (the last token is always computed); with one it finds nothing.
    """
    for every, found in ((0.0, 4), (50.0, 0)):
        outcome = replay(
            replace(workload((0, 8, 1), (60, 8, 1)), content=SharedPrefix(tokens=np.full(2, 8, np.int32))),
            Policy(name="paged", kind=Kind.PAGED, block_size=4, prefix_caching=True),
            pool=Pool(bytes_per_token=1, capacity_tokens=20),
            settings=Settings(max_model_len=20, restart_every_seconds=every),
        )
        assert outcome.prefix.hit_tokens == found
        assert outcome.restarts == (1 if every else 0)


def test_requests_keep_their_order_across_a_restart():
    outcome, _ = run([(0, 2, 4), (0, 2, 4), (0, 2, 4)], "max", tokens=16, restart_every_seconds=2)
    ends = outcome.latencies[2].tolist()
    assert ends == sorted(ends)


@pytest.mark.parametrize("policy", [p.name for p in parse_policies("all") if p.name not in ("static-batch", "vmm")])
def test_restarts_too_fast_to_compute_anything_are_refused_instead_of_running_for_ever(policy):
    """A prompt of 100 at one token a step needs 100 s; a restart comes every 5."""
    with pytest.raises(UsageError, match="a restart every 5 s leaves") as caught:
        replay(
            workload((0, 100, 2)),
            parse_policy(policy),
            pool=Pool(bytes_per_token=1, capacity_tokens=1000),
            settings=Settings(max_model_len=200, max_num_batched_tokens=1, restart_every_seconds=5),
        )
    assert "--max-num-batched-tokens" in caught.value.hint


def test_batches_longer_than_the_time_between_restarts_are_refused():
    with pytest.raises(UsageError, match="a restart every 5 s leaves `static-batch` no time"):
        run([(0, 2, 7)], "static-batch", tokens=40, max_model_len=20, restart_every_seconds=5)


def test_a_restart_interval_that_vanishes_beside_the_time_of_day_is_refused():
    """At 1e12 s a double has no room for a nanosecond: the next restart would be due at once, for ever."""
    with pytest.raises(UsageError, match="leaves `paged` no time"):
        replay(
            workload((0, 5, 5), (1e12, 5, 5)),
            parse_policy("paged"),
            pool=Pool(bytes_per_token=1, capacity_tokens=1000),
            settings=Settings(max_model_len=200, clock=Clock(base=1e-9), restart_every_seconds=1e-9),
        )


def test_a_restart_that_finds_a_request_just_arrived_is_no_stall():
    """The second request arrives long after the restart was due: it is restarted at once, and then served."""
    outcome, _ = run([(0, 2, 2), (100, 2, 2)], "paged@2", tokens=20, restart_every_seconds=10)
    assert (outcome.finished, outcome.restarts) == (2, 1)


def test_every_step_longer_than_the_interval_still_gives_a_token():
    outcome, _ = run([(0, 2, 6)], "paged@2", tokens=20, restart_every_seconds=0.5)
    assert (outcome.finished, outcome.restarts, outcome.steps) == (1, 5, 6)
