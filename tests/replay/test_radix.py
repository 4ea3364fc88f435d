"""A radix tree under the scheduler, against a plain one step by step; and what tells it from an index of blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import TraceError, UsageError
from kvledger.ledger import Account
from kvledger.pool import Eviction, Kind, Policy, PrefixIndex, parse_policy
from kvledger.replay import HashIds, HashKind, Pool, Settings, SharedPrefix, Workload, replay

from .plain_radix import PlainRadix
from .plain_replay import Stalled
from .test_prefix import scenarios

ORDER = list(Account)


@settings(max_examples=150, deadline=None)
@given(
    scenarios(), st.sampled_from([0.0, 0.0, 5.0, 23.0]), st.sampled_from([Eviction.LRU, Eviction.LRU, Eviction.FIFO])
)
def test_every_step_equals_the_plain_radix_tree_and_balances(scenario, every, eviction):
    requests, (content, known), page, units, scheduler, whole, watermark = scenario
    arrival, prompt, output, _ = (np.array(column) for column in zip(*requests, strict=True))
    workload = Workload(
        arrival_seconds=arrival.astype(np.float64),
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
        content=content,
    )
    policy = Policy(
        name="p", kind=Kind.PAGED, block_size=page, prefix_caching=True, index=PrefixIndex.RADIX, eviction=eviction,
        watermark_ratio=watermark, full_sequence_must_fit=whole,
    )  # fmt: skip
    pool = Pool(bytes_per_token=3, num_blocks=units, block_size=page)
    chosen = Settings(**scheduler, restart_every_seconds=every, restart_down_seconds=every)
    plain = PlainRadix(
        requests, known, units=units, block=page, whole=whole, watermark=int(watermark * units),
        max_len=scheduler["max_model_len"], max_seqs=scheduler["max_num_seqs"],
        budget=scheduler["max_num_batched_tokens"], every=every, down=every, eviction=str(eviction),
    )  # fmt: skip
    try:
        plain.run()
    except Stalled:
        with pytest.raises(UsageError, match="leaves `p` no time to compute"):
            replay(workload, policy, pool=pool, settings=chosen)
        return
    chunks = []
    outcome = replay(workload, policy, pool=pool, settings=chosen, series=chunks.append)
    expected = []
    for row, cached in zip(plain.rows, plain.cached_rows, strict=True):
        parts = {"used": row["used"], "cached": cached, "internal": row["held"] - row["used"]}
        parts["free"] = units * page - sum(parts.values())
        expected.append([3 * parts.get(str(account), 0) for account in ORDER])
    if chunks:
        assert np.concatenate([c.accounts for c in chunks]).tolist() == expected
    for name in ("running", "waiting", "preemptions", "used_blocks"):
        assert [v for c in chunks for v in getattr(c, name).tolist()] == [row[name] for row in plain.rows], name
    assert outcome.rejected == {k: v for k, v in plain.rejected.items() if v}
    assert (outcome.refused_while_free, outcome.restarts) == (plain.refused, plain.restarts)
    hits = outcome.prefix
    assert (hits.hit_tokens, hits.queried_tokens, hits.again_tokens) == (
        plain.hit_tokens, plain.queried_tokens, plain.again_tokens,
    )  # fmt: skip
    seconds = sum(row["seconds"] for row in plain.rows) or 1.0
    saved = sum(s * row["seconds"] for s, row in zip(plain.saved_rows, plain.rows, strict=True)) / seconds
    assert outcome.shared_saving_ratio == pytest.approx(saved / (units * page), abs=1e-9)


def together(*requests, shared):
    """Return requests of (arrival, prompt, output) whose first ``shared`` tokens are the same."""
    arrivals, prompts, outputs = zip(*requests, strict=True)
    return Workload(
        arrival_seconds=np.array(arrivals, np.float64),
        prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.array(outputs, np.int32),
        content=SharedPrefix(tokens=np.full(len(requests), shared, np.int32)),
    )


def outcome_of(policy, workload, tokens=1000, **scheduler):
    pool = Pool(bytes_per_token=1, capacity_tokens=tokens)
    return replay(workload, parse_policy(policy), pool=pool, settings=Settings(max_model_len=500, **scheduler))


def test_a_prefix_is_found_to_the_token_where_blocks_find_whole_blocks():
    """103 tokens in common: blocks of 16 find 96, a page of 4 finds 100, single tokens 103."""
    workload = together((0, 120, 5), (50, 130, 5), shared=103)
    found = {
        policy: outcome_of(policy, workload).prefix.hit_tokens
        for policy in ("paged:blocks", "paged@1:blocks", "paged@16:radix", "paged@4:radix", "paged:radix")
    }
    assert found == {
        "paged:blocks": 96, "paged@1:blocks": 103, "paged@16:radix": 96, "paged@4:radix": 100, "paged:radix": 103,
    }  # fmt: skip


def test_what_is_computed_in_one_step_is_found_in_the_same_step_by_blocks_only():
    """Blocks have their identity when a step is scheduled; the tree learns of it when the step is over."""
    workload = together((0, 60, 5), (0, 60, 5), shared=48)
    assert outcome_of("paged@16:blocks", workload).prefix.hit_tokens == 48
    assert outcome_of("paged@16:radix", workload).prefix.hit_tokens == 0


def test_a_content_computed_twice_is_kept_once():
    """Both compute the same 48 tokens in step one; from then on the tree holds them once: 60 + 12 used, not 120."""
    workload = together((0, 60, 5), (0, 60, 5), shared=48)
    rows = []
    policy, pool = parse_policy("paged:radix"), Pool(bytes_per_token=1, capacity_tokens=1000)
    replay(workload, policy, pool=pool, settings=Settings(max_model_len=500), series=rows.append)
    used = rows[0].accounts[:, ORDER.index(Account.USED)].tolist()
    assert used == [120, 74, 76, 78, 80]


def test_whole_leaves_go_when_little_is_needed():
    """A prompt of 60 and an answer of 4 are cached, 36 of 100 are free. 60 are needed: the answer goes, then all 60."""
    workload = together((0, 60, 5), (50, 60, 2), shared=0)
    rows = []
    policy, pool = parse_policy("paged:radix"), Pool(bytes_per_token=1, capacity_tokens=100)
    replay(workload, policy, pool=pool, settings=Settings(max_model_len=90), series=rows.append)
    cached = np.concatenate([chunk.accounts for chunk in rows])[:, ORDER.index(Account.CACHED)].tolist()
    assert cached == [0, 0, 0, 0, 0, 0, 0]
    assert outcome_of("paged@1:blocks", workload, tokens=100).mean_ratio[Account.CACHED] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max:radix", "only `paged` finds blocks by an index"),
        ("paged:tree", "unknown index `tree`"),
        ("paged@x:radix", "is not a block size"),
        ("paged:", "unknown index ``"),
    ],
)
def test_an_index_that_is_none_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_policy(text)


def test_a_tree_that_does_not_cache_and_a_clairvoyant_tree_are_refused():
    with pytest.raises(UsageError, match="prefix_caching is off"):
        Policy(name="p", kind=Kind.PAGED, index=PrefixIndex.RADIX)
    policy = parse_policy("paged:radix", base=Policy(name="", kind=Kind.PAGED, eviction=Eviction.BELADY))
    with pytest.raises(UsageError, match="no clairvoyant choice"):
        replay(together((0, 9, 5), shared=0), policy, pool=Pool(bytes_per_token=1, capacity_tokens=99),
               settings=Settings(max_model_len=50))  # fmt: skip


def test_chain_ids_that_come_twice_in_a_request_are_refused():
    traffic = Workload(
        arrival_seconds=np.zeros(2), prompt_tokens=np.array([8, 12], np.int32), output_tokens=np.ones(2, np.int32),
        content=HashIds(offsets=np.array([0, 2, 5]), ids=np.array([1, 2, 1, 3, 1]), block_tokens=4,
                        kind=HashKind.CHAIN),
    )  # fmt: skip
    with pytest.raises(TraceError, match="request 2 has the same chain id twice"):
        replay(traffic, parse_policy("paged:radix"), pool=Pool(bytes_per_token=1, num_blocks=99, block_size=1),
               settings=Settings(max_model_len=100))  # fmt: skip
