"""Every field that only some options print is documented, too."""

import json

from kvledger.live.vllm_scheduler import LedgerScheduler

from .cli.calling import call
from .live.fake_vllm import make
from .test_docs import documented_fields, fields_of, leaves

CHAT = "synthetic:chat,requests=60,rate=9,shared_prefix=64"


def test_every_field_of_fits_and_what_ifs_is_documented(capsys, tmp_path):
    rows = ["arrival_seconds,prompt_tokens,output_tokens,first_token_seconds,end_seconds"]
    rows += [f"{i},{50 + i},9,{i + 0.2},{i + 0.7}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join([*rows, "31,9000,9,,"]))
    flags = [
        "--model",
        "llama-3-8b",
        "--memory",
        "1GiB",
        "--max-model-len",
        "4096",
        "--policy",
        "paged",
        "--json",
        "-q",
    ]
    found = call(capsys, "replay", tmp_path / "t.csv", *flags, "--clock", "fit", "--try", "block-size=32").json()
    paths = leaves(fields_of({"settings": {"clock": {"fit": found["settings"]["clock"]["fit"]}}}))
    paths |= leaves(fields_of({"what_ifs": found["what_ifs"]}))
    assert paths == documented_fields("replay with fit and try")


def test_every_field_of_cache_json_is_documented(capsys):
    found = call(capsys, "cache", CHAT, "--model", "llama-3-8b", "--live", "--json", "-q").json()
    assert leaves(fields_of(found)) == documented_fields("cache")


def test_every_field_of_findings_is_documented(capsys):
    traffic = "synthetic:chat,requests=200,rate=inf"
    flags = ["--model", "llama-3-8b", "--memory", "1GiB", "--policy", "max,paged", "--json", "-q"]
    found = fields_of({"findings": call(capsys, "replay", traffic, *flags).json()["findings"]})
    assert found == documented_fields("findings")


def test_the_schema_of_the_cache_is_stable(capsys):
    found = call(capsys, "cache", CHAT, "--model", "llama-3-8b", "--json", "-q").json()
    assert json.dumps([found["schema"], found["schema_version"]]) == '["kvledger/cache", 1]'


def test_every_field_of_a_ledger_from_inside_is_documented(tmp_path, monkeypatch):
    for name, value in (("DIR", str(tmp_path)), ("EVERY", "0"), ("REQUESTS", "1")):
        monkeypatch.setenv(f"KVLEDGER_VLLM_{name}", value)
    scheduler = make(LedgerScheduler)
    scheduler.admit("a", 6)
    scheduler.update_from_output(None, None)
    scheduler.shutdown()
    found = json.loads((tmp_path / "engine-3.json").read_text("utf-8"))
    assert leaves(fields_of(found)) == documented_fields("inside")


def test_every_field_of_sweep_json_is_documented(capsys, tmp_path):
    grid = tmp_path / "g.toml"
    grid.write_text(
        f"""
        settings = {{ trace = "{CHAT}", model = "llama-3-8b", policy = "paged", prefix-caching = "on" }}
        grid = {{ memory = ["2GiB", "1MiB"], rate = [3, inf] }}
        [[exclude]]
        memory = "8GiB"
        """
    )
    found = call(capsys, "sweep", grid, "--json", "-q", "--workers", 1).json()
    assert leaves(fields_of(found)) == documented_fields("sweep")


def test_every_field_of_answers_and_swapping_is_documented(capsys):
    flags = ("--bytes-per-token", 100, "--capacity-tokens", 640, "--max-model-len", 400, "--policy", "paged")
    trace = "synthetic:fixed,prompt=20,output=30,requests=40,rate=inf"
    options = ("--samples", 3, "--preemption", "swap", "--json", "-q", "--findings", "off")
    (policy,) = call(capsys, "replay", trace, *flags, *options).json()["policies"]
    paths = leaves(fields_of({"policies": [{name: policy[name] for name in ("sharing", "swap")}]}))
    assert paths == documented_fields("replay with answers and swapping")


def test_every_field_of_layouts_is_documented(capsys):
    flags = ["--model", "llama-3-8b", "--memory", "1GiB", "--layout", "--json", "-q"]
    extents = call(capsys, "replay", CHAT, *flags, "--policy", "pow2").json()["policies"][0]["layouts"]
    blocks = call(capsys, "replay", CHAT, *flags, "--policy", "paged", "--prefix-caching", "on").json()
    merged = extents[0] | {"blocks": blocks["policies"][0]["layouts"][0]["blocks"]}
    paths = leaves(fields_of({"policies": [{"layouts": [merged]}]}))
    assert paths == documented_fields("replay with layout")


def test_every_field_of_two_pools_is_documented(capsys):
    options = ("--model", "gemma-3-27b", "--memory", "20GiB", "--policy", "paged:pools", "--json", "-q")
    (policy,) = call(capsys, "replay", CHAT, *options, "--findings", "off").json()["policies"]
    assert [use["name"] for use in policy["pools"]] == ["full", "window"]
    assert leaves(fields_of({"policies": [{"pools": policy["pools"]}]})) == documented_fields("replay with two pools")
