"""Ollama's planner: the context by memory, and the strips of the server inside."""

import pytest

from kvledger.engines.ollama import make_plan, model_memory
from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.errors import UsageError
from kvledger.model.by_hand import read_layers
from kvledger.units import GIB, MIB

LARGE = KvMemory.given(256 * GIB)


def plan(layers="32x(kv=8,head=128)", *, train=131072, memory=LARGE, version="2026-08", **options):
    model = read_layers(layers, max_model_len=train)
    options = {name: str(value) for name, value in options.items()}
    return make_plan(model, Deployment(engine="ollama", version=version, options=options), memory)


@pytest.mark.parametrize(
    ("vram", "context"), [("8GiB", 4096), ("22.9GiB", 4096), ("23GiB", 32768), ("46GiB", 32768), ("47GiB", 131072)]
)
def test_the_context_follows_the_memory_and_the_training_context(vram, context):
    """From 47 GiB on it is 262,144, capped to the 131,072 the model was trained with."""
    result = plan(total_vram=vram)
    assert result.length_limit_tokens == context
    assert result.pool("full").units == context


def test_the_line_about_memory_names_the_default_before_the_cap():
    assert plan(total_vram="80GiB").lines[0].text == (
        'msg="vram-based default context" total_vram="80.0 GiB" default_num_ctx=262144'
    )


def test_parallel_requests_multiply_the_strips():
    """4 x 8,192 x 131,072 B = 4 GiB, reserved at load; a request of 100 tokens holds 8,192 cells."""
    result = plan(num_ctx=8192, num_parallel=4)
    assert result.pool("full").units * result.ranks[0].unit_bytes["full"] == 4 * GIB
    assert result.count_units(100) == {"full": 8192}
    assert (result.count_requests(8192), result.count_requests(8193)) == (4, 0)


@pytest.mark.parametrize(
    ("layers", "context", "size_mib"),
    # K1-087: qwen3:8b, qwen3:14b and qwen2.5:3b
    [("36x(kv=8,head=128)", 40960, 5760), ("40x(kv=8,head=128)", 16384, 2560), ("36x(kv=2,head=128)", 16384, 576)],
)
def test_models_of_a_user_come_out(layers, context, size_mib):
    result = plan(layers, num_ctx=context)
    assert result.pool("full").units * result.ranks[0].unit_bytes["full"] == size_mib * MIB


def test_a_model_runs_below_its_training_context_by_default():
    """K1-072: 512 MiB at 4,096 cells although the model was trained for 32,768."""
    result = plan(train=32768, total_vram="8GiB")
    assert any(
        line.text == "llama_kv_cache: size =  512.00 MiB (  4096 cells,  32 layers,  1/1 seqs), "
        "K (f16):  256.00 MiB, V (f16):  256.00 MiB"
        for line in result.lines
    )


def test_quantised_caches_cost_their_blocks():
    halves = plan(num_ctx=4096, kv_cache_type="q8_0")
    assert halves.ranks[0].unit_bytes["full"] == 131072 * 34 // 64


def test_library_lines_are_visible_since_ollama_asks_for_them():
    result = plan(num_ctx=4096)
    assert {line.level for line in result.lines} == {"INFO"}
    assert not any("-lv 4" in note for note in result.notes)


def test_a_model_that_does_not_fit_says_the_largest_context():
    result = plan(num_ctx=16384, memory=KvMemory.given(GIB))
    assert result.failure is not None
    assert result.failure.largest_max_model_len == 8192


def test_memory_is_estimated_like_llama_cpp():
    memory = model_memory(
        read_layers("1x(kv=1,head=64)"),
        Deployment(engine="ollama", version="0.12.3"),
        GpuBudget(total_bytes=24 * GIB, weights_bytes=5 * GIB, activation_bytes=GIB, non_torch_bytes=GIB),
    )
    assert memory.smallest_bytes == 17 * GIB


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "add `--set num_ctx=32768` or `--set total_vram=24GiB`"),
        ({"num_ctx": 4096, "kv_cache_type": "q5_0"}, "must be one of f16, q8_0, q4_0"),
        ({"num_ctx": 4096, "version": "latest"}, "not a version of Ollama"),
        ({"num_ctx": 4096, "kv_cache_type": "q8_0", "flash_attention": "off"}, "without flash attention"),
    ],
)
def test_what_ollama_does_not_have_is_refused(options, words):
    with pytest.raises(UsageError) as error:
        plan(**options)
    assert words in f"{error.value.message} {error.value.hint}"
