"""`kvledger replay` end to end."""

import csv
import gzip
import itertools
import json
import os
import subprocess

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvledger.ledger import Account

from .calling import SMALL, call, command, spawn

FIELDS = {
    "policy", "capacity_bytes", "requests", "rejected", "finished", "steps", "preemptions", "refused_while_free",
    "makespan_seconds", "busy_seconds", "saturated_seconds", "mean_running", "peak_running", "mean_ratio",
    "saturated_ratio", "memo", "paper_ratio", "latency_seconds", "timeline",
}  # fmt: skip


def test_the_json_has_every_field_of_the_design_and_its_ratios_sum_to_one(capsys, trace):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "all", "--page-size", "1600B", "--layers", 1, "--json")
    record = called.json()
    assert {"schema", "schema_version", "trace", "pool", "settings", "policies"} <= set(record)
    assert (record["schema"], record["schema_version"]) == ("kvledger/replay", 1)
    assert len(record["policies"]) == 10
    for policy in record["policies"]:
        assert set(policy) >= FIELDS
        assert list(policy["mean_ratio"]) == [str(account) for account in Account]
        assert sum(policy["mean_ratio"].values()) == pytest.approx(1.0)
        assert sum(policy["saturated_ratio"].values()) == pytest.approx(1.0 if policy["saturated_seconds"] else 0.0)
        assert sum(policy["paper_ratio"].values()) == pytest.approx(1.0)
        assert policy["finished"] + sum(policy["rejected"].values()) == policy["requests"] == 3
        assert set(policy["latency_seconds"]) == {"queue", "first_token", "end_to_end"}
        assert set(policy["latency_seconds"]["queue"]) >= {"mean", "p50", "p90", "p95", "p99", "max"}
        assert sum(point["steps"] for point in policy["timeline"]) == policy["steps"]


def test_the_json_says_how_each_number_is_known_and_where_the_length_came_from(capsys, trace):
    record = call(capsys, "replay", trace, *SMALL, "--json").json()
    assert set(record["accuracy"].values()) <= {"measured", "derived", "modelled"}
    assert record["settings"]["max_model_len"] == 110
    assert record["settings"]["max_model_len_origin"] == "the longest request of the trace"


def test_stdout_is_the_result_and_nothing_else(capsys, trace):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "vmm", "--page-size", "64KiB",
                  "--capacity-tokens", 10**6, "--json")  # fmt: skip
    called.json()
    assert "hint: `vmm` maps pages per layer; 32 layers are assumed, give --layers N for yours" in called.err


def test_quiet_prints_no_hint_and_no_notice(capsys, trace):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "vmm", "--capacity-tokens", 10**6,
                  "--page-size", "64KiB", "-q")  # fmt: skip
    assert (called.code, called.err) == (0, "")


@pytest.mark.parametrize("run", ["plain-a", "plain-b"])
def test_a_recorded_vllm_run_is_equal_at_every_step_through_the_command_line(shared, tmp_path, capsys, run):
    folder = shared / "golden" / "vllm-0.32.0" / run
    config = json.loads((folder / "config.json").read_text())
    series = tmp_path / "steps.csv"
    called = call(
        capsys, "replay", folder / "requests.csv", "--bytes-per-token", 1, "--num-blocks", config["usable_blocks"],
        "--block-size", config["block_size"], "--max-model-len", config["max_model_len"], "--max-num-seqs",
        config["max_num_seqs"], "--max-num-batched-tokens", config["max_num_batched_tokens"], "--clock", "steps",
        "--policy", "paged", "--series", series, "--columns",
        "arrival=arrival_seconds,prompt=prompt_tokens,output=output_tokens",
    )  # fmt: skip
    assert called.code == 0, called.err
    ours = list(csv.DictReader(series.read_text().splitlines()))
    theirs = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    for name in ("running", "waiting", "used_blocks", "preemptions"):
        assert [int(row[name]) for row in ours] == [int(row[name]) for row in theirs], name


def test_a_series_has_one_row_a_step_whose_accounts_sum_to_the_pool(tmp_path, capsys, trace):
    series = tmp_path / "steps.csv"
    called = call(capsys, "replay", trace, *SMALL, "--policy", "exact", "--series", series, "--json")
    (policy,) = called.json()["policies"]
    rows = list(csv.DictReader(series.read_text().splitlines()))
    assert len(rows) == policy["steps"]
    accounts = ("used", "cached", "reserved", "internal", "external", "free")
    assert {sum(int(row[name]) for name in accounts) for row in rows} == {policy["capacity_bytes"]}
    assert called.err.strip() == f"Wrote {series}"


def test_a_series_of_several_policies_is_a_file_each(tmp_path, capsys, trace):
    call(capsys, "replay", trace, *SMALL, "--policy", "max@buddy,paged@4", "--series", tmp_path / "steps.csv")
    assert sorted(path.name for path in tmp_path.glob("steps*")) == ["steps.max@buddy.csv", "steps.paged@4.csv"]


def test_standard_input_is_read(tmp_path, trace):
    done = subprocess.run(
        command("replay", "-", *SMALL, "--policy", "paged@2", "--json", "-q"),
        input=trace.read_bytes(), capture_output=True, timeout=240, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["policies"][0]["finished"] == 3


def test_a_result_goes_to_a_file_without_colour(tmp_path, capsys, trace, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    target = tmp_path / "report.txt"
    called = call(capsys, "replay", trace, *SMALL, "-o", target)
    assert called.out == ""
    assert "\x1b" not in target.read_text()
    assert target.read_text().endswith("\n")


@pytest.mark.parametrize(
    ("variables", "flags", "colored"),
    [({"FORCE_COLOR": "1"}, [], True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False), ({}, [], False),
     ({"FORCE_COLOR": "1"}, ["--no-color"], False)],
)  # fmt: skip
def test_colour_is_asked_for_and_refused_the_usual_way(capsys, trace, monkeypatch, variables, flags, colored):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    plain = call(capsys, "replay", trace, *SMALL, "--no-color").out
    called = call(capsys, "replay", trace, *SMALL, *flags)
    assert ("\x1b[" in called.out) == colored
    if not colored:
        assert called.out == plain


@pytest.mark.parametrize("columns", [80, 100, 132])
def test_no_line_is_wider_than_the_terminal(capsys, trace, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    called = call(capsys, "replay", trace, *SMALL, "--policy", "all", "--page-size", "1600B", "--layers", 1,
                  "--mitigations", "max", "-q")  # fmt: skip
    assert called.code == 0
    assert max(map(len, called.out.splitlines())) <= columns


BAD_FILES = {
    "empty.csv": b"",
    "blank.csv": b"\n\n\n",
    "header.csv": b"arrival_seconds,prompt_tokens,output_tokens\n",
    "columns.csv": b"a,b,c\n1,2,3\n4,5,6\n",
    "words.csv": b"arrival_seconds,prompt_tokens,output_tokens\nx,y,z\n",
    "binary.csv": bytes(range(256)) * 9,
    "broken.jsonl": b'{"timestamp": 0, "input_leng',
    "truncated.csv.gz": gzip.compress(b"arrival_seconds,prompt_tokens,output_tokens\n" + b"0,40,10\n" * 9999)[:60],
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_file_that_is_no_trace_is_an_error_with_exit_code_2(capsys, tmp_path, name, flags):
    path = tmp_path / name
    path.write_bytes(BAD_FILES[name])
    called = call(capsys, "replay", path, *SMALL, *flags)
    assert (called.code, called.out) == (2, "")
    if flags:
        assert called.error()["code"] in ("KVE002", "KVE003")
    else:
        assert called.err.startswith("error: ")
    assert name in called.err
    assert str(tmp_path) not in called.err


BAD_ROWS = {
    "negative": "0,40,10\n1,-5,3\n",
    "absurd": "0,40,10\n1,99999999999999999999,3\n",
    "zero": "0,40,10\n1,0,3\n",
    "not a number": "0,40,10\n1,nan,3\n",
    "infinite": "0,40,10\ninf,5,3\n",
}


@pytest.mark.parametrize("rows", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_among_good_ones_is_dropped_and_counted_never_replayed(capsys, tmp_path, rows):
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n" + rows)
    called = call(capsys, "replay", path, *SMALL, "--json")
    if called.code == 0:
        record = called.json()
        assert record["trace"]["requests"] == 1
        assert sum(record["trace"]["dropped"].values()) == 1
    else:
        assert (called.code, called.error()["code"]) == (2, "KVE003")


def test_times_that_go_backwards_are_refused_or_sorted_and_said(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n5,4,3\n1,5,3\n")
    called = call(capsys, "replay", path, *SMALL, "--json")
    if called.code == 0:
        assert sum(called.json()["trace"]["adjusted"].values()) > 0
    else:
        assert called.error()["code"] == "KVE003"


def test_times_out_of_this_world_are_refused(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,4,3\n1e300,5,3\n")
    called = call(capsys, "replay", path, *SMALL, "--json")
    if called.code == 0:
        assert called.json()["policies"][0]["makespan_seconds"] < 1e12
    else:
        assert called.error()["code"] == "KVE003"


def test_a_request_larger_than_the_pool_is_a_counted_rejection(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,40,10\n1,500,3\n")
    called = call(capsys, "replay", path, *SMALL, "--policy", "exact,paged")
    assert called.code == 0
    assert "`exact` rejected 1: larger_than_pool" in called.out
    assert "`paged` rejects 1 of 2 requests" in " ".join(called.out.split())


def test_a_policy_of_which_not_one_unit_fits_is_left_out_and_said(capsys, trace):
    called = call(
        capsys, "replay", trace, "--bytes-per-token", 100, "--capacity-tokens", 5, "--policy", "max,paged", "--json"
    )
    record = called.json()
    assert [policy["policy"] for policy in record["policies"]] == ["max"]
    assert any("`paged` is left out" in note and "smaller than one unit" in note for note in record["notes"])


def test_a_result_never_replaces_the_trace_it_is_made_from(capsys, trace):
    before = trace.read_bytes()
    for flags in (["-o", trace, "--force"], ["--series", trace, "--policy", "paged", "--force"]):
        called = call(capsys, "replay", trace, *SMALL, *flags)
        assert (called.code, "is the input itself" in called.err) == (2, True)
    assert trace.read_bytes() == before


def test_a_model_is_replayed_on_a_clock_of_its_own_size(capsys, trace):
    bases = {}
    for model in ("llama-3.1-8b", "llama-3.1-70b"):
        record = call(
            capsys, "replay", trace, "--model", model, "--memory", "50GiB", "--policy", "paged", "--json"
        ).json()
        bases[model] = record["settings"]["clock"]["base"]
        assert "the model's" in record["settings"]["clock"]["name"]
    assert bases["llama-3.1-70b"] > 8 * bases["llama-3.1-8b"]


def test_a_pool_that_an_engine_would_not_start_with_says_so(capsys, trace):
    called = call(capsys, "replay", trace, "--model", "llama-3.1-8b", "--memory", "1GiB", "--policy", "paged", "--json")
    assert any("vLLM would not start like this" in note for note in called.json()["notes"])


def test_traffic_that_can_never_run_says_so_instead_of_praising_the_memory(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,400,10\n1,500,3\n")
    called = call(capsys, "replay", path, *SMALL)
    assert called.code == 0
    assert "None of these 2 requests can be served in this pool" in called.out


def test_a_policy_under_which_nothing_ran_has_no_shares_to_show(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,400,10\n1,400,3\n")
    called = call(
        capsys, "replay", path, "--bytes-per-token", 100, "--capacity-tokens", 512, "--max-model-len", 1024,
        "--policy", "max,paged", "--block-size", 16, "--try", "max-model-len=100", "--findings", "off",
    )  # fmt: skip
    assert called.code == 0
    rows = [line.split() for line in called.out.splitlines()]
    of_max = [row[1:] for row in rows if row[:1] == ["max"]]
    assert ["-"] * 6 + ["50.00", "KiB"] in of_max
    assert all(["-"] * cells in of_max for cells in (4, 5, 7))
    assert ["max-model-len=100", *"----20--"] in rows


COST, SIZE = ("--bytes-per-token", 100), ("--capacity-tokens", 1000)
BAD_OPTIONS = {
    "no memory": ([*COST, "--memory", "0"], "no memory to manage"),
    "no tokens": ([*COST, "--capacity-tokens", 0], "no memory to manage"),
    "no blocks": ([*COST, "--num-blocks", 0], "no memory to manage"),
    "ambiguous": ([*COST, "--memory", "16G"], "`16G` is ambiguous"),
    "no size": ([*COST, "--memory", "lots"], "is not a size"),
    "one byte": ([*COST, "--memory", "1B"], "smaller than one unit of `max`"),
    "two sizes": ([*COST, *SIZE, "--memory", "1GiB"], "contradict"),
    "no pool": ([*COST], "exactly one size"),
    "two costs": ([*COST, *SIZE, "--model", "llama-3-8b"], "given twice"),
    "no cost": ([*SIZE], "not known"),
    "unknown model": (["--model", "lama-3-8b", *SIZE], "lama-3-8b"),
    "missing config": (["--model", "./nowhere/config.json", *SIZE], "there is no file"),
    "dtype without a model": ([*COST, *SIZE, "--kv-dtype", "fp8"], "no model was given"),
    "unknown policy": ([*COST, *SIZE, "--policy", "maxx"], "unknown policy `maxx`"),
    "no policy": ([*COST, *SIZE, "--policy", ","], "no policy was named"),
    "policy twice": ([*COST, *SIZE, "--policy", "max,max"], "listed twice"),
    "unknown placement": ([*COST, *SIZE, "--placement", "bst"], "unknown placement `bst`"),
    "watermark": ([*COST, *SIZE, "--watermark", "1.5"], "1.5"),
    "watermark nan": ([*COST, *SIZE, "--watermark", "nan"], "watermark_ratio is nan"),
    "block": ([*COST, *SIZE, "--block-size", 2**21], "2097152"),
    "buffer": ([*COST, *SIZE, "--buffer", "9" * 40], "not in the range"),
    "length": ([*COST, *SIZE, "--max-model-len", 1], "--max-model-len"),
    "page": ([*COST, *SIZE, "--policy", "vmm", "--page-size", "1TiB"], "--page-size is"),
    "clock": ([*COST, *SIZE, "--clock", "1,2,3"], "is not a clock"),
    "clock nan": ([*COST, *SIZE, "--clock", "nan,0,0,0"], "`base` of the clock is nan"),
    "clock gpu": ([*COST, *SIZE, "--clock", "x:8b"], "no accelerator `x`"),
    "clock parameters": ([*COST, *SIZE, "--clock", "h100-80gb:manyb"], "not a parameter count"),
    "restart": ([*COST, *SIZE, "--restart-every", "inf"], "restart_every_seconds is inf"),
    "restart always": ([*COST, *SIZE, "--max-num-batched-tokens", 1, "--restart-every", 5, "--clock", "steps"],
                       "no time to compute"),
    "seed": ([*COST, *SIZE, "--seed", -1], "--seed"),
    "mitigate": ([*COST, *SIZE, "--mitigations", "paged"], "no extents to mitigate"),
    "mitigate nothing": ([*COST, *SIZE, "--mitigations", ""], "no policy was named"),
    "series folder": ([*COST, *SIZE, "--series", "."], "is a folder"),
    "series nowhere": ([*COST, *SIZE, "--series", "nowhere/steps.csv"], "there is no folder"),
    "output nowhere": ([*COST, *SIZE, "-o", "nowhere/out.txt"], "there is no folder"),
    "output folder": ([*COST, *SIZE, "-o", "/"], "is a folder"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_option_that_cannot_be_used_is_an_error_with_exit_code_2(capsys, trace, options, message, flags):
    called = call(capsys, "replay", trace, *options, *flags)
    assert (called.code, called.out) == (2, "")
    said = called.error()["message"] if flags else called.err
    assert message in said


def test_a_missing_trace_is_an_error(capsys, tmp_path):
    called = call(capsys, "replay", tmp_path / "nowhere.csv", *SMALL)
    assert called.code == 2
    assert "`nowhere.csv` cannot be opened: No such file" in called.err


def test_an_existing_result_is_kept_and_refused_before_the_work(capsys, trace, tmp_path):
    target = tmp_path / "out.json"
    target.write_text("precious")
    called = call(capsys, "replay", tmp_path / "not-even-read.csv", *SMALL, "-o", target)
    assert (called.code, target.read_text()) == (2, "precious")
    assert "add --force" in called.err
    assert call(capsys, "replay", trace, *SMALL, "-o", target, "--force", "--json").code == 0
    assert json.loads(target.read_text())["schema"] == "kvledger/replay"


def test_an_existing_series_is_kept(capsys, trace, tmp_path):
    target = tmp_path / "steps.csv"
    target.write_text("precious")
    called = call(capsys, "replay", trace, *SMALL, "--policy", "paged", "--series", target)
    assert (called.code, target.read_text()) == (2, "precious")


def test_result_and_series_cannot_be_one_file(capsys, trace, tmp_path):
    target = tmp_path / "out"
    called = call(capsys, "replay", trace, *SMALL, "--policy", "paged", "--series", target, "-o", target, "--force")
    assert called.code == 2
    assert "are the same file" in called.err


def test_the_same_memory_is_compared_when_it_is_given_in_blocks(capsys, trace):
    record = call(capsys, "replay", trace, "--bytes-per-token", 100, "--num-blocks", 10, "--block-size", 32,
                  "--policy", "max,paged@16,paged,paged@64", "--json").json()  # fmt: skip
    assert {policy["capacity_bytes"] for policy in record["policies"]} == {10 * 32 * 100}


def test_blocks_of_another_size_than_any_table_has_are_said_to_be(capsys, trace):
    given = ("replay", trace, "--bytes-per-token", 100, "--num-blocks", 10, "--findings", "off")
    other = call(capsys, *given, "--policy", "paged@32")
    assert "10 blocks of 16 tokens of KV memory" in other.out
    assert (
        "--num-blocks counts blocks of 16 tokens, of which 10 hold 5 of `paged@32`; give --block-size 32" in other.err
    )
    for fine in (("--policy", "paged@16,paged@32"), ("--policy", "paged", "--block-size", 32), ("--policy", "max")):
        assert "counts blocks" not in call(capsys, *given, *fine).err


def test_mitigations_of_a_policy_that_was_not_asked_for_replay_it_too(capsys, trace):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "paged", "--mitigations", "max", "--json")
    assert [policy["policy"] for policy in called.json()["policies"]] == ["paged", "max"]
    assert "max" in called.json()["mitigations"]


def test_effects_of_mitigations_are_differences_of_headline_ratios(capsys, trace):
    record = call(capsys, "replay", trace, *SMALL, "--policy", "max", "--mitigations", "max", "--json").json()
    for row in record["mitigations"]["max"]:
        assert sum(row["effect"].values()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [("--prefix-caching", "on", *SMALL), ("--model", "gemma-3-27b", "--memory", "50GiB")],
    ids=["prefix", "groups"],
)
def test_a_prefix_cache_and_groups_of_layers_are_restarted_like_any_pool(capsys, trace, options):
    called = call(capsys, "replay", trace, *options, "--policy", "paged,max", "--clock", "steps",
                  "--restart-every", 1, "--json")  # fmt: skip
    record = called.json()
    assert not [note for note in record["notes"] if "without restarts" in note]
    assert record["policies"][0]["restarts"] > 0


def test_seats_that_hold_requests_back_are_not_blamed_on_memory(capsys, trace):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "exact,paged", "--max-num-seqs", 1)
    assert "What holds `paged` back is max_num_seqs 1, not memory." in " ".join(called.out.split())


def test_a_name_that_steers_the_terminal_is_shown_harmless(capsys, tmp_path, trace):
    path = tmp_path / "a\x1b[31mb.csv"
    path.write_bytes(trace.read_bytes())
    called = call(capsys, "replay", path, *SMALL)
    assert "a?[31mb.csv" in called.out


def test_a_name_that_is_no_unicode_is_shown(capsys, tmp_path, trace):
    path = os.fsencode(tmp_path) + b"/\xff.csv"
    with open(path, "wb") as stream:  # noqa: PTH123
        stream.write(trace.read_bytes())
    called = call(capsys, "replay", os.fsdecode(path), *SMALL)
    assert called.code == 0
    assert "?.csv" in called.out


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(["max", "exact@buddy", "grow@step", "static-batch", "paged@1", "upfront", "no-evict@7"]),
    tokens=st.sampled_from([1, 3, 60, 300, 10**9]),
    options=st.tuples(
        st.sampled_from([[], ["--buffer", 2**40], ["--granularity", 2**40], ["--buffer", 3, "--granularity", 7]]),
        st.sampled_from([[], ["--max-model-len", 2], ["--max-model-len", 45], ["--max-model-len", 2**40]]),
        st.sampled_from([[], ["--max-num-seqs", 1], ["--max-num-seqs", 2**20]]),
        st.sampled_from([[], ["--max-num-batched-tokens", 1], ["--no-full-sequence-must-fit"], ["--watermark", 1]]),
        st.sampled_from([[], ["--clock", "1e6,1e6,1e6,1e6"], ["--clock", "1e-300,0,0,0"], ["--restart-every", 1e-9]]),
    ),
)
def test_hostile_values_end_in_numbers_that_add_up_or_in_an_error_of_ours(capsys, trace, policy, tokens, options):
    arguments = ("--bytes-per-token", 3, "--capacity-tokens", tokens, "--policy", policy, *itertools.chain(*options))
    called = call(capsys, "replay", trace, *arguments, "--json", "-q")
    if called.code:
        assert called.code == 2
        assert called.error()["code"] in ("KVE001", "KVE005")
        return
    (record,) = called.json()["policies"]
    assert record["finished"] + sum(record["rejected"].values()) == 3
    assert min(record["mean_ratio"].values()) >= 0
    assert np.isclose(sum(record["mean_ratio"].values()), 1.0) or not record["finished"]


def test_the_text_of_a_small_replay(capsys, trace, snapshot):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "max,exact@buddy,grow@doubling,static-batch,paged@4",
                  "--mitigations", "exact", "-q")  # fmt: skip
    assert called.out == snapshot


def test_the_json_of_a_small_replay(capsys, trace, snapshot, monkeypatch):
    import kvledger

    monkeypatch.setattr(kvledger, "__version__", "0")
    record = call(capsys, "replay", trace, *SMALL, "--policy", "max,paged@4", "--json", "-q").json()
    for policy in record["policies"]:
        policy["timeline"] = policy["timeline"][:2]
    assert record == snapshot


def test_reading_and_replaying_in_another_process_gives_the_same_text(capsys, trace):
    here = call(capsys, "replay", trace, *SMALL, "-q")
    there = spawn("replay", trace, *SMALL, "-q", COLUMNS="80")
    assert there.out == here.out


def test_an_eviction_is_told_with_what_the_cache_gave(capsys, tmp_path):
    trace = "synthetic:chat,requests=300,turns=4,rate=2"
    flags = ("--bytes-per-token", 100, "--capacity-tokens", 20_000, "--policy", "paged", "--json", "-q")
    found = {
        eviction: call(capsys, "replay", trace, *flags, "--prefix-caching", "on", "--eviction", eviction).json()
        for eviction in ("lru", "fifo", "belady")
    }
    caches = {eviction: answer["policies"][0]["prefix"] for eviction, answer in found.items()}
    assert [cache["eviction"] for cache in caches.values()] == list(caches)
    assert caches["fifo"]["hit_tokens"] < caches["lru"]["hit_tokens"] < caches["belady"]["hit_tokens"]


def test_an_eviction_without_a_cache_or_beside_groups_is_refused(capsys):
    trace = "synthetic:chat,requests=3"
    flags = ("--capacity-tokens", 20_000, "--policy", "paged", "--eviction", "fifo", "-q")
    found = call(capsys, "replay", trace, *flags, "--bytes-per-token", 100)
    assert (found.code, "chooses among cached blocks, and none are" in found.err) == (2, True)
    found = call(
        capsys, "replay", trace, *flags[2:], "--model", "gemma-3-27b", "--memory", "9GiB", "--prefix-caching", "on"
    )
    assert (found.code, "has groups of layers, which are replayed with eviction `lru` only" in found.err) == (2, True)


def test_an_index_of_blocks_and_a_radix_tree_stand_side_by_side(capsys, tmp_path):
    trace = "synthetic:chat,requests=200,turns=4,rate=2"
    flags = ("--bytes-per-token", 100, "--capacity-tokens", 60_000, "--policy", "paged,paged:blocks,paged:radix")
    found = call(capsys, "replay", trace, *flags, "--series", tmp_path / "s.csv", "--json", "-q").json()
    plain, blocks, tree = found["policies"]
    assert plain["prefix"] is None
    assert 0 < blocks["prefix"]["hit_tokens"] <= tree["prefix"]["hit_tokens"]
    assert (tree["unit_tokens"], tree["meaning"][:10]) == (1, "radix tree")
    assert {path.name for path in tmp_path.iterdir()} == {
        "s.paged.csv", "s.paged-blocks.csv", "s.paged-radix.csv",
    }  # fmt: skip


def test_two_pools_tell_which_one_refuses_and_need_a_model_with_windows(capsys):
    flags = ("replay", "synthetic:chat,requests=60,rate=inf", "--policy", "paged:pools", "--memory", "2GiB", "-q")
    text = call(capsys, *flags, "--model", "gemma-3-27b", "--max-model-len", 4096, "--swa-full-tokens-ratio", 0.5).out
    assert "How the two pools fill" in text
    assert "one of 0.5 times as many tokens, 425,984 bytes each" in " ".join(
        call(capsys, *flags[:-1], "--model", "gemma-3-27b", "--swa-full-tokens-ratio", 0.5).err.split()
    )
    for cost in (("--model", "llama-3-8b"), ("--bytes-per-token", 9)):
        found = call(capsys, *flags, *cost)
        assert (found.code, "is for full attention beside sliding windows" in found.err) == (2, True)


def test_two_pools_have_a_page_without_a_map(capsys, tmp_path):
    call(
        capsys, "replay", "synthetic:chat,requests=20,rate=inf", "--policy", "paged:pools", "--model", "gemma-3-4b",
        "--memory", "2GiB", "--findings", "off", "-q", "--html", tmp_path / "page.html",
        "-o", tmp_path / "o.json", "--json",
    )  # fmt: skip
    (pools,) = json.loads((tmp_path / "o.json").read_text())["policies"]
    assert (pools["finished"], pools["layouts"]) == (20, [])
    assert "paged:pools" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "paged:pools", "--model", "gemma-3-4b", "--memory", "2GiB"),
        ("--policy", "paged", "--beams", 2, "--bytes-per-token", 100, "--capacity-tokens", 20_000),
    ],
)
def test_a_remedy_that_is_not_replayed_beside_what_was_asked_is_not_proved(capsys, options):
    trace = "synthetic:chat,requests=20,rate=inf,shared_prefix=100"
    found = call(capsys, "replay", trace, *options, "--findings", "all", "--json", "-q")
    assert found.code == 0, found.err
    assert "KV030" not in {told["code"] for told in found.json()["findings"]["told"]}


def test_a_prompt_far_larger_than_the_pool_takes_no_table_of_its_length(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_seconds,prompt_tokens,output_tokens,shared_prefix_tokens\n0,100000000,5,32\n1,40,5,32\n2,40,5,32\n"
    )
    found = call(
        capsys, "replay", path, *SMALL, "--policy", "paged", "--prefix-caching", "on", "--findings", "off", "--json"
    )
    (paged,) = found.json()["policies"]
    assert (paged["finished"], paged["rejected"]) == (2, {"larger_than_pool": 1})
    assert paged["prefix"]["hit_tokens"] == 32
