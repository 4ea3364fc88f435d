"""Logs of every engine, in the engines' formats with our own numbers."""

from kvledger.engines.facts import Engine
from kvledger.engines.llamacpp.log import read_log as read_llamacpp
from kvledger.engines.lmdeploy.log import read_log as read_lmdeploy
from kvledger.engines.ollama.log import read_log as read_ollama
from kvledger.engines.sglang.log import read_log as read_sglang
from kvledger.engines.tensorrt_llm.log import read_log as read_tensorrt_llm
from kvledger.engines.tgi.log import read_log as read_tgi
from kvledger.engines.transformers.log import read_log as read_transformers
from kvledger.engines.vllm.log import read_log as read_vllm

READERS = {
    Engine.VLLM: read_vllm,
    Engine.SGLANG: read_sglang,
    Engine.LLAMACPP: read_llamacpp,
    Engine.OLLAMA: read_ollama,
    Engine.TGI: read_tgi,
    Engine.TENSORRT_LLM: read_tensorrt_llm,
    Engine.LMDEPLOY: read_lmdeploy,
    Engine.TRANSFORMERS: read_transformers,
}

VLLM = """\
(APIServer pid=11) INFO 03-04 10:00:00 [api_server.py:1] vLLM API server version 0.18.0
(APIServer pid=11) INFO 03-04 10:00:00 [utils.py:2] non-default args: {'model': 'org/model-8b', \
'max_model_len': 4096, 'api_key': ['sk-1'], 'gpu_memory_utilization': 0.85, 'max_num_seqs': 128}
(EngineCore pid=12) INFO 03-04 10:00:05 [core.py:3] Initializing a V1 LLM engine (v0.18.0) with config: \
model='org/model-8b', speculative_config=None, tokenizer='org/model-8b', dtype=torch.bfloat16, max_seq_len=4096, \
tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, kv_cache_dtype=auto, \
device_config=cuda, enable_prefix_caching=True, enable_chunked_prefill=True, \
compilation_config={'dtype': 'x', 'max_model_len': 7}
(Worker_TP0 pid=13) INFO 03-04 10:00:20 [model_runner.py:4] Model loading took 7.6 GiB memory and 4.250000 seconds
(Worker_TP0 pid=13) INFO 03-04 10:00:30 [gpu_worker.py:5] Available KV cache memory: 20.5 GiB
(Worker_TP1 pid=14) INFO 03-04 10:00:30 [gpu_worker.py:5] Available KV cache memory: 20.25 GiB
(EngineCore pid=12) INFO 03-04 10:00:31 [kv_cache_utils.py:6] GPU KV cache size: 331,776 tokens
(EngineCore pid=12) INFO 03-04 10:00:31 [kv_cache_utils.py:7] Maximum concurrency for 4,096 tokens per request: 81.00x
(APIServer pid=11) INFO 03-04 10:01:00 [loggers.py:8] Engine 000: Avg prompt throughput: 120.5 tokens/s, Avg \
generation throughput: 64.0 tokens/s, \
Running: 3 reqs, Waiting: 1 reqs, Preemptions: 2, GPU KV cache usage: 40.1%, Prefix cache \
hit rate: 12.5%
(APIServer pid=11) INFO 03-04 10:01:10 [loggers.py:8] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation \
throughput: 70.3 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 30.0%, Prefix cache hit rate: 12.5%
"""

SGLANG = """\
[2026-03-04 10:00:00] server_args=ServerArgs(model_path='org/model-8b', tp_size=2, dp_size=1, \
mem_fraction_static=0.85, page_size=16, context_length=None, disable_radix_cache=False, api_key='sk-2')
[2026-03-04 10:00:20 TP0] Load weight end. elapsed=9.25 s, type=SomeForCausalLM, dtype=torch.bfloat16, \
avail mem=60.50 GB, mem usage=7.75 GB.
[2026-03-04 10:00:20 TP0] Using KV cache dtype: torch.bfloat16
[2026-03-04 10:00:21 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 524288, K size: 16.00 GB, \
V size: 16.00 GB
[2026-03-04 10:00:21 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 524288, K size: 16.00 GB, \
V size: 16.00 GB
[2026-03-04 10:00:21 TP0] Memory pool end. avail mem=28.25 GB
[2026-03-04 10:00:30 TP0] max_total_num_tokens=524288, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=32768, available_gpu_mem=27.50 GB
[2026-03-04 10:01:00 TP0] Prefill batch, #new-seq: 2, #new-token: 700, #cached-token: 64, token usage: 0.10, \
#running-req: 4, #queue-req: 1, cuda graph: False, input throughput (token/s): 350.25
[2026-03-04 10:01:05 TP0] Decode batch, #running-req: 6, #token: 54321, token usage: 0.10, cuda graph: True, \
gen throughput (token/s): 120.50, #queue-req: 0
[2026-03-04 10:01:06 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 900
"""

LLAMACPP = """\
build: 7123 (abcdef12) with cc for x86_64
llama_model_loader: - kv   2:                               general.name str              = Tiny Model
llama_context: n_seq_max             = 4
llama_context: n_ctx                 = 16384
llama_context: n_ctx_seq             = 4096
llama_context: n_ubatch              = 512
llama_context: kv_unified            = false
llama_kv_cache_iswa: creating non-SWA KV cache, size = 4096 cells
llama_kv_cache:      CUDA0 KV buffer size =   384.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =   128.00 MiB
llama_kv_cache: size =  512.00 MiB (  4096 cells,   8 layers,  4/4 seqs), K (f16):  256.00 MiB, V (f16):  256.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
llama_kv_cache: size =   85.00 MiB (  1024 cells,  10 layers,  4/4 seqs), K (q8_0):   42.50 MiB, V (q8_0):   42.50 MiB
srv    load_model: initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = 'false'
slot      release: id  2 | task 7 | stop processing: n_tokens = 321, truncated = 0
"""

OLLAMA = """\
time=2026-03-04T10:00:00.000Z level=INFO source=routes.go:1 msg="Listening on [::]:11434 (version 0.13.1)"
time=2026-03-04T10:00:05.000Z level=INFO source=server.go:2 msg="starting runner" cmd="ollama runner --port 5000"
time=2026-03-04T10:00:05.100Z level=INFO source=runner.go:3 msg=load request="{Operation:fit LoraPath:[] Parallel:2 \
BatchSize:512 FlashAttention:Enabled KvSize:8192 KvCacheType:q8_0 NumThreads:4}"
time=2026-03-04T10:00:06.000Z level=INFO source=device.go:4 msg="model weights" device=CUDA0 size="3.9 GiB"
time=2026-03-04T10:00:06.000Z level=INFO source=device.go:5 msg="kv cache" device=CUDA0 size="300.5 MiB"
time=2026-03-04T10:00:06.000Z level=INFO source=device.go:6 msg="kv cache" device=CPU size="100.5 MiB"
time=2026-03-04T10:00:06.000Z level=INFO source=device.go:7 msg="total memory" size="4.6 GiB"
"""

TGI = """\
2026-03-04T10:00:00.000000Z  INFO text_generation_launcher: Args { model_id: "org/model-8b", num_shard: Some(2), \
max_total_tokens: Some(4096), cuda_memory_fraction: 0.9, api_key: Some("sk-3") }
2026-03-04T10:00:01.000000Z  INFO text_generation_launcher: Using prefix caching = True
2026-03-04T10:00:01.000000Z  INFO text_generation_launcher: Using Attention = flashinfer
2026-03-04T10:00:20.000000Z  INFO text_generation_launcher: KV-cache blocks: 20000, size: 16
2026-03-04T10:00:20.000000Z  INFO text_generation_router_v3: src/lib.rs:1: Setting max batch total tokens to 320000
"""

TENSORRT_LLM = """\
[03/04/2026-10:00:00] [TRT-LLM] [RANK 0] [I] TensorRT LLM version: 1.2.0
[03/04/2026-10:00:20] [TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + non-torch): 30.25 GiB, \
available KV cache memory when calculating max tokens: 40.50 GiB, fraction is set 0.9, kv size is 65536. device total \
memory 79.25 GiB
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 1024 [window size=32768], tokens per block=32, primary \
blocks=20736, secondary blocks=0
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 40.50 GiB for max tokens in paged KV cache (663552).
[TensorRT-LLM][INFO] Attention window size 65536 exceeds upper bound 32768 for available blocks
[03/04/2026-10:01:00] [TRT-LLM] [RANK 0] [I] iter = 55, host_step_time = 62.5ms, num_scheduled_requests: 5, states = \
{'num_ctx_requests': 2, 'num_ctx_tokens': 600, 'num_generation_tokens': 3}
"""

LMDEPLOY = """\
2026-03-04 10:00:20,123 - lmdeploy - INFO - base.py:1 - Building CacheEngine with config: \
CacheConfig(max_batches=256, block_size=64, num_cpu_blocks=0, num_gpu_blocks=9731, cache_max_entry_count=0.8, \
max_prefill_token_num=8192, enable_prefix_caching=True).
[2026-03-04 10:01:00 Engine 001] Avg thr (in/out): 12.5 / 340.1 tokens/s, Server (succeeded/failed/routed/waiting): \
10 / 0 / 4 / 0, Engine (running/waiting): 4 / 1, KV cache: 12.3%, Prefix cache hit rate: 5.0%,
"""

TRANSFORMERS = """\
[2026-03-04 10:00:00,000] INFO Memory available for cache allocation: 10240 MB
[2026-03-04 10:00:00,001] INFO Paged cache initialized: self.max_batch_tokens = 8192, self.num_sectors = 300, \
mb_per_sector = 28
"""

SAMPLES = {
    Engine.VLLM: VLLM,
    Engine.SGLANG: SGLANG,
    Engine.LLAMACPP: LLAMACPP,
    Engine.OLLAMA: OLLAMA,
    Engine.TGI: TGI,
    Engine.TENSORRT_LLM: TENSORRT_LLM,
    Engine.LMDEPLOY: LMDEPLOY,
    Engine.TRANSFORMERS: TRANSFORMERS,
}
