"""What fits, and what to solve for: every answer is checked against the plan it speaks about."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.registry import ENGINES, find_engine, load_planner
from kvledger.engines.size import Fit, SizeQuestion, answer_size
from kvledger.errors import CapacityError, ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import catalogue, find_model

GIB = 2**30
VLLM = load_planner("vllm")


def ask(model="llama-3.1-8b", memory=None, *, engine="vllm", version="0.32", settings=None, **values):
    spec = read_layers(model, max_model_len=4096) if "(" in model else find_model(model)
    deployment = Deployment(engine=engine, version=version, **(settings or {}))
    kv = KvMemory.given(memory) if isinstance(memory, int) else memory
    return answer_size(load_planner(engine), SizeQuestion(model=spec, deployment=deployment, memory=kv, **values))


def test_costs_are_given_for_a_ladder_of_lengths_and_the_one_asked_for():
    """8B: 800 tokens are 50 blocks of 2 MiB; 16 GiB hold 8,191 usable blocks, 163 requests."""
    out = ask(memory=16 * GIB, settings={"max_model_len": 8192}, length_tokens=1000)
    assert [c.length_tokens for c in out.costs] == [128, 800, 1000, 2048, 8192]
    cost = out.costs[1]
    assert (cost.units, cost.held_bytes, cost.needed_bytes, cost.requests) == (50, 100 * 2**20, 100 * 2**20, 163)


def test_the_cost_on_all_ranks_counts_copies():
    """DeepSeek-V3 on 8 ranks holds every latent 8 times: one eighth of what is held is needed."""
    out = ask("deepseek-v3", 30 * GIB, settings={"tp": 8, "max_model_len": 8192})
    assert out.costs[-1].used_ratio == pytest.approx(1 / 8)


def test_the_least_memory_is_just_enough():
    """64 requests of 800 tokens take 64 x 50 blocks and the null block, 2 MiB each."""
    out = ask(fit=Fit.MEMORY, length_tokens=800, concurrency=64, settings={"max_model_len": 8192})
    assert out.fitted.value == (64 * 50 + 1) * 2 * 2**20
    assert out.fitted.accuracy is Accuracy.DERIVED


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(
        ["4x(kv=8,head=64)", "6x(kv=4,head=64,window=100)+2x(kv=4,head=64)", "7x(state=70000)+2x(kv=2,head=64)"]
    ),
    length=st.integers(1, 4096),
    count=st.integers(1, 50),
)
def test_one_byte_less_than_the_least_memory_is_too_little(model, length, count):
    out = ask(model, fit=Fit.MEMORY, length_tokens=length, concurrency=count)
    assert out.plan.failure is None
    assert fitting(out, length) >= count
    less = ask(model, out.fitted.value - 1, length_tokens=length)
    assert less.plan.failure or fitting(less, length) < count


def fitting(outcome, length):
    return next(cost.requests for cost in outcome.costs if cost.length_tokens == length)


def test_the_longest_length_starts_and_one_token_more_does_not():
    out = ask("gemma-3-27b", 9 * GIB, fit=Fit.MAX_MODEL_LEN)
    longest = out.fitted.value
    assert ask("gemma-3-27b", 9 * GIB, settings={"max_model_len": longest}).plan.failure is None
    failure = ask("gemma-3-27b", 9 * GIB, settings={"max_model_len": longest + 1}).plan.failure
    assert failure.largest_max_model_len == longest


def test_concurrency_is_limited_by_the_engine_too():
    out = ask(memory=60 * GIB, fit=Fit.CONCURRENCY, length_tokens=16, settings={"max_num_seqs": 12})
    assert (out.fitted.value, out.costs[0].requests > 12) == (12, True)


def test_an_interval_of_memory_gives_an_interval_of_plans():
    memory = KvMemory(
        per_rank_bytes=(16 * GIB,), accuracy=Accuracy.MEASURED, source="log", low_bytes=15 * GIB, high_bytes=17 * GIB
    )
    out = ask(memory=memory, settings={"max_model_len": 8192})
    assert (out.low.pools[0].units, out.plan.pools[0].units, out.high.pools[0].units) == (7680, 8192, 8704)


def test_a_load_that_does_not_fit_has_no_sheet():
    out = ask(memory=GIB + 2**21, settings={"max_model_len": 8192}, length_tokens=8192, concurrency=2)
    assert out.load is None
    assert out.structure.requests == 1


def test_without_memory_and_nothing_to_solve_for_the_question_is_refused():
    with pytest.raises(UsageError, match="the KV memory is not given"):
        ask()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_of_the_registry_answers(engine):
    out = ask(memory=20 * GIB, engine=engine, version=ENGINES[engine].latest, settings={"max_model_len": 8192})
    assert out.costs[0].requests >= 1
    assert out.structure.deployment.check()


def test_an_unknown_engine_is_named_with_the_known_ones():
    with pytest.raises(UsageError, match=r"did you mean `vllm`\?") as caught:
        find_engine("vlm")
    assert "llama.cpp" in caught.value.hint


def test_memory_set_by_max_model_len_names_what_shorter_ones_need():
    """8B: 131,072 tokens are 8,192 blocks of 2 MiB; 50 requests of 2,000 tokens are 6,250; each with the null block."""
    question = {"fit": Fit.MEMORY, "length_tokens": 2000, "concurrency": 50}
    out = ask(**question)
    assert (out.fitted.value, out.fitted.shorter_bytes) == (8193 * 2**21, 6251 * 2**21)
    shorter = ask(**question, settings={"max_model_len": 4096})
    assert (shorter.fitted.value, shorter.fitted.shorter_bytes) == (6251 * 2**21, None)


def test_no_request_runs_in_an_engine_that_does_not_start():
    out = ask(memory=5 * GIB, fit=Fit.CONCURRENCY, length_tokens=2000)
    assert out.plan.failure is not None
    assert out.fitted.value == 0
    instead = ask(memory=5 * GIB, length_tokens=2000, settings={"max_model_len": out.largest_max_model_len})
    assert instead.plan.failure is None
    assert fitting(instead, 2000) == out.fitted.shortened_requests == 20


def test_requests_longer_than_any_length_that_starts_have_no_number():
    out = ask(memory=5 * GIB, fit=Fit.CONCURRENCY, length_tokens=60_000)
    assert (out.fitted.value, out.fitted.shortened_requests) == (0, None)


def test_a_last_token_that_is_never_stored_is_not_counted_as_stored():
    """TGI takes 127 blocks of one token for 128 tokens: the last one is sampled and not stored."""
    cost = ask(memory=GIB, engine="tgi", version=ENGINES["tgi"].latest).costs[0]
    assert (cost.length_tokens, cost.units) == (128, 127)
    assert cost.held_bytes == cost.needed_bytes == 127 * 2**17


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "qwen3.5-27b", "5x(kv=2,head=64)+1x(kv=2,head=64,window=9)"]
)
def test_no_request_stores_more_than_it_holds(engine, model):
    try:
        out = ask(model, 40 * GIB, engine=engine, version=ENGINES[engine].latest)
    except (ModelError, UsageError):
        pytest.skip("this engine's rule for the model is not known")
    for cost in out.costs:
        assert cost.needed_bytes <= cost.held_bytes, cost


@pytest.mark.parametrize(
    ("engine", "version", "settings"),
    [
        ("vllm", "0.9.2", {}),  # states in the model's dtype, whatever the config says
        ("vllm", "0.33", {"options": {"mamba_ssm_cache_dtype": "float16"}}),
        ("vllm", "0.33", {"kv_dtype": "fp8"}),  # records of sparse attention with scales
        ("sglang", "0.5.23", {"kv_dtype": "fp8"}),
        ("llama.cpp", "b11434", {"options": {"cache_type_k": "q8_0"}}),
        ("llama.cpp", "b11434", {"options": {"cache_type_v": "q4_0"}}),
        ("lmdeploy", "0.18", {"options": {"quant_policy": "4"}}),
        ("transformers", "5.24", {"options": {"cache": "quantised"}}),
        ("tensorrt-llm", "1.3", {}),
        ("tgi", "3.3", {}),
        ("mlx", "0.32", {"options": {"kv_bits": "4"}}),
    ],
)
def test_what_is_in_use_is_stored_as_the_engine_stores_it(engine, version, settings):
    planned = 0
    for name in catalogue():
        try:
            out = ask(name, 2**38, engine=engine, version=version, settings=settings)
        except (ModelError, UsageError):
            continue
        planned += 1
        for cost in out.costs:
            assert cost.needed_bytes <= cost.held_bytes, (name, cost)
    assert planned > 10


@pytest.mark.parametrize(
    ("engine", "version", "settings"),
    [
        ("vllm", "0.9.2", {"pp": 2}),  # every stage forms groups of its own
        ("vllm", "0.33", {"pp": 2}),
        ("sglang", "0.5.23", {"pp": 2}),
        ("transformers", "5.24", {"options": {"cache": "continuous"}}),
    ],
)
def test_every_model_of_the_catalogue_is_planned_or_refused(engine, version, settings):
    deployment = Deployment(engine=engine, version=version, **settings)
    planned = 0
    for name in catalogue():
        try:
            load_planner(engine).make_plan(find_model(name), deployment, KvMemory.given(2**38))
        except (ModelError, UsageError):
            continue
        planned += 1
    assert planned > 10


@pytest.mark.parametrize("engine", ["tensorrt-llm", "tgi", "lmdeploy", "transformers", "mlx"])
def test_index_keys_beside_keys_and_values_are_refused_where_no_rule_for_them_is_known(engine):
    """MiniMax-M3 keeps index keys beside grouped-query attention: leaving them out would store too little."""
    with pytest.raises(ModelError, match="index keys"):
        ask("minimax-m3", 40 * GIB, engine=engine, version=ENGINES[engine].latest)


def test_states_in_use_have_the_dtype_of_the_release():
    """48 states of 786,432 elements and 30,720 of convolution: 2 bytes each until vLLM 0.13, then 4 and 2."""
    convolution, state = 48 * 3 * 10_240 * 2, 48 * 48 * 128 * 128
    assert ask("qwen3.5-27b", 40 * GIB, version="0.9.2").fixed_bytes == convolution + 2 * state
    assert ask("qwen3.5-27b", 40 * GIB, version="0.33").fixed_bytes == convolution + 4 * state


def test_keys_and_values_of_two_types_are_both_in_use():
    """8 heads of 128 in 32 layers: q8_0 keys take 34 bytes for 32 elements, f16 values 64."""
    out = ask(memory=40 * GIB, engine="llama.cpp", version="b11434", settings={"options": {"cache_type_k": "q8_0"}})
    assert out.growth_bytes == 32 * 8 * 128 // 32 * (34 + 64)


def test_more_than_the_most_that_is_looked_at_is_no_fault_of_a_setting():
    """16 GiB each: 2**50 bytes hold 65,535 of them, the null block aside."""
    with pytest.raises(CapacityError, match=r"100,000 requests of 131,072 tokens do not fit into 1024\.00 TiB a rank"):
        ask(fit=Fit.MEMORY, concurrency=100_000, length_tokens=131_072)
    with pytest.raises(CapacityError, match="a setting of the engine limits them"):
        ask(
            fit=Fit.MEMORY, concurrency=9, engine="llama.cpp", version="b11434", settings={"options": {"parallel": "4"}}
        )


@pytest.mark.parametrize(
    ("engine", "version", "name"), [("llama.cpp", "b11434", "ctx_size"), ("ollama", "2026-08", "num_ctx")]
)
def test_an_engine_whose_own_setting_names_the_length_is_answered_at_any_length(engine, version, name):
    """8,192 cells of one slot: what starts at most does not depend on them, but on 4 GiB, 32,768 cells."""
    context = {name: "8192", "parallel" if name == "ctx_size" else "num_parallel": "1"}
    out = ask(memory=4 * GIB, engine=engine, version=version, settings={"options": context}, length_tokens=800)
    assert out.plan.length_limit_tokens == 8192
    assert out.largest_max_model_len == 32_768
