import io
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvledger.errors import SourceError, TraceError, UsageError
from kvledger.replay.workload import HashIds, HashKind, SharedPrefix
from kvledger.traces import ReadOptions
from tests.traces.reading import CSV, read


def test_a_plain_csv_is_read_by_its_column_names() -> None:
    trace = read(CSV)
    assert trace.format.name == "columns"
    assert trace.workload.arrival_seconds.tolist() == [0, 1.5, 2]
    assert trace.workload.output_tokens.tolist() == [5, 6, 7]


def test_declared_limits_and_shared_prefixes_are_read_where_they_exist() -> None:
    trace = read(
        "arrival_seconds,prompt_tokens,output_tokens,shared_prefix_tokens,max_tokens\n0,10,5,4,64\n1,20,6,30,\n"
    )
    assert isinstance(trace.workload.content, SharedPrefix)
    assert trace.workload.content.tokens.tolist() == [4, 20]
    assert trace.adjusted == {"shared prefix longer than the prompt: cut to the prompt": 1}
    assert trace.workload.max_tokens is not None
    assert trace.workload.max_tokens.tolist() == [64, 0]


def test_identity_is_skipped_when_nobody_wants_it() -> None:
    text = "arrival_seconds,prompt_tokens,output_tokens,shared_prefix_tokens\n0,10,5,4\n"
    assert read(text, options=ReadOptions(identity=False)).workload.content is None


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_line_ends_and_delimiters_do_not_matter(line_end: str, delimiter: str) -> None:
    assert len(read(CSV.replace("\n", line_end).replace(",", delimiter))) == 3


@pytest.mark.parametrize(
    ("column", "values", "seconds"),
    [
        ("timestamp_ms", ["0.0", "40.5", "41"], [0, 0.0405, 0.041]),
        ("arrival_time_ns", ["1767607200000000100", "1767607200000000300", "1767607201000000100"], [0, 2e-7, 1]),
        ("arrival_us", ["5", "6", "7"], [5e-6, 6e-6, 7e-6]),
        ("arrival_seconds", ["1767607200.5", "1767607201", "1767607202"], [0, 0.5, 1.5]),
        ("time", ["2026-01-05T10:00:00.100Z", "2026-01-05T10:00:00.700Z", "2026-01-05T11:00:00+00:00"],
         [0, 0.6, 3599.9]),
        ("time", ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901", "2023-11-16 18:16:46.6805900"],
         [0, 1e-7, 60]),
    ],
)  # fmt: skip
def test_units_come_from_names_and_dates_from_values(column: str, values: list[str], seconds: list[float]) -> None:
    text = f"{column},prompt_tokens,output_tokens\n" + "".join(f"{value},1,1\n" for value in values)
    assert read(text).workload.arrival_seconds == pytest.approx(seconds, abs=1e-9)


def test_a_time_column_without_a_unit_is_asked_for_and_not_guessed() -> None:
    text = "timestamp,prompt_tokens,output_tokens\n1,2,3\n"
    with pytest.raises(TraceError, match="unit of column `timestamp`") as caught:
        read(text)
    assert "arrival=timestamp:s" in str(caught.value.hint)
    trace = read(text + "2,2,3\n", columns="arrival=timestamp:ms,prompt=prompt_tokens,output=output_tokens")
    assert trace.workload.span_seconds == pytest.approx(0.001)


def test_columns_of_any_name_are_read_through_a_mapping() -> None:
    trace = read(
        "when,in,out,who\n1,5,6,a\n2,7,8,b\n3,9,1,a\n", columns="arrival=when:s,prompt=in,output=out,session=who"
    )
    assert trace.workload.prompt_tokens.tolist() == [5, 7, 9]
    assert trace.workload.session is not None
    assert trace.workload.session.tolist() == [0, 1, 0]


def test_a_mapping_reaches_into_json_objects() -> None:
    lines = '{"m":{"t":1.5,"i":4},"o":2}\n{"m":{"t":2.5,"i":5},"o":"3"}\n'
    trace = read(lines, columns="arrival=m.t:s,prompt=m.i,output=o")
    assert trace.workload.prompt_tokens.tolist() == [4, 5]
    assert trace.workload.output_tokens.tolist() == [2, 3]


def test_hash_ids_of_text_are_numbered_and_equal_text_is_equal() -> None:
    lines = '{"t":1,"i":20,"o":1,"h":["a","b"]}\n{"t":2,"i":30,"o":1,"h":["a","c"]}\n{"t":3,"i":1,"o":1,"h":null}\n'
    trace = read(lines, columns="arrival=t:s,prompt=i,output=o,hash_ids=h,block_tokens=16,hash_kind=content")
    content = trace.workload.content
    assert isinstance(content, HashIds)
    assert (content.kind, content.offsets.tolist()) == (HashKind.CONTENT, [0, 2, 4, 4])
    assert (content.ids - content.ids[0]).tolist() == [0, 1, 0, 2]


def test_a_row_whose_ids_are_no_list_loses_them_and_the_rest_keep_theirs() -> None:
    row = '{{"timestamp":1,"input_length":600,"output_length":1,"hash_ids":{}}}\n'
    trace = read("".join(row.format(ids) for ids in ("[1,2]", "7", "[[1]]", '["1","x"]', "[null]", "[1,true]", "{}")))
    content = trace.workload.content
    assert isinstance(content, HashIds)
    assert len(trace) == 7
    assert content.offsets.tolist() == [0, 2, 2, 2, 4, 4, 4, 4]
    assert content.ids[:3].tolist() == [1, 2, 1]
    assert trace.adjusted == {"content ids missing or not a list: left out": 5}


def test_ids_that_are_all_null_leave_a_trace_without_identity() -> None:
    trace = read('{"timestamp":1,"input_length":600,"output_length":1,"hash_ids":null}\n' * 3)
    assert (trace.format.name, len(trace), trace.workload.content) == ("mooncake", 3, None)
    assert trace.adjusted == {"content ids missing or not a list: left out": 3}


@pytest.mark.parametrize(
    "name", ["session_id", "max_tokens", "shared_prefix_tokens", "hash_ids", "first_token_seconds"]
)
def test_a_field_that_is_always_null_says_nothing_and_costs_nothing(name) -> None:
    row = f'{{"arrival_seconds":1,"prompt_tokens":600,"output_tokens":1,"end_seconds":null,"{name}":null}}\n'
    trace = read(row * 2)
    assert len(trace) == 2
    assert trace.workload.content is None
    assert trace.workload.max_tokens is None
    assert trace.observed is None


def test_a_field_that_no_row_has_is_an_error_all_the_same() -> None:
    row = '{"t":1,"i":600,"o":1,"x":{"ids":null},"y":null}\n'
    for there in ("x.ids", "y.ids"):
        assert len(read(row, columns=f"arrival=t:s,prompt=i,output=o,hash_ids={there}")) == 1
    for missing in ("x.idz", "z.ids", "ids"):
        with pytest.raises(TraceError, match=f"no row .* `{missing}`"):
            read(row, columns=f"arrival=t:s,prompt=i,output=o,hash_ids={missing}")


def test_a_json_array_and_parquet_hold_the_same_trace_as_json_lines() -> None:
    rows = [{"arrival_ms": i * 10, "prompt_tokens": i + 1, "output_tokens": 2} for i in range(5)]
    import json

    lines = read("\n".join(json.dumps(row) for row in rows)).workload
    array = read(json.dumps(rows, indent=1)).workload
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    parquet = read(out.getvalue()).workload
    for other in (array, parquet):
        assert (other.arrival_seconds == lines.arrival_seconds).all()
        assert (other.prompt_tokens == lines.prompt_tokens).all()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("3,0,1", "prompt below 1 token"),
        ("3,1,-4", "output below 1 token"),
        ("3,nan,1", "prompt length missing or not a number"),
        ("3,,1", "prompt length missing or not a number"),
        ("3,1,many", "output length missing or not a number"),
        ("3,1.5,1", "prompt length not a whole number"),
        ("3,1e12,1", "prompt above 100,000,000 tokens"),
        ("3,inf,1", "prompt above 100,000,000 tokens"),
        ("soon,1,1", "arrival time missing or not a time"),
        ("-3,1,1", "arrival before time 0"),
        ("1e300,1,1", "arrival time beyond belief"),
        ("3,1", "row has another number of columns than the header"),
    ],
)
def test_a_bad_row_is_dropped_with_its_reason_and_the_rest_is_read(row: str, reason: str) -> None:
    trace = read(CSV + row + "\n")
    assert (len(trace), trace.rows_read, dict(trace.dropped)) == (3, 4, {reason: 1})


def test_a_header_may_be_quoted_and_stand_below_blank_lines() -> None:
    trace = read('\n\n"arrival_seconds","prompt_tokens","the ""output"", all","output_tokens"\n0,1,"a,b",2\n')
    assert (len(trace), trace.rows_read) == (1, 1)


def test_lengths_written_as_floats_are_whole_tokens() -> None:
    assert read("num_prefill_tokens,num_decode_tokens\n7564.0,192.0\n").workload.prompt_tokens.tolist() == [7564]


def test_times_that_go_backwards_are_sorted_stably_and_counted() -> None:
    trace = read("arrival_seconds,prompt_tokens,output_tokens\n5,1,1\n3,2,1\n5,3,1\n3,4,1\n")
    assert trace.workload.arrival_seconds.tolist() == [3, 3, 5, 5]
    assert trace.workload.prompt_tokens.tolist() == [2, 4, 1, 3]
    assert trace.adjusted == {"arrival earlier than the row before: sorted": 2}


def test_ids_follow_their_rows_when_rows_are_sorted_or_dropped() -> None:
    lines = "\n".join(
        f'{{"timestamp":{t},"input_length":{p},"output_length":{o},"hash_ids":{ids}}}'
        for t, p, o, ids in ((9, 600, 1, [1, 2]), (7, 512, 0, [3]), (5, 1100, 1, [1, 4, 5]))
    )
    trace = read(lines)
    content = trace.workload.content
    assert isinstance(content, HashIds)
    assert trace.format.name == "mooncake"
    assert (content.offsets.tolist(), content.ids.tolist()) == ([0, 3, 5], [1, 4, 5, 1, 2])


def test_when_nothing_is_left_the_reasons_are_the_error() -> None:
    with pytest.raises(TraceError, match=r"none of the 2 rows .* prompt below 1 token: 2"):
        read("arrival_seconds,prompt_tokens,output_tokens\n0,0,1\n1,0,1\n")


def test_a_header_without_rows_is_an_error() -> None:
    with pytest.raises(TraceError, match="holds no request"):
        read("arrival_seconds,prompt_tokens,output_tokens\n")


def test_unknown_columns_are_listed_with_those_expected() -> None:
    with pytest.raises(TraceError, match="`apples`, `pears`") as caught:
        read("apples,pears\n1,2\n")
    assert "arrival_seconds, prompt_tokens, output_tokens" in str(caught.value.hint)


def test_a_table_without_names_says_that_it_needs_a_header() -> None:
    with pytest.raises(TraceError, match="no column names"):
        read("0,512,128\n1,30,4\n")


def test_a_mapped_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(TraceError, match="no column `nope`"):
        read(CSV, columns="prompt=nope,output=output_tokens")


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ("promt=a,output=b", "`promt` is no part"),
        ("prompt=a", "which column is `output`"),
        ("prompt=a,output=", "`output` has no column"),
        ("prompt=a,prompt=b,output=c", "given twice"),
        ("arrival=t:parsecs,prompt=a,output=b", "not a unit of time"),
        ("prompt=a,output=b,block_tokens=x", "not a whole number"),
        ("prompt=a,output=b,block_tokens=0", "below 1"),
        ("prompt=a,output=b,hash_kind=x", "is unknown"),
    ],
)
def test_a_mapping_that_cannot_be_read_is_a_usage_error(mapping: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(CSV, columns=mapping)


def test_a_misspelt_part_of_a_mapping_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UsageError) as caught:
        read(CSV, columns="promt=a,output=b")
    assert "did you mean `prompt`?" in str(caught.value.hint)


def test_a_row_without_an_end_is_an_error_of_the_source() -> None:
    with pytest.raises(SourceError, match="a row of more than"):
        read(CSV + '"' + "x" * 9_000_000)


def test_a_row_that_is_not_utf8_is_kept_when_its_numbers_are_fine() -> None:
    data = b"arrival_seconds,prompt_tokens,output_tokens,note\n0,1,2,caf\xe9\n1,\xff\xfe,3,b\n2,4,5,c\n"
    trace = read(data)
    assert trace.workload.prompt_tokens.tolist() == [1, 4]
    assert dict(trace.dropped) == {"prompt length missing or not a number": 1}


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n"
BURST_V3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,s1,2.5,GPT-4,472,18,490,API log\n6,s1,2,GPT-4,500,20,520,API log\n"
)
MOONCAKE = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'


@pytest.mark.parametrize(
    ("text", "name", "kept", "dropped"),
    [
        (BURST, "burstgpt", 1, {}),
        (BURST + "45,ChatGPT,1087,0,1087,API log\n", "burstgpt", 1, {"failed request (0 response tokens)": 1}),
        (BURST_V3, "burstgpt", 2, {}),
        ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-05-10 00:00:00.009930,1,62,5\n", "azure", 1, {}),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.3,396,109\n", "vidur", 2, {}),
        (MOONCAKE, "mooncake", 1, {}),
    ],
)
def test_published_schemas_that_are_not_at_hand_are_known_by_their_columns(
    text: str, name: str, kept: int, dropped: dict[str, int]
) -> None:
    trace = read(text)
    assert (trace.format.name, len(trace), dict(trace.dropped)) == (name, kept, dropped)


def test_burstgpts_sessions_are_read_from_version_3_on() -> None:
    assert read(BURST).workload.session is None
    session = read(BURST_V3).workload.session
    assert session is not None
    assert session.tolist() == [0, 0]


def test_a_chat_of_bailian_is_one_session_through_all_of_its_turns() -> None:
    rows = [(7, -1), (8, -1), (9, 7), (10, 9), (11, 99)]
    text = "".join(
        f'{{"chat_id":{own},"parent_chat_id":{parent},"timestamp":{i / 2},"input_length":33,"output_length":4,'
        f'"type":"text","turn":1,"hash_ids":[7,8,9]}}\n'
        for i, (own, parent) in enumerate(rows)
    )
    trace = read(text)
    content = trace.workload.content
    assert trace.format.name == "qwen-bailian"
    assert isinstance(content, HashIds)
    assert (content.kind, content.block_tokens) == (HashKind.CONTENT, 16)
    assert trace.workload.session is not None
    assert trace.workload.session.tolist() == [0, 1, 0, 0, 2]
    assert trace.workload.span_seconds == 2


@pytest.mark.parametrize("broken", [0, 1, 3])
def test_a_broken_line_of_json_lines_is_dropped_wherever_it_is(broken: int) -> None:
    lines = [MOONCAKE.strip()] * 4
    lines[broken] = lines[broken][:40]
    trace = read("\n".join(lines))
    assert (trace.format.name, len(trace), dict(trace.dropped)) == ("mooncake", 3, {"line is not a JSON object": 1})


def test_no_arrival_times_mean_a_queue_that_is_never_empty_and_the_trace_says_so() -> None:
    trace = read("num_prefill_tokens,num_decode_tokens\n10,1\n20,2\n")
    assert np.all(trace.workload.arrival_seconds == 0)
    assert trace.accuracy.arrivals.value == "modelled"
    assert any("all requests arrive at 0" in note for note in trace.notes)
    assert math.isclose(trace.workload.span_seconds, 0)
