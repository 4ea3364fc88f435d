"""The files that the commands of the documentation are run on: what a user has, and what each engine answers."""

import json
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from .docs_blocks import run
from .engines.lmdeploy.test_metrics import engine as lmdeploy
from .engines.sglang.test_metrics import FRONT, FULL
from .engines.tensorrt_llm.test_metrics import ITERATION
from .measure.recorded import DATA, rows
from .measure.test_pool_meter import TGI

_LOG = """\
INFO 05-01 10:00:01 [logger.py:42] Received request chatcmpl-1: prompt: 'x', params: SamplingParams(n=1, \
temperature=0.7, max_tokens=256), prompt_token_ids: [1, 2, 3, 4, 5], lora_request: None.
INFO 05-01 10:00:02 [logger.py:42] Received request chatcmpl-2: prompt: 'y', params: SamplingParams(n=1, \
temperature=0.7, max_tokens=128), prompt_token_ids: [1, 2, 3, 9], lora_request: None.
"""
_VLLM = """\
INFO 11-30 10:00:01 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m', max_seq_len=32768
INFO 11-30 10:00:09 [gpu_worker.py:1] Available KV cache memory: 17.21 GiB
INFO 11-30 10:00:09 [kv_cache_utils.py:1] GPU KV cache size: 140,976 tokens, Maximum concurrency for 32,768 tokens per \
request: 4.30x
"""
_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
_LMDEPLOY = 'block_size="64",max_batch_size="256",num_gpu_blocks="9731",session_len="None"'


def write_files(folder):
    """Write a request log, a table of requests, a config, a recording, and an answer of each engine."""
    table = (f"{0.2 * i:.1f},{50 + 37 * i % 900},{20 + 53 * i % 500}" for i in range(200))
    texts = {
        "server.log": _LOG,
        "vllm.log": _VLLM,
        "config.json": json.dumps(_CONFIG),
        "requests.csv": "\n".join(["arrival_seconds,prompt_tokens,output_tokens", *table, ""]),
        "metrics.txt": rows("sync")[24]["text"],
        "sglang.txt": FRONT + FULL.replace("} 16\n", "} 1\n").replace("} 625\n", "} 10000\n"),
        "slots.json": (DATA.parent / "llamacpp-b11434" / "slots-split-busy.json").read_text("utf-8"),
        "tgi.txt": TGI,
        "trtllm.json": json.dumps([ITERATION]),
        "lmdeploy.txt": f"lmdeploy:backend_config_info{{{_LMDEPLOY}}} 1.0\n" + lmdeploy(0, 0.25),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    (folder / "monday.kvr").write_bytes(_recorded_run())


@cache
def _recorded_run():
    """Record the first two phases of a real server, from idle on, as `measure --record` would have done."""
    with TemporaryDirectory() as name:
        scrapes = Path(name) / "scrapes"
        scrapes.mkdir()
        for at, row in enumerate(row for row in rows("sync") if row["phase"] in ("start", "plain")):
            (scrapes / f"{at:03}").write_text(row["text"])
            os.utime(scrapes / f"{at:03}", (row["seconds"], row["seconds"]))
        code, printed = run("kvledger measure scrapes --record monday.kvr -q", name)
        assert code == 0, printed
        return (Path(name) / "monday.kvr").read_bytes()
