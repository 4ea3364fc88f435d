"""The meter over time: epochs, engines, bounds on time and memory."""

import time
from dataclasses import replace

import pytest

from kvledger.engines.vllm.metrics import Generation, VllmScrape, read_vllm_metrics
from kvledger.measure.balance import Unsure
from kvledger.measure.meter import Meter
from kvledger.measure.offsets import OffsetTracker, read_differences
from tests.measure.recorded import rows, scrapes
from tests.measure.simulated_server import Server, drive


def busy():
    return next(s for s in scrapes("async")[10:] if s.engines[0].running > 8)


def with_engine(scrape, **changes):
    return replace(scrape, engines=(replace(scrape.engines[0], **changes),))


def take(*given, **options):
    meter = Meter(**options)
    return [meter.take(scrape, seconds=float(n))[0] for n, scrape in enumerate(given)]


def test_a_counter_that_falls_begins_a_new_epoch():
    later = with_engine(busy(), prompt_tokens=5, generation_tokens=5)
    assert [reading.epoch for reading in take(busy(), later, later)] == [0, 1, 1]


def test_another_start_time_or_block_count_begins_a_new_epoch():
    again = replace(busy(), start_seconds=busy().start_seconds + 60)
    assert [r.epoch for r in take(busy(), again)] == [0, 1]
    config = {**busy().engines[0].cache_config, "num_gpu_blocks": "513"}
    assert [r.epoch for r in take(busy(), with_engine(busy(), cache_config=config))] == [0, 1]


def test_what_was_learned_before_a_restart_is_forgotten():
    idle, full = scrapes("async")[0], busy()
    assert take(idle, full)[1].balance.live.is_exact
    restarted = replace(full, start_seconds=full.start_seconds + 60)
    assert not take(idle, full, restarted)[2].balance.live.is_exact


def test_engines_of_one_server_have_a_ledger_each_and_share_the_printed_blocks():
    one = busy().engines[0]
    config = {**one.cache_config, "num_gpu_blocks": str(2 * 257)}
    both = VllmScrape(engines=tuple(replace(one, index=n, cache_config=config) for n in (0, 1)))
    meter = Meter()
    readings = meter.take(both, seconds=0.0)
    assert [reading.engine_index for reading in readings] == [0, 1]
    assert {reading.sheet.ledger.capacity for reading in readings} == {257 * 32}
    assert sorted(meter.settle()) == [0, 1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"is_asleep": True}, "sleeps"),
        ({"usage_ratio": None, "missing": ("usage_ratio",)}, "usage_ratio"),
        ({"running": None, "missing": ("running",)}, "running"),
        ({"cache_config": {}}, "number of blocks"),
        ({"usage_ratio": 0.123456789}, "no whole number"),
    ],
)
def test_what_has_no_ledger_says_why(changes, problem):
    (reading,) = take(with_engine(busy(), **changes))
    assert reading.sheet is None
    assert problem in reading.problem


def test_without_counters_the_gauge_alone_bounds_the_tokens():
    (reading,) = take(with_engine(busy(), histograms={}))
    balance = reading.balance
    assert balance.live is None
    assert balance.used.high == balance.held
    assert balance.used.width == reading.running * 31
    assert balance.causes == (Unsure.NO_COUNTERS,)


@pytest.mark.parametrize(
    ("served", "shown"), [("/models/a/", "a"), ("~/x/b", "b"), ("org/c", "org/c"), ("d", "d"), (None, None)]
)
def test_a_model_served_from_a_path_is_shown_without_it(served, shown):
    assert take(with_engine(busy(), model=served))[0].model == shown


def test_v0_is_bounded_by_its_gauge():
    (reading,) = take(with_engine(busy(), generation=Generation.V0, usage_ratio=129 / 257))
    assert (reading.balance.live, reading.balance.held) == (None, 129 * 32)


def test_layers_in_groups_leave_what_is_held_and_nothing_else():
    config = {**busy().engines[0].cache_config, "kv_cache_max_concurrency": "2.0", "kv_cache_size_tokens": "4096"}
    (reading,) = take(with_engine(busy(), cache_config=config))
    assert reading.balance.causes[0] is Unsure.GROUPS
    ledger = reading.sheet.ledger
    assert (ledger.used, ledger.internal) == (0, 0)
    assert ledger.unattributed >= reading.balance.held


def test_several_api_servers_widen_the_interval_by_a_step():
    idle, full = scrapes("async")[0], busy()
    exact = take(idle, full)[1].balance.used
    skewed = take(replace(idle, is_multiprocess=True), replace(full, is_multiprocess=True))[1].balance
    assert skewed.used.low <= exact.low
    assert skewed.used.high >= exact.high
    assert Unsure.SKEW in skewed.causes


def test_slots_for_proposed_tokens_widen_the_tail():
    plain, speculative = take(busy())[0], take(with_engine(busy(), draft_tokens=10))[0]
    assert speculative.balance.used.low <= plain.balance.used.low
    assert Unsure.SPECULATIVE in speculative.balance.causes


def test_free_and_cached_are_told_apart_only_without_prefix_cache():
    config = {**busy().engines[0].cache_config, "enable_prefix_caching": "False"}
    off = take(with_engine(busy(), cache_config=config))[0].sheet
    on = take(busy())[0].sheet
    assert off.figure("free").is_exact
    assert off.ledger.free == off.available > 0
    assert on.figure("cached").high == on.available
    assert on.figure("free").low == 0


def test_a_fresh_server_has_cached_no_more_than_it_computed():
    server = Server(blocks=1001)
    server.submit(40, 30)
    for _ in range(3):
        server.step()
    sheet = take(server.scrape())[0].sheet
    assert 0 < sheet.figure("cached").high <= 48
    assert sheet.ledger.free >= 900 * 16


def test_requests_that_skip_the_look_up_stop_the_inference_until_idle():
    """Their prompts are counted at the first token and not at admission, so the difference falls."""
    tracker = OffsetTracker()
    idle = read_differences(scrapes("async")[0].engines[0])
    tracker.observe_idle(idle, seconds=0.0)
    tracker.observe_counts(replace(idle, pending=idle.pending - 10), running=1, waiting=0)
    assert not tracker.nothing_prefills(replace(idle, pending=idle.pending - 10))
    tracker.observe_idle(replace(idle, pending=idle.pending - 10), seconds=1.0)
    assert tracker.nothing_prefills(replace(idle, pending=idle.pending - 10))


def test_from_scrape_to_ledger_takes_less_than_five_milliseconds():
    text = rows("async")[-1]["text"]
    padding = "".join(f'http_request_size_bytes_bucket{{handler="/v1/{n}",le="0.1"}} 1.0\n' for n in range(900))
    text += padding[: max(0, 65_536 - len(text))]
    meter = Meter()
    best = 1.0
    for number in range(30):
        began = time.perf_counter()
        meter.take(read_vllm_metrics(text), seconds=float(number))
        best = min(best, time.perf_counter() - began)
    assert len(text) >= 65_000
    assert best < 0.005


def test_memory_is_bounded_by_the_window():
    meter = Meter()
    scrape = busy()
    for number in range(10_050):
        meter.take(scrape, seconds=float(number))
    assert len(meter._engines[0].steps) == 10_000
    assert len(meter.spans(0)) == 1


def test_a_window_settles_in_linear_time():
    meter = Meter()
    for number, (scrape, _, _) in enumerate(drive(Server(), seed=1, steps=900, aborts=0.05, every=1)):
        meter.take(scrape, seconds=number / 10)
    began = time.perf_counter()
    readings = meter.settle()[0]
    assert (time.perf_counter() - began) / len(readings) < 0.005


def test_a_meter_that_only_takes_keeps_one_sample_and_reads_the_same():
    from tests.measure.recorded import scrapes

    whole, short = Meter(), Meter(window_samples=1)
    for number, scrape in enumerate(scrapes("async")):
        assert whole.take(scrape, seconds=float(number)) == short.take(scrape, seconds=float(number))
    assert [len(readings) for readings in short.settle().values()] == [1]
