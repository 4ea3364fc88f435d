"""Sources that cannot be read, and how watching and slots are worded."""

import pytest

from kvledger.engines.facts import SlotReading
from kvledger.engines.quantity import exact
from kvledger.live.pool_view import POOL_LEGEND, format_time, legend_lines
from kvledger.live.view import LEGEND
from kvledger.measure.sheet import _priced
from kvledger.report.measure_pools import _prompt

from .calling import MODULE, call


@pytest.mark.parametrize("name", ["measure", "watch", "check", "trace"])
def test_an_empty_source_is_refused_and_is_not_the_current_folder(capsys, name):
    called = call(capsys, name, "", *(["--max-held", "95%"] if name == "check" else []))
    assert called.code == 2
    assert " is empty" in called.err


def test_a_scheme_that_is_not_supported_names_those_that_are(capsys):
    called = call(capsys, "measure", "ftp://host/metrics")
    assert called.code == 2
    assert "the scheme `ftp://` is not supported" in called.err
    assert "http://, https://, unix:/path and prometheus:" in called.err


def test_a_server_without_metrics_of_an_engine_names_the_engines(capsys, tmp_path):
    page = tmp_path / "page.txt"
    page.write_text("<!doctype html><p>hello")
    called = call(capsys, "measure", page)
    assert "vLLM, SGLang, llama.cpp, TGI" in called.err


def test_a_price_multiplies_the_whole_formula():
    assert _priced("a - b", " * 128 bytes") == "(a - b) * 128 bytes"
    assert _priced("a - b", "") == "a - b"


def test_an_error_as_json_carries_nothing_that_reads_like_a_passed_check(capsys):
    called = call(capsys, "check", "http://127.0.0.1:9", "--max-held", "95%", "--json")
    assert called.code == 2
    assert "is_passing" not in called.err


def test_an_interrupt_says_that_nothing_was_left_only_where_something_was_written(capsys):
    error = KeyboardInterrupt()
    assert MODULE._interrupted(error) == 130
    assert capsys.readouterr().err == "interrupted\n"
    error.add_note("nothing half-written was left")
    MODULE._interrupted(error)
    assert capsys.readouterr().err == "interrupted; nothing half-written was left\n"


def test_a_line_of_watch_begins_with_a_date_that_people_read():
    assert format_time(1796006748.424) == "2026-11-30T02:45:48.424Z"
    assert format_time(1e300).isascii()


@pytest.mark.parametrize("legend", [LEGEND, POOL_LEGEND])
@pytest.mark.parametrize("width", [60, 80])
def test_no_entry_of_a_legend_is_cut(legend, width):
    lines = legend_lines(legend, width)
    assert "   ".join(lines) == legend
    assert max(map(len, lines)) <= width


def test_what_a_slot_has_computed_before_it_generates_is_prompt():
    slot = SlotReading(
        slot_id=3, tokens=exact(128), is_processing=True, prompt_tokens=exact(0), decoded_tokens=exact(0)
    )
    assert _prompt(slot) == exact(128)
