"""Records out of physical lines: carriers, joins, times and origins."""

import json
import re

import pytest

from kvledger.engines.clock import LineClock, read_iso
from kvledger.engines.logline import MAX_LINE, RecordReader, split_text

BEGINS = re.compile(r"begin ")
HEAD = "INFO 03-04 10:00:00 [a.py:1] "


def records(text, **settings):
    return list(RecordReader(BEGINS, **settings).read(text))


def texts(text, **settings):
    return [record.text for record in records(text, **settings)]


def test_lines_end_with_newline_or_carriage_return():
    assert list(split_text("\ufeffa\r\nb\rc\n\nd")) == ["a", "b", "c", "", "d"]


def test_a_line_without_a_header_goes_on_with_the_record():
    (record,) = records(HEAD + "one\ntwo\nthree\n")
    assert record.text == HEAD + "one two three"
    assert [record.find_line(record.text.index(word)) for word in ("one", "two", "three")] == [1, 2, 3]


def test_phrases_begin_records_where_lines_have_no_header():
    assert texts("begin one\ntwo\nbegin three\n") == ["begin one two", "begin three"]
    assert texts(HEAD + "x\nbegin y\n") == [HEAD + "x begin y"]
    assert texts(HEAD + "x\nbegin y\n", own_headers=False) == [HEAD + "x", "begin y"]


def test_unwanted_records_are_left_out():
    assert texts(HEAD + "one\n" + HEAD + "two\n", wanted=re.compile("tw")) == [HEAD + "two"]


def test_a_record_has_at_most_24_pieces():
    assert len(records(HEAD + "x\n" * 60)) == 3


@pytest.mark.parametrize(
    ("prefix", "origin", "pid"),
    [
        ("(EngineCore_DP0 pid=7) INFO 03-04 10:00:00 ", "EngineCore_DP0", "7"),
        ("(VllmWorker rank=3 pid=7) INFO 03-04 10:00:00 ", "VllmWorker rank=3", "7"),
        ("(RayWorkerWrapper pid=7, ip=10.0.0.1) INFO 03-04 10:00:00 ", "RayWorkerWrapper pid=7", "7"),
        ("(EngineCore pid=7) (Worker_TP1 pid=8) INFO 03-04 10:00:00 ", "EngineCore Worker_TP1", "8"),
        ("[2026-03-04 10:00:00 DP1 TP3] ", "DP1 TP3", ""),
        ("[2026-03-04 10:00:00] ", "", ""),
        ("[TP6] ", "TP6", ""),
        ("[03/04/2026-10:00:00] [TRT-LLM] [RANK 2] [I] ", "rank 2", ""),
        (HEAD, "", ""),
    ],
)
def test_the_origin_is_a_rank_or_process_and_never_an_address(prefix, origin, pid):
    (record,) = records(prefix + "text (not a tag)")
    assert (record.origin, record.pid) == (origin, pid)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("[2026-03-04 10:00:00 TP0] x", 1_772_618_400),
        ("2026-03-04T10:00:00.250Z x", 1_772_618_400.25),
        ("time=2026-03-04T12:00:00.000+02:00 level=INFO x", 1_772_618_400),
        ("2026-03-04 10:00:00,500 - x", 1_772_618_400.5),
        ("[03/04/2026-10:00:00] [TRT-LLM] x", 1_772_618_400),
        ("[2026-13-44 99:00:00] x", None),
        ("[03/44/2026-10:00:00] x", None),
        ("no time", None),
    ],
)
def test_times_with_a_year_are_seconds_since_the_epoch(line, seconds):
    assert LineClock().read(line) == seconds


def test_an_impossible_day_without_a_year_has_no_time():
    assert LineClock().read("INFO 13-44 10:00:00 x") is None
    assert LineClock().read("INFO 02-29 10:00:00 x") is not None


def test_the_messages_own_time_goes_before_the_carriers():
    wrapped = json.dumps({"log": "[2026-03-04 10:00:00] x\n", "time": "2030-01-01T00:00:00Z"})
    assert records(wrapped)[0].seconds == 1_772_618_400
    bare = json.dumps({"log": "begin x\n", "time": "2030-01-01T00:00:00Z"})
    assert records(bare)[0].seconds == read_iso("2030-01-01T00:00:00Z")


def test_docker_joins_what_it_cut_at_16_kib():
    first = json.dumps({"log": HEAD + "y" * 16_384})
    second = json.dumps({"log": "end\n"})
    reader = RecordReader(BEGINS)
    (record,) = reader.read(first + "\n" + second + "\n")
    assert len(record.text) == MAX_LINE
    assert reader.cut_lines == 1


def test_json_that_carries_no_message_is_the_line_itself():
    for line in ('{"a": 1}', '{"broken', "[1, 2]", '{"message": 3}', "{" * 3000):
        assert texts(line) == [line]


def test_messages_nested_in_fields_are_found():
    assert texts(json.dumps({"level": "INFO", "fields": {"message": "begin x"}})) == ["begin x"]


def test_parts_without_an_end_do_not_grow_for_ever():
    reader = RecordReader(BEGINS)
    list(reader.read(f"2026-03-04T00:00:00Z stdout P {'z' * 1000}\n" * 500))
    assert reader.lines == 500
    assert reader.cut_lines >= 5
