"""Real complaints from public threads: the right answer, or silence, never a wrong one.

Each case of the shared file names what was complained about and the right answer. Here stands the input that its text
and numbers describe (a log, a metrics text, a trace, a plan), the codes that must come out, no others, and words of the
answer. ``SILENT`` are cases whose text gives no input that a tool could read.
"""

import json
from dataclasses import dataclass

import pytest

from tests.cli.calling import call

VLLM = "INFO 05-01 10:00:{0:02} [x.py:1] {1}"
START = ("Initializing a V1 LLM engine (v{version}) with config: model='{model}', dtype=torch.bfloat16, "
         "max_seq_len={length}, tensor_parallel_size={tp}, pipeline_parallel_size=1, kv_cache_dtype=auto, "
         "enable_prefix_caching=True")  # fmt: skip
STATS = ("Engine 000: Avg prompt throughput: {0} tokens/s, Avg generation throughput: {1} tokens/s, "
         "Running: {2} reqs, Waiting: {3} reqs, GPU KV cache usage: {4}%, Prefix cache hit rate: 0.0%")  # fmt: skip
STATS_V0 = ("Avg prompt throughput: {0} tokens/s, Avg generation throughput: {1} tokens/s, Running: {2} reqs, "
            "Swapped: 0 reqs, Pending: {3} reqs, GPU KV cache usage: {4}%, CPU KV cache usage: 0.0%.")  # fmt: skip


def start(*, version="0.11.0", model="m", length=8192, tp=1):
    return START.format(version=version, model=model, length=length, tp=tp)


def log(*lines):
    return "\n".join(VLLM.format(n % 60, line) for n, line in enumerate(lines))


def busy(count, running, waiting, usage, *, prompt=100.0, generation=500.0, form=STATS):
    """Return periodic lines around a usage."""
    return [form.format(prompt, generation, running, waiting, usage if n else usage - 0.1) for n in range(count)]


METRICS = """\
vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",num_gpu_blocks="{blocks}"{more},engine="0"}} 1.0
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:{gauge}{{engine="0",model_name="m"}} {usage}
vllm:num_preemptions_total{{engine="0",model_name="m"}} {preemptions}
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}
vllm:request_prompt_tokens_sum{{engine="0",model_name="m"}} {prompt_ended}
vllm:request_prompt_tokens_count{{engine="0",model_name="m"}} {ended}
vllm:request_prompt_tokens_bucket{{engine="0",model_name="m",le="1000"}} {ended}
vllm:request_prompt_tokens_bucket{{engine="0",model_name="m",le="+Inf"}} {ended}
vllm:request_generation_tokens_sum{{engine="0",model_name="m"}} {generated_ended}
vllm:request_generation_tokens_count{{engine="0",model_name="m"}} {ended}
vllm:request_generation_tokens_bucket{{engine="0",model_name="m",le="2000"}} {ended}
vllm:request_generation_tokens_bucket{{engine="0",model_name="m",le="+Inf"}} {ended}
"""


def scrape(*, blocks=1001, held=990, running=30, waiting=10, preemptions=0, ended=100, gauge="kv_cache_usage_perc",
           more="", tokens=None):  # fmt: skip
    """Return one scrape whose counters agree with its gauge."""
    live = 16 * held - 7 * running if tokens is None else tokens
    return METRICS.format(
        blocks=blocks, running=running, waiting=waiting, gauge=gauge, usage=held / (blocks - 1),
        preemptions=preemptions, ended=ended, prompt_ended=200 * ended, generated_ended=300 * ended,
        prompt=200 * ended + live // 2, generated=300 * ended + live - live // 2, more=more,
    )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What is asked, the codes that must be told, and words of the right answer; ``{0}`` is the file or folder."""

    command: str
    codes: str
    words: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


LLAMA_SPLIT = """\
build: 4621 (d774ab3a) with cc
llama_init_from_model: n_seq_max     = 6
llama_init_from_model: n_ctx         = 163840
llama_init_from_model: n_ctx_per_seq = 27306
srv          init: initializing slots, n_slots = 6
slot         init: id  0 | task -1 | new slot n_ctx_slot = 27306
"""
LLAMA_EXPLICIT = """\
build: 9093 (d774ab3a) with cc
llama_context: n_seq_max     = 2
llama_context: n_ctx         = 65536
llama_context: n_ctx_seq     = 32768
llama_context: kv_unified    = false
llama_kv_cache: size = 8192.00 MiB ( 32768 cells,  32 layers,  2/2 seqs), K (f16): 4096.00 MiB, V (f16): 4096.00 MiB
srv    load_model: initializing, n_slots = 2, n_ctx_slot = 32768, kv_unified = 'false'
"""
LLAMA_FOUR = """\
build: 7079 (d774ab3a) with cc
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 4096
llama_context: n_ctx_seq     = 1024
llama_context: kv_unified    = false
srv    load_model: initializing slots, n_slots = 4
slot   load_model: id  0 | task -1 | new slot, n_ctx = 1024
"""
OLLAMA = (
    'time=2025-02-20T10:00:00Z level=INFO source=server.go:1 msg="starting llama server" '
    'cmd="/bin/ollama runner --model /m --ctx-size 16384 --batch-size 512 --parallel 4 --port 1"\n'
    "llama_kv_cache_init: kv_size = 16384, offload = 1\n"
    "llama_new_context_with_model: KV self size  = 2048.00 MiB, K (f16): 1024.00 MiB, V (f16): 1024.00 MiB\n"
)
SGLANG_IDLE = """\
sglang:num_running_reqs{model_name="m"} 0.0
sglang:num_queue_reqs{model_name="m"} 0.0
sglang:num_used_tokens{model_name="m"} 123859.0
sglang:token_usage{model_name="m"} 0.28
"""
TENSORRT = (
    "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. \n"
    "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.\n"
)
LONG_V0 = (
    "The model's max seq len ({0}) is larger than the maximum number of tokens that can be stored in KV cache ({1})."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {0}"
TRACE = "arrival_seconds,prompt_tokens,output_tokens\n"
NEVER_FITS = TRACE + "0,600,424\n1,100,20\n2,100,20\n"
JUST_FITS = TRACE + "0,600,409\n1,100,20\n2,100,20\n"
LONG_ANSWERS = TRACE + "".join(f"{0.01 * n:.2f},40,{2040 - n % 7}\n" for n in range(200))
TIGHT = "--bytes-per-token 4096 --block-size 16 --policy paged --clock 0.01,1e-3,1e-4,0"

CASES = {
    "K3-002": [
        # two models fill the same 16 GB: the smallest pool for the wanted concurrency is said
        Asked(f"size {model} --engine-version 0.8.1 --kv-memory {memory} --length 1000 --concurrency 8", "KV020 KV021",
              ("--gpu-memory-utilization", "8 requests of 1,000 tokens take"))
        for model, memory in (("qwen2.5-3b", "11GiB"), ("qwen2.5-7b", "8GiB"))
    ],
    "K3-003": [
        Asked("size qwen2.5-7b --engine-version 0.8.5 --kv-memory 50GiB --length 2048", "KV021",
              ("lowering it frees nothing", "a smaller share of memory does")),
    ],
    "K3-004": [
        Asked("measure {0}", "KV020", ("--kv-cache-memory-bytes", "131,072 tokens hold"), (log(
            "Available KV cache memory: 16.63 GiB", "GPU KV cache size: 708,425 tokens",
            "Maximum concurrency for 131,072 tokens per request: 5.40x", *busy(12, 3, 0, 0.6)),)),
        Asked("size qwen3-next-80b-a3b --kv-memory 16.63GiB --length 417", "KV021 KV032 KV040",
              ("lowering it frees nothing",)),
    ],
    "K3-005": [
        Asked("measure {0}", "KV011 KV061", ("2 requests hold", "fp8", "twice as many fit"), (log(
            start(version="0.8.5", model="Qwen/QwQ-32B-FP8-Dynamic", length=32000),
            "GPU KV cache size: 32,768 tokens", "Maximum concurrency for 32,000 tokens per request: 1.02x",
            "Available KV cache memory: 8.00 GiB", *busy(6, 2, 3, 99.9)),)),
        Asked("size qwen2.5-32b --engine-version 0.8.5 --kv-memory 8GiB --max-model-len 32000 --length 16000 "
              "--concurrency 4", "KV016", ("2 fit at once", "--kv-cache-dtype fp8", "tokens a request (max_tokens)")),
    ],
    "K3-007": [
        Asked("measure {0}", "KV012 KV023", ("fell from 10.55 GiB to 5.59 GiB", "10.12 GiB are needed"), (log(
            start(version="0.10.2", length=100000), "Available KV cache memory: 10.55 GiB",
            "GPU KV cache size: 230,528 tokens", "Maximum concurrency for 100,000 tokens per request: 2.31x",
            start(version="0.10.2", length=221000),
            "ValueError: To serve at least one request with the models's max seq len (221000), (10.12 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the "
            "estimated maximum model length is 122080."),)),
    ],
    "K3-009": [
        # 1,487 blocks of 784 tokens, of which a request of 32,768 takes 45: int(1487 / 45 * 32768)
        Asked("measure {0}", "KV060", ("1,487 blocks of 784", "takes 45 of them", "1,082,800 tokens"), (
            scrape(blocks=1487, held=90, running=2, waiting=0, ended=0, tokens=2000, more=(
                ',kv_cache_size_tokens="1082800",kv_cache_max_concurrency="33.044444444444444"')
            ).replace('block_size="16"', 'block_size="784"'),)),
    ],
    "K3-010": [
        Asked("measure {0}", "KV060", ("two rules in one log", "290,864", "33.04"), (log(
            start(version="0.19.0", model="Qwen/Qwen3.5-27B", length=32768), "GPU KV cache size: 290,864 tokens",
            "Maximum concurrency for 32,768 tokens per request: 33.04x"),)),
    ],
    "K3-011": [
        Asked("measure {0}", "KV012 KV023", ("1,952 to 1,478 blocks", "--max-model-len 23,648"), (log(
            "Initializing an LLM engine (v0.6.3) with config: model='m', max_seq_len=20000, tensor_parallel_size=1",
            "# GPU blocks: 1952, # CPU blocks: 2048", "Maximum concurrency for 20000 tokens per request: 1.56x",
            "Initializing an LLM engine (v0.6.3) with config: model='m', max_seq_len=29000, tensor_parallel_size=1",
            "# GPU blocks: 1478, # CPU blocks: 2048", "Maximum concurrency for 29000 tokens per request: 0.82x",
            LONG_V0.format(29000, 23648)),)),
    ],
    "K3-013": [
        Asked("measure {0}", "KV012 KV063", ("8.69 GiB are of one rank", "half of every token"), (log(
            "Initializing an LLM engine (v0.7.2) with config: model='m', max_seq_len=131072, tensor_parallel_size=2",
            "Loading model weights took 13.9476 GB",
            "non_torch_memory takes 0.25GiB; PyTorch activation peak memory takes 0.19GiB; the rest of the memory "
            "reserved for KV Cache is 8.69GiB.", LONG_V0.format(131072, 81536)),)),
    ],
    "K3-015": [
        Asked("measure {0}", "KV010", ("160 preemptions for 40 requests", "--max-num-seqs"), (
            scrape(preemptions=10, ended=100, running=40), scrape(preemptions=170, ended=140, running=40))),
        Asked("replay {0} --capacity-tokens 8000 --no-full-sequence-must-fit --max-num-batched-tokens 512 " + TIGHT,
              "KV010", ("--scheduler-reserve-full-isl",), (TRACE + "".join(f"{n},3000,300\n" for n in range(40)),)),
    ],
    "K3-017": [
        Asked("measure {0}", "KV010", ("preemptions for",), (
            scrape(preemptions=0, ended=100, gauge="gpu_cache_usage_perc"),
            scrape(preemptions=900, ended=120, gauge="gpu_cache_usage_perc"))),
        Asked("replay {0} --capacity-tokens 20000 --max-model-len 4096 " + TIGHT, "KV010", ("max_num_seqs",),
              (LONG_ANSWERS,)),
    ],
    "K3-018": [
        Asked("measure {0}", "KV013", ("5 requests run and hold", "no token came in 4 lines"), (log(
            "# GPU blocks: 2000, # CPU blocks: 2048", "Maximum concurrency for 4096 tokens per request: 7.81x",
            *busy(3, 5, 20, 97.0, form=STATS_V0),
            *busy(4, 5, 20, 97.5, prompt=0.0, generation=0.0, form=STATS_V0)),)),
    ],
    "K3-019": [
        Asked("replay {0} --num-blocks 63 --max-model-len 2048 " + TIGHT, "KV012",
              ("1 request never fits", "the pool holds 1,008"), (NEVER_FITS,)),
        Asked("replay {0} --num-blocks 63 --max-model-len 2048 " + TIGHT, "", (), (JUST_FITS,)),
    ],
    "K3-021": [
        Asked("size qwen3.5-27b --kv-memory 30GiB --length 12", "KV021 KV032 KV040",
              ("hold at one token", "can never be found in the prefix cache")),
        Asked("measure {0}", "KV032", ("7,808 tokens",), (log(
            "Setting attention block size to 7808 tokens to ensure that attention page size is >= mamba page size.",
            "GPU KV cache size: 457,880 tokens"),)),
    ],
    "K3-023": [
        Asked("size llama-3-8b --engine lmdeploy --gpu A100-80GB --weights 15GiB --set cache_max_entry_count=0.6",
              "KV022", ("a share of what is free when it starts", "--cache-max-entry-count")),
    ],
    "K3-025": [
        Asked(f"size llama-3-8b --engine {engine} --gpu A100-80GB --weights 15GiB", "KV022", (setting,))
        for engine, setting in (("lmdeploy", "--cache-max-entry-count"), ("tensorrt-llm", "kv_cache_config.max_tokens"),
                                ("sglang", "--max-total-tokens"))
    ],
    "K3-026": [
        Asked("measure {0}", "", (), (TENSORRT,)),
        Asked("size llama-2-7b --engine tensorrt-llm --kv-memory 64.75GiB --max-model-len 5120 --length 5120 "
              "--concurrency 1", "KV020 KV046", ("1 request of 5,120 tokens take", "kv_cache_config.max_tokens")),
    ],
    "K3-027": [
        Asked("measure {0}", "KV048", ("6 slots own 27,306 tokens each", "--ctx-size 983040"), (LLAMA_SPLIT,)),
        Asked("size llama-3.1-8b --engine llama.cpp --kv-memory 21GiB --set ctx_size=163840 --set parallel=6",
              "KV048", ("164,352 cells are cut into 6 strips", "--kv-unified")),
    ],
    "K3-029": [
        Asked("measure {0}", "KV048", ("2 slots own 32,768 tokens each", "--kv-unified", "no memory more"),
              (LLAMA_EXPLICIT,)),
        Asked("measure {0}", "", (), (LLAMA_EXPLICIT.replace("false", "true").replace("2/2 seqs", "2/1 seqs"),)),
    ],
    "K3-030": [
        Asked("measure {0}", "KV048", ("4 slots own 1,024 tokens each",), (LLAMA_FOUR,)),
    ],
    "K3-031": [
        Asked("measure {0}", "KV049", ("4 x 4,096 = 16,384 tokens", "OLLAMA_NUM_PARALLEL=1"), (OLLAMA,)),
        Asked("measure {0}", "", (), (OLLAMA.replace("--parallel 4", "--parallel 1"),)),
    ],
    "K3-034": [
        Asked("size gpt-oss-20b --engine ollama --kv-memory 40GiB --set num_ctx=131072 --set num_parallel=4", "KV049",
              ("4 x 131,072 tokens",)),
    ],
    "K3-037": [
        Asked("replay {0} --capacity-tokens 4000 --max-model-len 4096 --policy grow --bytes-per-token 4096",
              "KV006", ("needs a second extent",), (TRACE + "0,1000,500\n9,1000,500\n",)),
    ],
    "K3-038": [
        Asked("replay {0} --capacity-tokens 4000 --max-model-len 4096 --policy grow --bytes-per-token 4096",
              "KV003 KV006", ("tokens are copied to grow", "lie in holes"),
              (TRACE + "".join(f"0,{300 + 37 * (n % 9)},{200 + 13 * (n % 7)}\n" for n in range(40)),)),
    ],
    "K3-043": [
        Asked("measure {0}", "KV070", ("expandable_segments:True", "1.22 GiB"), (log(OOM.format(
            "546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB is free. Process 562167 has 15.25 "
            "GiB memory in use. Of the allocated memory 13.73 GiB is allocated by PyTorch, with 46.00 MiB allocated in "
            "private pools (e.g., CUDA Graphs), and 736.86 MiB is reserved by PyTorch but unallocated."),
            "(EngineCore pid=1) vllm.v1.engine"),)),
    ],
    "K3-044": [
        Asked("measure {0}", "KV072", ("before any KV pool was cut",), (log(OOM.format(
            "16.00 GiB. GPU 0 has a total capacity of 44.53 GiB of which 187.94 MiB is free."),
            "(EngineCore pid=1) vllm.v1.engine"),)),
    ],
    "K3-045": [
        Asked("measure {0}", "KV071", ("no setting of the allocator gives them back",), (log(OOM.format(
            "20.00 MiB. GPU 0 has a total capacity of 15.51 GiB of which 149.62 MiB is free. Process 1839 has 322.23 "
            "MiB memory in use. Including non-PyTorch memory, this process has 11.65 GiB memory in use. Of the "
            "allocated memory 11.47 GiB is allocated by PyTorch, and 10.27 MiB is reserved by PyTorch but "
            "unallocated."),
            "(EngineCore pid=1) vllm.v1.engine"),)),
    ],
    "K3-046": [
        Asked("measure {0}", "KV033", ("123,859 tokens count as used while nothing runs", "no leak"), (SGLANG_IDLE,)),
    ],
    "K3-049": [
        Asked("measure {0}", "KV061", ("31 requests run, though a concurrency of 9.19 is printed",), (log(
            "Available KV cache memory: 63.29 GiB", "GPU KV cache size: 75,278 tokens",
            "Maximum concurrency for 8,192 tokens per request: 9.19x", *busy(12, 31, 0, 60.0)),)),
    ],
    "K3-050": [
        Asked("measure {0}", "KV063", ("each of 2 ranks has its own cache of the same 507 blocks",), (log(
            "Initializing an LLM engine (v0.4.2) with config: model='m', max_seq_len=4096, tensor_parallel_size=2",
            "# GPU blocks: 507, # CPU blocks: 1024"),)),
    ],
    "K3-051": [
        Asked("size llama-2-7b --engine-version 0.4.0 --kv-memory 3.5859375GiB --max-model-len 32768", "KV012 KV046",
              ("512.00 KiB a token", "--max-model-len 7,344")),
    ],
    "K3-052": [
        Asked("measure {0}", "KV012 KV047", ("13,360 tokens", "stores the full heads"), (log(
            "Initializing an LLM engine (v0.5.4) with config: model='deepseek-ai/DeepSeek-V2-Chat', "
            "max_seq_len=163840, tensor_parallel_size=1", LONG_V0.format(163840, 13360)),)),
    ],
    "K3-054": [
        Asked("measure {0}", "KV061", (), (log(
            "Available KV cache memory: 63.29 GiB", "GPU KV cache size: 75,278 tokens",
            "Maximum concurrency for 8,192 tokens per request: 9.19x", *busy(12, 31, 0, 45.0)),)),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def complaints(shared):
    lines = (shared / "cases" / "handed.jsonl").read_text().splitlines()
    return {case["id"] for case in map(json.loads, lines) if case["kind"] == "K3"}


def test_every_complaint_is_answered(complaints):
    assert complaints == set(CASES)


def ask(capsys, tmp_path, asked):
    """Run one question and return its findings by code."""
    command, _, rest = asked.command.partition(" ")
    suffix = ".csv" if command == "replay" else ".txt"
    for number, text in enumerate(asked.files):
        folder = tmp_path / "given"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}{suffix}").write_text(text)
    place = tmp_path / "given" if len(asked.files) > 1 else tmp_path / "given" / f"0{suffix}"
    called = call(
        capsys, command, *rest.replace("{0}", str(place)).split(), "--json", *([] if command == "measure" else ["-q"])
    )
    assert called.code == 0, called.err
    return called.json()["findings"]["told"]


def flat(told):
    return json.dumps(told, ensure_ascii=False)


ALL = [(name, number) for name, questions in CASES.items() for number in range(len(questions))]


@pytest.mark.parametrize(("name", "number"), ALL, ids=[f"{name}-{number}" for name, number in ALL])
def test_the_right_answer_or_silence_and_never_a_wrong_one(capsys, tmp_path, name, number):
    asked = CASES[name][number]
    told = ask(capsys, tmp_path, asked)
    assert sorted({finding["code"] for finding in told}) == sorted(asked.codes.split()), flat(told)
    for words in asked.words:
        assert words in flat(told), words
