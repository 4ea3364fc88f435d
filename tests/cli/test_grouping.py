"""`kvledger replay --model` for models whose layers do not all keep every token."""

import csv
import json
from pathlib import Path

import pytest

from .calling import call

RUNS = json.loads((Path(__file__).parents[1] / "data" / "vllm-0.32.0" / "hybrid-runs.json").read_text(encoding="utf-8"))
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


def written(folder, run):
    """Write the requests and the model of a recorded run, and return them and the options of its settings."""
    layers = run["layer_types"]
    config = {**GEMMA, "num_hidden_layers": len(layers), "layer_types": layers, "sliding_window": run["sliding_window"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    columns = run["requests"]
    lines = ["arrival_seconds," + ",".join(columns)]
    lines += ["0," + ",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (folder / "requests.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = [word for name, value in run["settings"].items() for word in (f"--{name.replace('_', '-')}", value)]
    block = run["groups"][0]["block"]
    caching = "on" if run["prefix_caching"] else "off"
    return [
        folder / "requests.csv", "--model", folder / "config.json", *options, "--block-size", block,
        "--num-blocks", run["usable_blocks"], "--prefix-caching", caching, "--clock", "steps", "--quiet",
    ]  # fmt: skip


@pytest.mark.parametrize("run", RUNS[:3], ids=[run["name"] for run in RUNS[:3]])
def test_the_series_of_a_recorded_run_is_equal_at_every_step(capsys, tmp_path, run):
    series = tmp_path / "steps.csv"
    called = call(capsys, "replay", *written(tmp_path, run), "--policy", "paged", "--series", series)
    assert called.code == 0, called.err
    rows = list(csv.DictReader(series.read_text(encoding="utf-8").splitlines()))
    for name, expected in run["steps"].items():
        assert [int(row[name]) for row in rows] == expected, name


def test_a_golden_run_of_a_hybrid_model_is_equal_at_every_step(capsys, tmp_path, shared):
    folder = shared / "golden" / "vllm-0.32.0" / "hybrid-prefix-a"
    config, series = json.loads((folder / "config.json").read_text()), tmp_path / "steps.csv"
    settings = [
        word
        for name in ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
        for word in (f"--{name.replace('_', '-')}", config[name])
    ]
    called = call(
        capsys, "replay", folder / "requests.csv", "--model", shared / "golden" / "hybrid-model-config.json",
        "--num-blocks", config["usable_blocks"], "--policy", "paged", "--prefix-caching", "on", "--clock", "steps",
        "--series", series, *settings,
    )  # fmt: skip
    assert called.code == 0, called.err
    rows = list(csv.DictReader(series.read_text(encoding="utf-8").splitlines()))
    steps = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    for name in ("running", "waiting", "used_blocks", "preemptions"):
        assert [row[name] for row in rows] == [step[name] for step in steps], name


def test_blocks_are_as_wide_as_the_widest_group_and_other_policies_get_the_same_memory(capsys, tmp_path):
    """Three layers a group, 64 elements of 2 bytes a token, 64 tokens a block: 24,576 bytes."""
    arguments = written(tmp_path, RUNS[2])
    record = call(capsys, "replay", *arguments, "--policy", "paged,exact", "--json").json()
    paged, exact = record["policies"]
    assert paged["capacity_bytes"] == RUNS[2]["usable_blocks"] * 24576
    assert paged["unit_tokens"] == 64
    assert 0 <= paged["capacity_bytes"] - exact["capacity_bytes"] < record["pool"]["bytes_per_token"]
    assert record["pool"]["bytes_per_token"] == 6 * 64 * 2
    assert 0 < paged["memo"]["stale"] < paged["mean_ratio"]["internal"]
    assert exact["memo"]["stale"] == 0


def test_notes_say_which_groups_are_kept_and_which_policies_do_not(capsys, tmp_path):
    arguments = [word for word in written(tmp_path, RUNS[2]) if word != "--quiet"]
    called = call(capsys, "replay", *arguments, "--policy", "paged,exact,pow2")
    assert "hint: `paged` keeps 2 block tables over one pool of 24,576-byte blocks" in called.err
    assert "as vLLM 0.32.0 groups the layers" in called.err
    assert (
        "hint: `exact`, `pow2` treat the model as if every attention layer kept every token (768 bytes)" in called.err
    )


def test_what_ifs_regroup_the_layers(capsys, tmp_path):
    """67 blocks of 24,576 bytes; with half the bytes a token 134 of 12,288; with 128 tokens a block 33 of 49,152."""
    arguments = written(tmp_path, RUNS[2])
    tries = ["--try", "kv-dtype=fp8", "--try", "block-size=128"]
    record = call(capsys, "replay", *arguments, "--policy", "paged", *tries, "--json").json()
    base = record["policies"][0]["capacity_bytes"]
    assert base == 67 * 24576
    changed = {what["change"]: what for what in record["what_ifs"]["changes"]}
    assert changed["kv-dtype=fp8"]["bytes_per_token"] == 384
    assert changed["kv-dtype=fp8"]["capacity_bytes"] == 134 * 12288
    assert changed["kv-dtype=fp8"]["mean_ratio"]["used"] < record["policies"][0]["mean_ratio"]["used"]
    assert changed["block-size=128"]["capacity_bytes"] == 33 * 49152


def test_a_model_with_an_encoder_cannot_be_replayed(capsys, tmp_path):
    (tmp_path / "t.csv").write_text("arrival_seconds,prompt_tokens,output_tokens\n0,4,4\n", encoding="utf-8")
    called = call(capsys, "replay", tmp_path / "t.csv", "--model", "whisper-large-v3", "--memory", "1GiB")
    assert called.code == 2
    assert "cannot be replayed: what layer" in called.err


@pytest.mark.parametrize("model", ["lfm2-1.2b", "gemma-4-26b-a4b", "llama-4-scout-17b-16e"])
@pytest.mark.parametrize("caching", ["on", "off"])
def test_models_with_states_chunks_and_uneven_blocks_are_replayed(capsys, model, caching):
    called = call(
        capsys, "replay", "synthetic:chat,requests=200,rate=50", "--model", model, "--memory", "2GiB",
        "--policy", "paged", "--prefix-caching", caching, "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    policy = called.json()["policies"][0]
    assert policy["finished"] == 200
    assert policy["mean_ratio"]["used"] > 0
    assert sum(policy["mean_ratio"].values()) == pytest.approx(1.0)


def test_the_cache_alone_says_that_it_takes_every_layer_as_full(capsys, tmp_path):
    row = {"input_length": 1024, "output_length": 8}
    rows = "\n".join(json.dumps({"timestamp": i, **row, "hash_ids": [1, i]}) for i in range(4))
    (tmp_path / "t.jsonl").write_text(rows + "\n", encoding="utf-8")
    called = call(capsys, "cache", tmp_path / "t.jsonl", "--model", "gemma-3-27b", "--block-size", 512, "--json")
    assert called.code == 0, called.err
    assert any("as if every attention layer kept every token (507,904 bytes)" in n for n in called.json()["notes"])
