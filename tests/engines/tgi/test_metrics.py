"""Metrics of Text Generation Inference: what is reserved, and what ended requests used of it."""

from kvledger.engines.tgi.metrics import read_metrics

TEXT = """\
tgi_batch_current_size 4
tgi_batch_current_max_tokens 9000
tgi_batch_max_total_tokens 120000
tgi_queue_size 2
tgi_request_count 80
tgi_request_input_length_bucket{le="100"} 3
tgi_request_input_length_bucket{le="+Inf"} 5
tgi_request_input_length_sum 900
tgi_request_input_length_count 5
tgi_request_generated_tokens_sum 250
tgi_request_generated_tokens_count 5
tgi_request_max_new_tokens_sum 2500
tgi_request_max_new_tokens_count 5
"""


def test_the_budget_of_the_batch_is_what_is_held():
    (snapshot,) = read_metrics(TEXT)
    (pool,) = snapshot.pools
    assert (pool.capacity.value, pool.used.value, snapshot.reserved_tokens.value) == (120_000, 9000, 9000)
    assert (snapshot.running.value, snapshot.waiting.value) == (4, 2)
    assert (snapshot.prompt_tokens_total.value, snapshot.generation_tokens_total.value) == (900, 250)
    assert snapshot.missing == ()


def test_histograms_tell_how_much_of_a_promise_was_used():
    (snapshot,) = read_metrics(TEXT)
    totals = {histogram.name: histogram.total for histogram in snapshot.histograms}
    assert totals["tgi_request_generated_tokens"] / totals["tgi_request_max_new_tokens"] == 0.1


def test_a_capacity_that_was_never_set_is_missing():
    (snapshot,) = read_metrics("tgi_batch_current_size 0\ntgi_batch_max_total_tokens 1\ntgi_queue_size NaN\n")
    assert snapshot.pools == ()
    assert snapshot.waiting is None
    assert "tgi_queue_size" in snapshot.missing


def test_no_sample_no_snapshot():
    assert read_metrics("# TYPE tgi_queue_size gauge\n") == ()
