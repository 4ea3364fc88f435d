"""`kvledger measure`: every kind of source, text and JSON, and what goes wrong."""

import gzip
import json
import re

import pytest
from click.testing import CliRunner

from kvledger.cli import measure as module
from kvledger.errors import SourceError, UsageError
from tests.cli.serving import serving
from tests.measure.recorded import rows, without_a_ledger


def run(*arguments, text=None):
    return CliRunner().invoke(module.command, list(arguments), input=text, env={"COLUMNS": "100"})


def ok(*arguments, text=None):
    result = run(*arguments, text=text)
    assert result.exit_code == 0, result.exception
    return result.stdout


def as_object(*arguments, text=None):
    return json.loads(ok(*arguments, "--json", text=text))


def busiest():
    return max(rows("async"), key=lambda row: sum(row["before"].values()) * (row["phase"] == "plain"))["text"]


def only_engine(found):
    ((engine,),) = (source["engines"] for source in found["sources"])
    return engine


def test_one_scrape_gives_a_balanced_sheet_in_tokens():
    ledger = only_engine(as_object("-", text=busiest()))["last"]["ledger"]
    assert ledger["unit"] == "tokens"
    assert sum(ledger["accounts_tokens"].values()) == ledger["capacity_tokens"] == 257 * 32


def test_a_price_turns_tokens_into_bytes():
    in_tokens = only_engine(as_object("-", text=busiest()))["last"]["ledger"]
    in_bytes = only_engine(as_object("-", "--bytes-per-token", "1000", text=busiest()))["last"]["ledger"]
    assert in_bytes["capacity_bytes"] == 1000 * in_tokens["capacity_tokens"]
    assert sum(in_bytes["accounts_bytes"].values()) == in_bytes["capacity_bytes"]


def test_a_model_names_what_a_token_costs():
    pool = only_engine(as_object("-", "--model", "llama-3-8b", text=busiest()))["last"]["pool"]
    assert pool["block_bytes"] == 131_072 * 32
    assert "llama-3-8b" in pool["bytes_source"]


def test_a_served_model_of_the_catalogue_is_priced_without_being_asked():
    text = busiest().replace('model_name="mid"', 'model_name="meta-llama/Meta-Llama-3-8B"')
    assert only_engine(as_object("-", text=text))["last"]["pool"]["block_bytes"] == 131_072 * 32


def test_the_text_gives_verdict_sheet_reservation_and_formulas():
    text = ok("-", "--bytes-per-token", "131072", text=busiest())
    for part in (
        "the pool",
        "unattributed",
        "null block",
        "under reservation",
        "block tables admit",
        "held = usage gauge",
    ):
        assert part in text
    assert "MiB" in text


def test_a_running_server_is_sampled_over_time_and_recorded(tmp_path):
    record = tmp_path / "r"
    with serving("plain") as url:
        found = as_object(url, "--for", "0.5s", "--every", "20ms", "--record", str(record))
    engine = only_engine(found)
    assert engine["samples"] >= 3  # ten and more unless the machine is overloaded
    assert engine["traffic"]["generated_tokens"] > 0
    again = only_engine(as_object(str(record)))
    assert again["samples"] == engine["samples"]
    assert again["last"]["tokens"] == engine["last"]["tokens"]
    assert again["peak"]["ledger"] == engine["peak"]["ledger"]


def test_a_server_that_fails_now_and_then_only_misses_samples(tmp_path):
    with serving("plain", failing=(2, 3)) as url:
        found = as_object(url, "--for", "0.3s", "--every", "20ms")
    (source,) = found["sources"]
    assert source["missed"] == 2
    assert "503" in source["last_error"]
    assert source["engines"][0]["samples"] == source["samples"] - 2


def test_several_servers_are_measured_together():
    with serving("plain") as first, serving("shared") as second:
        found = as_object(first, second)
        text = ok(first, second)
    assert [source["name"] for source in found["sources"]] == ["server 1", "server 2"]
    assert "server 2, engine 0" in text
    assert "127.0.0.1" not in text


def test_a_server_that_never_answered_is_named():
    flags = ("--for", "0.2s", "--every", "0.1s")
    with serving("plain") as url:
        text = ok(url, "http://127.0.0.1:9", *flags)
        found = as_object(url, "http://127.0.0.1:9", *flags)
    assert re.search("samples? failed: the server cannot be reached", " ".join(text.split()))
    assert "server 1, engine 0" in text
    silent = found["sources"][1]
    assert (silent["name"], silent["engines"], silent["missed"]) == ("server 2", [], silent["samples"])


def test_a_recording_is_not_appended_to_itself(tmp_path):
    record = tmp_path / "r"
    with serving("plain") as url:
        ok(url, "--record", str(record))
    before = record.read_bytes()
    result = run(str(record), "--record", str(tmp_path / "." / "r"))
    assert isinstance(result.exception, UsageError)
    assert "--record r is the source itself" in result.exception.message
    assert record.read_bytes() == before


def test_the_longest_request_is_asked_of_the_server_when_the_scrape_does_not_tell():
    first = rows("async")[0]["text"]
    old = first.replace("kv_cache_size_tokens", "a").replace("kv_cache_max_concurrency", "b")
    assert only_engine(as_object("-", text=old))["last"]["pool"]["max_model_len"] is None
    from tests.sources.servers import answering, reply

    def answer(connection, request):
        reply('{"data":[{"max_model_len":512}]}' if b"/v1/models" in request else old)(connection, request)

    with answering(answer) as url:
        assert only_engine(as_object(url))["last"]["pool"]["max_model_len"] == 512


def test_a_folder_of_scrapes_is_read_in_the_order_of_time(tmp_path):
    import os

    chosen = [row for row in rows("async") if row["phase"] == "plain"]
    for number, row in enumerate(chosen):
        path = tmp_path / f"{len(chosen) - number}.txt"
        path.write_text(row["text"], encoding="utf-8")
        os.utime(path, (1000 + number, 1000 + number))
    engine = only_engine(as_object(str(tmp_path)))
    assert (engine["samples"], engine["restarts"]) == (len(chosen), 0)


def test_a_restart_begins_a_new_epoch_and_loses_nothing(tmp_path):
    texts = [row["text"] for row in rows("async") if row["phase"] == "plain"][:4]
    again = [text.replace("process_start_time_seconds 1", "process_start_time_seconds 2") for text in texts]
    import os

    for number, text in enumerate([*texts, *again]):
        (tmp_path / str(number)).write_text(text, encoding="utf-8")
        os.utime(tmp_path / str(number), (1000 + number, 1000 + number))
    engine = only_engine(as_object(str(tmp_path)))
    assert (engine["samples"], engine["restarts"], engine["last"]["epoch"]) == (8, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["/no/such/file"], None, "cannot be read"),
        (["http://127.0.0.1:9", "--timeout", "1s"], None, "cannot be reached"),
        (["-"], "<html><body>hi</body></html>", "web page"),
        (["-"], "# HELP vllm:x y\n", "no sample"),
        (["-"], "", "is empty"),
        (["-"], "nothing of the kind\n", "neither metrics"),
    ],
)
def test_what_cannot_be_measured_says_why(arguments, text, message):
    result = run(*arguments, text=text)
    assert isinstance(result.exception, SourceError)
    import re

    assert re.search(message, result.exception.message)


@pytest.mark.parametrize("spec", ["127.0.0.1:8000", "gpu-7.example:30000/metrics"])
def test_a_server_without_its_scheme_is_told_how_to_write_it(spec):
    assert run(spec).exception.hint == f"for a running server write `http://{spec}`"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-", "--every", "0s"],
        ["-", "--for", "x"],
        ["-", "--timeout", "0s"],
        ["-", "--model", "llama-3-8b", "--bytes-per-token", "5"],
        ["-", "--model", "llama-3-8b", "--kv-dtype", "int3"],
        ["a", "b"],
        ["http://u:p@h"],
    ],
)
def test_settings_that_cannot_be_used_are_refused(arguments):
    assert isinstance(run(*arguments, text=busiest()).exception, UsageError)


def test_a_log_is_checked_as_far_as_it_goes(tmp_path):
    log = (
        "INFO 11-29 23:00:01 [gpu_worker.py:1] Available KV cache memory: 16.5 GiB\n"
        "INFO 11-29 23:00:01 [kv_cache_utils.py:1] GPU KV cache size: 135,168 tokens, "
        "Maximum concurrency for 2,048 tokens per request: 66.00x\n"
    )
    (tmp_path / "log").write_text(log, encoding="utf-8")
    text = ok(str(tmp_path / "log"))
    assert "135,168" in text
    assert "16.50 GiB" in text
    found = as_object(str(tmp_path / "log"))
    assert found["schema"] == "kvledger/measure-log"
    (engine,) = found["engines"]
    assert (engine["tokens"]["value"], engine["load"]) == (135_168, None)


def test_options_that_a_log_makes_no_use_of_are_named(tmp_path):
    (tmp_path / "log").write_text("GPU KV cache size: 135,168 tokens\n", encoding="utf-8")
    told = run(str(tmp_path / "log"), "--model", "qwen2.5-0.5b", "--max-model-len", "4096").stderr
    assert told.startswith(
        "hint: --model, --max-model-len are not used: a log is read as it was printed; `kvledger size MODEL "
    )
    assert run(str(tmp_path / "log"), "--model", "qwen2.5-0.5b", "-q").stderr == ""
    assert run(str(tmp_path / "log")).stderr == ""
    refused = run(str(tmp_path / "log"), "--record", str(tmp_path / "r")).exception
    assert isinstance(refused, UsageError)
    assert "no samples to record" in str(refused)


def test_another_engine_is_drawn_from_its_own_counts():
    labels = '{model_name="m",tp_rank="0"}'
    values = {"max_total_num_tokens": 1000, "page_size": 1, "kv_used_tokens": 100, "kv_evictable_tokens": 300}
    values |= {"kv_available_tokens": 600, "num_running_reqs": 2}
    text = "".join(f"sglang:{name}{labels} {value}\n" for name, value in values.items())
    from tests.sources.servers import answering, reply

    with answering(reply(text)) as url:
        found, shown = as_object(url), ok(url)
    assert found["schema"] == "kvledger/measure"
    ((pool,),) = (source["pools"] for source in found["sources"])
    assert pool["last"]["ledger"]["accounts_tokens"]["cached"] == 300
    assert "SGLang: 2 running" in shown


def test_a_result_is_written_to_a_file_once(tmp_path):
    target = tmp_path / "out.json"
    ok("-", "--json", "-o", str(target), text=busiest())
    assert json.loads(target.read_text("utf-8"))["schema"] == "kvledger/measure"
    assert isinstance(run("-", "-o", str(target), text=busiest()).exception, UsageError)


def test_the_token_of_a_server_is_in_no_output(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret", encoding="utf-8")
    with serving("plain") as url:
        text = ok(url, "--token-file", str(token))
    assert "s3cret" not in text
    assert str(tmp_path) not in text


def test_without_a_ledger_text_and_object_give_the_same_reason_and_no_numbers():
    engine = only_engine(as_object("-", text=without_a_ledger()))
    verdict, text = engine["verdict"], ok("-", text=without_a_ledger())
    assert verdict["diagnosis"] == "unknown"
    assert verdict["sentence"].startswith("no ledger: the gauge 0.250000 is no whole number of the 8,811 blocks")
    assert verdict["sentence"].split(": ", 1)[1] == engine["last"]["problem"]
    assert " ".join(verdict["sentence"].split()) in " ".join(text.split())
    assert set(engine["mean_ratio"].values()) == {None}
    assert (engine["internal_per_request_tokens"], engine["reservation"], engine["peak"]) == (None, None, None)


def test_a_window_in_which_one_sample_has_a_ledger_is_judged_by_it(tmp_path):
    import os

    for number, text in enumerate([busiest(), busiest().replace("vllm:kv_cache_usage_perc", "vllm:x")]):
        (tmp_path / str(number)).write_text(text, encoding="utf-8")
        os.utime(tmp_path / str(number), (1000 + number, 1000 + number))
    engine = only_engine(as_object(str(tmp_path)))
    assert (engine["samples"], engine["unread"]) == (2, 1)
    assert f"1 of 2 samples has no ledger: {engine['problem']}" in " ".join(ok(str(tmp_path)).split())
    assert engine["verdict"]["diagnosis"] != "unknown"
    assert None not in engine["mean_ratio"].values()


def test_a_model_other_than_the_served_one_is_hinted_at_and_noted():
    text = busiest().replace('model_name="mid"', 'model_name="/srv/models/Llama-3.1-8B"')
    result = run("-", "--model", "llama-3.1-70b", "--json", text=text)
    told = "the server serves `Llama-3.1-8B`, but --model is llama-3.1-70b: `8b` is served, but `70b` was given"
    assert result.stderr == f"hint: {told}\n"
    assert json.loads(result.stdout)["notes"] == [told]
    assert run("-", "--model", "llama-3.1-70b", "-q", text=text).stderr == ""
    assert run("-", "--model", "llama-3.1-8b", "--json", text=text).stderr == ""


def test_the_verdict_of_one_scrape_says_that_it_is_one_instant():
    verdict = only_engine(as_object("-", text=busiest()))["verdict"]
    assert verdict["sentence"].startswith("at this one instant, ")
    assert "--for 10m" in verdict["advice"]


def test_one_scrape_counts_no_traffic_which_is_not_zero():
    traffic = only_engine(as_object("-", text=busiest()))["traffic"]
    assert {name for name, value in traffic.items() if value is not None} == {"seconds"}


FLOAT32_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "torch_dtype": "float32",
}
"""2 heads of 16 elements, keys and values, one layer: 64 elements a token."""


def test_a_float32_config_is_an_assumption_until_the_log_or_an_option_names_the_dtype(tmp_path):
    """vLLM lowers float32 configs to 16 bits unless told otherwise, and the scrape says `auto` either way."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(FLOAT32_CONFIG))
    assumed = as_object("-", "--model", str(config), text=busiest())
    assert only_engine(assumed)["last"]["pool"]["block_bytes"] == 64 * 2 * 32
    assert "--kv-dtype, or the start-up log" in assumed["notes"][0]
    figures = only_engine(assumed)["last"]["ledger"]["figures"]
    assert {figure["accuracy"] for figure in figures if figure["name"] in ("live", "held", "used")} == {"modelled"}
    (row,) = (line for line in ok("-", "--model", str(config), text=busiest()).splitlines() if line[:5] == "pool ")
    assert row.endswith("modelled")

    log = tmp_path / "server.log"
    log.write_text(
        "(EngineCore pid=1) INFO 11-30 02:45:05 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        "model='m', speculative_config=None, dtype=torch.float32, max_seq_len=2048, kv_cache_dtype=auto\n"
    )
    for settled in (("--log", str(log)), ("--kv-dtype", "float32")):
        told = as_object("-", "--model", str(config), *settled, text=busiest())
        assert only_engine(told)["last"]["pool"]["block_bytes"] == 64 * 4 * 32
        assert not told["notes"]
    (row,) = (
        line
        for line in ok("-", "--model", str(config), "--log", str(log), text=busiest()).splitlines()
        if line[:5] == "pool "
    )
    assert row.endswith("derived")


def test_for_on_a_file_is_said_to_be_unused(tmp_path):
    path = tmp_path / "saved"
    path.write_text(busiest(), encoding="utf-8")
    told = "hint: --for is not used: a file is read to its end, whatever time it covers\n"
    assert run(str(path), "--for", "10m").stderr == told
    assert run(str(path), "--for", "10m", "-q").stderr == ""
    assert run(str(path)).stderr == ""


def with_bytes(block_bytes):
    """Return a scrape of 257 blocks of 32 tokens that tells its bytes."""
    text = busiest().replace('num_gpu_blocks_override="257"', 'num_gpu_blocks_override="None"')
    return text.replace('kv_cache_memory_bytes="1073741824"', f'kv_cache_memory_bytes="{257 * block_bytes}"')


def test_bytes_that_only_float32_explains_settle_the_dtype():
    found = only_engine(as_object("-", "--model", "llama-3-8b", text=with_bytes(32 * 2 * 131_072)))["last"]["pool"]
    assert found["block_bytes"] == 32 * 2 * 131_072
    half = only_engine(as_object("-", "--model", "llama-3-8b", text=with_bytes(32 * 131_072)))["last"]["pool"]
    assert half["block_bytes"] == 32 * 131_072


def test_bytes_that_no_dtype_of_the_model_explains_are_hinted_at_and_noted():
    result = run("-", "--model", "llama-3-8b", "--json", text=with_bytes(32 * 3 * 131_072))
    assert "would hold 771 blocks of llama-3-8b, but has 257" in result.stderr
    assert json.loads(result.stdout)["notes"] == [result.stderr.removeprefix("hint: ").rstrip()]
    assert run("-", "--model", "llama-3-8b", "--json", text=with_bytes(32 * 65_536)).stderr == ""  # one of two ranks


def test_a_packed_file_says_how_to_unpack_it(tmp_path):
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(gzip.compress(busiest().encode()))
    error = run(str(path)).exception
    assert isinstance(error, SourceError)
    assert (error.message, error.hint) == ("this is gzip data, not text", "unpack it: `zcat FILE | kvledger measure -`")
