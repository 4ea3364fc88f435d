"""What is found on running servers: in recordings of real ones, and in scrapes of a small simulated one."""

from dataclasses import replace

import pytest

from kvledger.engines.sglang.metrics import read_metrics as read_sglang
from kvledger.engines.tgi.metrics import read_metrics as read_tgi
from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.findings.evidence import MeasureCase, PoolsCase
from kvledger.findings.search import find_in_measure, find_in_pools
from kvledger.measure.meter import Meter
from kvledger.measure.pricing import price_by_token
from kvledger.measure.summary import summarise
from tests.measure.recorded import rows, scrapes
from tests.measure.slot_server import slot, snapshot_of
from tests.measure.test_pool_meter import TGI, measure, pool_of, sglang

from .test_handed_complaints import scrape


def look(found, *, every=1.0, complete=None):
    """Measure scrapes of one engine, and return the findings by code."""
    meter = Meter(complete=complete)
    for number, one in enumerate(found):
        meter.take(one, seconds=number * every)
    summary = summarise(meter.settle()[0], meter.spans(0))
    case = MeasureCase(subject="m", summary=summary, engine=meter.spans(0)[-1][1])
    return {finding.code: finding for finding in find_in_measure([case]).findings}


def texts(*values):
    return [read_vllm_metrics(scrape(**one)) for one in values]


def recorded(name, phase):
    """Return the scrapes of one phase of a recording of vLLM 0.32."""
    return [one for row, one in zip(rows(name), scrapes(name), strict=True) if row["phase"].startswith(phase)]


def look_at_pools(samples):
    case = PoolsCase(subject="m", pools=tuple(measure(samples).values()), snapshot=samples[-1][0])
    return {one.code: one for one in find_in_pools([case]).findings}


def test_a_real_server_that_preempts_is_found():
    assert "KV010" in look(recorded("sync", "preempted"))


def test_a_real_server_under_plain_load_does_not_preempt():
    assert "KV010" not in look(recorded("sync", "plain"))


def test_fewer_seats_are_proposed_where_more_run_than_fit():
    found = look(texts({"running": 40, "preemptions": 5}, {"running": 40, "preemptions": 60, "ended": 140}))["KV010"]
    assert found.best.setting == "--max-num-seqs 31"
    assert found.size.unit == "tokens"


def test_a_few_preemptions_are_no_finding():
    assert "KV010" not in look(texts({"preemptions": 5}, {"preemptions": 8, "ended": 140}))


def test_a_few_preemptions_in_a_pool_held_whole_are_found():
    full = {"held": 1000, "running": 30, "waiting": 0}
    assert "KV010" in look(texts({**full, "ended": 100}, {**full, "ended": 500, "preemptions": 26}))
    assert "KV010" not in look(
        texts({**full, "held": 900, "ended": 100}, {"held": 900, "ended": 500, "preemptions": 26})
    )


def test_a_pool_full_of_tokens_is_told():
    assert "KV011" in look(texts({"held": 990}, {"held": 995, "ended": 110}))
    assert "KV011" not in look(texts({"held": 700, "waiting": 0}, {"held": 700, "waiting": 0, "ended": 110}))


def test_requests_that_wait_beside_free_memory_are_told():
    low = {"held": 300, "running": 8, "waiting": 20}
    found = look(texts(low, low | {"ended": 110}))["KV014"]
    assert found.size.low == (1000 - 300) * 16
    assert "KV014" not in look(texts(low | {"waiting": 0}, low | {"waiting": 0, "ended": 110}))
    assert "KV014" not in look(texts(low))


def test_a_window_without_a_token_is_a_stall():
    still = [read_vllm_metrics(scrape(ended=100)) for _ in range(7)]
    assert look(still)["KV013"].size.low == 990 * 16
    moving = texts({"ended": 100}, *({"ended": 100 + n} for n in range(1, 7)))
    assert "KV013" not in look(moving)


def test_a_queue_behind_an_empty_pool_is_told():
    empty = {"held": 0, "running": 0, "waiting": 3, "ended": 100, "tokens": 0}
    assert "needs more than its 16,000 slots" in look(texts(*[empty] * 7))["KV012"].sentence
    assert "KV012" not in look(texts(*[empty | {"waiting": 0}] * 7))
    assert "KV012" not in look(texts(*[empty | {"held": 10, "running": 1}] * 7))


def test_room_over_a_window_gives_memory_back():
    idle = [{"held": 100, "running": 4, "waiting": 0, "ended": 100 + n} for n in range(12)]
    found = look(texts(*idle))["KV020"]
    assert found.returned == 16_000 - 2000
    assert "KV020" not in look(texts(*idle[:5]))
    assert "KV020" not in look(texts(*(one | {"held": 500} for one in idle)))


def test_a_longest_request_far_above_the_traffic_is_explained():
    def long(tokens):
        return lambda shape, _: replace(shape, max_model_len=tokens)

    window = texts({"ended": 100}, {"ended": 200})
    assert "lowering it frees nothing" in look(window, complete=long(131_072))["KV021"].sentence
    assert "KV021" not in look(window, complete=long(4096))


def test_wide_blocks_beside_a_counter_without_hits_are_told():
    """vllm-project/vllm#51198: 1,131 prompt tokens looked up and none found, with blocks of 1,056."""

    def idle(block=1056, asked=1131, found=0):
        counters = f"vllm:prefix_cache_queries_total{{0}} {asked}\nvllm:prefix_cache_hits_total{{0}} {found}\n"
        labels = '{engine="0",model_name="m"}'
        text = scrape(held=0, running=0, waiting=0, tokens=0) + counters.format(labels)
        return [read_vllm_metrics(text.replace('block_size="16"', f'block_size="{block}"'))]

    told = look(idle())["KV032"]
    assert "a block holds 1,056 tokens" in told.sentence
    assert "0 of 1,131 prompt tokens were found" in told.sentence
    assert "KV032" not in look(idle(found=500))
    assert "KV032" not in look(idle(block=16))
    assert "KV032" not in look(idle(asked=0))


def test_a_gauge_near_nothing_beside_a_full_cache_is_explained():
    quiet = {"held": 0, "running": 0, "waiting": 0, "ended": 200, "tokens": 0}
    assert "KV033" in look(texts(quiet))
    beside_a_fuller_sheet = look(texts({"ended": 200}, quiet))["KV033"]
    assert "at the last sample the gauge says 0.0 %" in beside_a_fuller_sheet.sentence
    young = {"held": 0, "running": 0, "waiting": 0, "ended": 1, "tokens": 0}
    assert "KV033" not in look(texts(young))


def test_tokens_of_clients_that_went_away_are_told():
    """The counters hold 700 tokens while nothing runs."""
    found = look(texts({"held": 0, "running": 0, "waiting": 0, "tokens": 700}))["KV062"]
    assert (found.size.low, found.size.high) == (700, 700)
    assert "KV062" not in look(texts({"held": 0, "running": 0, "waiting": 0, "tokens": 0}))


def test_an_offset_that_is_an_interval_is_told_as_one():
    """40,000 tokens entered and did not end, and 30 requests of at most 1,000 run: at least 10,000 are of nobody."""
    one = read_vllm_metrics(scrape(tokens=40_000, waiting=0) + "\nprocess_start_time_seconds 1.0\n")
    found = look([one], complete=lambda shape, _: replace(shape, max_model_len=1000))["KV062"]
    assert found.size.low >= 10_000
    assert found.size.low < found.size.high
    assert f"{found.size.low:,} to {found.size.high:,} tokens of clients" in found.sentence


def test_a_real_server_whose_clients_went_away_is_told():
    found = look(recorded("sync", ""))
    assert "KV062" in found


def test_a_hit_rate_of_nothing_is_explained():
    queries = '\nvllm:prefix_cache_queries_total{engine="0"} %d\nvllm:prefix_cache_hits_total{engine="0"} %d\n'

    def window(hits):
        return [
            read_vllm_metrics(scrape(ended=100) + queries % (20_000, 0)),
            read_vllm_metrics(scrape(ended=150) + queries % (30_000, hits)),
        ]

    assert "KV031" in look(window(0))
    assert "KV031" not in look(window(5000))


def test_blocks_held_ahead_are_told():
    """A block of 16 leaves 7.5 slots on average; 26 are a block more than that."""
    meter = Meter()
    for number, one in enumerate(texts({"ended": 100}, {"ended": 110})):
        meter.take(one, seconds=number)
    summary = summarise(meter.settle()[0], meter.spans(0))

    def find(tail):
        case = MeasureCase(subject="m", summary=replace(summary, internal_per_request_tokens=(tail, tail)))
        return {finding.code: finding for finding in find_in_measure([case]).findings}

    assert find(26.0)["KV005"].size.low == round((26 - 7.5) * 30)
    assert "KV005" not in find(10.0)


def test_sglang_requests_that_wait_beside_free_memory_are_told():
    crowd = pool_of(280, num_running_reqs=2, num_queue_reqs=30)
    assert "KV014" in look_at_pools([read_sglang(sglang(**crowd))])
    assert "KV014" not in look_at_pools([read_sglang(sglang(**(crowd | {"num_queue_reqs": 1})))])
    assert "KV014" not in look_at_pools([read_sglang(sglang(**pool_of(900, num_running_reqs=2, num_queue_reqs=30)))])


def test_sglang_retractions_are_told():
    def retracting(count):
        return read_sglang(sglang(**pool_of(900, num_retracted_requests_total=count)))

    assert "KV010" in look_at_pools([retracting(0), retracting(40)])
    assert "KV010" not in look_at_pools([retracting(40), retracting(40)])


def test_sglang_keeps_reusable_tokens():
    kept = pool_of(20) | {"kv_evictable_tokens": 800, "kv_available_tokens": 180}
    assert "KV033" in look_at_pools([read_sglang(sglang(**kept))])
    assert "KV033" not in look_at_pools([read_sglang(sglang(**pool_of(20)))])


def test_sglang_with_room_over_a_window_gives_memory_back():
    found = look_at_pools([read_sglang(sglang(**pool_of(100 + n % 3))) for n in range(12)])["KV020"]
    assert found.best.setting.startswith("--max-total-tokens")
    assert found.returned == pytest.approx(1000 - 1.25 * 102, abs=1)


def test_tgi_promises_that_are_not_kept_are_told():
    """20 ended requests declared 2,000 tokens each and wrote 100; 3 run, so 5,700 of 7,800 never come."""
    text = TGI.replace("generated_tokens_count 10", "generated_tokens_count 20").replace("sum 1000", "sum 2000")
    found = look_at_pools([read_tgi(text)])["KV002"]
    assert found.best.setting == "max_new_tokens of the clients"
    assert found.returned == 3 * (2000 - 100)
    assert "KV002" not in look_at_pools([read_tgi(text.replace("tokens_sum 2000", "tokens_sum 39000"))])


def test_strips_of_busy_slots_are_told_where_the_layout_is_proved():
    busy = snapshot_of(slot(0, tokens=900, busy=True, context=1000), slot(1, tokens=800, busy=True, context=1000))
    found = look_at_pools([(busy,)])
    assert found["KV048"].size.low == 300
    alone = snapshot_of(slot(0, tokens=100, busy=True, context=1000), slot(1, tokens=80, context=1000))
    assert "KV048" not in look_at_pools([(alone,)])


def test_a_full_pool_of_windows_beside_an_empty_one_is_told():
    def usage(full, swa):
        values = {"num_running_reqs": 2, "num_queue_reqs": 0, "max_total_num_tokens": 1000}
        per_pool = {"full_token_usage": full, "swa_token_usage": swa, "max_total_num_tokens_swa": 800}
        return read_sglang(sglang(**(values | per_pool)))

    assert "KV050" in look_at_pools([usage(0.3, 0.95)])
    assert "KV050" not in look_at_pools([usage(0.7, 0.95)])


def test_amounts_are_bytes_where_a_price_is_known():
    low = {"held": 300, "running": 8, "waiting": 20}

    def priced(shape, _):
        return price_by_token(shape, 1000)

    found = look(texts(low, low | {"ended": 110}), complete=priced)["KV014"]
    assert (found.size.unit, found.size.low) == ("bytes", (1000 - 300) * 16 * 1000)


def test_strips_are_told_in_the_unit_of_the_sheet():
    busy = snapshot_of(slot(0, tokens=900, busy=True, context=1000), slot(1, tokens=800, busy=True, context=1000))
    assert "own 300 tokens that" in look_at_pools([(busy,)])["KV048"].sentence
