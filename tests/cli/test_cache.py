"""``kvledger cache``: budgets, what is printed, and what cannot be asked."""

import json
from itertools import pairwise

import pytest

from kvledger.cli.caching import parse_budgets
from kvledger.errors import UsageError

from .calling import call


@pytest.fixture
def shared_trace(tmp_path):
    """Return a Mooncake trace: three conversations of two blocks in turn, ten times over."""
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 1000 * i, "input_length": 1024, "output_length": 8, "hash_ids": [i % 3, 10 + i % 3]}
        for i in range(30)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def asked(capsys, trace, *flags):
    called = call(capsys, "cache", trace, "--bytes-per-token", "2", "-q", "--json", *flags)
    assert called.code == 0, called.err
    return called.json()


def test_hit_ratios_by_budget_and_eviction(capsys, shared_trace):
    """Six blocks of 1 KiB: with all of them everything is found again; with four, LRU always evicts what comes next."""
    found = asked(capsys, shared_trace, "--budget", "4KiB,6KiB", "--warm-up", "0.5")
    assert (found["block_tokens"], found["block_bytes"], found["distinct_blocks"]) == (512, 1024, 6)
    assert found["first_measured_request"] == 15
    four, six = ({e["eviction"]: e["hit_ratio"] for e in b["evictions"]} for b in found["budgets"])
    assert six == {"lru": 1, "fifo": 1, "belady": 1}
    assert (four["lru"], four["fifo"]) == (0, 0)
    assert four["belady"] > 0.4
    assert found["ceiling"] == {"hit_ratio": 1, "whole_hit_ratio": pytest.approx(27 / 30)}


def test_with_live_requests_full_blocks_are_found_as_the_replay_finds_them(capsys, shared_trace):
    """Each prompt of 1,024 tokens can find its first block, not its last; requests a second apart never meet."""
    live = asked(
        capsys, shared_trace, "--budget", "1KiB,16KiB", "--live", "--clock", "0.001,0,0,0", "--eviction", "lru"
    )["live"]
    assert live[0]["live_hit_ratio"] is None
    assert live[1]["alone_hit_ratio"] == pytest.approx(27 / 60)
    assert live[1]["live_hit_ratio"] == pytest.approx(27 / 60)


def test_live_requests_that_meet_are_not_the_cache_alone(capsys, shared_trace):
    """Steps of 5 s: several run at a time, and what they hold cannot be evicted."""
    flags = ["--budget", "5KiB", "--live", "--clock", "5,0,0,0", "--eviction", "lru"]
    (point,) = asked(capsys, shared_trace, *flags)["live"]
    assert point["mean_running"] > 1
    assert point["live_hit_ratio"] != point["alone_hit_ratio"]


def test_every_eviction_asked_for_is_replayed_with_live_requests(capsys, shared_trace):
    """Four blocks for three prompts in turn, a second apart: only who knows the future finds anything again."""
    live = asked(capsys, shared_trace, "--budget", "4KiB", "--live", "--clock", "0.001,0,0,0")["live"]
    assert [point["eviction"] for point in live] == ["lru", "fifo", "belady"]
    alone = {point["eviction"]: point["alone_hit_ratio"] for point in live}
    found = {point["eviction"]: point["live_hit_ratio"] for point in live}
    assert found["lru"] == alone["lru"]
    assert found["belady"] >= max(found["lru"], found["fifo"])
    assert found["belady"] > 0


def test_budgets_go_up_to_what_holds_everything_by_themselves(capsys, shared_trace):
    budgets = [b["budget_bytes"] for b in asked(capsys, shared_trace)["budgets"]]
    assert budgets[-1] >= 6 * 1024 > budgets[-2]
    assert all(b == 2 * a for a, b in pairwise(budgets))


def test_the_text_states_the_window_and_what_is_not_yet_full(capsys, shared_trace):
    called = call(capsys, "cache", shared_trace, "--bytes-per-token", "2", "--budget", "4KiB,64KiB", "--live")
    assert "requests 16 to 30; those before only fill the cache" in called.out
    assert "A cache that forgets nothing would find 100.0 % of the prompt tokens" in called.out
    assert "* not yet full when measuring began" in called.out
    assert "What live requests change" in called.out


@pytest.mark.parametrize(
    ("eviction", "said"),
    [
        ("belady", "would find 100.0 % of the prompt tokens."),
        ("fifo", "`fifo` reaches nine tenths of that with 6.00 KiB."),
        (
            "lru,belady",
            "What is evicted matters most at 4.00 KiB: 0.0 % with `lru`, 66.7 % for one who knew the future.",
        ),
    ],
)
def test_the_answer_is_about_what_was_asked(capsys, shared_trace, eviction, said):
    """Who knows the future keeps two of the three conversations in four blocks."""
    answer = asked(capsys, shared_trace, "--budget", "4KiB,6KiB", "--eviction", eviction)["answer"]
    assert answer.endswith(said)


def test_a_budget_that_is_too_small_says_what_it_finds(capsys, shared_trace):
    answer = asked(capsys, shared_trace, "--budget", "4KiB", "--eviction", "fifo")["answer"]
    assert answer.endswith("`fifo` finds 0.0 % with 4.00 KiB.")


def test_where_nothing_is_shared_there_is_nothing_to_find(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens,shared_prefix_tokens\n0,40,1,0\n1,40,1,0\n")
    assert asked(capsys, path)["answer"] == "A cache that forgets nothing would find 0.0 % of the prompt tokens."


def test_without_warm_up_all_requests_are_measured(capsys, shared_trace):
    called = call(capsys, "cache", shared_trace, "--bytes-per-token", "2", "--warm-up", "0", "-q")
    assert "all 30 requests, from an empty cache" in called.out


def test_a_result_goes_to_a_file(capsys, shared_trace, tmp_path):
    target = tmp_path / "c.json"
    call(capsys, "cache", shared_trace, "--bytes-per-token", "2", "--json", "-o", target)
    assert json.loads(target.read_text())["schema"] == "kvledger/cache"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--eviction", "lru,mru"], "unknown eviction `mru`"),
        (["--budget", "0"], "size of 0"),
        (["--budget", "8G"], "ambiguous"),
        (["--budget", "...,8GiB"], "needs a size on both sides"),
        (["--block-size", "48"], "blocks of 512 tokens, which --block-size 48 does not fit"),
        (["--warm-up", "1"], "warm-up"),
        (["--live", "--clock", "fit"], "cannot fit a clock"),
        (["--live", "--clock", "h100-80gb"], "needs the parameters of the model"),
        (["--model", "llama-3-8b"], "given twice"),
    ],
)
def test_what_cannot_be_asked_is_refused(capsys, shared_trace, flags, said):
    called = call(capsys, "cache", shared_trace, "--bytes-per-token", "2", "--json", *flags)
    assert called.code == 2
    assert said in called.error()["message"]


def test_a_trace_without_content_is_refused(capsys, trace):
    called = call(capsys, "cache", trace, "--bytes-per-token", "2", "--json")
    assert "does not tell what its requests share" in called.error()["message"]


@pytest.mark.parametrize(
    ("text", "budgets"),
    [("4,...,16", [4, 8, 16]), ("4,...,17", [4, 8, 16, 17]), ("8,2", [2, 8]), ("1,...,4,...,9", [1, 2, 4, 8, 9])],
)
def test_dots_between_budgets_double(text, budgets):
    assert parse_budgets(text) == budgets


@pytest.mark.parametrize("text", ["", "...", "1,...", "1,...,...,4", ",".join(map(str, range(1, 99)))])
def test_budgets_that_are_none_are_refused(text):
    with pytest.raises(UsageError):
        parse_budgets(text)


def test_a_page_is_written_beside_the_result(capsys, shared_trace, tmp_path):
    page = tmp_path / "cache.html"
    found = asked(capsys, shared_trace, "--budget", "4KiB,6KiB", "--live", "--html", page)
    assert len(found["live"]) == 6
    assert "What live requests change" in page.read_text("utf-8")
