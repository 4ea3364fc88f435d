"""Real vLLM servers on the CPU print what the planner says, digit by digit.

The lines were printed by vLLM 0.32.0 with ``VLLM_CPU_KVCACHE_SPACE=1`` and random weights; the ``live`` test starts the
servers again with the Python that ``KVLEDGER_VLLM_PYTHON`` names.
"""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.vllm import make_plan
from kvledger.model.reader import read_config
from tests.engines.vllm.vllm_oracle import DATA

SERVERS = json.loads((DATA / "vllm-0.32.0" / "cpu-servers.json").read_text(encoding="utf-8"))
PRINTED = re.compile(r"\] ((?:Setting attention block|Padding mamba page|Add \d+ padding|\w+ KV cache size).*)")


def planned(server, version="0.32.0"):
    flags = dict(zip(server["flags"][::2], server["flags"][1::2], strict=True))
    length = flags.get("--max-model-len")
    deployment = Deployment(
        engine="vllm",
        version=version,
        device="cpu",
        max_model_len=int(length) if length else None,
        tp=int(flags.get("--tensor-parallel-size", 1)),
        pp=int(flags.get("--pipeline-parallel-size", 1)),
    )
    return make_plan(read_config(server["config"], name=server["name"]), deployment, KvMemory.given(2**30))


@pytest.mark.parametrize("server", SERVERS, ids=[server["name"] for server in SERVERS])
def test_the_planned_lines_are_those_a_server_printed(server):
    assert [line.text for line in planned(server).lines] == server["lines"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_up_lines(python, server, folder):
    """Start a server, return the lines it printed about its cache, and end it."""
    (folder / "config.json").write_text(json.dumps(server["config"]), encoding="utf-8")
    log = folder / "log"
    command = [str(Path(python).with_name("vllm")), "serve", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(free_port()), "--enforce-eager", "--load-format", "dummy", "--skip-tokenizer-init"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if any("parallel" in flag for flag in server["flags"]):
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command + server["flags"], stdout=out, stderr=out, env=environment, start_new_session=True
        )
    try:
        for _ in range(300):
            time.sleep(1)
            text = log.read_text(encoding="utf-8", errors="replace")
            if "KV cache size" in text or process.poll() is not None:
                break
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    return [match[1] for line in text.splitlines() if (match := PRINTED.search(line))]


@pytest.mark.live
@pytest.mark.parametrize("server", SERVERS, ids=[server["name"] for server in SERVERS])
def test_a_server_prints_the_planned_lines(server, tmp_path):
    python = os.environ.get("KVLEDGER_VLLM_PYTHON")
    if not python:
        pytest.skip("needs a vLLM for the CPU: set KVLEDGER_VLLM_PYTHON to its Python")
    version = subprocess.run(
        [python, "-c", "from importlib.metadata import version; print(version('vllm'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert start_up_lines(python, server, tmp_path) == [line.text for line in planned(server, version).lines]


@pytest.mark.live
def test_the_planner_of_an_installed_vllm_answers_as_recorded(tmp_path):
    python = os.environ.get("KVLEDGER_VLLM_PYTHON")
    if not python:
        pytest.skip("needs a vLLM: set KVLEDGER_VLLM_PYTHON to its Python")
    script = Path(__file__).parents[3] / "benchmarks" / "oracle_vllm.py"
    out = tmp_path / "planner.json"
    subprocess.run([python, str(script), str(out)], check=True, capture_output=True)
    fresh = json.loads(out.read_text(encoding="utf-8"))
    recorded = DATA / f"vllm-{fresh['vllm']}" / "planner.json"
    assert fresh == json.loads(recorded.read_text(encoding="utf-8"))
