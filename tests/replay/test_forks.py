"""Samples, beams and swapping against a plain replay of lists, step by step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.ledger import Account
from kvledger.pool import Kind, Policy, Preemption, parse_policy
from kvledger.replay import Beams, Clock, Pool, Settings, Workload, replay
from kvledger.replay.samples import with_samples

from .by_hand import ORDER, assert_equal, workload
from .plain_forks import PlainForks
from .random_traffic import traffic

CLOCK = Clock(base=1.0, a=0.25, b=0.125, c=0.0625, d=0.5)


def traffic_of(requests, *, turnover=0.0, seed=0):
    arrivals, prompts, outputs, samples, beams = zip(*requests, strict=True)
    return Workload(
        arrival_seconds=np.array(arrivals, np.float64),
        prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.array(outputs, np.int32),
        samples=np.array(samples, np.int32),
        beams=Beams(mask=np.array(beams, np.bool_), turnover_ratio=turnover, seed=seed),
    )


@st.composite
def scenarios(draw):
    count = draw(st.integers(1, 14))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.0, 9.0]), min_size=count, max_size=count))
    lengths, samples = st.integers(1, draw(st.sampled_from([8, 14, 20]))), st.integers(1, 4)
    requests = [(float(a), draw(lengths), draw(lengths), draw(samples), draw(st.booleans())) for a in np.cumsum(gaps)]
    block = draw(st.sampled_from([1, 2, 4]))
    return {
        "requests": requests,
        "block": block,
        "units": draw(st.integers(-(-30 // block), 100 // block)),
        "host": draw(st.sampled_from([None, 2, 12, 500])),
        "whole": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "turnover": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "seed": draw(st.integers(0, 3)),
        "every": draw(st.sampled_from([0.0, 0.0, 60.0])),
        "max_model_len": draw(st.sampled_from([18, 70])),
        "max_num_seqs": draw(st.sampled_from([3, 8, 32])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 5, 30, 4096])),
    }


def replayed(case, chunks):
    policy = Policy(
        name="p", kind=Kind.PAGED, block_size=case["block"], full_sequence_must_fit=case["whole"],
        watermark_ratio=case["watermark"],
        preemption=Preemption.RECOMPUTE if case["host"] is None else Preemption.SWAP,
        swap_bytes=3 * case["block"] * (case["host"] or 0),
    )  # fmt: skip
    scheduler = Settings(
        **{n: case[n] for n in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")},
        clock=CLOCK, restart_every_seconds=case["every"], restart_down_seconds=5.0 if case["every"] else 0.0,
    )  # fmt: skip
    return replay(
        traffic_of(case["requests"], turnover=case["turnover"], seed=case["seed"]),
        policy,
        pool=Pool(bytes_per_token=3, num_blocks=case["units"], block_size=case["block"]),
        settings=scheduler,
        series=chunks.append,
    )


def plainly(case):
    return PlainForks(
        case["requests"], units=case["units"], block=case["block"], host=case["host"], whole=case["whole"],
        watermark=int(case["watermark"] * case["units"]), max_len=case["max_model_len"],
        max_seqs=case["max_num_seqs"], budget=case["max_num_batched_tokens"],
        clock=(CLOCK.base, CLOCK.a, CLOCK.b, CLOCK.c, CLOCK.d), turnover=case["turnover"], seed=case["seed"],
        every=case["every"], down=5.0 if case["every"] else 0.0,
    ).run()  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_every_step_equals_the_plain_replay_of_lists_and_balances(case):
    if case["every"] and case["max_num_batched_tokens"] < 4096:
        case = {**case, "every": 0.0}  # a restart might leave no time to compute a prompt
    assert_same(case)


@pytest.mark.parametrize("host", [None, 6, 60])
def test_crowded_pools_preempt_swap_and_copy_as_the_plain_replay_does(host):
    """What hypothesis draws seldom: thirty requests at once, several samples each, in a pool of a few."""
    random = np.random.default_rng(7)
    requests = [
        (0.0, int(p), int(o), int(k), bool(beam))
        for p, o, k, beam in zip(*(random.integers(low, high, 30) for low, high in ((1, 20), (2, 20), (1, 5), (0, 2))),
                                 strict=True)
    ]  # fmt: skip
    plain = assert_same({
        "requests": requests, "block": 4, "units": 45, "host": host, "whole": True, "watermark": 0.0, "turnover": 0.4,
        "seed": 1, "every": 300.0, "max_model_len": 50, "max_num_seqs": 32, "max_num_batched_tokens": 4096,
    })  # fmt: skip
    assert plain.preemptions > 5
    assert plain.restarts > 0
    assert (plain.swapped > 0) == (host is not None)
    assert (plain.no_room > 0) == (host == 6)


def assert_same(case):
    chunks = []
    outcome, plain = replayed(case, chunks), plainly(case)
    slots = case["units"] * case["block"]
    expected = [
        [3 * {"used": r["used"], "internal": r["held"] - r["used"], "free": slots - r["held"]}.get(str(a), 0)
         for a in ORDER]
        for r in plain.rows
    ]  # fmt: skip
    assert (np.concatenate([c.accounts for c in chunks]).tolist() if chunks else []) == expected
    for name in ("running", "waiting", "preemptions", "used_blocks"):
        assert [v for c in chunks for v in getattr(c, name).tolist()] == [row[name] for row in plain.rows], name
    assert [v for c in chunks for v in c.time_seconds.tolist()] == [
        row["time"] - case["requests"][0][0] for row in plain.rows
    ]
    assert outcome.rejected == {k: v for k, v in plain.rejected.items() if v}
    assert (outcome.refused_while_free, outcome.recomputed_tokens, outcome.restarts) == (
        plain.refused, plain.recomputed, plain.restarts,
    )  # fmt: skip
    assert outcome.output_tokens == sum(g.width * g.o for g in plain.ended)
    assert outcome.sequences == sum(r[3] for r in case["requests"])
    for row, name in enumerate(("queued", "first", "end")):
        known = {g.index: g.moments[name] for g in plain.ended}
        assert {i: t for i, t in enumerate(outcome.latencies[row].tolist()) if t == t} == known
    seconds = sum(row["seconds"] for row in plain.rows) or 1.0
    assert outcome.shared_saving_ratio == pytest.approx(plain.saved / seconds / slots, abs=1e-9)
    assert outcome.sharing.copied_blocks == plain.copies
    assert outcome.sharing.block_saving_ratio == pytest.approx(1 - plain.together / plain.alone if plain.alone else 0)
    if case["host"] is not None:
        block_bytes = 3 * case["block"]
        swap = outcome.swap
        assert (swap.swapped, swap.no_room) == (plain.swapped, plain.no_room)
        assert (swap.out_bytes, swap.in_bytes) == (plain.out * block_bytes, plain.back * block_bytes)
        assert swap.peak_host_bytes == plain.peak_host * block_bytes
    return plain


@pytest.mark.parametrize("policy", ["paged", "paged@1", "paged@128"])
@pytest.mark.parametrize("whole", [True, False])
def test_tables_with_one_sample_each_give_the_numbers_of_the_counted_blocks(policy, whole):
    """The replay of one sample counts blocks; the one of several keeps tables. They must not differ."""
    chosen = Settings(max_model_len=900, max_num_seqs=128, max_num_batched_tokens=512, clock=Clock(base=0.01, a=2e-5))
    requests, pool = traffic(1500), Pool(bytes_per_token=12, memory_bytes=60_000)
    parsed = replace(parse_policy(policy), full_sequence_must_fit=whole, watermark_ratio=0.01)
    one = replay(requests, parsed, pool=pool, settings=chosen)
    tables = replay(with_samples(requests, 1), parsed, pool=pool, settings=chosen)
    assert tables.preemptions > 0
    assert_equal(tables, one)
    swapped = replace(parsed, preemption=Preemption.SWAP, swap_bytes=policy.count("@") * 12 * 128 or 192)
    assert replay(requests, swapped, pool=pool, settings=chosen).finished == one.finished


def test_samples_share_the_blocks_of_their_prompt_by_hand():
    """Prompt 6 in blocks of 4, three samples of 3 tokens: 2 blocks, then 1 + 3 x 1, then 1 + 3 x 1.

    Step 1 computes the prompt (6 tokens, 2 blocks). Step 2 writes the first token of each: the second block, holding 2
    prompt tokens, is copied twice; used is 4 + 3 x 3 = 13 in 4 blocks, 21 tokens counted for each. Step 3: 4 + 3 x 4.
    """
    chunks = []
    outcome = replay(
        with_samples(workload((0, 6, 3)), 3),
        parse_policy("paged@4"),
        pool=Pool(bytes_per_token=1, capacity_tokens=40),
        settings=Settings(max_model_len=20),
        series=chunks.append,
    )
    assert chunks[0].accounts[:, ORDER.index(Account.USED)].tolist() == [6, 13, 16]
    assert chunks[0].used_blocks.tolist() == [2, 4, 4]
    assert chunks[0].running.tolist() == [3, 3, 3]
    assert outcome.sharing.copied_blocks == 2
    assert outcome.shared_saving_ratio == pytest.approx((0 + 8 + 8) / 3 / 40)
    assert outcome.sharing.block_saving_ratio == pytest.approx(1 - (2 + 4 + 4) / (2 + 9 - 3 + 6))
