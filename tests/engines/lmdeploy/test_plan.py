"""LMDeploy's planner against a user's figures and its rules by hand."""

from dataclasses import replace

import pytest

from kvledger.engines.lmdeploy import make_plan, model_memory
from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.errors import ModelError, UsageError
from kvledger.model.by_hand import read_layers
from kvledger.units import GIB, MIB

LARGE = KvMemory.given(1024 * GIB)
FIELDS = ("tp", "max_model_len", "max_num_seqs", "block_tokens", "kv_dtype")


def plan(layers="32x(kv=8,head=128)", *, version="0.18.0", memory=LARGE, **settings):
    fields = {name: settings.pop(name) for name in FIELDS if name in settings}
    options = {name: str(value) for name, value in settings.items()}
    deployment = Deployment(engine="lmdeploy", version=version, options=options, **fields)
    return make_plan(read_layers(layers, max_model_len=32768), deployment, memory)


@pytest.mark.parametrize(("entries", "size_gib"), [(48, 60), (12, 15)])
def test_the_contiguous_era_reserved_a_session_for_each_entry(entries, size_gib):
    """K1-099, Llama-2-70B over 4 ranks: 48 x 4,096 x 327,680 B = 60 GiB; 12 entries 15 GiB."""
    result = plan("80x(kv=8,head=128)", version="0.0.10", tp=4, max_model_len=4096, cache_max_entry_count=entries)
    assert result.pool("blocks").units * result.ranks[0].unit_bytes["blocks"] * 4 == size_gib * GIB
    assert result.count_request_bytes(10) == 4096 * 327680
    assert (result.count_requests(10), result.count_requests(4097)) == (entries, 0)


def test_blocks_have_sixty_four_tokens():
    """10 GiB / (64 x 131,072 B) = 1,280 blocks."""
    result = plan(memory=KvMemory.given(10 * GIB))
    assert result.pool("blocks").units == 1280
    assert result.lines[0].text == "num_gpu_blocks=1280"
    assert result.count_units(65) == {"blocks": 2}


@pytest.mark.parametrize(
    ("policy", "token"),
    # head 128: 256 B in 16 bits; 128 + 2 x 2 B in 8 bits; 64 + 2 x 2 B in 4 bits; 8 heads, two sides, 32 layers
    [(0, 256), (8, 132), (4, 68)],
)
def test_quantised_caches_keep_a_scale_and_a_zero_point_for_each_head(policy, token):
    assert plan(quant_policy=policy).ranks[0].unit_bytes["blocks"] == 64 * 32 * 2 * 8 * token


def test_turbomind_takes_a_number_of_blocks_as_it_is():
    result = plan(backend="turbomind", cache_max_entry_count=1000)
    assert [line.text for line in result.lines] == [
        "[BlockManager] block_size = 8 MB",
        "[BlockManager] max_block_count = 1000",
    ]


def test_wide_heads_have_smaller_blocks():
    assert plan("1x(kv=1,head=512)").deployment.block_tokens == 32
    assert plan("1x(latent=512,rope=64)").ranks[0].unit_bytes["blocks"] == 64 * 1152


def test_states_have_slots_beside_the_blocks():
    """``max_batch_size`` 16, one for rolling prefill and one for the system."""
    result = plan("1x(kv=1,head=64)+1x(state=1000)", max_num_seqs=16)
    pool = result.pool("states")
    assert (pool.units, pool.usable_units) == (18, 16)


def test_too_few_blocks_stop_the_start():
    result = plan(memory=KvMemory.given(2 * 8 * MIB))
    assert result.failure is not None
    assert (result.failure.text, result.failure.needed_bytes) == ("No enough gpu memory for kv cache.", 3 * 8 * MIB)


def test_memory_is_a_share_of_what_the_runtime_reserve_leaves():
    """(8,192 + 2 x 128) x 100,000 x 2 B are set aside; 0.8 of the rest."""
    model = replace(read_layers("1x(kv=1,head=64)"), vocabulary_size=100_000)
    memory = model_memory(
        model,
        Deployment(engine="lmdeploy", version="0.18.0", max_num_seqs=128),
        GpuBudget(total_bytes=80 * GIB, weights_bytes=16 * GIB, non_torch_bytes=0),
    )
    assert memory.smallest_bytes == int((64 * GIB - (8192 + 256) * 200_000) * 0.8)


def test_up_to_0_2_1_the_share_was_of_the_whole_device():
    deployment = Deployment(
        engine="lmdeploy", version="0.2.1", options={"cache_max_entry_count": "0.5", "backend": "turbomind"}
    )
    budget = GpuBudget(total_bytes=80 * GIB, weights_bytes=16 * GIB, non_torch_bytes=0)
    assert model_memory(read_layers("1x(kv=1,head=64)"), deployment, budget).smallest_bytes == 40 * GIB


@pytest.mark.parametrize(
    ("layers", "settings", "error", "words"),
    [
        ("1x(kv=1,head=64)", {"version": "0.19.0"}, UsageError, "to 0.18"),
        ("1x(kv=1,head=64)", {"quant_policy": 16}, UsageError, "known are 0, 4 and 8"),
        ("1x(kv=1,head=64)", {"version": "0.1.0"}, UsageError, "default `cache_max_entry_count`"),
        ("1x(kv=1,head=64)", {"quant_policy": 8, "kv_dtype": "fp8"}, UsageError, "both given"),
        ("1x(kv=1,head=64)+1x(state=8)", {}, UsageError, "give `--max-num-seqs`"),
        ("1x(kv=1,head=64)+1x(state=8)", {"backend": "turbomind"}, ModelError, "PyTorch engine only"),
        ("1x(latent=512,rope=64,index=128)", {}, ModelError, "index keys"),
    ],
)
def test_what_is_not_known_is_refused(layers, settings, error, words):
    with pytest.raises(error) as caught:
        plan(layers, **settings)
    assert words in f"{caught.value.message} {caught.value.hint}"
