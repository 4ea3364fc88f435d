"""The compiled replay against the plain one, step by step."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.ledger import Account
from kvledger.pool import Growth, Kind, Placement, Policy, Reservation
from kvledger.replay import Clock, Pool, Settings, Workload, replay, replay_plainly

from .plain_replay import PlainReplay, Stalled

ORDER = list(Account)


def workload_of(requests):
    arrival, prompt, output, limit = (np.array(column) for column in zip(*requests, strict=True))
    return Workload(
        arrival_seconds=arrival.astype(np.float64),
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
        max_tokens=limit.astype(np.int32),
    ).check()


@st.composite
def scenarios(draw):
    kind = draw(st.sampled_from([k for k in Kind if k is not Kind.VMM]))
    count = draw(st.integers(1, 40))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.3, 1.0, 7.5, 60.0]), min_size=count, max_size=count))
    longest = draw(st.sampled_from([4, 30, 90]))
    lengths = st.integers(1, longest)
    arrivals = np.cumsum(gaps)
    requests = [(float(a), draw(lengths), draw(lengths), draw(st.sampled_from([0, 0, 5, 50]))) for a in arrivals]
    block = draw(st.sampled_from([1, 2, 4, 16]))
    paged = kind.is_paged
    options = {
        "kind": kind,
        "block_size": block,
        "reservation": draw(st.sampled_from(Reservation)),
        "placement": draw(st.sampled_from(Placement)),
        "growth": draw(st.sampled_from(Growth)),
        "growth_step_tokens": draw(st.sampled_from([1, 8, 32])),
        "buffer_tokens": draw(st.sampled_from([0, 0, 3])),
        "granularity_tokens": draw(st.sampled_from([1, 1, 8])),
        "full_sequence_must_fit": draw(st.booleans()),
        "watermark_ratio": draw(st.sampled_from([0.0, 0.0, 0.2])),
    }
    units = draw(st.integers(4, 60)) if paged else draw(st.integers(20, 700))
    scheduler = {
        "max_model_len": draw(st.sampled_from([60, 120, 200])),
        "max_num_seqs": draw(st.sampled_from([1, 3, 16])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 7, 64, 4096])),
    }
    clock = draw(st.sampled_from([(1.0, 0.0, 0.0, 0.0), (0.01, 2e-3, 1e-3, 1e-5), (0.37, 0.011, 0.003, 0.0001)]))
    every = draw(st.sampled_from([0.0, 0.0, 0.5, 6.0, 40.0]))
    return requests, options, units, scheduler, clock, every


def run_plainly(requests, options, units, scheduler, clock, every):
    return PlainReplay(
        requests,
        kind=options["kind"].value,
        units=units,
        block=options["block_size"] if options["kind"].is_paged else 1,
        reservation=options["reservation"].value,
        placement=options["placement"].value,
        growth=options["growth"].value,
        growth_step=options["growth_step_tokens"],
        buffer=options["buffer_tokens"],
        granularity=options["granularity_tokens"],
        watermark=int(options["watermark_ratio"] * units),
        whole=options["full_sequence_must_fit"],
        max_len=scheduler["max_model_len"],
        max_seqs=scheduler["max_num_seqs"],
        budget=scheduler["max_num_batched_tokens"],
        clock=clock,
        every=every,
        down=every / 2,
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(scenarios())
def test_every_step_equals_the_plain_replay_and_balances(scenario):
    requests, options, units, scheduler, clock, every = scenario
    plain = run_plainly(*scenario)
    policy = Policy(name="p", **options)
    pool = (
        Pool(bytes_per_token=3, num_blocks=units)
        if policy.kind.is_paged
        else Pool(bytes_per_token=3, capacity_tokens=units)
    )
    base, a, b, c = clock
    chosen = Settings(
        clock=Clock(base=base, a=a, b=b, c=c), restart_every_seconds=every, restart_down_seconds=every / 2, **scheduler
    )
    try:
        plain.run()
    except Stalled:
        with pytest.raises(UsageError, match="leaves `p` no time to compute"):
            replay(workload_of(requests), policy, pool=pool, settings=chosen)
        return
    chunks = []
    stepwise = replay(workload_of(requests), policy, pool=pool, settings=chosen, series=chunks.append)
    rows = np.concatenate([c.accounts for c in chunks])
    expected = np.zeros_like(rows)
    for i, row in enumerate(plain.rows):
        parts = {
            Account.USED: row["used"],
            Account.RESERVED: row["kept"] - row["used"],
            Account.INTERNAL: row["held"] - row["kept"],
            Account.EXTERNAL: row["external"],
        }
        parts[Account.FREE] = stepwise.capacity_bytes // 3 - row["held"] - row["external"]
        expected[i] = [3 * parts.get(account, 0) for account in ORDER]
    assert rows.tolist() == expected.tolist()
    for name in ("running", "waiting", "preemptions"):
        assert np.concatenate([getattr(c, name) for c in chunks]).tolist() == [r[name] for r in plain.rows], name
    if policy.kind.is_paged:
        assert np.concatenate([c.used_blocks for c in chunks]).tolist() == [r["used_blocks"] for r in plain.rows]
    first = requests[0][0]
    assert np.concatenate([c.time_seconds for c in chunks]).tolist() == [r["time"] - first for r in plain.rows]
    for outcome in (
        stepwise,
        replay(workload_of(requests), policy, pool=pool, settings=chosen),
        replay_plainly(workload_of(requests), policy, pool=pool, settings=chosen),
    ):
        assert_same(outcome, plain)


def assert_same(outcome, plain):
    rows = plain.rows
    assert outcome.rejected == {k: v for k, v in plain.rejected.items() if v}
    assert outcome.finished == len(plain.ended)
    assert outcome.steps == len(rows)
    assert outcome.preemptions == plain.preemptions
    assert (outcome.refused_while_free, outcome.restarts) == (plain.refused, plain.restarts)
    assert outcome.peak_running == max((r["running"] for r in rows), default=0)
    assert outcome.peak_waiting == max((r["waiting"] for r in rows), default=0)
    capacity = outcome.capacity_bytes / 3
    for ratios, chosen in ((outcome.mean_ratio, rows), (outcome.saturated_ratio, [r for r in rows if r["waiting"]])):
        seconds = sum(r["seconds"] for r in chosen)
        for account, value in (("used", "used"), ("external", "external")):
            expected = sum(r[value] * r["seconds"] for r in chosen) / seconds / capacity if seconds else 0.0
            assert ratios[Account(account)] == pytest.approx(expected, abs=1e-9)
        held = sum(r["held"] * r["seconds"] for r in chosen) / seconds / capacity if seconds else 0.0
        assert ratios[Account.USED] + ratios[Account.RESERVED] + ratios[Account.INTERNAL] == pytest.approx(
            held, abs=1e-9
        )
        if chosen:
            assert sum(ratios.values()) == pytest.approx(1.0, abs=1e-9)
    never = sum(r["never"] * r["seconds"] for r in rows) / (sum(r["seconds"] for r in rows) or 1) / capacity
    assert outcome.never_used_ratio == pytest.approx(never, abs=1e-9)
    for what, name in enumerate(("queued", "first", "end")):
        for request in plain.ended:
            assert outcome.latencies[what, request.index] == request.moments[name]
    assert sum(point.steps for point in outcome.timeline) == outcome.steps
