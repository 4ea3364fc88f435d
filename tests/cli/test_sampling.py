"""`kvledger replay` with several answers to a prompt, and with swapping."""

import pytest

from .calling import call

POOL = ("--bytes-per-token", 100, "--capacity-tokens", 640, "--max-model-len", 200, "--clock", "0.1,0,0,0,1e-3")
CHAT = "synthetic:fixed,prompt=20,output=30,requests=40,rate=inf"


def replayed(capsys, *options, trace=CHAT):
    return call(capsys, "replay", trace, *POOL, *options, "--findings", "off", "--json", "-q").json()


def test_samples_fork_under_paged_and_are_requests_elsewhere(capsys):
    record = replayed(capsys, "--policy", "max,paged", "--samples", 3)
    reserving, paged = record["policies"]
    assert record["trace"]["sequences"] == 120
    assert (paged["requests"], paged["sequences"], paged["finished"]) == (40, 120, 40)
    assert paged["sharing"]["samples_as"] == "forks"
    assert paged["sharing"]["block_saving_ratio"] > 0
    assert paged["sharing"]["copied_blocks"] > 0
    assert reserving["sharing"] == {"samples_as": "requests", "block_saving_ratio": None, "copied_blocks": 0}
    assert (reserving["requests"], reserving["sequences"], reserving["peak_running"]) == (40, 120, 3)
    assert any("fork from one request" in note and "`paged`" in note for note in record["notes"])
    assert any("as vLLM V1 makes them" in note and "`max`" in note for note in record["notes"])


def test_samples_as_requests_share_nothing_without_a_prefix_cache_and_the_prompt_with_one(capsys):
    options = ("--policy", "paged", "--samples", 3)
    apart = replayed(capsys, *options, "--samples-as", "requests")["policies"][0]
    cached = replayed(capsys, *options, "--prefix-caching", "on")["policies"][0]
    assert apart["memo"]["shared_saving"] == 0
    assert cached["sharing"]["samples_as"] == "requests"
    assert cached["prefix"]["hit_tokens"] == 40 * 2 * 16


def test_beams_share_more_than_samples_and_the_model_is_stated(capsys):
    saved = {}
    for option in ("--samples", "--beams"):
        record = replayed(capsys, "--policy", "paged", option, 4, "--beam-turnover", 0.3)
        saved[option] = record["policies"][0]["sharing"]["block_saving_ratio"]
    assert saved["--beams"] > saved["--samples"] > 0
    assert any("with a chance of 0.3, each continues one of the living ones" in note for note in record["notes"])


def test_beams_are_drawn_from_the_seed(capsys):
    one, again, other = (
        replayed(capsys, "--policy", "paged", "--beams", 4, "--seed", seed)["policies"][0]["sharing"]
        for seed in (1, 1, 2)
    )
    assert one == again != other


def test_columns_of_a_trace_say_who_has_several_answers_and_who_searches(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens,samples,beam_width\n0,9,9,1,\n0,9,9,3,\n0,9,9,,4\n")
    record = replayed(capsys, "--policy", "paged", trace=path)
    assert record["policies"][0]["sequences"] == 1 + 3 + 4
    assert any("candidates of a beam search" in note for note in record["notes"])
    mapped = replayed(
        capsys,
        "--policy",
        "paged",
        "--columns",
        "prompt=prompt_tokens,output=output_tokens,samples=samples",
        trace=path,
    )
    assert mapped["policies"][0]["sequences"] == 1 + 3 + 1
    assert replayed(capsys, "--policy", "paged", "--samples", 2, trace=path)["policies"][0]["sequences"] == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--samples", 2, "--beams", 2), "--samples 2 and --beams 2 contradict"),
        (("--beams", 2, "--prefix-caching", "on"), "vLLM V1 sends each candidate as a request of one token"),
        (
            ("--samples", 2, "--samples-as", "forks", "--policy", "paged:radix"),
            "samples as forks beside a radix tree",
        ),
        (("--preemption", "swap", "--policy", "paged:radix"), "swapping beside a radix tree is not replayed"),
        (("--beams", 2, "--try", "prefix-caching=on"), "a beam search beside a prefix cache is not replayed"),
        (("--preemption", "swap", "--swap-space", "10B"), "hold not even one block of 1600 bytes"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_anything_runs(capsys, options, message):
    called = call(capsys, "replay", CHAT, *POOL, "--policy", "paged", *options, "-q")
    assert called.code == 2
    assert message in " ".join(called.err.split())
    assert called.out == ""


def test_swapping_moves_victims_and_costs_time(capsys):
    options = ("--policy", "paged", "--samples", 2)
    again = replayed(capsys, *options)["policies"][0]
    swapped = replayed(capsys, *options, "--preemption", "swap", "--swap-space", "1MiB")["policies"][0]
    assert again["swap"] is None
    assert again["recomputed_tokens"] > 0
    assert swapped["recomputed_tokens"] == 0
    swap = swapped["swap"]
    assert swap["swapped"] == swapped["preemptions"] > 0
    assert swap["no_room"] == 0
    assert swap["out_bytes"] == swap["in_bytes"] > 0
    assert swapped["makespan_seconds"] == pytest.approx(
        0.1 * swapped["steps"] + 1e-3 * (swap["out_bytes"] + swap["in_bytes"]) / 100
    )


def test_the_text_shows_what_is_shared_and_what_was_swapped(capsys):
    called = call(
        capsys, "replay", CHAT, *POOL, "--policy", "max,paged", "--samples", 2, "--preemption", "swap",
        "--findings", "off", "-q",
    )  # fmt: skip
    text = " ".join(called.out.split())
    assert "answers at a time" in text
    assert "What the answers to one prompt share" in text
    assert "What was swapped to the host" in text
    assert "+ 0.001 a token moved to the host or back" in text
    assert "moving a token to the host or back takes 0.001 s" in text


@pytest.mark.parametrize(
    ("clock", "note"),
    [
        ("steps", "takes no time with this clock"),
        # 131,072 bytes at 80 % of 32 GB/s, and of 64 GB/s
        ("a100-80gb:8b", f"takes {131072 / (0.8 * 32e9):.3g} s"),
        ("h100-sxm:8b", f"takes {131072 / (0.8 * 64e9):.3g} s"),
    ],
)
def test_the_clock_of_a_gpu_knows_the_link_to_its_host(capsys, clock, note):
    record = call(
        capsys, "replay", CHAT, "--model", "llama-3-8b", "--num-blocks", 100, "--policy", "paged", "--preemption",
        "swap", "--clock", clock, "--json", "-q",
    ).json()  # fmt: skip
    assert any(note in line for line in record["notes"])


def test_swapping_can_be_tried_and_its_price_is_the_memory_of_the_host(capsys):
    record = replayed(capsys, "--policy", "paged", "--samples", 2, "--swap-space", "1MiB", "--try", "preemption=swap")
    (change,) = record["what_ifs"]["changes"]
    assert change["price"] == "1.00 MiB of the host's memory"
    assert any("--try preemption=swap: moving a token to the host" in note for note in record["notes"])
    called = call(capsys, "replay", CHAT, *POOL, "--policy", "paged", "--try", "preemption=never", "-q")
    assert called.code == 2
    assert "neither recompute nor swap" in called.err


def test_what_a_block_costs_to_read_is_asked_for_and_told_where_block_sizes_are_tried(capsys):
    options = ("--policy", "paged", "--try", "block-size=2", "--clock", "0.1,0,0,1e-3")
    free = call(capsys, "replay", CHAT, *POOL[:-2], *options, "--json", "-q").json()
    costly = call(capsys, "replay", CHAT, *POOL[:-2], *options, "--block-overhead", 3.7, "--json", "-q").json()
    assert any("small blocks are read as fast as large ones" in note for note in free["notes"])
    assert not any("small blocks are read" in note for note in costly["notes"])
    assert costly["settings"]["clock"]["block_overhead_tokens"] == 3.7
    changed = [record["what_ifs"]["changes"][0]["end_to_end_seconds"] for record in (free, costly)]
    assert changed[1] > changed[0]


def test_the_summary_of_a_trace_counts_answers_and_searches(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,samples,beam_width\n9,9,1,\n9,9,3,\n9,9,,4\n")
    assert "answers    8 to 3 requests; 1 by beam search" in call(capsys, "trace", path).out
    record = call(capsys, "trace", path, "--json").json()
    assert (record["answers"], record["beam_searches"]) == (8, 1)
    path.write_text("prompt_tokens,output_tokens\n9,9\n")
    assert "answers" not in call(capsys, "trace", path).out
