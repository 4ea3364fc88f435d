"""Recordings of other engines than vLLM become requests: llama.cpp's one by one, the others from what they count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.lmdeploy.metrics import read_metrics as read_lmdeploy
from kvledger.engines.sglang.metrics import read_metrics as read_sglang
from kvledger.engines.tgi.metrics import read_metrics as read_tgi
from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.measure.recording import RecordedSample
from tests.measure.slot_server import slot, snapshot_of
from tests.traces.test_recording import read, write


def trace_of(samples, seed=0):
    """Read a recording of samples, each the snapshots of one second."""
    recorded = [RecordedSample(seconds=float(n), source=0, snapshots=tuple(one)) for n, one in enumerate(samples)]
    return read(write(recorded), seed=seed)


def lengths(trace):
    workload = trace.workload
    return list(zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True))


IDLE = slot(0, tokens=None)


def at_work(prompt, decoded, *, task=5, number=0, declared=-1):
    return slot(number, tokens=prompt + decoded, prompt=prompt, busy=True, task=task, declared=declared)


def at_rest(prompt, output, *, task=5, number=0):
    return slot(number, tokens=prompt + output - 1, task=task)


def test_a_request_seen_at_work_and_at_rest_is_exact():
    trace = trace_of([[snapshot_of(s)] for s in (IDLE, at_work(90, 4, declared=50), at_rest(90, 33))])
    assert lengths(trace) == [(90, 33)]
    assert trace.workload.max_tokens.tolist() == [50]
    assert trace.accuracy.outputs is Accuracy.DERIVED
    assert "the lengths of 1 are exact" in " ".join(trace.notes)


def test_a_slot_that_was_given_away_leaves_the_output_that_was_seen():
    trace = trace_of([[snapshot_of(s)] for s in (at_work(90, 4), at_work(30, 2, task=9), at_rest(30, 7, task=9))])
    assert lengths(trace) == [(90, 4), (30, 7)]
    assert trace.accuracy.outputs is Accuracy.MODELLED


def test_a_context_that_was_shifted_leaves_the_output_that_was_seen():
    shifted = slot(0, tokens=70, task=5)
    trace = trace_of([[snapshot_of(s)] for s in (at_work(60, 40), shifted)])
    assert lengths(trace) == [(60, 40)]


def test_what_began_and_ended_between_two_samples_is_counted_and_left_out():
    samples = (at_work(90, 4), at_rest(90, 9), at_rest(20, 3, task=8), at_rest(20, 3, task=8))
    trace = trace_of([[snapshot_of(s)] for s in samples])
    assert lengths(trace) == [(90, 9)]
    assert trace.dropped == {"began and ended between two samples: lengths not told apart": 1}


def test_requests_of_a_server_that_restarted_are_lost_and_counted():
    samples = (at_work(90, 4, task=50), at_work(20, 3, task=2), at_rest(20, 8, task=2))
    trace = trace_of([[snapshot_of(s)] for s in samples])
    assert lengths(trace) == [(20, 8)]
    assert trace.dropped["under way when the server restarted: never counted"] == 1


def test_a_recording_in_which_no_slot_ended_a_request_says_how_to_record_one():
    with pytest.raises(TraceError, match="no slot was seen to end") as caught:
        trace_of([[snapshot_of(at_work(9, 1))], [snapshot_of(at_work(9, 2))]])
    assert "--every" in caught.value.hint


REQUESTS = st.lists(st.tuples(st.integers(1, 400), st.integers(3, 60), st.integers(0, 9)), min_size=1, max_size=12)


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 3))
def test_slots_that_rest_between_requests_give_all_lengths(requests, slots):
    """A naive server that makes a token a second, sampled each second."""
    lanes = [[one for n, one in enumerate(requests) if n % slots == lane] for lane in range(slots)]
    timelines = []
    for lane, mine in enumerate(lanes):
        timeline = [slot(lane, tokens=None)]
        for order, (prompt, output, rest) in enumerate(mine):
            task = 10 * order + lane + 1
            timeline += [at_work(prompt, decoded, task=task, number=lane) for decoded in range(1, output)]
            timeline += [at_rest(prompt, output, task=task, number=lane)] * (1 + rest)
        timelines.append(timeline)
    longest = max(map(len, timelines))
    samples = [[snapshot_of(*(one[min(n, len(one) - 1)] for one in timelines))] for n in range(longest)]
    trace = trace_of(samples)
    assert sorted(lengths(trace)) == sorted((prompt, output) for prompt, output, _ in requests)
    assert not trace.dropped


SGLANG = """
sglang:num_requests_total{{model_name="m"}} {count}
sglang:prompt_tokens_total{{model_name="m"}} {prompt}
sglang:generation_tokens_total{{model_name="m"}} {output}
sglang:e2e_request_latency_seconds_sum{{model_name="m"}} {latency}
sglang:e2e_request_latency_seconds_count{{model_name="m"}} {count}
sglang:num_running_reqs{{model_name="m"}} 0
sglang:num_queue_reqs{{model_name="m"}} 0
"""


def test_sglang_counts_requests_and_tokens_also_without_histograms():
    """Two intervals: one request of 100 + 20 tokens, then two of 60 + 30 tokens together, 2 s each."""
    points = ((0, 0, 0, 0), (1, 100, 20, 2), (3, 160, 50, 6))
    texts = [SGLANG.format(count=c, prompt=p, output=o, latency=s) for c, p, o, s in points]
    trace = trace_of([read_sglang(text) for text in texts])
    prompts, outputs = map(np.array, zip(*lengths(trace), strict=True))
    assert (len(prompts), prompts.sum(), outputs.sum()) == (3, 160, 50)
    assert (100, 20) in lengths(trace)
    assert trace.accuracy.prompts is Accuracy.MODELLED


def histogram(name, value, labels=""):
    return f"{name}_sum{labels} {value}\n{name}_count{labels} 1\n"


def test_lmdeploy_and_tgi_are_read_by_their_own_names():
    labels = '{model_name="m",engine="0"}'
    names = ("lmdeploy:request_prompt_tokens", "lmdeploy:request_generation_tokens")
    zero = "".join(histogram(n, 0, labels).replace("_count" + labels + " 1", "_count" + labels + " 0") for n in names)
    one = "".join(histogram(n, v, labels) for n, v in zip(names, (70, 9), strict=True))
    assert lengths(trace_of([read_lmdeploy(text) for text in (zero, one)])) == [(70, 9)]
    names = ("tgi_request_input_length", "tgi_request_generated_tokens", "tgi_request_max_new_tokens")
    zero = "".join(histogram(n, 0).replace("_count 1", "_count 0") for n in names)
    one = "".join(histogram(n, v) for n, v in zip(names, (70, 9, 500), strict=True))
    trace = trace_of([read_tgi(text) for text in (zero, one)])
    assert lengths(trace) == [(70, 9)]
    assert trace.workload.max_tokens.tolist() == [500]


def test_an_engine_that_counts_no_requests_is_no_trace():
    text = 'trtllm_kv_cache_max_blocks{model_name="m"} 10\ntrtllm_kv_cache_used_blocks{model_name="m"} 1\n'
    from kvledger.engines.tensorrt_llm.metrics import read_metrics

    with pytest.raises(TraceError, match="tells of ended requests"):
        trace_of([read_metrics(text)] * 2)
