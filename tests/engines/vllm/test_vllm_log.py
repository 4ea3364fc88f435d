"""Start-up logs are read with any prefix, and their figures are checked against the bytes."""

import pytest

from kvledger.engines.plan import Deployment
from kvledger.engines.vllm.logcheck import check_start_up, deployment_of
from kvledger.engines.vllm.startup import read_start_up
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model

GIB = 2**30
CONFIG = (
    "(EngineCore pid=9) INFO 09-16 10:00:00 [core.py:1] Initializing a V1 LLM engine (v{version}) with config: "
    "model='m', dtype=torch.bfloat16, max_seq_len={length}, tensor_parallel_size={tp}, pipeline_parallel_size=1, "
    "data_parallel_size=1, decode_context_parallel_size=1, kv_cache_dtype={dtype}, enable_prefix_caching=True"
)


def log(*lines, version="0.32.0", length=8192, tp=1, dtype="auto"):
    return read_start_up([CONFIG.format(version=version, length=length, tp=tp, dtype=dtype), *lines])


def check(model, found):
    spec = read_layers(model, max_model_len=131072) if "(" in model else find_model(model)
    asked = Deployment(engine="vllm", version=found.version or "0.32")
    return check_start_up(spec, deployment_of(found, asked), found)


def test_flags_and_figures_are_read_whatever_stands_before_them():
    found = log(
        "\x1b[1;36m(Worker_TP0 pid=7)\x1b[0;0m INFO 09-16 [gpu_worker.py:9] Available KV cache memory: 36.88 GiB",
        "GPU KV cache size: 268,560 tokens, Maximum concurrency for 2,048 tokens per request: 131.13x",
        length=2048,
        tp=2,
        dtype="fp8",
    )
    assert (found.version, found.kv_dtype, found.prefix_caching, found.flag("tp")) == ("0.32.0", "fp8", True, 2)
    assert (found.tokens, found.concurrency, found.max_model_len) == (268_560, 131.13, 2048)
    low, high = found.available[0]
    assert high - low == pytest.approx(0.01 * GIB, rel=1e-3)
    assert found.memory().accuracy is Accuracy.MEASURED


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        ("Available KV cache memory: 13.1 GiB", 13.1),
        ("Initial free memory 70 GiB, reserved 20.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes", 20),
        ("Explicitly set (1.0/23.54) GiB for KV cache on node 0.", 1),
        (
            "non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.40GiB; "
            "the rest of the memory reserved for KV Cache is 12.80GiB.",
            12.8,
        ),
        ("Current kv cache memory in use is 36.88 GiB.", 36.88),
    ],
)
def test_every_line_that_names_the_memory_is_read(line, gib):
    assert read_start_up([line]).memory().smallest_bytes == pytest.approx(gib * GIB, abs=2)


def test_the_smallest_rank_counts():
    found = log(*(f"Available KV cache memory: {gib} GiB" for gib in ("8.69", "7.47")), tp=2)
    assert found.memory().smallest_bytes == pytest.approx(7.47 * GIB, abs=2)


def test_an_error_names_need_supply_and_length():
    found = read_start_up(
        [
            "ValueError: To serve at least one request with the models's max seq len (221000), (10.12 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the "
            "estimated maximum model length is 122080."
        ]
    )
    assert (found.max_model_len, found.estimated_length) == (221_000, 122_080)
    assert found.memory().smallest_bytes == pytest.approx(5.59 * GIB, abs=2)


def test_a_restart_in_the_same_log_replaces_what_was_said_before():
    first = CONFIG.format(version="0.19.1", length=1, tp=1, dtype="auto")
    second = CONFIG.format(version="0.20.2", length=2, tp=1, dtype="auto")
    found = read_start_up([first, "Available KV cache memory: 1.0 GiB", second, "Available KV cache memory: 2.0 GiB"])
    assert (found.version, len(found.available)) == ("0.20.2", 1)


def test_text_that_is_no_start_up_log_is_refused():
    with pytest.raises(SourceError, match="no start-up log of vLLM"):
        read_start_up(["hello", "x" * 200_000])


def test_a_log_without_memory_says_what_to_look_for():
    with pytest.raises(SourceError, match="no line that names the KV memory"):
        read_start_up(["Setting attention block size to 784 tokens"]).memory()


def test_figures_that_follow_give_the_exact_blocks():
    found = log(
        "Available KV cache memory: 36.88 GiB",
        "GPU KV cache size: 268,560 tokens, Maximum concurrency for 2,048 tokens per request: 131.13x",
        length=2048,
    )
    out = check("36x(kv=8,head=128)", found)
    assert (out.follows, out.blocks) == (True, 16_785)


def test_a_pool_smaller_than_the_line_points_to_another_rank():
    """K1-026: 8.69 GiB would give 94,848 to 94,960 tokens; 81,536 were printed, which 7.46 GiB give."""
    found = read_start_up(
        [
            "non_torch_memory takes 0.25GiB; PyTorch activation peak memory takes 0.19GiB; the rest of the memory "
            "reserved for KV Cache is 8.69GiB.",
            "The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
            "cache (81536).",
        ]
    )
    asked = Deployment(engine="vllm", version="0.7.3", tp=2)
    out = check_start_up(find_model("qwen2.5-14b"), deployment_of(found, asked), found)
    assert (out.follows, out.predicted_tokens) == (False, (94_848, 94_960))
    assert "81,536 were printed, which 7.46 GiB give: another rank had less memory" in out.explanation


@pytest.mark.parametrize(
    ("tokens", "concurrency", "words"),
    [
        ("327,680", "40.00", "the KV dtype is fp8"),
        ("158,864", "19.39", "a draft adds a layer"),
    ],
)
def test_figures_that_do_not_follow_name_the_setting_that_explains_them(tokens, concurrency, words):
    """20 GiB / (16 x 65,536 B) = 20,480 blocks; 20 GiB / (16 x 33 x 4,096 B) = 9,929 blocks."""
    found = log(
        "Available KV cache memory: 20.0 GiB",
        f"GPU KV cache size: {tokens} tokens, Maximum concurrency for 8,192 tokens per request: {concurrency}x",
    )
    out = check("llama-3.1-8b", found)
    assert (out.follows, out.explanation) == (False, f"the printed figures follow if {words}")


def test_a_window_charged_for_another_batch_is_recognised():
    """Gemma-3-27B, 32 GiB, T = 2 x 2,048: 8,192 + 6 x (ceil(5,119 / 16) + 1) = 10,118 blocks, 26,214 in the pool."""
    found = log(
        "Available KV cache memory: 32.0 GiB",
        "GPU KV cache size: 339,585 tokens, Maximum concurrency for 131,072 tokens per request: 2.59x",
        length=131_072,
    )
    assert check("gemma-3-27b", found).explanation == "the printed figures follow if max_num_batched_tokens is 2048"


def test_a_pool_larger_than_possible_points_to_the_model():
    found = log(
        "Available KV cache memory: 20.0 GiB",
        "GPU KV cache size: 999,999 tokens, Maximum concurrency for 8,192 tokens per request: 122.07x",
    )
    assert "a token costs less than this model's layers say" in check("llama-3.1-8b", found).explanation
