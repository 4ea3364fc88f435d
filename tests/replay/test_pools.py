"""Two pools sized apart, against a plain replay step by step; and what their ratio does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.ledger import Account
from kvledger.pool import Kind, Policy, parse_policy
from kvledger.pool.two_pools import TwoPools
from kvledger.replay import Pool, Settings, replay

from .by_hand import workload
from .plain_pools import PlainPools
from .plain_replay import Stalled

ORDER = list(Account)


def policy_of(pools, **changes):
    return Policy(
        name="p", kind=Kind.PAGED, has_two_pools=True, two_pools=pools, block_size=pools.page_tokens, **changes
    )


@st.composite
def scenarios(draw):
    count = draw(st.integers(1, 15))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 9.0]), min_size=count, max_size=count))
    lengths = st.integers(1, draw(st.sampled_from([6, 60])))
    requests = [(float(a), draw(lengths), draw(lengths), 0) for a in np.cumsum(gaps)]
    pools = TwoPools(
        full_token_bytes=draw(st.sampled_from([4, 6])),
        window_token_bytes=draw(st.sampled_from([4, 10])),
        window_tokens=draw(st.integers(2, 20)),
        ratio=draw(st.sampled_from([0.3, 0.8, 1.0])),
        page_tokens=draw(st.sampled_from([1, 4])),
        lag_tokens=draw(st.sampled_from([0, 1, 9])),
    )
    scheduler = {
        "max_model_len": draw(st.sampled_from([70, 130])),
        "max_num_seqs": draw(st.sampled_from([1, 3, 16])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 7, 4096])),
    }
    return requests, pools, draw(st.integers(400, 4000)), scheduler, draw(st.booleans())


@settings(max_examples=150, deadline=None)
@given(scenarios(), st.sampled_from([0.0, 0.0, 23.0]))
def test_every_step_equals_the_plain_two_pools_and_balances(scenario, every):
    requests, pools, memory, scheduler, whole = scenario
    full, near = pools.divide(memory)
    policy = policy_of(pools, full_sequence_must_fit=whole)
    chosen = Settings(**scheduler, restart_every_seconds=every, restart_down_seconds=every)
    plain = PlainPools(
        requests, full=full, near=near, costs=(pools.full_token_bytes, pools.window_token_bytes),
        page=pools.page_tokens, window=pools.window_tokens, lag=pools.lag_tokens, whole=whole,
        max_len=scheduler["max_model_len"], max_seqs=scheduler["max_num_seqs"],
        budget=scheduler["max_num_batched_tokens"], every=every, down=every,
    )  # fmt: skip
    arguments = {"pool": Pool(bytes_per_token=14, memory_bytes=memory), "settings": chosen}
    try:
        plain.run()
    except Stalled:
        with pytest.raises(UsageError, match="leaves `p` no time to compute"):
            replay(workload(*requests), policy, **arguments)
        return
    chunks = []
    outcome = replay(workload(*requests), policy, series=chunks.append, **arguments)
    capacity = pools.bytes_of(full, near)
    expected = []
    for row in plain.rows:
        parts = {"used": row["used"], "internal": row["held"] - row["used"], "free": capacity - row["held"]}
        expected.append([parts.get(str(account), 0) for account in ORDER])
    if chunks:
        assert np.concatenate([c.accounts for c in chunks]).tolist() == expected
    for name in ("running", "waiting", "preemptions"):
        assert [v for c in chunks for v in getattr(c, name).tolist()] == [row[name] for row in plain.rows], name
    assert outcome.rejected == {k: v for k, v in plain.rejected.items() if v}
    assert (outcome.refused_while_free, outcome.restarts) == (plain.refused, plain.restarts)
    assert [use.refused for use in outcome.pools] == plain.refused_by
    seconds = sum(row["seconds"] for row in plain.rows) or 1.0
    stale = sum(s * row["seconds"] for s, row in zip(plain.stale_rows, plain.rows, strict=True)) / seconds
    assert outcome.stale_ratio == pytest.approx(stale / capacity, abs=1e-9)


def run(pools, memory, *requests, **scheduler):
    chosen = Settings(max_model_len=200, **scheduler)
    return replay(
        workload(*requests), policy_of(pools), pool=Pool(bytes_per_token=3, memory_bytes=memory), settings=chosen
    )


def test_pools_are_divided_as_sglang_divides_them():
    """10,000 bytes // (1 + 0.5 x 2) = 5,000 tokens, half as many in the window's pool: 5,000 + 2 x 2,500 bytes."""
    pools = TwoPools(full_token_bytes=1, window_token_bytes=2, window_tokens=8, ratio=0.5)
    assert pools.divide(10_000) == (5000, 2500)
    assert pools.bytes_of(5000, 2500) == 10_000
    assert TwoPools(full_token_bytes=1, window_token_bytes=2, window_tokens=8, page_tokens=64).divide(10_000) == (
        3840, 3072,
    )  # fmt: skip


def test_a_window_holds_what_it_reaches_and_the_lag():
    """One request of 40 + 60, window 10, lag 16: at the end 100 - 9 = 91 are behind, of which at most 16 still held."""
    pools = TwoPools(full_token_bytes=1, window_token_bytes=1, window_tokens=10, ratio=1.0, lag_tokens=16)
    outcome = run(pools, 400, (0, 40, 60))
    full, near = outcome.pools
    assert full.peak_held_ratio * full.tokens == 99
    assert near.peak_held_ratio * near.tokens == 40  # the prompt, in one step
    assert near.mean_held_ratio * near.tokens == pytest.approx(
        (sum(range(40, 41)) + sum(10 + i % 16 for i in range(59))) / 60, abs=0.5
    )


def test_memory_that_one_pool_has_does_not_help_the_other():
    """With 0.1 of the tokens the window's pool refuses while the other is mostly free; with 1.0 it never does."""
    requests = [(0.0, 30, 30)] * 8
    small = TwoPools(full_token_bytes=1, window_token_bytes=1, window_tokens=20, ratio=0.1, lag_tokens=0)
    large = TwoPools(full_token_bytes=1, window_token_bytes=1, window_tokens=20, ratio=1.0, lag_tokens=0)
    tight, ample = (run(pools, 1000, *requests, max_num_batched_tokens=32) for pools in (small, large))
    assert [use.refused > 0 for use in tight.pools] == [False, True]
    assert tight.refused_while_free > 0
    assert tight.mean_ratio[Account.FREE] > 0.7
    assert [use.refused for use in ample.pools] == [0, 0]


def test_a_request_that_could_wait_for_ever_is_rejected():
    pools = TwoPools(full_token_bytes=1, window_token_bytes=1, window_tokens=50, ratio=0.5, lag_tokens=0)
    outcome = run(pools, 150, (0, 90, 10), (0, 5, 5))
    assert outcome.rejected == {"larger_than_pool": 1}
    assert outcome.finished == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ratio": 0.0}, "--swa-full-tokens-ratio is 0"),
        ({"ratio": 1.5}, "--swa-full-tokens-ratio is 1.5"),
        ({"window_tokens": 1}, "window_tokens of two pools is 1"),
        ({"page_tokens": 0}, "page_tokens of two pools is 0"),
        ({"lag_tokens": -1}, "a lag of -1"),
    ],
)
def test_what_no_two_pools_can_have_is_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        TwoPools(**{"full_token_bytes": 1, "window_token_bytes": 1, "window_tokens": 9} | changes)


def test_two_pools_need_a_model_and_have_no_cache():
    pool, chosen = Pool(bytes_per_token=1, capacity_tokens=99), Settings(max_model_len=50)
    with pytest.raises(UsageError, match="needs to know which layers have a window"):
        replay(workload((0, 9, 5)), parse_policy("paged:pools"), pool=pool, settings=chosen)
    pools = TwoPools(full_token_bytes=1, window_token_bytes=1, window_tokens=9)
    with pytest.raises(UsageError, match="without a prefix cache"):
        replay(workload((0, 9, 5)), policy_of(pools, prefix_caching=True), pool=pool, settings=chosen)
