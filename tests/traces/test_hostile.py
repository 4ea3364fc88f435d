"""Whatever the bytes are, a trace comes out or an error of ours; nothing else."""

import contextlib
import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import Error
from kvledger.traces import ReadOptions, read_trace
from kvledger.traces.formats import own
from kvledger.traces.times import Clock, TimeUnit
from tests.traces.reading import CSV, read

SAMPLES = [
    CSV,
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n",
    '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n' * 3,
    '{"id":"t","block_size":64,"hash_id_scope":"local","requests":[{"t":0.0,"type":"n","in":99,"out":3,"hash_ids":[1]},'
    '{"t":1,"type":"subagent","requests":[{"t":0.5,"in":64,"out":1,"hash_ids":[9]}]}]}\n',
    '{"timestamp": "82", "input_length": 31, "output_length": 9, "session_id": "s", "hash_ids": {"sys_prompt": [1], '
    '"passages_ids": [2], "history": [], "web_search": [], "user_input": [3]}}\n',
    '{"input_toks": 2, "output_toks": 1, "arrival_time_ns": 5, "input_tok_ids": [1, 2], "output_tok_ids": [3]}\n',
    '{"num_prompts":2,"total_input_tokens":9,"request_rate":"inf","input_lens":[5,4],"output_lens":[3,3]}',
    '{"metadata":{"request_start_ns":1767607200000000000},"metrics":{"input_sequence_length":{"value":8},'
    '"output_sequence_length":{"value":7}}}\n',
    '{"benchmarks":[{"requests":{"successful":[{"start_time":5.5,"prompt_tokens":5,"output_tokens":9}]}}]}',
    '{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":"1767607200000000000","attributes":['
    '{"key":"gen_ai.usage.input_tokens","value":{"intValue":"640"}},'
    '{"key":"gen_ai.usage.output_tokens","value":{"intValue":"32"}}]}]}]}]}\n',
    "INFO 01-05 10:00:00 [l.py:39] Received request a: prompt: 'hello', params: SamplingParams(n=1, max_tokens=200).\n",
    "[2026-01-05 10:00:01] Finish: obj=GenerateReqInput(rid='a1'), out={'meta_info': {'prompt_tokens': 7, "
    "'completion_tokens': 6, 'e2e_latency': 0.9}}\n",
    "slot print_timing: id  0 | task 12 | prompt eval time =  410.20 ms /  512 tokens\n"
    "slot print_timing: id  0 | task 12 |  eval time =  2100.00 ms /  70 tokens\n"
    "slot      release: id  0 | task 12 | stop processing: n_past = 1093, truncated = 0\n",
    '{"model":"m","created_at":"2026-01-05T10:00:03.1Z","done":true,"total_duration":25,"prompt_eval_count":4,'
    '"eval_count":9}\n',
    '192.0.2.1 - - [05/Jan/2026:10:00:02 +0000] "POST /v1/completions HTTP/1.1" 200 1843 "-" "c" rt=1.9 rl=5120\n',
]


def attempt(data: bytes) -> None:
    with contextlib.suppress(Error):
        trace = read(data)
        assert trace.check() is trace


@given(st.binary(max_size=400))
def test_random_bytes_are_an_error_of_ours_or_a_trace(data: bytes) -> None:
    attempt(data)
    attempt(gzip.compress(data))
    attempt(b"PAR1" + data + b"PAR1")
    attempt(b"\x28\xb5\x2f\xfd" + data)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_traces_of_every_format_are_an_error_of_ours_or_a_trace(sample: str, data: st.DataObject) -> None:
    raw = bytearray(sample.encode())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(raw) - 1))
        size = data.draw(st.integers(0, 8))
        raw[place : place + size] = data.draw(st.binary(max_size=8))
        if not raw:
            break
    attempt(bytes(raw))


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_samples_themselves_are_traces(sample: str) -> None:
    assert len(read(sample)) >= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([s for s in SAMPLES if s.startswith("{")]), st.data())
def test_json_fields_of_any_type_are_an_error_of_ours_or_a_trace(sample: str, data: st.DataObject) -> None:
    document = json.loads(sample.splitlines()[0])
    places: list[tuple[object, object]] = []

    def walk(value: object) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            places.append((value, key))
            walk(inner)

    walk(document)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(JSON)  # type: ignore[index]
    line = json.dumps(document, allow_nan=True).encode()
    attempt(line + b"\n" + sample.encode() if data.draw(st.booleans()) else line)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_damaged_file_of_our_own_is_an_error_of_ours_or_a_trace(data: st.DataObject) -> None:
    out = io.BytesIO()
    own.write_trace(read(SAMPLES[2]), out)
    raw = bytearray(out.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    attempt(bytes(raw))


def test_deeply_nested_json_is_refused_and_does_not_exhaust_the_stack() -> None:
    for text in (
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"requests":[' * 50_000,
        '{"hash_id_scope":"l","block_size":1,"requests":' + "[" * 90_000,
    ):
        attempt(text.encode())
        attempt((CSV + text).encode())


def test_a_sibling_file_that_is_garbage_does_not_matter() -> None:
    options = ReadOptions(siblings={"x": lambda: io.BytesIO(b"\x00\x01"), "y": lambda: io.BytesIO(b"")})
    trace = read_trace(io.BytesIO(SAMPLES[4].encode()), options=options)
    assert trace.workload.content is None


@pytest.mark.parametrize("name", [[1], ["a"], [[1]], {"a": 1}, [None], True])
def test_a_session_that_is_no_name_is_unknown(name: object) -> None:
    plain = {"arrival_seconds": 0, "prompt_tokens": 4, "output_tokens": 2, "session": "a"}
    rows = [plain, {**plain, "session": name}, {**plain, "session": None}]
    trace = read("\n".join(map(json.dumps, rows)))
    assert len(trace.workload) == 3


@pytest.mark.parametrize("parent", [[1], ["a"], {"a": 1}, None])
def test_a_parent_that_is_no_name_begins_a_session(parent: object) -> None:
    turn = {"timestamp": 0.0, "input_length": 20, "output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2]}
    rows = [{**turn, "chat_id": own, "parent_chat_id": before} for own, before in ((1, -1), (None, -1), (3, parent))]
    trace = read("\n".join(map(json.dumps, rows)))
    assert trace.workload.session is not None
    assert len(set(trace.workload.session.tolist())) == 3


@pytest.mark.parametrize("first", [2.0**63, -(2.0**63), 1e300])
def test_a_clock_that_begins_beyond_64_bits_goes_on_with_integers(first: float) -> None:
    clock = Clock(TimeUnit.NANOSECONDS)
    clock.seconds(pa.array([first]))
    assert np.isfinite(clock.seconds(pa.array([1_767_607_200_000_000_000]))).all()
