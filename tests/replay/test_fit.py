"""Fitting the clock: to a clock that is known, and to the recorded run on an RTX 4090."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from kvledger.errors import TraceError, UsageError
from kvledger.pool import Kind, Policy
from kvledger.replay import Clock, HashIds, HashKind, Pool, Settings, SharedPrefix, Workload, replay
from kvledger.replay.fit import fit_clock
from kvledger.replay.observed import Observed
from kvledger.sources.files import load_trace

TRUE = Clock(base=0.012, a=7e-5, b=9e-5, c=4e-8)
PAGED = Policy(name="paged", kind=Kind.PAGED)
POOL = Pool(bytes_per_token=131_072, capacity_tokens=8_000)
SETTINGS = Settings(max_model_len=4096, max_num_seqs=16, max_num_batched_tokens=512, clock=TRUE)


def traffic(count=60):
    random = np.random.default_rng(5)
    return Workload(
        arrival_seconds=np.cumsum(random.exponential(0.1, count)),
        prompt_tokens=random.integers(20, 900, count).astype(np.int32),
        output_tokens=random.integers(5, 120, count).astype(np.int32),
    )


def observed_of(workload, clock=TRUE):
    latencies = replay(workload, PAGED, pool=POOL, settings=replace(SETTINGS, clock=clock)).latencies
    return Observed(first_token_seconds=latencies[1].copy(), end_seconds=latencies[2].copy())


def fit(workload, observed, **changes):
    return fit_clock(workload, PAGED, pool=POOL, settings=SETTINGS, observed=observed, **changes)


def test_a_run_of_a_known_clock_is_met_within_a_hundredth_also_after_the_part_that_was_fitted():
    workload = traffic(200)
    found = fit(workload, observed_of(workload))
    assert found.clock.accuracy == "modelled"
    assert found.clock.name.startswith("fitted to the first ")
    span = float(observed_of(workload).end_seconds.max())
    assert found.until_seconds == pytest.approx((span - workload.arrival_seconds[0]) / 3)
    assert found.error_inside_seconds < 0.002 * span
    assert found.error_outside_seconds < 0.004 * span
    assert abs(found.latency_error_ratio) < 0.02
    assert abs(found.makespan_error_ratio) < 0.02
    assert found.moments_inside + found.moments_outside == 400


def test_the_same_input_gives_the_same_clock():
    workload = traffic(20)
    observed = observed_of(workload)
    assert fit(workload, observed, part_ratio=1.0).clock == fit(workload, observed, part_ratio=1.0).clock


def test_moments_that_are_not_known_are_left_out():
    workload = traffic(30)
    whole = observed_of(workload)
    first = np.full(30, np.nan)
    found = fit(workload, Observed(first_token_seconds=first, end_seconds=whole.end_seconds), part_ratio=1.0)
    assert (found.moments_inside, found.moments_outside) == (30, 0)
    assert np.isnan(found.error_outside_seconds)
    assert found.error_inside_seconds < 0.1


def test_goodness_is_measured_on_the_whole_run():
    """Observed times twice as long in the second half: the fit to the first half cannot know, and the figures tell."""
    workload = traffic()
    moments = observed_of(workload)
    late = workload.arrival_seconds > np.median(workload.arrival_seconds)
    slow = Observed(
        first_token_seconds=moments.first_token_seconds + 5 * late, end_seconds=moments.end_seconds + 5 * late
    )
    found = fit(workload, slow, part_ratio=0.25)
    assert found.error_outside_seconds > 10 * found.error_inside_seconds
    assert found.latency_error_ratio < -0.2


@pytest.mark.parametrize("part", [0.0, -1.0, 1.01, float("nan")])
def test_a_part_that_is_none_is_refused(part):
    workload = traffic(20)
    with pytest.raises(UsageError, match="cannot be fitted to"):
        fit(workload, observed_of(workload), part_ratio=part)


def test_more_requests_than_can_be_tried_again_and_again_are_refused_with_a_part_that_would_do():
    workload = Workload(
        arrival_seconds=np.arange(30_000) * 1e-3,
        prompt_tokens=np.ones(30_000, np.int32),
        output_tokens=np.ones(30_000, np.int32),
    )
    seen = workload.arrival_seconds + 0.1
    with pytest.raises(TraceError, match="30,000 requests arrive in the part of the run to fit") as caught:
        fit(workload, Observed(first_token_seconds=seen, end_seconds=seen), part_ratio=1.0)
    assert caught.value.hint.endswith("--clock fit:0.67")


@pytest.mark.parametrize("kind", ["shared", "ids"])
def test_content_that_is_known_stays_known_in_the_part_that_is_fitted(kind):
    """Prefix hits save most of the prompts here: a replay without them could not meet the first tokens."""
    plain = traffic(60)
    counts = -(-plain.prompt_tokens // 16)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    same = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    contents = {
        "shared": SharedPrefix(tokens=plain.prompt_tokens),
        "ids": HashIds(offsets=offsets, ids=same, block_tokens=16, kind=HashKind.CONTENT),
    }
    workload = replace(plain, content=contents[kind])
    policy = replace(PAGED, prefix_caching=True)
    latencies = replay(workload, policy, pool=POOL, settings=SETTINGS).latencies
    observed = Observed(first_token_seconds=latencies[1].copy(), end_seconds=latencies[2].copy())
    tried = []
    found = fit_clock(
        workload, policy, pool=POOL, settings=SETTINGS, observed=observed, part_ratio=0.5, progress=tried.append
    )
    assert found.error_inside_seconds < 0.02
    assert tried == list(range(1, found.tries + 1))


@pytest.mark.parametrize("late", [1e9, 1e-9, 0.0])
def test_moments_that_no_clock_can_meet_still_give_a_clock(late):
    workload = traffic(20)
    seen = workload.arrival_seconds + late
    found = fit(workload, Observed(first_token_seconds=seen, end_seconds=seen), part_ratio=1.0)
    assert found.error_inside_seconds > 0.001
    assert found.clock.base >= 1e-4
    assert np.isnan(found.latency_error_ratio) == (late == 0)


def test_too_few_moments_are_refused_with_their_number():
    workload = traffic(20)
    with pytest.raises(TraceError, match="only 0 of the 40 observed moments lie in the first"):
        fit(workload, observed_of(workload), part_ratio=0.001)


@pytest.mark.parametrize("change", [lambda m: m[:-1], lambda m: m - 1e6])
def test_observations_that_do_not_fit_the_workload_are_refused(change):
    workload = traffic(20)
    whole = observed_of(workload)
    wrong = Observed(first_token_seconds=change(whole.first_token_seconds), end_seconds=change(whole.end_seconds))
    with pytest.raises(TraceError, match="observed `first_token_seconds`"):
        fit(workload, wrong)


def test_a_clock_fitted_to_a_third_of_the_recorded_rtx_4090_run_follows_the_rest(shared):
    """KV % each second within 2.5 points, running and waiting within 3 requests, makespan and latency within 3 %."""
    folder = shared / "traces/llmservingsim/vllm_runs/RTX4090/Llama-3.1-8B"
    trace = load_trace(str(folder))
    policy = replace(PAGED, prefix_caching=True, full_sequence_must_fit=False)
    pool = Pool(bytes_per_token=131_072, num_blocks=2587, block_size=16)
    settings = Settings(max_model_len=32_768, max_num_seqs=256, max_num_batched_tokens=2048)
    found = fit_clock(trace.workload, policy, pool=pool, settings=settings, observed=trace.observed)
    assert abs(found.latency_error_ratio) < 0.03
    assert abs(found.makespan_error_ratio) < 0.03
    chunks = []
    replay(trace.workload, policy, pool=pool, settings=replace(settings, clock=found.clock), series=chunks.append)
    rows = list(csv.DictReader((folder / "timeseries.csv").read_text().splitlines()))
    seconds = np.array([float(row["t"]) for row in rows])
    began = np.concatenate([chunk.time_seconds for chunk in chunks])
    at = np.searchsorted(began, seconds, side="right") - 1
    runs = seconds <= began[-1]
    for column, ours, scale, most in (
        ("kv_cache_pct", "used_blocks", 100 / 2587, 2.5),
        ("running", "running", 1, 3),
        ("waiting", "waiting", 1, 3),
    ):
        modelled = scale * np.concatenate([getattr(chunk, ours) for chunk in chunks])[at] * runs
        recorded = np.array([float(row[column]) for row in rows])
        assert np.abs(modelled - recorded).mean() < most, column
