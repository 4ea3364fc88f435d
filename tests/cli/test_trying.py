"""``replay --try``: every row is the replay with that one setting, and what cannot be tried is said before."""

import json

import pytest

from .calling import call

MODEL = {
    "model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "hidden_size": 512, "vocab_size": 1000, "intermediate_size": 1024, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
SHARED = "arrival_seconds,prompt_tokens,output_tokens,shared_prefix_tokens\n" + "".join(
    f"{0.01 * i:.2f},{60 + i},{20 + i % 7},48\n" for i in range(40)
)


@pytest.fixture
def given(tmp_path):
    """Return the arguments of a replay that is short of memory."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "t.csv").write_text(SHARED)
    base = ["replay", tmp_path / "t.csv", "--model", tmp_path, "--policy", "paged", "--prefix-caching", "on", "-q"]
    return [*base, "--memory", "2MiB", "--clock", "0.01,1e-5,1e-5,1e-6", "--json"]


def tried(capsys, given, *tries, more=()):
    flags = [flag for text in tries for flag in ("--try", text)]
    called = call(capsys, *given, *more, *flags)
    assert called.code == 0, called.err
    return called.json()["what_ifs"]


SINGLE = {
    "block-size=8": ["--block-size", "8"],
    "max-model-len=70": ["--max-model-len", "70"],
    "max-num-seqs=2": ["--max-num-seqs", "2"],
    "max-num-batched-tokens=64": ["--max-num-batched-tokens", "64"],
    "prefix-caching=off": ["--prefix-caching", "off"],
    "eviction=belady": ["--eviction", "belady"],
    "memory=4MiB": ["--memory", "4MiB"],
}


@pytest.mark.parametrize("change", SINGLE)
def test_a_change_is_the_replay_with_that_setting(capsys, given, change):
    (row,) = tried(capsys, given, change)["changes"]
    (alone,) = call(capsys, *given, *SINGLE[change]).json()["policies"]
    assert row["change"] == change
    for name in ("mean_ratio", "mean_running", "rejected", "truncated", "preemptions", "finished", "makespan_seconds"):
        assert row[name] == alone[name], name
    assert row["end_to_end_seconds"] == alone["latency_seconds"]["end_to_end"]["mean"]
    assert row["prefix_hit_ratio"] == (alone["prefix"]["hit_ratio"] if alone["prefix"] else None)


def test_another_dtype_keeps_the_bytes_of_the_pool_and_halves_the_time_to_read(capsys, given):
    (row,) = tried(capsys, given, "kv-dtype=fp8")["changes"]
    other = [str(a).replace("1e-6", "5e-7") for a in given]
    (alone,) = call(capsys, *other, "--kv-dtype", "fp8").json()["policies"]
    assert (row["mean_ratio"], row["makespan_seconds"]) == (alone["mean_ratio"], alone["makespan_seconds"])
    assert row["bytes_per_token"] == 4 * 2 * 4 * 64
    assert "rounded to" in row["price"]


def test_ranks_share_what_a_token_costs_and_memory_is_that_of_one(capsys, given):
    what_ifs = tried(capsys, given, "tp=2,1")
    two, one = what_ifs["changes"]
    assert (two["bytes_per_token"], one["bytes_per_token"]) == (4 * 2 * 2 * 64 * 2, 4 * 2 * 4 * 64 * 2)
    assert two["capacity_bytes"] == one["capacity_bytes"] == 2 * 2**20
    assert two["capacity_tokens"] == 2 * one["capacity_tokens"]
    assert all(value == 0 for value in one["effect"].values())
    assert what_ifs["best"] == "tp=2"
    assert "2 GPUs for each replica" in what_ifs["sentence"]


def test_a_roofline_is_drawn_anew_for_each_rank(capsys, given):
    fast = [*given[: given.index("--clock")], "--clock", "a100-80gb:8b", "--json"]
    two, base = tried(capsys, fast, "tp=2,1")["changes"]
    assert two["makespan_seconds"] < 0.7 * base["makespan_seconds"]


def test_a_pool_given_in_blocks_keeps_its_memory(capsys, given):
    blocks = [*given[: given.index("--memory")], "--num-blocks", "20", "--json"]
    rows = tried(capsys, blocks, "block-size=16,32", "kv-dtype=fp8")["changes"]
    assert {row["capacity_bytes"] for row in rows} == {20 * 16 * 4096}


def test_the_text_shows_a_table_and_the_best_trade(capsys, given):
    called = call(capsys, *given[:-1], "--try", "memory=8MiB", "--try", "tp=2")
    assert "What if: `paged` with one setting changed" in called.out
    assert "The best trade is `" in called.out
    assert "\n(as it is) " in called.out
    assert "memory and bytes per token are those of one rank" in " ".join(called.out.split())


def test_cut_answers_are_a_column_and_a_price(capsys, given):
    (row,) = tried(capsys, given, "max-model-len=70")["changes"]
    cut, rejected = row["truncated"], sum(row["rejected"].values())
    assert cut > 0
    assert row["price"] == f"{rejected:,} requests rejected instead of 0; {cut:,} answers cut instead of 0"
    text = call(capsys, *given[:-1], "--try", "max-model-len=70").out
    assert f"{cut:,} answers cut instead of 0." in " ".join(text.split())
    part = next(part for part in text.split("\n\n") if "\nchange " in f"\n{part}" and " cut " in part)
    heading, changed = (next(x.split() for x in part.splitlines() if x.startswith(y)) for y in ("change ", "max-model"))
    assert changed[heading.index("cut")] == str(cut)


def test_a_cache_tried_on_a_trace_without_content_is_said_to_know_nothing(capsys, given, tmp_path):
    rows = [line.rpartition(",")[0] for line in SHARED.splitlines()]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    what_ifs = tried(capsys, given, "prefix-caching=on", more=("--prefix-caching", "off"))
    assert what_ifs["best"] is None
    assert "the trace does not tell what its requests share" in what_ifs["sentence"]


def test_without_tries_there_are_no_what_ifs(capsys, given):
    assert call(capsys, *given).json()["what_ifs"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("block-sise=8", "--try cannot change `block-sise`"),
        ("block-size", "--try block-size lacks a value"),
        ("block-size=8,,16", "lacks a value"),
        ("block-size=eight", "--try block-size=eight is not a whole number"),
        ("block-size=0", "--try block-size=0 is not from 1 to 1,048,576"),
        ("max-num-seqs=0", "--try max-num-seqs=0 is not from 1 to 1,048,576"),
        ("max-num-seqs=99999999999999", "is not from 1 to 1,048,576"),
        ("max-model-len=1", "--try max-model-len=1 is not from 2 to"),
        ("prefix-caching=maybe", "is neither on nor off"),
        ("eviction=random", "is none of lru, fifo, belady"),
        ("kv-dtype=fp3", "fp3"),
        ("tp=0", "--try tp=0 is not from 1 to 1,024"),
        ("tp=3", "cannot be divided among 3 ranks, nor copied evenly"),
        ("memory=16G", "ambiguous"),
        ("memory=1KiB", "smaller than one unit"),
        ("max-num-seqs=" + ",".join(map(str, range(1, 99))), "98 changes, more than 64"),
    ],
)
def test_what_cannot_be_tried_is_refused(capsys, given, change, said):
    called = call(capsys, *given, "--try", change)
    assert called.code == 2
    assert said in called.error()["message"]


def test_an_eviction_needs_a_cache(capsys, given):
    found = call(capsys, *given, "--prefix-caching", "off", "--try", "eviction=fifo")
    assert found.code == 2
    assert "caches nothing, so --try eviction=fifo changes nothing" in found.err


def test_the_nearest_setting_is_suggested(capsys, given):
    assert "did you mean `block-size`?" in call(capsys, *given, "--try", "blocksize=8").error()["hint"]


def test_a_dtype_needs_a_model_and_blocks_need_block_tables(capsys, trace):
    small = ["replay", trace, "--bytes-per-token", "100", "--capacity-tokens", "200", "--clock", "steps", "--json"]
    assert "no model was given" in call(capsys, *small, "--policy", "paged", "--try", "tp=2").error()["message"]
    assert "changes nothing" in call(capsys, *small, "--policy", "max", "--try", "block-size=8").error()["message"]
