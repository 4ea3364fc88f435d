"""`kvledger watch`: the screen as data, and lines off a terminal."""

import json

import pytest
from click.testing import CliRunner

from kvledger.cli import watch as module
from kvledger.live.view import KEYS, WatchModel, line_of
from tests.cli.serving import serving
from tests.measure.recorded import measure


def run(*arguments):
    result = CliRunner().invoke(module.command, list(arguments))
    assert result.exit_code == 0, result.exception
    return result


def readings(phase):
    return [reading for row, reading in measure("async", phases={phase}, settled=False) if reading.running]


def model_of(phase, **options):
    model = WatchModel(**options)
    for reading in readings(phase):
        model.add("server", 0, reading)
    return model


def test_off_a_terminal_each_sample_is_one_line():
    with serving("plain") as url:
        lines = run(url, "--for", "0.2s", "--every", "50ms").stdout.splitlines()
    assert len(lines) >= 3
    assert all("running" in line and "held" in line and "%" in line for line in lines)


def test_json_is_one_object_a_line():
    with serving("plain") as url:
        lines = run(url, "--for", "0.2s", "--every", "50ms", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert all(one["ledger"]["unit"] == "tokens" and one["source"] == "server" for one in found)


def test_a_failed_sample_is_a_hint_and_not_the_end():
    with serving("plain", failing=(1,)) as url:
        result = run(url, "--for", "0.2s", "--every", "50ms")
    assert "hint: a sample failed" in result.stderr
    assert len(result.stdout.splitlines()) >= 2


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_screen_fits_its_width_and_lists_its_keys(width):
    lines = model_of("preempted").lines(width=width)
    assert max(map(len, lines)) <= max(width, len(KEYS))
    assert lines[-1] == KEYS
    assert "26 running" in "\n".join(lines) or "running" in lines[1]


def test_the_strip_is_a_partition_of_the_pool_without_colour():
    strip = next(line for line in model_of("plain").lines(width=82) if line.startswith("["))
    assert len(strip) == 82
    assert strip.strip("[]").lstrip("u").lstrip("i").lstrip("?").strip(".") == ""
    assert strip.count("u") > 1
    assert strip.count(".") > 1


def test_only_ascii_is_drawn_when_asked():
    assert "\n".join(model_of("plain", ascii_only=True).lines(width=80)).isascii()


def test_tokens_or_bytes_can_be_shown():
    assert model_of("plain").lines(width=100, show_tokens=True) == model_of("plain").lines(width=100)


def test_preemptions_are_shown_with_what_came_since():
    first, *_, last = readings("preempted")
    model = WatchModel()
    model.add("server", 0, first)
    model.add("server", 0, last)
    grown = last.preemptions - first.preemptions
    assert f"(+{grown})" in model.lines(width=100)[1]


def test_failures_are_counted_on_the_screen():
    model = model_of("plain")
    model.fail("the server is away")
    assert "1 sample failed; last: the server is away" in model.lines(width=100)


def test_history_is_bounded():
    model = WatchModel()
    for _ in range(200):
        for reading in readings("plain"):
            model.add("server", 0, reading)
    assert len(model.lines(width=80)) < 20
    (view,) = model._engines.values()
    assert len(view.held) <= 3600


def test_a_line_tells_why_there_is_no_ledger():
    from dataclasses import replace

    reading = replace(readings("plain")[0], sheet=None, problem="the engine sleeps")
    assert line_of("server", reading).endswith("no ledger: the engine sleeps")
