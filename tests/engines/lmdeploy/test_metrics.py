"""Metrics of LMDeploy: engines side by side, and what the configuration's labels add."""

from kvledger.engines.lmdeploy.metrics import read_metrics

LABELS = 'engine="{}",model_name="m"'


def engine(index, usage):
    labels = LABELS.format(index)
    return (
        f"lmdeploy:num_requests_running{{{labels}}} 4\nlmdeploy:num_requests_waiting{{{labels}}} 1\n"
        f"lmdeploy:gpu_cache_usage_perc{{{labels}}} {usage}\nlmdeploy:prompt_tokens_total{{{labels}}} 900\n"
        f"lmdeploy:generation_tokens_total{{{labels}}} 100\nlmdeploy:request_prompt_tokens_sum{{{labels}}} 800\n"
        f"lmdeploy:request_prompt_tokens_count{{{labels}}} 8\n"
    )


def test_every_engine_is_a_snapshot():
    found = read_metrics(engine(0, 0.25) + engine(1, 0.5))
    assert [(s.engine_index, s.pools[0].usage_ratio.value) for s in found] == [(0, 0.25), (1, 0.5)]
    assert (found[0].running.value, found[0].waiting.value, found[0].model) == (4, 1, "m")
    assert (found[0].prompt_tokens_total.value, found[0].generation_tokens_total.value) == (900, 100)
    assert found[0].histograms[0].total == 800


def test_the_configuration_gives_blocks_when_it_names_them():
    labels = 'block_size="64",max_batch_size="256",num_gpu_blocks="9731",session_len="None"'
    info = f"lmdeploy:backend_config_info{{{labels}}} 1.0\n"
    (snapshot,) = read_metrics(info + engine(0, 0.25))
    assert (snapshot.pools[0].capacity.value, snapshot.pools[0].block_tokens.value) == (9731, 64)
    assert (snapshot.max_running.value, snapshot.max_model_len) == (256, None)


def test_zero_blocks_in_the_configuration_mean_that_it_was_left_open():
    (snapshot,) = read_metrics('lmdeploy:backend_config_info{num_gpu_blocks="0"} 1.0\n' + engine(0, 0.25))
    assert snapshot.pools[0].capacity is None


def test_a_gauge_without_a_number_is_missing():
    (snapshot,) = read_metrics(engine(0, "NaN"))
    assert snapshot.pools == ()
    assert snapshot.missing == ("lmdeploy:gpu_cache_usage_perc",)
