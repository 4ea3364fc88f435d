"""Pools that engines print at their start, against the layers of the model: figures that users made public."""

import pytest

from kvledger.engines.log_pools import check_pools
from kvledger.engines.plan import Deployment
from kvledger.engines.readers import read_log
from kvledger.engines.registry import ENGINES
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model

NAMES = {"llamacpp": "llama.cpp"}


def check(model, text, **asked):
    facts = read_log(text).startups[-1]
    engine = NAMES.get(facts.engine.value, facts.engine.value)
    spec = read_layers(model, max_model_len=131_072) if "(" in model else find_model(model)
    deployment = Deployment(engine=engine, version=ENGINES[engine].latest, **asked)
    return check_pools(spec, deployment, facts)


def sglang(tokens, keys, *, dtype=""):
    return f"KV Cache is allocated.{dtype} #tokens: {tokens}, K size: {keys} GB, V size: {keys} GB\n"


ONE_STREAM = "llama_kv_cache: size = {0} MiB ({1} cells, {2} layers, {3}/1 seqs)\n"
PUBLIC = {
    "SGLang, four ranks": ("64x(kv=8,head=128)", {"tp": 4}, sglang(46_611, "1.42"), "46,611 tokens take 2.84 GiB"),
    "SGLang, states": (
        "qwen3.5-27b", {},
        "Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, ssm_state size: 17.58GB\n"
        + sglang(330_323, "10.08", dtype=" dtype: torch.bfloat16,"),
        "124 slots take 17.92 GiB",
    ),
    "SGLang, two pools": (
        "35x(kv=2,head=256,window=512)+7x(kv=2,head=512)", {}, sglang(644_444, "21.51") + sglang(805_556, "10.76"),
        "swa: 644,444 tokens take 43.02 GiB",
    ),
    "SGLang, two pools in four bits": (
        "gemma-4-26b-a4b", {},
        sglang(189_696, "5.09", dtype=" dtype: torch.float4_e2m1fn_x2,")
        + sglang(237_312, "0.64", dtype=" dtype: torch.float4_e2m1fn_x2,"),
        "full: 237,312 tokens take 1.27 GiB",
    ),
    "SGLang, one size of two pools": (
        "35x(kv=2,head=256,window=512)+7x(kv=2,head=512)", {},
        "SWAKVPool mem usage: 79.94 GB, swa size: 798276, full size: 997846\n", "kv: 1,796,122 tokens take 79.94 GiB",
    ),
    "SGLang, a sparse indexer in fp8": (
        "glm-5", {"tp": 8},
        "Using KV cache dtype: torch.float8_e4m3fn\nKV Cache is allocated. #tokens: 3262823, KV size: 186.77 GB\n",
        "50,981 pages take 186.77 GiB",
    ),
    "llama.cpp, full heads of a latent in eight strips": (
        "deepseek-v2-lite", {"options": {"mla_tensors": "off"}},
        "llama_kv_cache: size = 4320.00 MiB ( 2048 cells, 27 layers, 8/8 seqs), K (f16): 2592.00 MiB, V (f16): 1728.00 "
        "MiB\n",
        "16,384 cells take 4.22 GiB",
    ),
    "llama.cpp, states": (
        "qwen3.5-9b", {},
        ONE_STREAM.format("4224.00", 135_168, 8, 4)
        + "llama_memory_recurrent: size = 201.00 MiB (4 cells, 32 layers, 4 seqs)\n",
        "4 cells take 201.00 MiB",
    ),
    "llama.cpp, states kept for a rejected draft": (
        "qwen3.5-9b", {},
        ONE_STREAM.format("4096.00", 131_072, 8, 1)
        + "llama_memory_recurrent: size = 351.75 MiB (1 cells, 33 layers, 1 seqs 6 rs_seq)\n",
        "1 cell take 351.75 MiB",
    ),
    "llama.cpp, windows": (
        "gpt-oss-20b", {},
        "llama_kv_cache_iswa: creating non-SWA KV cache, size =  8192 cells\n" + ONE_STREAM.format(192, 8192, 12, 1)
        + "llama_kv_cache_iswa: creating     SWA KV cache, size =  1024 cells\n" + ONE_STREAM.format(24, 1024, 12, 1),
        "swa: 1,024 cells take 24.00 MiB",
    ),
    "llama.cpp, a latent whose cells are not in the text": (
        "deepseek-v3", {}, "llama_new_context_with_model: KV self size  =  137.25 MiB, c^KV (f16):  137.25 MiB\n",
        "the printed 137.25 MiB hold 2,048 cells",
    ),
    "llama.cpp of 2023": ("26x(kv=32,head=100)", {}, "kv self size  =  162.50 MB\n", "162.50 MiB hold 512 cells"),
    "TensorRT-LLM": (
        "llama-3.1-8b", {},
        "[TensorRT-LLM][INFO] Number of tokens per block: 64.\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480).\n",
        "3,445 blocks take 26.91 GiB",
    ),
    "LMDeploy": (
        "llama-3.1-8b", {},
        "[TM][INFO] [BlockManager] block_size = 8 MB\n[TM][INFO] [BlockManager] max_block_count = 99\n",
        "99 blocks take 792.00 MiB, as printed",
    ),
    "TGI": ("llama-3.1-8b", {}, "KV-cache blocks: 54321, size: 1\n", "54,321 blocks take 6.63 GiB; the log prints no"),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_pools_follow_from_the_layers(name):
    model, asked, text, words = PUBLIC[name]
    _, found, memory = check(model, text, **asked)
    assert found.follows, found.explanation
    assert words in found.explanation
    assert memory.accuracy is Accuracy.DERIVED
    assert memory.low_bytes == memory.high_bytes == found.kv_bytes


@pytest.mark.parametrize(
    ("model", "text", "words"),
    [
        ("qwen3.5-27b", ONE_STREAM.format("1088.00", 32_768, 16, 4), "they follow if the KV dtype is q8_0"),
        ("64x(kv=8,head=128)", sglang(46_611, "1.42"), "they follow if tensor parallelism is 4"),
        (
            "llama-3.1-8b",
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)\n",
            "kv: 8,219 blocks take 32.11 GiB by this model's layers, but 16.05 GiB are printed; they follow if the KV "
            "dtype is fp8",
        ),
        (
            "llama-3.2-3b",
            ONE_STREAM.format("512.00", 4096, 32, 1),
            "(the log counts 32 layers, this model has 28 of that kind); check the model",
        ),
        (
            "qwen3.5-27b",
            ONE_STREAM.format("16384.00", 262_144, 16, 1)
            + "llama_memory_recurrent: size = 1047.38 MiB (1 cells, 64 layers)\n",
            "they follow if each slot keeps 6 older states for a rejected draft (`rs_seq` is 6)",
        ),
    ],
)
def test_bytes_that_do_not_follow_name_what_would_explain_them(model, text, words):
    _, found, _ = check(model, text)
    assert not found.follows
    assert words in found.explanation


def test_the_settings_that_fix_the_pools_come_from_the_log_and_options_win():
    text = (
        "llama_kv_cache: size = 72.00 MiB (2048 cells, 32 layers, 4/1 seqs), K (q8_0): 68.00 MiB, V (q4_0): 36.00 MiB\n"
    )
    deployment, _, _ = check("llama-3.1-8b", text, options={"cache_type_v": "f16"})
    assert deployment.options == {
        "ctx_size": "2048", "parallel": "4", "kv_unified": "on", "cache_type_k": "q8_0", "cache_type_v": "f16",
    }  # fmt: skip
    asked, _, _ = check("llama-3.1-8b", text, kv_dtype="q8_0")
    assert "cache_type_k" not in asked.options
    states = "Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, ssm_state size: 17.58GB\n"
    served, _, _ = check("qwen3.5-27b", states + sglang(330_323, "10.08"))
    assert served.options == {"max_total_tokens": "330323", "max_mamba_cache_size": "124"}


def test_a_llamacpp_log_of_bytes_alone_is_planned_for_the_cells_that_they_hold():
    text = (
        "llama_kv_cache:    Vulkan0 KV buffer size =   256.00 MiB\n"
        "llama_memory_recurrent: size =  201.00 MiB (     4 cells,  32 layers,  4 seqs  0 rs_seq)\n"
    )
    deployment, found, _ = check("qwen3.5-9b", text)
    assert found.follows
    assert deployment.options == {"ctx_size": "8192", "parallel": "4", "kv_unified": "on"}
    told = (
        "llama_context: n_seq_max     = 2\n"
        "llama_context: n_ctx         = 8192\n"
        "llama_context: kv_unified    = false\n"
        "llama_kv_cache:    Vulkan0 KV buffer size =   256.00 MiB\n"
    )
    served, _, _ = check("qwen3.5-9b", told)
    assert served.options == {"ctx_size": "8192", "parallel": "2", "kv_unified": "false"}


def test_a_log_without_tokens_or_bytes_of_a_pool_is_refused():
    with pytest.raises(SourceError, match="prints no pool with its tokens"):
        check("gpt-oss-120b", "llama_kv_cache: size = 9216.00 MiB (KV cache)\n")


OLLAMA = (
    'time=2025-11-30T08:00:05.000Z level=INFO source=runner.go:1172 msg=load request="{Operation:commit LoraPath:[] '
    "Parallel:2 BatchSize:512 FlashAttention:true KvSize:16384 KvCacheType:q8_0 NumThreads:8 GPULayers:33"
    '[ID:GPU-1 Layers:33(0..32)] MultiUserCache:false ProjectorPath: MainGPU:0 UseMmap:false}"\n'
    'time=2025-11-30T08:00:06.000Z level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="{0}"\n'
)


def test_a_runner_of_ollamas_own_engine_tells_its_context_without_cells():
    """16,384 tokens in two slots, 69,632 bytes each as q8_0: 1.06 GiB, printed with one decimal."""
    deployment, found, memory = check("llama-3.1-8b", OLLAMA.replace("{0}", "1.1 GiB"))
    assert found.follows
    assert memory.smallest_bytes == 16_384 * 69_632
    assert dict(deployment.options) == {"num_ctx": "8192", "num_parallel": "2", "kv_cache_type": "q8_0"}
    assert not check("llama-3.1-8b", OLLAMA.replace("{0}", "2.1 GiB"))[1].follows


def tensorrt(window):
    return (
        f"[TensorRT-LLM][INFO] Max KV cache blocks per sequence: {window // 32} [window size={window}], tokens per "
        "block=32, primary blocks=13500, secondary blocks=0\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 52.73 GiB for max tokens in paged KV cache (432000).\n"
    )


def test_the_window_of_a_pool_is_the_longest_request_where_a_layer_reads_every_token():
    """Mistral-7B v0.1 has a window of 4,096 in every layer: there the pool's window tells of no request."""
    assert check("llama-3.1-8b", tensorrt(32_768))[0].max_model_len == 32_768
    assert check("llama-3.1-8b", tensorrt(32_768), max_model_len=8192)[0].max_model_len == 8192
    assert check("mistral-7b-v0.1", tensorrt(4096))[0].max_model_len is None
