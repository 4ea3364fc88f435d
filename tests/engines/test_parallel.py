"""What has to divide what before an engine starts: heads among ranks, layers among stages."""

import pytest

from kvledger.engines.deployment import MOST_RANKS, Deployment
from kvledger.engines.parallel import check_heads
from kvledger.engines.plan import KvMemory
from kvledger.engines.registry import ENGINES, load_planner
from kvledger.errors import UsageError
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model
from kvledger.units import GIB

SPLITTING = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "tgi", "transformers")
LLAMA = find_model("llama-3.1-8b")


def plan(engine, model=LLAMA, **values):
    deployment = Deployment(engine=engine, version=ENGINES[engine].latest, max_model_len=2048, **values)
    return load_planner(engine).make_plan(model, deployment, KvMemory.given(40 * GIB))


@pytest.mark.parametrize("engine", SPLITTING)
@pytest.mark.parametrize("tp", [3, 64])
def test_no_engine_splits_heads_among_ranks_that_do_not_divide_them(engine, tp):
    with pytest.raises(UsageError, match=f"`tp` {tp} does not divide the 32 query heads") as caught:
        plan(engine, tp=tp)
    assert caught.value.hint == "choose one of 1, 2, 4, 8, 16, 32"


@pytest.mark.parametrize("engine", SPLITTING)
def test_every_divisor_of_the_heads_is_planned(engine):
    for tp in (2, 8, 32):
        assert plan(engine, tp=tp).deployment.tp == tp


@pytest.mark.parametrize("engine", SPLITTING)
def test_kv_heads_of_layers_by_hand_are_split_or_copied_whole(engine):
    with pytest.raises(UsageError, match="8 KV heads cannot be divided among 3"):
        plan(engine, read_layers("10x(kv=8,head=64)", max_model_len=2048), tp=3)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "vllm"])
def test_more_stages_than_layers_are_refused(engine):
    with pytest.raises(UsageError, match="`pp` 33 is more than the 32 layers"):
        plan(engine, pp=33)


def test_ranks_that_attention_may_not_use_are_not_judged():
    check_heads(LLAMA, Deployment(engine="sglang", version="0.5", tp=64, dp=2))
    with pytest.raises(UsageError, match="64 does not divide the 32"):
        check_heads(LLAMA, Deployment(engine="vllm", version="0.33", tp=64, dp=2))


@pytest.mark.parametrize("name", ["tp", "pp", "dcp", "pcp", "dp"])
def test_no_parallel_size_is_beyond_any_cluster(name):
    with pytest.raises(UsageError, match=f"`{name}` is 65,537, but must be at least 1 and at most 65,536"):
        Deployment(engine="vllm", version="0.33", **{name: MOST_RANKS + 1})


def test_the_product_of_parallel_sizes_is_bounded_too():
    with pytest.raises(UsageError, match="`tp` 8 x `pp` 1 x `pcp` 1 x `dp` 65,536 are 524,288 ranks"):
        Deployment(engine="vllm", version="0.33", tp=8, dp=MOST_RANKS)
