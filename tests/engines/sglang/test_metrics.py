"""Metrics of SGLang: releases with and without absolute pools, several ranks, states, windows and front ends."""

import pytest

from kvledger.engines.sglang.metrics import read_metrics

MODEL = 'model_name="org/m"'
RANK = MODEL + ',engine_type="unified",tp_rank="0",pp_rank="0",moe_ep_rank="0"'


def scrape(labels, **values):
    return "".join(f"sglang:{name}{{{labels}}} {value}\n" for name, value in values.items())


FULL = scrape(
    RANK,
    num_running_reqs=5, num_queue_reqs=2, num_used_tokens=3000, token_usage=0.3, kv_used_tokens=3000,
    kv_evictable_tokens=2000, kv_available_tokens=5000, max_total_num_tokens=10_000, page_size=16, num_pages=625,
    decode_sum_seq_lens=2950, context_len=4096, kv_cache_memory_usage_gb=1.25, weight_memory_usage_gb=7.5,
    num_retracted_reqs=1, num_retracted_requests_total=4, evicted_tokens_total=700,
)  # fmt: skip
FRONT = scrape(MODEL, prompt_tokens_total=100, generation_tokens_total=50) + "".join(
    f'sglang:cached_tokens_total{{{MODEL},cache_source="{source}"}} {value}\n'
    for source, value in (("device", 30), ("host", 4))
)


def test_a_pool_in_absolute_tokens():
    (snapshot,) = read_metrics(FULL)
    (pool,) = snapshot.pools
    assert (pool.capacity.value, pool.used.value, pool.cached.value, pool.free.value) == (10_000, 3000, 2000, 5000)
    assert (pool.block_tokens.value, pool.size_bytes.value) == (16, 5 * 2**28)
    assert (snapshot.running.value, snapshot.waiting.value, snapshot.paused.value) == (5, 2, 1)
    assert (snapshot.live_tokens.value, snapshot.max_model_len.value) == (2950, 4096)
    assert (snapshot.preemptions_total.value, snapshot.evicted_tokens_total.value) == (4, 700)
    assert snapshot.weights_bytes.value == 7.5 * 2**30
    assert snapshot.missing == ()


def test_the_front_end_of_a_single_scheduler_is_joined_to_it():
    (snapshot,) = read_metrics(FRONT + FULL)
    assert (snapshot.prompt_tokens_total.value, snapshot.generation_tokens_total.value) == (100, 50)
    assert snapshot.cached_tokens_total.value == 34


def test_data_parallel_schedulers_stay_apart_and_the_front_end_too():
    text = FRONT + "".join(FULL.replace("tp_rank", f'dp_rank="{rank}",tp_rank') for rank in range(2))
    found = read_metrics(text)
    assert sorted(snapshot.engine_index for snapshot in found if snapshot.pools) == [0, 1]
    (front,) = (snapshot for snapshot in found if not snapshot.pools)
    assert front.prompt_tokens_total.value == 100


def test_totals_stand_under_the_empty_priority():
    text = scrape(RANK + ',priority=""', num_running_reqs=5, num_used_tokens=1) + scrape(
        RANK + ',priority="1"', num_running_reqs=3
    )
    (snapshot,) = read_metrics(text)
    assert snapshot.running.value == 5


def test_windows_and_states_are_pools_of_their_own():
    text = FULL + scrape(
        RANK, max_total_num_tokens_swa=8000, swa_used_tokens=4000, swa_evictable_tokens=1000, swa_available_tokens=3000,
        swa_token_usage=0.5, full_token_usage=0.3, mamba_used_tokens=6, mamba_evictable_tokens=2,
        mamba_available_tokens=92, mamba_usage=0.06, hicache_host_total_tokens=50_000, hicache_host_used_tokens=100,
    )  # fmt: skip
    (snapshot,) = read_metrics(text)
    found = {pool.name: (pool.unit, pool.used.value) for pool in snapshot.pools}
    assert found == {"full": ("tokens", 3000), "swa": ("tokens", 4000), "state": ("slots", 6), "host": ("tokens", 100)}
    assert snapshot.find_pool("swa").capacity.value == 8000
    assert snapshot.find_pool("full").usage_ratio.value == 0.3


def test_page_size_from_the_labels_of_one_release():
    text = (
        FULL.replace("sglang:page_size", "sglang:x")
        + f'sglang:cache_config_info{{{RANK},page_size="64",num_pages="9"}} 1\n'
    )
    (snapshot,) = read_metrics(text)
    assert snapshot.pools[0].block_tokens.value == 64


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300"])
def test_values_that_are_no_counts_leave_the_pool_open(value):
    (snapshot,) = read_metrics(scrape(RANK, num_used_tokens=value, token_usage=value, num_running_reqs=1))
    assert snapshot.running.value == 1
    assert snapshot.pools == ()


def test_nothing_is_zero_because_it_is_missing():
    (snapshot,) = read_metrics(scrape(RANK, num_running_reqs=1))
    assert snapshot.waiting is None
    assert snapshot.pools == ()
    assert "sglang:token_usage" in snapshot.missing
    assert read_metrics("other_metric 1\n") == ()


def test_histograms_keep_their_edges():
    text = (
        FRONT
        + "".join(
            f'sglang:prompt_tokens_histogram_bucket{{{MODEL},le="{edge}"}} {count}\n'
            for edge, count in ((100.0, 1), ("+Inf", 3))
        )
        + f"sglang:prompt_tokens_histogram_sum{{{MODEL}}} 900\n"
        + f"sglang:prompt_tokens_histogram_count{{{MODEL}}} 3\n"
    )
    (snapshot,) = read_metrics(text)
    (histogram,) = snapshot.histograms
    assert (histogram.edges, histogram.counts, histogram.total) == ((100.0, float("inf")), (1.0, 3.0), 900.0)
