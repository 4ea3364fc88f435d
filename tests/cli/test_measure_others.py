"""`measure`, `watch` and `check` of engines other than vLLM: over time, recorded, and beside a vLLM server."""

import json

import pytest
from click.testing import CliRunner

from kvledger.cli import check as check_module
from kvledger.cli import measure as measure_module
from kvledger.cli import watch as watch_module
from kvledger.errors import SourceError, UsageError
from kvledger.live.pool_view import POOL_LEGEND
from kvledger.live.view import WatchModel
from kvledger.measure.pool_meter import PoolMeter
from tests.cli.serving import serving
from tests.measure.recorded import rows
from tests.measure.slot_server import slot, snapshot_of
from tests.measure.test_pool_meter import TGI, pool_of, sglang
from tests.sources.engine_server import serving_paths
from tests.sources.test_endpoints import DATA, llamacpp

SAMPLES = [sglang(**pool_of(used, prompt_tokens_total=used)) for used in (100, 400, 700, 700)]


def run(module, *arguments, text=None):
    return CliRunner().invoke(module.command, list(arguments), input=text, env={"COLUMNS": "100"})


def ok(*arguments, text=None):
    result = run(measure_module, *arguments, text=text)
    assert result.exit_code == 0, result.exception
    return result.stdout


def as_object(*arguments, text=None):
    return json.loads(ok(*arguments, "--json", text=text))


def pools(found):
    return [pool for source in found["sources"] for pool in source["pools"]]


def test_a_server_is_sampled_over_time_and_recorded(tmp_path):
    record = tmp_path / "r"
    with serving_paths({"/metrics": SAMPLES}) as (url, _):
        found = as_object(url, "--for", "1s", "--every", "20ms", "--record", str(record))
    (pool,) = pools(found)
    assert pool["samples"] >= 4
    assert pool["traffic"]["prompt_tokens"] == 600
    (again,) = pools(as_object(str(record)))
    assert again["last"]["ledger"] == pool["last"]["ledger"]
    assert again["traffic"]["prompt_tokens"] == 600
    assert again["verdict"] == pool["verdict"]
    text = ok(str(record))
    assert "SGLang: 2 running, 0 waiting" in text
    assert "traffic in the window" in text


def test_llamacpp_is_priced_by_its_log_and_its_layout_read_from_it():
    with serving_paths(llamacpp()) as (url, _):
        (pool,) = pools(as_object(url, "--log", str(DATA / "server-split.log")))
    ledger = pool["last"]["ledger"]
    assert pool["last"]["layout"] == "strips"
    assert ledger["accounts_bytes"] == {
        "used": 76 * 23_040,
        "cached": 23 * 23_040,
        "reserved": (1024 - 76) * 23_040,
        "internal": 0,
        "external": 0,
        "free": (1024 - 23) * 23_040,
        "unattributed": 0,
    }


def test_strips_are_told_in_readable_bytes():
    with serving_paths(llamacpp()) as (url, _):
        found = json.loads(ok(url, "--no-kv-unified", "--bytes-per-token", str(2**20), "--json"))["findings"]
    assert "busy slots own 948.00 MiB that" in str(found)


@pytest.mark.parametrize(("flag", "capacity"), [("--kv-unified", 1024), ("--no-kv-unified", 2048)])
def test_the_layout_of_slots_can_be_said(flag, capacity):
    with serving_paths(llamacpp()) as (url, _):
        (pool,) = pools(as_object(url, flag))
    assert pool["last"]["ledger"]["capacity_tokens"] == capacity


def test_slots_are_listed_with_what_each_holds():
    with serving_paths(llamacpp()) as (url, _):
        text = ok(url, "--no-kv-unified")
        (pool,) = pools(as_object(url))
    assert "each slot owns a strip of cells" in text
    assert [one["tokens"] for one in pool["last"]["slots"]] == [76, 23]


def test_servers_of_different_engines_are_measured_together(tmp_path):
    with serving("plain") as first, serving_paths({"/metrics": SAMPLES}) as (second, _):
        found = as_object(first, second, "--record", str(tmp_path / "r"))
        text = ok(first, second)
    assert [(len(one["engines"]), len(one["pools"])) for one in found["sources"]] == [(1, 0), (0, 1)]
    assert "server 2: m" in text
    assert [len(one["pools"]) for one in as_object(str(tmp_path / "r"))["sources"]] == [0, 1]


def test_a_price_and_the_bytes_of_the_pool_make_bytes():
    (pool,) = pools(as_object("-", "--bytes-per-token", "10", text=SAMPLES[0]))
    assert pool["last"]["ledger"]["capacity_bytes"] == 10_000
    (pool,) = pools(as_object("-", "--kv-memory", "10005B", text=SAMPLES[0]))
    assert pool["last"]["ledger"]["capacity_bytes"] == 10_005
    assert isinstance(run(measure_module, "-", "--kv-memory", "5B", text=SAMPLES[0]).exception, UsageError)


def test_the_model_prices_a_token():
    (pool,) = pools(as_object("-", "--model", "llama-3-8b", text=SAMPLES[0]))
    assert pool["last"]["ledger"]["accounts_bytes"]["used"] == 100 * 131_072
    assert "llama-3-8b" in pool["last"]["bytes_source"]


def test_a_served_model_of_the_catalogue_is_priced_without_being_asked():
    text = SAMPLES[0].replace('model_name="m"', 'model_name="meta-llama/Meta-Llama-3-8B"')
    (pool,) = pools(as_object("-", text=text))
    assert pool["last"]["ledger"]["unit"] == "bytes"


def test_saved_answers_in_a_folder_are_a_window(tmp_path):
    import os

    for number, text in enumerate(SAMPLES):
        (tmp_path / str(number)).write_text(text, encoding="utf-8")
        os.utime(tmp_path / str(number), (1000 + number, 1000 + number))
    (pool,) = pools(as_object(str(tmp_path)))
    assert (pool["samples"], pool["traffic"]["seconds"]) == (4, 3.0)


def test_watch_prints_a_line_a_sample():
    with serving_paths(llamacpp()) as (url, _):
        result = run(watch_module, url, "--for", "0.5s", "--every", "50ms", "--no-kv-unified")
    lines = result.stdout.splitlines()
    assert len(lines) >= 3
    assert all("llamacpp running 1 waiting 0 held 50.0 % used 3.7 % cached 1.1 %" in line for line in lines)


def test_watch_gives_an_object_a_line():
    with serving_paths({"/metrics": SAMPLES}) as (url, _):
        result = run(watch_module, url, "--for", "0.1s", "--every", "50ms", "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert found[0]["ledger"]["accounts_tokens"]["used"] == 100
    assert {one["engine"] for one in found} == {"sglang"}


def test_the_screen_shows_the_pool_as_a_strip_and_its_slots():
    meter, model = PoolMeter(), WatchModel()
    slots = [slot(0, tokens=900, busy=True), slot(1, tokens=50, task=3), slot(2, tokens=0, task=3)]
    for second in range(3):
        for moment in meter.take((snapshot_of(*slots),), seconds=float(second)):
            model.add("server", 0, moment)
    lines = model.lines(width=82)
    assert POOL_LEGEND in lines
    strip = next(line for line in lines if line.startswith("["))
    assert len(strip) == 82
    assert strip.count("u") == 24
    assert "slots 0:900*  1:50  2:0" in lines
    assert max(map(len, model.lines(width=40))) <= 43


def test_check_judges_pools_by_the_same_limits():
    with serving_paths({"/metrics": SAMPLES[2:]}) as (url, _):
        found = run(check_module, url, "--max-held", "50%", "--max-waiting", "3", "--for", "0.2s", "--every", "30ms")
    assert "broken   held at the peak, of the pool: 70.0 % (limit 50.0 %)" in found.stdout
    assert "kept     requests waiting in the last sample: 0" in found.stdout


def test_check_names_pools_apart():
    text = sglang(**pool_of(100, max_total_num_tokens_swa=500, swa_used_tokens=400, swa_available_tokens=100))
    result = run(check_module, "-", "--max-held", "50%", "--json", text=text)
    found = {one["pool"]: one["outcome"] for one in json.loads(result.stdout)["limits"]}
    assert found == {"pool full": "kept", "pool swa": "broken"}


def test_reserved_memory_is_told_from_used_memory():
    (pool,) = pools(as_object("-", text=TGI))
    assert pool["verdict"]["diagnosis"] == "reserved"
    assert "waits" not in pool["verdict"]["advice"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"default_generation_settings": {}, "total_slots": 4}', "says nothing about its KV pool"),
        ('{"models": []}', "this is Ollama"),
        ("sglang:num_requests_total 5\n", "says nothing about its KV pool"),
    ],
)
def test_texts_without_a_pool_say_what_they_are(text, message):
    result = run(measure_module, "-", text=text)
    assert isinstance(result.exception, SourceError)
    assert message in result.exception.message


@pytest.mark.parametrize(("content", "message"), [("hello", "no log of an engine"), ("", "no log of an engine")])
def test_a_log_that_is_none_is_refused(tmp_path, content, message):
    (tmp_path / "log").write_text(content)
    result = run(measure_module, "-", "--log", str(tmp_path / "log"), text=SAMPLES[0])
    assert message in result.exception.message


def test_a_log_that_is_not_there_is_refused(tmp_path):
    result = run(measure_module, "-", "--log", str(tmp_path / "log"), text=SAMPLES[0])
    assert isinstance(result.exception, SourceError)
    assert str(tmp_path) not in result.exception.message


def test_one_engine_is_chosen_and_recorded_alone(tmp_path):
    both = sglang(0, **pool_of(100)) + sglang(1, **pool_of(700))
    (tmp_path / "both.txt").write_text(both)
    alone = tmp_path / "one.kvr"
    (pool,) = pools(as_object(str(tmp_path / "both.txt"), "--engine", "1", "--record", str(alone)))
    assert (pool["engine_index"], pool["last"]["ledger"]["accounts_tokens"]["used"]) == (1, 700)
    assert [one["engine_index"] for one in pools(as_object(str(alone)))] == [1]


def test_one_engine_of_vllm_is_chosen_with_its_share_of_the_blocks(tmp_path):
    """The label counts the blocks of both engines: 514 for two of 257."""
    text = next(row["text"] for row in rows("async") if row["phase"] == "plain")
    two = text + text.replace('engine="0"', 'engine="1"')
    two = two.replace('num_gpu_blocks="257"', 'num_gpu_blocks="514"')
    (tmp_path / "two.txt").write_text(two)
    found = as_object(str(tmp_path / "two.txt"), "--engine", "1")
    (engine,) = found["sources"][0]["engines"]
    assert (engine["engine"], engine["last"]["pool"]["blocks"]) == (1, 257)


def test_one_server_of_a_recording_is_chosen(tmp_path):
    record = str(tmp_path / "r")
    with serving_paths({"/metrics": SAMPLES}) as (first, _), serving_paths(llamacpp()) as (second, _):
        ok(first, second, "--record", record)
    assert [one["engine"] for one in pools(as_object(record, "--server", "2"))] == ["llamacpp"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine", "3"), "there is no engine 3, only engine 0"),
        (("--server", "2"), "there is no server 2, only server 1"),
    ],
)
def test_what_is_not_there_cannot_be_chosen(flags, message):
    result = run(measure_module, "-", *flags, text=SAMPLES[0])
    assert message in result.exception.message
    assert result.exception.hint == "give one that is there, or leave --server and --engine out"
