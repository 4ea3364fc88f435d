"""Pools over time: restarts, what later samples prove, traffic and verdicts."""

from dataclasses import replace

import pytest

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import exact
from kvledger.engines.sglang.metrics import read_metrics as read_sglang
from kvledger.engines.tgi.metrics import read_metrics as read_tgi
from kvledger.measure.limits import LimitName, Outcome
from kvledger.measure.pool_limits import check_pool_limits
from kvledger.measure.pool_meter import PoolMeter
from kvledger.measure.pool_summary import summarise_pool
from kvledger.measure.slots import Layout
from kvledger.measure.verdict import Diagnosis
from tests.measure.slot_server import slot, snapshot_of

LABELS = '{model_name="m",engine_type="unified",tp_rank="0",pp_rank="0",dp_rank="%s"}'


def sglang(rank=0, **values):
    """Return the metrics of one scheduler; ``realtime`` is (prefilled, decoded)."""
    labels = LABELS % rank
    realtime = values.pop("realtime", None)
    lines = [f"sglang:{name}{labels} {value}" for name, value in values.items()]
    if realtime is not None:
        for mode, value in zip(("prefill_compute", "decode"), realtime, strict=True):
            lines.append(f'sglang:realtime_tokens_total{{mode="{mode}",{labels[1:]} {value}')
    return "\n".join([*lines, ""])


POOL = {"max_total_num_tokens": 1000, "page_size": 1, "kv_evictable_tokens": 0, "num_queue_reqs": 0}


def pool_of(used, **values):
    return POOL | {"kv_used_tokens": used, "kv_available_tokens": 1000 - used, "num_running_reqs": 2} | values


def measure(samples, every_seconds=1.0):
    """Measure samples, each a tuple of snapshots; return the summaries by pool."""
    meter = PoolMeter()
    for number, snapshots in enumerate(samples):
        meter.take(snapshots, seconds=number * every_seconds)
    return {key: summarise_pool(moments, meter.spans(key)) for key, moments in meter.settle().items()}


def only(samples, **options):
    (found,) = measure(samples, **options).values()
    return found


def test_a_window_has_its_last_moment_its_peak_and_its_mean():
    found = only([read_sglang(sglang(**pool_of(used))) for used in (100, 600, 200)])
    assert (found.last.sheet.ledger.used, found.peak.sheet.ledger.used) == (200, 600)
    assert found.mean.mean_ratio()["used"] == pytest.approx((100 + 600 + 200) / 3000)
    assert (found.samples, found.restarts) == (3, 0)


def test_counters_that_fall_begin_a_new_epoch_and_count_no_traffic_twice():
    counted = [50, 90, 5, 15]
    found = only([read_sglang(sglang(**pool_of(10, prompt_tokens_total=n))) for n in counted])
    assert (found.restarts, found.last.epoch) == (1, 1)
    assert found.traffic.prompt_tokens == 40 + 10


def test_another_size_of_the_pool_is_a_restart():
    samples = [read_sglang(sglang(**(pool_of(10) | {"max_total_num_tokens": size}))) for size in (1000, 1000, 900)]
    assert only(samples).restarts == 1


def test_slots_that_begin_their_tasks_again_are_a_restart():
    samples = [(snapshot_of(slot(0, tokens=5, task=task)),) for task in (3, 9, 2)]
    assert only(samples).restarts == 1


def test_several_schedulers_behind_one_address_are_kept_apart():
    text = sglang(0, **pool_of(100)) + sglang(1, **pool_of(700))
    found = measure([read_sglang(text)] * 2)
    assert {key.index: one.last.sheet.ledger.used for key, one in found.items()} == {0: 100, 1: 700}


def test_ranks_that_differ_in_nothing_but_a_label_are_named_by_it():
    text = sglang(**pool_of(100)) + sglang(**pool_of(100)).replace('tp_rank="0"', 'tp_rank="1"')
    assert sorted(key.rank for key in measure([read_sglang(text)])) == ["tp 0", "tp 1"]


def test_what_is_proved_later_settles_the_samples_before():
    before = (snapshot_of(slot(0, tokens=300, task=3), slot(1, tokens=10, busy=True, task=8)),)
    after = (snapshot_of(slot(0, tokens=0, task=3), slot(1, tokens=20, busy=True, task=8)),)
    meter = PoolMeter()
    (first,) = meter.take(before, seconds=0.0)
    meter.take(after, seconds=1.0)
    assert first.layout is Layout.UNKNOWN
    (settled,) = meter.settle().values()
    assert [moment.layout for moment in settled] == [Layout.SHARED] * 2
    assert settled[0].sheet.ledger.free == 1000 - 310


def test_a_restart_forgets_what_was_proved():
    cleared = [
        (snapshot_of(slot(0, tokens=300, task=30), slot(1, tokens=10, busy=True, task=80)),),
        (snapshot_of(slot(0, tokens=0, task=30), slot(1, tokens=20, busy=True, task=80)),),
        (snapshot_of(slot(0, tokens=9, task=1), slot(1, tokens=2, busy=True, task=2)),),
    ]
    meter = PoolMeter()
    for number, snapshots in enumerate(cleared):
        meter.take(snapshots, seconds=number)
    (settled,) = meter.settle().values()
    assert [moment.layout for moment in settled] == [Layout.SHARED, Layout.SHARED, Layout.UNKNOWN]


def test_gauges_of_a_decode_step_narrow_the_tails_until_the_next_prefill():
    """Pages of 64; the second sample is a decode step (its batch was written anew), the third follows a prefill."""
    paged = pool_of(640) | {"page_size": 64}
    samples = [
        read_sglang(sglang(**paged, decode_sum_seq_lens=batch, realtime=(prefilled, decoded)))
        for batch, prefilled, decoded in ((600, 500, 50), (610, 500, 90), (610, 700, 90))
    ]
    meter = PoolMeter()
    lows = [meter.take(one, seconds=float(number))[0].sheet.figure("used").low for number, one in enumerate(samples)]
    assert lows == [10, 640 - 3 * 63, 10]


def test_a_queue_beside_free_memory_is_another_limit_in_the_words_of_the_engine():
    waiting = pool_of(280, num_queue_reqs=2826)
    verdict = only([read_sglang(sglang(**waiting))] * 2).verdict
    assert verdict.diagnosis is Diagnosis.OTHER_LIMIT
    assert "--max-running-requests" in verdict.advice


def test_strips_that_are_held_and_not_used_are_reserved():
    slots = [slot(n, tokens=100, busy=True, task=5 * n) for n in (0, 1)]
    busy = replace(snapshot_of(*slots), waiting=exact(4))
    meter = PoolMeter(complete=lambda snapshot, pool, hints: replace(hints, cells=replace(hints.cells, layout=STRIPS)))
    for second in range(3):
        meter.take((busy,), seconds=float(second))
    ((key, moments),) = meter.settle().items()
    verdict = summarise_pool(moments, meter.spans(key)).verdict
    assert verdict.diagnosis is Diagnosis.RESERVED
    assert "at most 10.0 % of the pool holds tokens" in verdict.sentence


STRIPS = Layout.STRIPS


def test_what_is_held_in_full_and_not_told_apart_is_no_verdict():
    """A build that does not count tokens: every slot works, and 2 to 2,000 tokens are there."""
    slots = [slot(n, tokens=5, busy=True, task=5 * n, prompt=3) for n in (0, 1)]
    for one in slots:
        del one["n_prompt_tokens"]
    meter = PoolMeter(complete=lambda snapshot, pool, hints: replace(hints, cells=replace(hints.cells, layout=STRIPS)))
    meter.take((snapshot_of(*slots),), seconds=0.0)
    ((key, moments),) = meter.settle().items()
    verdict = summarise_pool(moments, meter.spans(key)).verdict
    assert verdict.diagnosis is Diagnosis.UNKNOWN
    assert "0.1 to 100.0 % holds tokens" in verdict.sentence


def test_where_the_layout_decides_the_verdict_both_are_told():
    slots = [slot(n, tokens=100, busy=True, task=5 * n) for n in (0, 1)]
    verdict = only([(replace(snapshot_of(*slots), waiting=exact(4)),)] * 2).verdict
    assert verdict.diagnosis is Diagnosis.UNKNOWN
    assert "if the slots share their cells: up to 4 requests wait" in verdict.sentence
    assert "if each owns a strip: reserved, not used" in verdict.sentence


def test_where_both_layouts_give_one_verdict_it_is_the_verdict():
    slots = [slot(0, tokens=50, busy=True), slot(1, tokens=0, task=3), slot(2, tokens=0), slot(3, tokens=0)]
    assert only([(snapshot_of(*slots),)] * 2).verdict.diagnosis is Diagnosis.ROOM


TGI = """
tgi_batch_current_max_tokens 7800
tgi_batch_max_total_tokens 8000
tgi_batch_current_size 3
tgi_queue_size 9
tgi_request_max_new_tokens_sum 40000
tgi_request_max_new_tokens_count 20
tgi_request_generated_tokens_sum 1000
tgi_request_generated_tokens_count 10
"""


def test_a_pool_full_of_promises_is_told_from_one_full_of_tokens():
    """TGI holds 97 % for requests that reserve 2,000 tokens of output and generate 100."""
    found = only([read_tgi(TGI)] * 2)
    assert found.traffic.reserved_used_ratio == 0.05
    assert found.verdict.diagnosis is Diagnosis.RESERVED
    assert "generated 5.0 % of the output they had reserved" in found.verdict.sentence
    full = TGI.replace("generated_tokens_sum 1000", "generated_tokens_sum 19000")
    assert only([read_tgi(full)] * 2).verdict.diagnosis is Diagnosis.FULL


def test_an_engine_that_counts_tokens_at_the_end_of_requests_is_not_stalled():
    samples = [read_sglang(sglang(**pool_of(300, generation_tokens_total=7)))] * 8
    assert only(samples, every_seconds=5).verdict.diagnosis is Diagnosis.ROOM


def test_an_engine_whose_steps_are_counted_and_stand_still_is_stalled():
    samples = [read_sglang(sglang(**pool_of(300), realtime=(50, 9)))] * 8
    assert only(samples, every_seconds=5).verdict.diagnosis is Diagnosis.STALLED


def test_tokens_of_llamacpp_are_counted_while_they_come():
    """The counter grows when a request ends: 100 of an ended one, and 7 then 30 of a running one."""
    samples = [
        (replace(snapshot_of(slot(0, tokens=50 + n, prompt=50, busy=True)), generation_tokens_total=exact(counted)),)
        for n, counted in ((7, 0), (30, 0), (2, 100))
    ]
    assert only(samples).traffic.generated_tokens == 95


def test_an_engine_without_a_pool_says_what_is_absent():
    snapshot = EngineSnapshot(engine=Engine.LLAMACPP, missing=("llamacpp:kv_cache_tokens",))
    found = only([(snapshot,)])
    assert "`llamacpp:kv_cache_tokens` not told" in found.problem
    assert found.verdict.diagnosis is Diagnosis.UNKNOWN
    assert only([(replace(snapshot, problem="the server sleeps"),)]).problem == "the server sleeps"


def test_a_host_tier_is_no_pool_of_its_own():
    host = PoolReading(name="host", capacity=exact(5), used=exact(1))
    (snapshot,) = read_sglang(sglang(**pool_of(100)))
    assert [key.pool for key in measure([(replace(snapshot, pools=(*snapshot.pools, host)),)])] == ["kv"]


def test_limits_are_compared_with_intervals():
    found = only([(snapshot_of(slot(0, tokens=50, busy=True), slot(1, tokens=0)),)] * 2)
    bounds = {LimitName.MAX_HELD: 0.3, LimitName.MAX_INTERNAL: 0.1, LimitName.MAX_PREEMPTIONS: 1.0}
    held, internal, preemptions = check_pool_limits(found, bounds)
    assert (held.low, held.high, held.outcome) == (0.025, 1.0, Outcome.OPEN)
    assert internal.outcome is Outcome.KEPT
    assert (preemptions.outcome, preemptions.reason) == (Outcome.UNKNOWN, "this engine does not count preemptions")


def test_what_is_free_or_cached_is_not_unexplained():
    """SGLang before 0.5.13 tells what is held, and not which of the rest is kept."""
    old = {"max_total_num_tokens": 1000, "page_size": 1, "num_used_tokens": 400, "num_running_reqs": 2}
    found = only([read_sglang(sglang(**old))])
    assert found.last.sheet.ledger.unattributed == 600
    assert found.shares.unattributed_of_pool == 0
