"""What traces say of the moments when requests got their tokens, and content taken from another trace."""

import io
import json

import numpy as np
import pytest

from kvledger.errors import TraceError, UsageError
from kvledger.sources.files import load_trace
from kvledger.traces import Trace, with_content, with_rate
from kvledger.traces.formats import own

from .reading import CSV, read

NOON = 1767607200


def moments(trace: Trace) -> tuple[list[float | None], list[float | None]]:
    assert trace.observed is not None
    columns = (trace.observed.first_token_seconds, trace.observed.end_seconds)
    first, end = ([None if np.isnan(v) else round(float(v), 6) for v in column] for column in columns)
    return first, end


def lines(*rows: object) -> str:
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def run_row(arrival: float, queued: float, first: float | None, end: float | None) -> dict[str, object]:
    row = {"input_toks": 9, "output_toks": 5, "arrival_time": arrival, "queued_ts": queued}
    return row | {"first_token_ts": first, "last_token_ts": end}


def test_the_clock_of_a_recorded_run_is_set_by_the_request_that_was_queued_soonest() -> None:
    trace = read(lines(run_row(NOON, 500.2, 501, 502), run_row(NOON + 1, 501.1, 503, None)))
    assert trace.workload.arrival_seconds.tolist() == [0, 1]
    assert moments(trace) == ([0.9, 2.9], [1.9, None])


def test_rows_of_a_recorded_run_are_sorted_with_their_moments() -> None:
    trace = read(lines(run_row(NOON + 1, 501, 503, 504), run_row(NOON, 500, 501, 502)))
    assert moments(trace) == ([1, 3], [2, 4])


def aiperf_row(start: int, end: int, ttft: float | None) -> dict[str, object]:
    metrics: dict[str, object] = {"input_sequence_length": {"value": 8}, "output_sequence_length": {"value": 3}}
    if ttft is not None:
        metrics["time_to_first_token"] = {"value": ttft, "unit": "ms"}
    metadata = {"request_start_ns": NOON * 10**9 + start, "request_end_ns": NOON * 10**9 + end}
    return {"metadata": metadata, "metrics": metrics}


def test_aiperf_tells_the_first_token_and_the_end() -> None:
    trace = read(lines(aiperf_row(0, 2 * 10**9, 250), aiperf_row(10**9, 4 * 10**9, None)))
    assert moments(trace) == ([0.25, None], [2, 4])


def test_a_detailed_benchmark_tells_them_by_start_delay_and_gaps() -> None:
    run = {
        "num_prompts": 3, "total_input_tokens": 9, "input_lens": [5, 4, 4], "output_lens": [3, 0, 2],
        "start_times": [7.5, 8, 9], "ttfts": [0.5, 0, 0.25], "itls": [[0.1, 0.2], [], [0.5]],
    }  # fmt: skip
    trace = read(json.dumps(run, indent=2))
    assert moments(trace) == ([0.5, 1.75], [0.8, 2.25])


def test_a_benchmark_without_start_times_tells_nothing() -> None:
    run = {"num_prompts": 1, "total_input_tokens": 5, "input_lens": [5], "output_lens": [3], "ttfts": [0.5]}
    assert read(json.dumps(run)).observed is None


def litellm_row(start: str, first: str | None, end: str) -> dict[str, object]:
    row = {"prompt_tokens": 8, "completion_tokens": 3, "startTime": f"2026-01-05T10:00:{start}Z"}
    row["completionStartTime"] = None if first is None else f"2026-01-05T10:00:{first}Z"
    return row | {"endTime": f"2026-01-05T10:00:{end}Z"}


def test_litellm_tells_both_and_an_answer_in_one_piece_has_no_first_token() -> None:
    trace = read(lines(litellm_row("00", "01.5", "04"), litellm_row("02", "05", "05"), litellm_row("03", None, "09")))
    assert moments(trace) == ([1.5, None, None], [4, 5, 9])


def test_litellm_without_any_first_token_is_read_all_the_same() -> None:
    assert moments(read(lines(litellm_row("00", None, "04")))) == ([None], [4])


def test_guidellm_tells_both() -> None:
    done = {"start_time": NOON, "first_token_time": NOON + 0.5, "end_time": NOON + 2}
    report = {"benchmarks": [{"requests": {"successful": [{**done, "prompt_tokens": 50, "output_tokens": 9}]}}]}
    assert moments(read(json.dumps(report))) == ([0.5], [2])


def test_sglang_and_ollama_tell_the_end() -> None:
    log = (
        "[2026-01-05 10:00:00] Receive: obj=GenerateReqInput(rid='a', text='x')\n"
        "[2026-01-05 10:00:05] Finish: obj=GenerateReqInput(rid='a', text='x'), "
        "out={'text': 'x', 'meta_info': {'prompt_tokens': 7, 'completion_tokens': 6, 'e2e_latency': 4.5}}\n"
    )
    assert moments(read(log)) == ([None], [4.5])
    answer = {"created_at": "2026-01-05T10:00:07Z", "done": True, "total_duration": 3 * 10**9}
    assert moments(read(lines(answer | {"prompt_eval_count": 9, "eval_count": 4}))) == ([None], [3])


def test_a_table_tells_them_by_name_or_by_mapping() -> None:
    named = "arrival_seconds,prompt_tokens,output_tokens,first_token_seconds,end_seconds\n0,9,5,0.5,2\n1,9,5,,3\n"
    assert moments(read(named)) == ([0.5, None], [2, 3])
    mapped = "t,in,out,f,e\n1000,9,5,1500,3000\n"
    columns = "arrival=t:ms,prompt=in,output=out,first_token=f,end=e"
    assert moments(read(mapped, columns=columns)) == ([1.5], [3])


def test_a_moment_before_the_arrival_is_left_out_and_counted() -> None:
    trace = read("arrival_seconds,prompt_tokens,output_tokens,first_token_seconds,end_seconds\n5,9,5,4,6\n")
    assert moments(trace) == ([None], [6])
    assert trace.adjusted["observed moment before the arrival: left out"] == 1


def test_a_trace_that_observed_nothing_says_so() -> None:
    assert read(CSV).observed is None


def test_moments_survive_a_file_of_our_own() -> None:
    trace = read(lines(run_row(NOON, 500, 501, 502), run_row(NOON + 1, 501, 503, None)))
    out = io.BytesIO()
    own.write_trace(trace, out)
    assert moments(read(out.getvalue())) == moments(trace)


def test_arrivals_drawn_anew_observed_nothing() -> None:
    trace = read(lines(run_row(NOON, 500, 501, 502)))
    assert with_rate(trace, 2.0).observed is None


def test_a_trace_whose_moments_do_not_fit_is_refused() -> None:
    trace = read(lines(run_row(NOON, 500, 501, 502)))
    assert trace.observed is not None
    trace.observed.end_seconds[0] = -1
    with pytest.raises(TraceError, match="observed `end_seconds` lies before the arrival"):
        trace.check()


WORKLOAD = {"input_toks": 2, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [5, 6], "output_tok_ids": [7]}


def run_folder(folder, *, named="w.jsonl", prompts=(2, 2)):
    """Write a recorded run whose meta.json names its workload, and that workload two folders above."""
    inner = folder / "runs" / "gpu"
    inner.mkdir(parents=True)
    rows = [run_row(NOON + i, 500 + i, 501 + i, 502 + i) | {"input_toks": n} for i, n in enumerate(prompts)]
    (inner / "requests.jsonl").write_text(lines(*rows))
    (inner / "meta.json").write_text(json.dumps({"dataset_path": f"elsewhere/{named}"}))
    (folder / "w.jsonl").write_text(lines(WORKLOAD, WORKLOAD))
    return inner


def test_a_recorded_run_finds_the_workload_that_it_names(tmp_path) -> None:
    inner = run_folder(tmp_path)
    for spec in (inner, inner / "requests.jsonl"):
        trace = load_trace(str(spec))
        assert trace.workload.content is not None
        assert trace.workload.content.ids.tolist() == [5, 6, 7, 5, 6, 7]
        said = f"content of the requests read from `w.jsonl` in `{tmp_path.name}` above it, which its `meta.json` names"
        assert any(note.startswith(said) for note in trace.notes)
    assert load_trace(str(inner), identity=False).workload.content is None


def test_a_file_that_is_read_beside_a_run_is_named(tmp_path) -> None:
    inner = run_folder(tmp_path)
    (tmp_path / "w.jsonl").rename(inner / "w.jsonl")
    trace = load_trace(str(inner / "requests.jsonl"))
    assert any("read from `w.jsonl` beside it, which its `meta.json` names" in note for note in trace.notes)


@pytest.mark.parametrize("named", ["other.jsonl", "w.jsonl/..", "..", "w.json", None])
def test_a_name_that_is_none_or_leads_nowhere_leaves_the_run_without_content(tmp_path, named) -> None:
    assert load_trace(str(run_folder(tmp_path, named=named))).workload.content is None


def test_content_of_other_requests_is_refused_with_the_first_that_differs(tmp_path) -> None:
    content = str(tmp_path / "w.jsonl")
    longer, fewer = run_folder(tmp_path, prompts=(2, 3)), run_folder(tmp_path / "x", prompts=(2,))
    with pytest.raises(TraceError, match="request 1 has 3 prompt tokens in the trace and 2 in the content file"):
        load_trace(str(longer), content=content)
    with pytest.raises(TraceError, match="the content file has 2 requests, the trace has 1"):
        load_trace(str(fewer), content=content)


def test_a_workload_that_nobody_named_and_that_does_not_fit_is_left_out_with_a_note(tmp_path) -> None:
    trace = load_trace(str(run_folder(tmp_path, prompts=(2, 3))))
    assert trace.workload.content is None
    assert trace.notes[-1].startswith("`w.jsonl` beside the run was left out: request 1 has 3 prompt tokens")


def test_content_can_be_named_and_needs_a_use(tmp_path) -> None:
    inner, content = run_folder(tmp_path, named="gone.jsonl"), str(tmp_path / "w.jsonl")
    assert load_trace(str(inner), content=content).workload.content is not None
    with pytest.raises(UsageError, match="nothing asks for it"):
        load_trace(str(inner), content=content, identity=False)


def test_a_trace_without_content_gives_none() -> None:
    with pytest.raises(TraceError, match="does not tell what its requests share"):
        with_content(read(CSV), read(CSV))
