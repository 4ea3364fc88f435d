"""Saved texts as they should not be: repeated, absurd, empty, and with names that steer a terminal."""

import re

import pytest

from kvledger.live.painting import paint_line
from tests.cli.calling import call
from tests.measure.recorded import rows

TEXT = rows("sync")[9]["text"]


def measured(capsys, tmp_path, text, *flags):
    path = tmp_path / "saved.txt"
    path.write_text(text)
    return call(capsys, "measure", path, *flags)


def test_a_scrape_that_was_appended_to_itself_counts_once(capsys, tmp_path):
    once = measured(capsys, tmp_path, TEXT, "--json").json()["sources"][0]["engines"][0]
    twice = measured(capsys, tmp_path, TEXT + TEXT, "--json").json()["sources"][0]["engines"][0]
    for told in (once, twice):
        told["last"].pop("seconds")
    assert twice["last"] == once["last"]


def test_of_two_scrapes_in_one_text_the_later_one_is_taken(capsys, tmp_path):
    later = re.sub(r"(num_requests_running\{[^}]*\}) .*", r"\1 9.0", TEXT)
    assert "\n9 running" in measured(capsys, tmp_path, TEXT + later).out


@pytest.mark.parametrize("form", ["text", "md"])
def test_a_served_name_cannot_steer_the_terminal(capsys, tmp_path, form):
    text = TEXT.replace('model_name="', 'model_name="\x1b[31m\x07')
    out = measured(capsys, tmp_path, text, "--format", form).out
    assert "?[31m" in out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)


def test_labels_beyond_belief_are_not_told(capsys, tmp_path):
    text = re.sub(r'num_gpu_blocks="\d+"', 'num_gpu_blocks="9999999999999999999"', TEXT)
    assert "no ledger: the number of blocks is not told" in measured(capsys, tmp_path, text).out


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_file_is_said_to_be_empty(capsys, tmp_path, text):
    called = measured(capsys, tmp_path, text, "--record", tmp_path / "r.kvr")
    assert called.code == 2
    assert called.err.startswith("error: `saved.txt` is empty")


def test_a_line_of_the_live_view_cannot_steer_the_terminal():
    assert paint_line("a\x1b[31m\x9bmodel, engine 0").plain == "a?[31m?model, engine 0"
