"""Handed texts and complaints about running servers of other engines: what `measure` says when it asks the server.

The texts of K2 are printed ones; a complaint of K3 describes a server, and its answers stand here.
"""

import json

import pytest
from click.testing import CliRunner

from kvledger.cli import measure as measure_module
from kvledger.errors import SourceError
from tests.measure.slot_server import slot
from tests.measure.test_pool_meter import pool_of, sglang
from tests.sources.engine_server import serving_paths


@pytest.fixture(scope="module")
def handed(shared):
    cases = map(json.loads, (shared / "cases" / "handed.jsonl").read_text().splitlines())
    return {case["id"]: case["printed"] for case in cases}


def ask(answers, *arguments):
    with serving_paths(answers) as (url, _):
        result = CliRunner().invoke(measure_module.command, [url, *arguments, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    found = json.loads(result.stdout)
    (pool,) = found["sources"][0]["pools"]
    return pool, {one["code"] for one in found["findings"]["told"]}


def spans(pool):
    return {one["name"]: (one["low"], one["high"]) for one in pool["last"]["ledger"]["figures"]}


def size(pool):
    """Return the tokens of the pool."""
    return pool["last"]["ledger"]["capacity_tokens"]


def lines(printed):
    return "".join(f"{line}\n" for line in printed)


def llamacpp(slots, *, waiting=0, context=4096, build="b9093-d774ab3a"):
    running = sum(one["is_processing"] for one in slots)
    return {
        "/metrics": f"llamacpp:requests_processing {running}\nllamacpp:requests_deferred {waiting}\n",
        "/slots": json.dumps(slots),
        "/props": json.dumps(
            {
                "default_generation_settings": {"n_ctx": context},
                "total_slots": len(slots),
                "model_path": "/models/m.gguf",
                "build_info": build,
            }
        ),
    }


def log(folder, slots, context, *, unified=False):
    path = folder / "server.log"
    strip = context if unified else context // slots
    path.write_text(
        "build: 9093 (d774ab3a) with cc\n"
        f"llama_context: n_seq_max     = {slots}\n"
        f"llama_context: n_ctx         = {context}\n"
        f"llama_context: n_ctx_seq     = {strip}\n"
        f"llama_context: kv_unified    = {str(unified).lower()}\n"
        f"srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = {strip}, "
        f"kv_unified = '{str(unified).lower()}'\n"
    )
    return str(path)


def test_k2_013_a_queue_beside_free_memory_has_another_limit(handed):
    pool, codes = ask({"/metrics": lines(handed["K2-013"])})
    verdict = pool["verdict"]
    assert verdict["diagnosis"] == "other-limit"
    assert "2,826 requests wait while at most 28.5 % of the pool is held" in verdict["sentence"]
    assert "--max-running-requests" in verdict["advice"]
    low, high = spans(pool)["capacity"]
    assert (low // 131_072, high // 131_072) == (434_593, 450_396)
    assert codes == {"KV014"}


def test_k2_018_an_old_gauge_counts_the_cells_of_the_one_slot(handed):
    *metrics, slots = handed["K2-018"]
    pool, codes = ask({"/metrics": lines(metrics), "/slots": slots.partition(" ")[2]})
    assert spans(pool)["used"] == (19_455, 19_457)
    assert size(pool) == 77_824
    assert pool["verdict"]["diagnosis"] == "reserved"
    assert "several that share it" in pool["verdict"]["advice"]
    assert codes == set()


def test_k2_018_without_slots_needs_the_log(handed, tmp_path):
    metrics = {"/metrics": lines(handed["K2-018"][:-1])}
    pool, _ = ask(metrics)
    assert "--log" in pool["verdict"]["sentence"]
    pool, _ = ask(metrics, "--log", log(tmp_path, 1, 77_824))
    assert (size(pool), spans(pool)["used"], spans(pool)["cached"]) == (77_824, (1, 19_457), (0, 19_456))
    assert spans(pool)["free"] == (77_824 - 19_457, 77_824 - 19_455)
    assert pool["verdict"]["diagnosis"] == "other-limit"


def test_k3_027_a_context_divided_by_six(tmp_path):
    """One slot is at its end, at a sixth of the cells; the others are empty, and no request can use them."""
    slots = [
        slot(0, tokens=27_306, context=27_306, busy=True),
        *(slot(n, tokens=None, context=27_306) for n in range(1, 6)),
    ]
    pool, codes = ask(llamacpp(slots, context=27_306), "--log", log(tmp_path, 6, 163_840))
    assert size(pool) == 6 * 27_306
    assert spans(pool)["held"] == (27_306, 27_306)
    assert spans(pool)["free"] == (5 * 27_306, 5 * 27_306)
    assert pool["last"]["layout"] == "strips"
    assert codes == set()


def test_k3_027_strips_that_are_held_and_hardly_used_are_told(tmp_path):
    slots = [slot(n, tokens=2000, context=27_306, busy=True, task=n) for n in range(6)]
    pool, codes = ask(llamacpp(slots, context=27_306, waiting=4), "--log", log(tmp_path, 6, 163_840))
    assert pool["verdict"]["diagnosis"] == "reserved"
    assert "--kv-unified" in pool["verdict"]["advice"]
    assert codes == {"KV048"}


@pytest.mark.parametrize(("unified", "reserved", "diagnosis"), [(False, 61_536, "reserved"), (True, 0, "room")])
def test_k3_029_an_explicit_number_of_slots_splits_the_same_cells(tmp_path, unified, reserved, diagnosis):
    context = 65_536 if unified else 32_768
    slots = [slot(n, tokens=2000, context=context, busy=True, task=n) for n in range(2)]
    pool, _ = ask(llamacpp(slots, context=context), "--log", log(tmp_path, 2, 65_536, unified=unified))
    assert size(pool) == 65_536
    assert spans(pool)["reserved"] == (reserved, reserved)
    assert pool["verdict"]["diagnosis"] == diagnosis


def test_k3_030_the_slots_of_the_server_are_the_truth(tmp_path):
    """Four slots though `-np 1` was given: all four are there and counted."""
    slots = [slot(n, tokens=100 * n or None, context=1024) for n in range(4)]
    pool, _ = ask(llamacpp(slots, context=1024, build="b7079-d774ab3a"), "--log", log(tmp_path, 4, 4096))
    assert [one["slot"] for one in pool["last"]["slots"]] == [0, 1, 2, 3]
    assert size(pool) == 4096
    assert spans(pool)["cached"] == (600, 600)


def test_k3_031_ollama_points_to_its_server_and_that_has_the_product_of_both():
    with pytest.raises(SourceError) as caught:
        ask(
            {"/api/ps": json.dumps({"models": [{"name": "llama3:8b", "model": "llama3:8b", "size": 1, "digest": "d"}]})}
        )
    assert "llama-server" in f"{caught.value} {caught.value.hint}"
    slots = [slot(n, tokens=None, context=4096) for n in range(4)]
    pool, _ = ask(llamacpp(slots), "--no-kv-unified")
    assert size(pool) == 16_384


def test_k3_046_tokens_kept_for_reuse_are_no_leak():
    """Usage only rises, for what has ended stays in the tree: it is cached, and can be taken at once."""
    rising = [
        sglang(**(pool_of(0, num_running_reqs=0) | {"kv_evictable_tokens": kept, "kv_available_tokens": 1000 - kept}))
        for kept in (300, 600, 940)
    ]
    with serving_paths({"/metrics": rising}) as (url, _):
        result = CliRunner().invoke(measure_module.command, [url, "--for", "200ms", "--every", "50ms", "--json"])
    found = json.loads(result.stdout)
    (pool,) = found["sources"][0]["pools"]
    assert (spans(pool)["used"], spans(pool)["cached"]) == ((0, 0), (940, 940))
    assert pool["last"]["ledger"]["available_tokens"] == 1000
    assert pool["verdict"]["diagnosis"] == "idle"


def test_k3_026_a_share_of_free_memory_leaves_a_pool_that_is_hardly_used():
    text = "trtllm_kv_cache_max_blocks 2072\ntrtllm_kv_cache_used_blocks 80\ntrtllm_num_requests_running 1\n"
    pool, _ = ask({"/metrics": text + "trtllm_kv_cache_tokens_per_block 64\n"})
    assert size(pool) == 132_608
    assert spans(pool)["held"] == (5120, 5120)
    assert pool["verdict"]["diagnosis"] == "room"
