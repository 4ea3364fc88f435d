"""What is found in plans, next to plans in which it must not be found."""

import pytest

from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.engines.registry import ENGINES, load_planner
from kvledger.engines.size import SizeQuestion, answer_size
from kvledger.findings.evidence import SizeCase
from kvledger.findings.finding import Trade
from kvledger.findings.search import find_in_size
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model
from kvledger.units import GIB


def plan_case(model, *, engine="vllm", version=None, memory=30 * GIB, length=None, count=None, **settings):
    spec = read_layers(model, max_model_len=8192) if "(" in model else find_model(model)
    deployment = Deployment(engine=engine, version=version or ENGINES[engine].latest, **settings)
    question = SizeQuestion(
        model=spec, deployment=deployment, memory=KvMemory.given(memory), length_tokens=length, concurrency=count
    )
    planner = load_planner(engine)
    return SizeCase(outcome=answer_size(planner, question), planner=planner)


def find(model, **values):
    """Return the findings of one plan, by code."""
    return {finding.code: finding for finding in find_in_size([plan_case(model, **values)]).findings}


def test_a_plain_model_that_fits_has_nothing_to_find():
    assert find("llama-3.1-8b") == {}


def test_ranks_beyond_the_heads_store_copies_and_splitting_tokens_gives_them_back():
    """16 ranks over 8 heads: every byte twice, so half of what the requests hold goes."""
    case = plan_case("llama-3.1-70b", tp=16)
    (found,) = find_in_size([case]).findings
    load = case.outcome.structure
    assert found.code == "KV042"
    assert found.best.setting == "--decode-context-parallel-size 2"
    assert found.returned == case.plan.count_request_bytes(load.length_tokens) * load.requests // 2
    assert "1,966 requests of 800 tokens fit at once instead of 983" in found.best.proof


def test_as_many_ranks_as_heads_store_no_copies():
    assert "KV042" not in find("llama-3.1-70b", tp=8)


def test_a_release_without_context_parallelism_gets_no_such_advice():
    assert find("llama-3.1-70b", tp=16, version="0.9.2")["KV042"].remedies == ()


def test_models_with_windows_get_no_advice_that_their_releases_refuse():
    assert find("gemma-3-1b", tp=4)["KV042"].remedies == ()


@pytest.mark.parametrize(
    ("engine", "setting"),
    [("vllm", "--decode-context-parallel-size 8"), ("sglang", "--enable-dp-attention --dp-size 8")],
)
def test_latents_are_copied_to_every_rank(engine, setting):
    found = find("deepseek-v3", engine=engine, tp=8)["KV043"]
    assert found.best.setting == setting
    assert found.returned > found.size.low * 0.9


def test_a_latent_that_one_rank_holds_alone_is_no_copy():
    assert "KV043" not in find("deepseek-v3", engine="vllm", tp=1)
    assert "KV043" not in find("llama-3-8b", engine="vllm", tp=8)


def test_one_rank_has_no_copies():
    assert find("deepseek-v3") == {}


def test_padding_layers_are_told_where_they_are_much():
    """Gemma-3-27B pads 8 of 70 layers, 11.4 %; at 69 requests of 800 tokens 3.37 GiB."""
    found = find("gemma-3-27b", length=800)["KV041"]
    assert found.size.low == pytest.approx(3.37 * GIB, rel=0.01)
    assert found.remedies == ()


def test_groups_of_equal_layers_pad_nothing():
    assert "KV041" not in find("gpt-oss-20b", length=800)


def test_states_rule_the_cost_of_short_requests():
    """Qwen3.5-27B at 12 tokens: 7 blocks of 49 MiB with prefix caching, 4 without."""
    found = find("qwen3.5-27b", length=12)["KV040"]
    off = next(remedy for remedy in found.remedies if remedy.setting == "--no-enable-prefix-caching")
    assert off.returned.low == 89 * 3 * 49 * 2**20
    assert off.trade is Trade.TRADE_OFF
    assert "KV032" in find("qwen3.5-27b", length=12)


def test_long_requests_are_not_ruled_by_their_states():
    found = find("qwen3.5-27b", length=32_768)
    assert "KV040" not in found
    assert "KV032" not in found


def test_kv_events_make_windows_dear_up_to_0_19():
    found = find("gemma-3-27b", version="0.19.1", memory=80 * GIB, options={"kv_events": "true"})["KV044"]
    assert found.returned > 0
    assert "KV events" in found.best.setting
    assert "KV044" not in find("gemma-3-27b", version="0.20.2", memory=80 * GIB, options={"kv_events": "true"})


def test_chunked_attention_is_full_up_to_0_13_unless_it_is_allowed():
    assert "KV044" in find("llama-4-scout-17b-16e", version="0.13.0", memory=80 * GIB, max_model_len=131_072)
    assert "KV044" not in find("llama-4-scout-17b-16e", version="0.19.1", memory=80 * GIB, max_model_len=131_072)


def test_every_head_cached_is_told_of_models_without_groups_only():
    found = find("llama-2-7b", length=800)["KV046"]
    assert found.best.setting == "--kv-cache-dtype fp8"
    assert "512.00 KiB a token" in found.sentence
    assert "KV046" not in find("llama-3.1-8b", length=800)


def test_fp8_is_not_proposed_where_it_is_on():
    assert find("llama-2-7b", kv_dtype="fp8")["KV046"].remedies == ()


def test_two_pools_out_of_balance_are_found_and_the_best_ratio_is_planned():
    found = find("granite-4.0-h-small", engine="sglang", length=800)["KV050"]
    ratio = found.best.setting.removeprefix("--mamba-full-memory-ratio ")
    case = plan_case("granite-4.0-h-small", engine="sglang", length=800)
    better = plan_case("granite-4.0-h-small", engine="sglang", length=800, options={"mamba_full_memory_ratio": ratio})
    assert better.count_requests() > case.count_requests()
    assert f"{better.count_requests()} requests of 800 tokens fit at once" in found.best.proof


def test_what_the_engine_runs_of_the_requests_that_fit_is_told_with_the_reason():
    """130 states of the pool hold 130 requests, of which the radix cache leaves a third: 43 run at once."""
    case = plan_case("granite-4.0-h-small", engine="sglang", length=800)
    fits, runs = case.count_requests(), case.plan.request_limit
    assert runs is not None
    assert runs < fits
    found = find("granite-4.0-h-small", engine="sglang", length=800)["KV050"]
    assert f"runs out at {fits}, of which the engine runs at most {runs} at once: beside a running" in found.sentence
    assert f"instead of {fits}, and the engine runs at most " in found.best.proof
    assert found.best.proof.endswith(f" instead of {runs}")
    given = {"max_num_seqs": 4, "length": 800}
    assert (
        "runs at most 4 at once (its own limit)"
        in find("granite-4.0-h-small", engine="sglang", **given)["KV050"].sentence
    )


def test_pools_in_balance_are_not_found():
    ratio = find("granite-4.0-h-small", engine="sglang", length=800)["KV050"].best.setting.split()[-1]
    options = {"mamba_full_memory_ratio": ratio}
    assert "KV050" not in find("granite-4.0-h-small", engine="sglang", length=800, options=options)


def test_a_load_that_does_not_fit_gets_every_way_out():
    """8 GiB hold 32,768 tokens of 256 KiB: two requests of 16,000."""
    found = find("qwen2.5-32b", memory=8 * GIB, max_model_len=32_000, length=16_000, count=4)["KV016"]
    settings = " ".join(remedy.setting for remedy in found.remedies)
    assert "fp8" in settings
    assert "at most 8,176 tokens a request" in settings
    assert "of KV memory a rank" in settings
    assert found.size.low == 2 * 16_000 * 2**18


def test_a_load_that_fits_needs_no_way_out():
    found = find("qwen2.5-32b", memory=8 * GIB, max_model_len=32_000, length=16_000, count=2)
    assert "KV016" not in found
    assert "KV020" not in found


def test_the_least_memory_for_a_load_is_said():
    """64 requests of 800 tokens and the null block take 3,201 blocks of 2 MiB."""
    found = find("llama-3.1-8b", max_model_len=8192, length=800, count=64)["KV020"]
    assert f"{3201 * 2 * 2**20:,} bytes a rank" in found.best.setting
    assert found.returned == 30 * GIB - 3201 * 2 * 2**20


def test_a_longest_request_near_the_asked_length_is_not_too_long():
    assert "KV021" in find("llama-3.1-8b", max_model_len=8192, length=2048)
    assert "KV021" not in find("llama-3.1-8b", max_model_len=8192, length=2049)


def test_a_start_that_fails_gets_a_length_and_a_dtype():
    """12,000 tokens are 750 blocks of 2 MiB; 512 are there, one of them the null block."""
    found = find("llama-3.1-8b", memory=GIB, max_model_len=12_000)["KV012"]
    assert [remedy.setting for remedy in found.remedies] == ["--max-model-len 8,176", "--kv-cache-dtype fp8"]
    assert found.size.low == (750 - 511) * 2 * 2**20
    assert "KV012" not in find("llama-3.1-8b", memory=GIB, max_model_len=8176)


def test_strips_are_told_and_shared_cells_are_not():
    split = {"ctx_size": "32768", "parallel": "4"}
    found = find("llama-3.1-8b", engine="llama.cpp", length=800, options=split)["KV048"]
    assert found.best.setting == "--kv-unified --ctx-size 8192"
    assert found.returned == (32_768 - 8192) * 131_072
    assert "KV048" not in find("llama-3.1-8b", engine="llama.cpp", length=800, options=split | {"kv_unified": "true"})


def test_parallel_contexts_cost_a_context_each():
    """3 further contexts of 4,096 tokens, 131,072 bytes each."""
    options = {"num_ctx": "4096", "num_parallel": "4"}
    found = find("llama-3.1-8b", engine="ollama", options=options)["KV049"]
    one = next(remedy for remedy in found.remedies if remedy.setting == "OLLAMA_NUM_PARALLEL=1")
    assert one.returned.low == 3 * 4096 * 131_072
    quantised = {"num_ctx": "4096", "num_parallel": "1", "kv_cache_type": "q8_0"}
    assert "KV049" not in find("llama-3.1-8b", engine="ollama", options=quantised)


def test_a_further_context_of_gpt_oss_costs_three_gibibytes_and_no_more():
    """12 full layers of 2,048 bytes at 131,072 tokens are 3 GiB; with all 24 layers full it were 6, never 19."""
    options = {"num_ctx": "131072", "num_parallel": "4"}
    found = find("gpt-oss-20b", engine="ollama", options=options, memory=40 * GIB)["KV049"]
    one = next(remedy for remedy in found.remedies if remedy.setting == "OLLAMA_NUM_PARALLEL=1")
    assert 3 * GIB <= one.returned.low / 3 <= 3.1 * GIB


def test_a_share_of_free_memory_is_told_where_a_device_was_given():
    gpu = GpuBudget(total_bytes=80 * GIB, weights_bytes=15 * GIB)
    planner = load_planner("tensorrt-llm")
    model, deployment = find_model("llama-3-8b"), Deployment(engine="tensorrt-llm", version="1.3")
    memory = planner.model_memory(model, deployment, gpu)
    outcome = answer_size(planner, SizeQuestion(model=model, deployment=deployment, memory=memory))
    (found,) = find_in_size([SizeCase(outcome=outcome, planner=planner)]).findings
    assert found.code == "KV022"
    fixed = {"max_tokens": found.best.setting.split()[-1]}
    again = plan_case("llama-3-8b", engine="tensorrt-llm", memory=100 * GIB, options=fixed)
    assert again.plan.pools[0].units == outcome.plan.pools[0].units
    assert "KV022" not in find("llama-3-8b", engine="tensorrt-llm")


def test_an_expanded_latent_is_told_of_old_files_only():
    old = {"ctx_size": "4096", "parallel": "1", "mla_tensors": "false"}
    found = find("deepseek-v2-lite", engine="llama.cpp", options=old)["KV047"]
    assert found.best.trade is Trade.SAFE
    assert "KV047" not in find("deepseek-v2-lite", engine="llama.cpp", options=old | {"mla_tensors": "true"})
