"""Real vLLM servers on loopback, small enough for two cores, with kvledger beside vLLM as its users install it.

Needs the Python of an environment with vLLM for the CPU in ``KVLEDGER_VLLM_PYTHON``.
"""

import json
import os
import signal
import socket
import subprocess
import time
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK, BLOCKS = 32, 257
SCHEDULER = "kvledger.live.vllm_scheduler.LedgerScheduler"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 8,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
"""Random weights, eight layers: slow enough that load overlaps."""

_AHEAD = '''
def register():
    """Let the CPU keep asynchronous scheduling, which vLLM 0.32 switches off there without need."""
    from vllm.platforms.cpu import CpuPlatform

    if not hasattr(CpuPlatform, "checked"):
        CpuPlatform.checked = CpuPlatform.check_and_update_config
        CpuPlatform.check_and_update_config = classmethod(check)


def check(cls, vllm_config):
    wanted = vllm_config.scheduler_config.async_scheduling
    cls.checked(vllm_config)
    vllm_config.scheduler_config.async_scheduling = wanted
'''


@dataclass(frozen=True)
class Server:
    """One server; ``ledgers`` is the folder its scheduler writes to."""

    port: int
    ledgers: Path
    log: Path

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def install(folder, name, entry_points):
    """Make what an installer leaves of a distribution: its name and its entry points."""
    (folder / f"{name}-0.dist-info").mkdir(parents=True)
    (folder / f"{name}-0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in entry_points.items()
    ]
    (folder / f"{name}-0.dist-info" / "entry_points.txt").write_text("\n".join(lines))


@contextmanager
def vllm(folder, *flags, is_ahead=False, every="0", model=None, blocks=BLOCKS, environment=None):
    """Start a server whose scheduler draws up its ledger, wait until it answers, and end it."""
    python = os.environ.get("KVLEDGER_VLLM_PYTHON")
    if not python:
        pytest.skip("needs a vLLM for the CPU: set KVLEDGER_VLLM_PYTHON to its Python")
    folder.mkdir(exist_ok=True)
    site = folder / "site"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    install(site, "kvledger", project["entry-points"])
    if is_ahead:
        install(site, "ahead", {"vllm.general_plugins": {"ahead": "ahead_on_cpu:register"}})
        (site / "ahead_on_cpu.py").write_text(_AHEAD)
        flags = (*flags, "--async-scheduling")
    server = Server(free_port(), folder / "ledgers", folder / "log")
    command = [str(Path(python).with_name("vllm")), "serve", *_model(folder, model)]
    command += ["--host", "127.0.0.1", "--port", str(server.port), "--enforce-eager", "--max-num-seqs", "64"]
    command += ["--block-size", str(BLOCK), "--num-gpu-blocks-override", str(blocks), "--max-model-len", "2048"]
    command += ["--max-num-batched-tokens", "64", "--scheduler-cls", SCHEDULER, *flags]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    settings |= {"PYTHONPATH": f"{ROOT / 'src'}:{site}", "KVLEDGER_VLLM_DIR": str(server.ledgers)}
    settings |= {"KVLEDGER_VLLM_EVERY": every, "KVLEDGER_VLLM_REQUESTS": "1", **(environment or {})}
    with server.log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **settings}, start_new_session=True
        )
    try:
        wait_for(server.port, process)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _model(folder, model):
    """Return the arguments of a model: a folder with weights, else one made of random weights."""
    if model is not None:
        return [str(model), "--served-model-name", "tiny"]
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return [
        *(str(folder), "--served-model-name", "tiny", "--load-format", "dummy", "--skip-tokenizer-init"),
        *("--dtype", "float32"),
    ]


def wait_for(port, process):
    for _ in range(300):
        assert process.poll() is None, "the server ended"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError("the server does not answer")
