"""Access logs of nginx as JSON: the moment is the end, the duration is no arrival."""

import json

import pytest

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.traces.columns import guess_mapping
from tests.traces.reading import read

CALL = {
    "time": "2026-01-05T10:00:03+00:00", "request": "POST /v1/chat/completions HTTP/1.1", "status": "200",
    "request_length": "4000", "body_bytes_sent": "2000", "request_time": "3.377",
}  # fmt: skip


def lines(*changes):
    return "\n".join(json.dumps(CALL | change) for change in changes)


def test_arrivals_are_the_end_minus_the_request_time_and_lengths_are_bytes():
    trace = read(lines({}, {"time": "2026-01-05T10:00:05+00:00", "request_time": 1.377}))
    assert trace.format.name == "nginx-json"
    assert trace.workload.arrival_seconds == pytest.approx([0, 4.0], abs=1e-6)
    assert trace.workload.prompt_tokens.tolist() == [1000, 1000]
    assert trace.workload.output_tokens.tolist() == [500, 500]
    assert trace.accuracy.prompts is Accuracy.MODELLED
    assert trace.accuracy.output_band is not None
    assert any("arrivals are that minus `request_time`" in note for note in trace.notes)


def test_token_counts_in_the_log_are_taken_instead_of_bytes():
    row = {"time": "2026-01-05T10:00:03Z", "request_time": 3.377, "prompt_tokens": 7, "completion_tokens": 5}
    trace = read(json.dumps(row) + "\n" + json.dumps(row | {"request_time": 1.0}))
    assert trace.workload.arrival_seconds == pytest.approx([0, 2.377], abs=1e-6)
    assert trace.workload.prompt_tokens.tolist() == [7, 7]
    assert trace.accuracy.prompts is Accuracy.MEASURED
    assert trace.accuracy.arrivals is Accuracy.DERIVED
    assert trace.accuracy.output_band is None


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("msec", "1767607203.250", "1767607204.500"),
        ("msec", 1767607203250, 1767607204500),
        ("time_iso8601", "2026-01-05T10:00:03.250+00:00", "2026-01-05T11:00:04.500+01:00"),
        ("time_local", "05/Jan/2026:10:00:03 +0000", "05/Jan/2026:12:00:04 +0200"),
    ],
)
def test_every_way_in_which_nginx_writes_a_moment_is_read(name, first, second):
    rows = [{k: v for k, v in CALL.items() if k != "time"} | {name: moment} for moment in (first, second)]
    gap = 1.0 if name == "time_local" else 1.25
    trace = read("\n".join(json.dumps(row) for row in rows))
    assert trace.workload.arrival_seconds == pytest.approx([0, gap], abs=1e-6)


def test_other_calls_and_failures_are_left_out_with_the_reason():
    health = {"request": "GET /health HTTP/1.1"}
    trace = read(lines({}, health, {"status": 502}, {"request_time": "-"}) + "\nno json")
    assert len(trace) == 1
    assert trace.dropped["not a completion call (health, metrics, other)"] == 1
    assert trace.dropped["request failed"] == 1
    assert sum(trace.dropped.values()) == 4


@pytest.mark.parametrize(
    "name",
    [
        "request_time",
        "request_time_ms",
        "duration",
        "duration_seconds",
        "latency_ms",
        "upstream_response_time",
        "elapsed",
    ],
)
def test_a_duration_is_never_guessed_as_the_arrival(name):
    assert guess_mapping((name, "prompt_tokens", "output_tokens"), source="`t`").arrival is None
    assert guess_mapping((name, "prompt_tokens", "output_tokens", "time"), source="`t`").arrival == "time"


def test_nothing_in_such_a_log_but_other_calls_is_an_error():
    with pytest.raises(TraceError):
        read(lines({"request": "GET /health HTTP/1.1"}))
