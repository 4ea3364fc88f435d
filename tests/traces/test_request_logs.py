"""Request logs of engines, proxies and load generators; all values are invented."""

import json
from pathlib import Path

import pytest

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.replay.workload import TokenIds
from tests.traces.reading import read

# id of the shared case -> format, arrivals, prompts, outputs
EXPECTED = {
    "K4-004": ("litellm", [0, 0.6], [500, 8800], [30, 200]),
    "K4-006": ("vllm-log", [0, 2], [1, 2], [200, 16]),
    "K4-007": ("sglang-log", [0], [700], [64]),
    "K4-008": ("vllm-bench", [0, 0], [500, 400], [30, 30]),
    "K4-009": ("aiperf", [0], [800], [70]),
    "K4-012": ("helicone", [0], [300], [80]),
    "K4-014": ("nginx", [0], [1280], [461]),
    "K4-015": ("otlp", [0], [640], [32]),
    "K4-016": ("llama-server", [0], [1023], [70]),
    "K4-017": ("ollama", [0], [420], [90]),
    "K4-018": ("columns", [0, 0.0405, 0.041], [512, 2048, 64], [128, 16, 700]),
}


def test_every_handed_input_shape_is_recognised_and_read(shared: Path) -> None:
    cases = [json.loads(line) for line in (shared / "cases" / "handed.jsonl").read_text().splitlines()]
    shapes = {case["id"]: "\n".join(case["derived"]["synthetic_example"]) for case in cases if case["kind"] == "K4"}
    assert set(shapes) == set(EXPECTED)
    for case, text in shapes.items():
        workload, found = read(text).workload, read(text).format.name
        name, arrivals, prompts, outputs = EXPECTED[case]
        assert found == name, case
        assert workload.arrival_seconds == pytest.approx(arrivals, abs=1e-6), case
        assert workload.prompt_tokens.tolist() == prompts, case
        assert workload.output_tokens.tolist() == outputs, case


def test_a_response_of_the_proxys_own_cache_costs_the_engine_nothing() -> None:
    row = {"request_id": "r", "startTime": "2026-01-05T10:00:00Z", "prompt_tokens": 5, "completion_tokens": 3}
    trace = read("\n".join(json.dumps({**row, "cache_hit": hit}) for hit in ("False", "True", "None")))
    assert trace.dropped == {"answered by the proxy's response cache: no engine memory": 1}


VLLM = (
    "INFO 12-31 23:59:58 [logger.py:39] Received request a: prompt: 'it\\'s, params: max_tokens=7 (no)', "
    "params: SamplingParams(n=1, max_tokens=200, min_tokens=0), prompt_token_ids: None, lora_request: None.\n"
    'INFO:     192.0.2.10:40000 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    "INFO 01-01 00:00:03 [logger.py:39] Received request b: prompt: 'x', "
    "params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: [1, 2, 3], lora_request: None.\n"
    "INFO 01-01 00:00:04 [logger.py:39] Received request c: prompt: 'x', params: SamplingParams(max_tokens=None).\n"
)


def test_a_vllm_log_gives_declared_limits_and_survives_the_turn_of_the_year() -> None:
    trace = read(VLLM)
    assert trace.workload.arrival_seconds.tolist() == [0, 5]
    assert trace.workload.max_tokens is not None
    assert trace.workload.max_tokens.tolist() == [200, 16]
    assert trace.workload.output_tokens.tolist() == [200, 16]
    assert dict(trace.dropped) == {
        "line describes no request": 1,
        "request without max_tokens: nothing bounds its output": 1,
    }


def test_a_vllm_log_says_that_its_lengths_are_estimates_and_how_far_off_they_may_be() -> None:
    accuracy = read(VLLM).accuracy
    assert (accuracy.prompts, accuracy.outputs) == (Accuracy.MODELLED, Accuracy.MODELLED)
    assert accuracy.prompt_band is not None
    assert accuracy.prompt_band.high_ratio == 2
    assert accuracy.output_band is not None
    assert accuracy.output_band.high_ratio == 1


def test_logged_token_ids_are_counted_and_kept() -> None:
    content = read(VLLM).workload.content
    assert isinstance(content, TokenIds)
    assert (content.offsets.tolist(), content.ids.tolist()) == ([0, 0, 3], [1, 2, 3])


def test_the_29th_of_february_is_a_day() -> None:
    lines = "".join(
        f"INFO {day} 00:00:00 [l.py:1] Received request r: prompt: 'x', params: SamplingParams(max_tokens=4).\n"
        for day in ("02-28", "02-29", "03-01")
    )
    assert read(lines).workload.arrival_seconds.tolist() == [0, 86_400, 172_800]


def test_sglang_requests_are_matched_by_id_and_their_text_is_not_believed() -> None:
    text = "'}, out={'meta_info': {'prompt_tokens': 9, 'completion_tokens': 9}"
    asked = f"GenerateReqInput(rid='a', text=\"{text}\", sampling_params={{'max_new_tokens': 64}})"
    meta = "'meta_info': {'id': 'a', 'prompt_tokens': 700, 'completion_tokens': 60, 'e2e_latency': 4.9}"
    log = (
        f"[2026-01-05 10:00:00] Receive: obj={asked}\n"
        "[2026-01-05 10:00:02 TP0] Receive: obj=GenerateReqInput(rid='b', text='t')\n"
        f"[2026-01-05 10:00:05] Finish: obj={asked}, out={{'text': 'x', {meta}}}\n"
        "[2026-01-05 10:00:09] Finish: obj=GenerateReqInput(rid='z', text='t'), "
        "out={'text': 'x', 'meta_info': {'prompt_tokens': 5, 'completion_tokens': 6, 'e2e_latency': 2.5}}\n"
    )
    trace = read(log)
    assert trace.workload.arrival_seconds.tolist() == [0, 6.5]
    assert trace.workload.prompt_tokens.tolist() == [700, 5]
    assert trace.workload.max_tokens is not None
    assert trace.workload.max_tokens.tolist() == [64, 0]
    assert dict(trace.dropped) == {"request received but never finished in this log": 1}


def test_a_benchmark_without_details_gives_the_mean_and_says_that_it_is_one() -> None:
    run = {"num_prompts": 4, "completed": 4, "request_rate": 2.0, "total_input_tokens": 400, "total_output_tokens": 80}
    trace = read(json.dumps(run))
    assert trace.workload.prompt_tokens.tolist() == [100] * 4
    assert trace.accuracy.prompts is Accuracy.MODELLED
    assert any("--save-detailed" in note for note in trace.notes)
    assert trace.workload.span_seconds > 0


def test_a_benchmark_without_lengths_or_totals_says_which_option_was_missing() -> None:
    with pytest.raises(TraceError) as caught:
        read(json.dumps({"num_prompts": 4, "total_input_tokens": 0}))
    assert "--save-detailed" in str(caught.value.hint)


def test_failed_requests_of_a_benchmark_are_dropped() -> None:
    run = {
        "num_prompts": 2,
        "total_input_tokens": 9,
        "input_lens": [5, 4],
        "output_lens": [3, 0],
        "start_times": [7.5, 8],
    }
    trace = read(json.dumps(run, indent=2))
    assert dict(trace.dropped) == {"request failed (0 output tokens)": 1}
    assert trace.accuracy.arrivals is Accuracy.MEASURED


@pytest.mark.parametrize(
    "start",
    [
        {"request_start_time": 1767607200.25},
        {"start_time": 1767607200.25},
        {"info": {"timings": {"request_start": 1767607200.25}}},
        {"scheduler_info": {"request_timings": {"request_start": 1767607200.25}}},
    ],
)
def test_guidellm_reports_of_all_versions_are_read(start: dict[str, object]) -> None:
    done = [{**start, "prompt_tokens": 50, "output_tokens": 9}, {**start, "prompt_tokens": 51, "output_tokens": None}]
    report = {"benchmarks": [{"requests": {"successful": done, "incomplete": [{}], "errored": [{}, {}]}}]}
    trace = read(json.dumps(report, indent=1))
    assert trace.workload.prompt_tokens.tolist() == [50]
    assert trace.dropped["request errored"] == 2
    assert trace.dropped["request incomplete"] == 1


def test_older_span_names_and_spans_without_usage_are_told_apart() -> None:
    def span(**attributes: int) -> dict[str, object]:
        listed = [{"key": f"gen_ai.{key}", "value": {"intValue": str(value)}} for key, value in attributes.items()]
        return {"startTimeUnixNano": "1767607200000000000", "attributes": listed}

    used = span(**{"usage.prompt_tokens": 64, "usage.completion_tokens": 8, "request.max_tokens": 100})
    trace = read(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [used, span()]}]}]}))
    assert trace.workload.prompt_tokens.tolist() == [64]
    assert trace.workload.max_tokens is not None
    assert trace.workload.max_tokens.tolist() == [100]
    assert dict(trace.dropped) == {"span without token usage": 1}


def test_llama_server_lines_of_interleaved_tasks_are_put_together() -> None:
    log = (
        "slot print_timing: id  0 | task 1 | prompt eval time =     410.20 ms /   512 tokens ( 0.80 ms per token)\n"
        "slot print_timing: id  1 | task 2 | prompt eval time =      10.20 ms /    33 tokens\n"
        "slot print_timing: id  0 | task 1 |        eval time =    2100.00 ms /    70 tokens\n"
        "slot      release: id  1 | task 2 | stop processing: n_tokens = 743, truncated = 0\n"
        "slot print_timing: id  1 | task 2 |        eval time =    2100.00 ms /   710 tokens\n"
        "slot      release: id  0 | task 1 | stop processing: n_past = 1093, truncated = 0\n"
        "srv  update_slots: all slots are idle\n"
    )
    workload = read(log).workload
    assert sorted(zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist())) == [(33, 710), (1023, 70)]


def test_llama_server_timing_lines_without_a_slot_belong_to_the_slot_named_before() -> None:
    log = (
        "slot print_timing: id  0 | task 7 |\n"
        "prompt eval time =     990.30 ms /    33 tokens\n"
        "       eval time =   19521.92 ms /   710 tokens\n"
        "      total time =   20512.22 ms /   743 tokens\n"
    )
    trace = read(log)
    assert trace.workload.prompt_tokens.tolist() == [33]
    assert list(trace.adjusted) == ["no release line: tokens from the slot's cache are not in the prompt"]


def test_ollama_access_lines_alone_say_what_to_record() -> None:
    with pytest.raises(TraceError, match="no token counts"):
        read('[GIN] 2026/01/05 - 10:00:03 | 200 |  2.5s |  127.0.0.1 | POST     "/api/chat"\n')


def test_ollama_requests_without_a_prompt_count_are_dropped() -> None:
    done = {"created_at": "2026-01-05T10:00:03.1Z", "done": True, "total_duration": 10**9, "eval_count": 90}
    trace = read(
        "\n".join(json.dumps(o) for o in ({**done, "prompt_eval_count": 5}, done, {"done": False, "eval_count": 1}))
    )
    assert len(trace) == 1
    assert dict(trace.dropped) == {"part of a streamed response": 1, "prompt length missing or not a number": 1}


def test_access_logs_say_how_wide_their_error_is() -> None:
    line = '192.0.2.1 - - [05/Jan/2026:10:00:0{} +0000] "POST /v1/completions HTTP/1.1" {} 400 "-" "c" rt=1.5 rl=800\n'
    trace = read(line.format(2, 200) + line.format(4, 200) + line.format(5, 502) + "garbage\n")
    assert trace.workload.prompt_tokens.tolist() == [200, 200]
    assert trace.workload.span_seconds == pytest.approx(2)
    assert trace.accuracy.output_band is not None
    assert trace.accuracy.output_band.low_ratio < 0.1
    assert dict(trace.dropped) == {"request failed": 1, "line is not in the combined format": 1}
