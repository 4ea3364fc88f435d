"""TensorRT-LLM's planner against lines that users published, and against its rules by hand."""

import pytest

from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.engines.tensorrt_llm import make_plan, model_memory
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model.by_hand import read_layers
from kvledger.units import GIB

LARGE = KvMemory.given(1024 * GIB)
FIELDS = ("tp", "pp", "kv_dtype", "block_tokens", "max_model_len", "max_num_seqs")


def plan(layers, *, version="1.0.0", memory=LARGE, train=131072, **settings):
    fields = {name: settings.pop(name) for name in FIELDS if name in settings}
    options = {name: str(value) for name, value in settings.items()}
    deployment = Deployment(engine="tensorrt-llm", version=version, options=options, **fields)
    return make_plan(read_layers(layers, max_model_len=train), deployment, memory)


def texts(result):
    return [line.text for line in result.lines]


@pytest.mark.parametrize(
    ("layers", "settings", "tokens", "size"),
    [
        # G17, TinyLlama: 116,617 blocks x 32 = 3,731,744 tokens x 22,528 B = 78.30 GiB
        ("22x(kv=4,head=64)", {}, 3731744, "78.30"),
        # Qwen2.5-0.5B and 1.5B: 12,288 and 28,672 B a token
        ("24x(kv=2,head=64)", {}, 190656, "2.18"),
        ("28x(kv=2,head=128)", {}, 273792, "7.31"),
        # K1-093, Llama-3.1-8B in fp8: 8,219 x 32 x 65,536 B
        ("32x(kv=8,head=128)", {"kv_dtype": "fp8"}, 263008, "16.05"),
        # gpt-oss-120b with one window for all layers: 73,728 B a token
        ("36x(kv=8,head=64)", {}, 8224, "0.56"),
    ],
)
def test_allocations_of_users_come_out(layers, settings, tokens, size):
    result = plan(layers, max_tokens=tokens, **settings)
    assert texts(result)[-1] == (
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {size} GiB for max tokens in paged KV cache ({tokens})."
    )
    assert result.printed_tokens == tokens


def test_the_pool_is_rounded_up_to_whole_blocks():
    """K1-093: 0.9 x 17.835 GiB (the most that prints as 17.83) = 262,984 tokens -> ceil(/ 32) = 8,219 blocks."""
    memory = KvMemory.given(int(17.8349 * GIB * 0.9))
    result = plan("32x(kv=8,head=128)", version="0.17.0", kv_dtype="fp8", block_tokens=32, memory=memory)
    assert result.pool("primary").units == 8219
    assert result.pool("primary").units * result.ranks[0].unit_bytes["primary"] > memory.smallest_bytes
    assert texts(result)[:2] == [
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: available: 17.83 GiB",
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 8219",
    ]


def test_old_releases_print_bytes_and_tokens():
    """K1-095: 132,608 tokens x 524,288 B = 69,524,783,104 B, without remainder."""
    result = plan("32x(kv=32,head=128)", version="0.8.0", block_tokens=64, max_tokens=132608)
    assert texts(result) == [
        "Allocate 69524783104 bytes for k/v cache.",
        "Using 132608 tokens in paged KV cache.",
    ]
    assert result.accuracy is Accuracy.MODELLED


def test_a_latent_is_stored_once():
    """DeepSeek-V3 in fp8: "kv size is 35136" bytes a token."""
    result = plan("61x(latent=512,rope=64)", kv_dtype="fp8", tp=8)
    assert result.ranks[0].unit_bytes["primary"] == 32 * 35136


def test_fp4_adds_its_scales():
    """128 elements: 64 bytes and 8 scales a side."""
    assert plan("1x(kv=1,head=128)", kv_dtype="nvfp4").ranks[0].unit_bytes["primary"] == 32 * 144


def test_windows_share_memory_by_bytes_length_and_layers():
    """12 + 12 equal layers, windows 128 and 8,192: shares 0.5 x 128 x 12 and 0.5 x 8,192 x 12, so 1/65 and 64/65."""
    result = plan(
        "12x(kv=8,head=64)+12x(kv=8,head=64,window=128)",
        variable_windows="on",
        max_model_len=8192,
        memory=KvMemory.given(GIB),
    )
    token = 12 * 2048
    assert result.pool("window 128").units == -(-int(GIB / 65 / token) // 32)
    assert result.pool("window 8192").units == -(-int(GIB * 64 / 65 / token) // 32)
    assert result.count_units(1000) == {"window 128": 4, "window 8192": 32}
    assert any("[window size=128], tokens per block=32" in text for text in texts(result))


def test_without_windows_by_layer_all_layers_are_full():
    result = plan("12x(kv=8,head=64)+12x(kv=8,head=64,window=128)")
    assert [pool.name for pool in result.pools] == ["primary"]
    assert any("stored in full" in note for note in result.notes)


def test_a_pool_smaller_than_the_context_limits_requests():
    """A user's log: "Attention window size 131072 exceeds upper bound 8224 for available blocks"."""
    result = plan("36x(kv=8,head=64)", max_tokens=8224)
    assert result.length_limit_tokens == 8224
    assert any("exceeds upper bound 8224" in note for note in result.notes)
    assert (result.count_requests(8224), result.count_requests(8225)) == (1, 0)


def test_the_default_scheduler_reserves_what_no_counter_shows():
    assert any("GUARANTEED_NO_EVICT" in note for note in plan("1x(kv=1,head=64)").notes)
    assert not plan("1x(kv=1,head=64)", capacity_scheduler_policy="max_utilization").notes


def test_the_widest_rank_decides():
    memory = KvMemory.given(GIB, 2 * GIB)
    result = plan("4x(kv=8,head=128)", pp=2, memory=memory)
    assert result.pool("primary").units == -(-(GIB // (2 * 4096)) // 32)


def test_no_memory_is_a_failure():
    result = plan("4x(kv=8,head=128)", memory=KvMemory.given(100))
    assert result.failure is not None
    assert result.failure.needed_bytes == 32 * 4 * 4096


def test_memory_is_a_fraction_of_what_is_free():
    memory = model_memory(
        read_layers("1x(kv=1,head=64)"),
        Deployment(engine="tensorrt-llm", version="1.0.0", options={"free_gpu_memory_fraction": "0.5"}),
        GpuBudget(total_bytes=80 * GIB, weights_bytes=16 * GIB, activation_bytes=2 * GIB, non_torch_bytes=2 * GIB),
    )
    assert memory.smallest_bytes == 30 * GIB


@pytest.mark.parametrize(
    ("layers", "settings", "error", "words"),
    [
        ("1x(kv=1,head=64)", {"version": "0.5.0"}, UsageError, "known from 0.6.0"),
        ("1x(kv=1,head=64)", {"version": "0.17.0"}, UsageError, "depend on how the engine was built"),
        ("1x(kv=1,head=64)", {"free_gpu_memory_fraction": "1.0"}, UsageError, "refuses 1.0"),
        ("3x(kv=1,head=64)", {"pp": 2}, UsageError, "leave 1 over"),
        ("1x(kv=1,head=64)+1x(state=64)", {}, ModelError, "recurrent states"),
        ("1x(latent=512,rope=64,index=128)", {}, ModelError, "index keys"),
        ("1x(kv=1,head=64)+1x(kv=1,head=64,cross=1500)", {}, ModelError, "cross"),
    ],
)
def test_what_is_not_known_is_refused(layers, settings, error, words):
    with pytest.raises(error, match=words):
        plan(layers, **settings)
