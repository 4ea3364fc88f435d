"""A sweep on a real Ray cluster of two nodes: equal to the sweep on one machine, and not stopped by lost workers."""

import json
import os
import signal
import subprocess
import time
import warnings
from pathlib import Path

import pytest

from ..cli.calling import command, environment

pytestmark = [pytest.mark.live, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
GRID = """
[settings]
trace = "synthetic:chat,requests=20000,rate=8"
bytes-per-token = 131072
max-model-len = 8192

[grid]
memory = { from = "4GiB", to = "32GiB", times = 2 }
policy = ["max", "pow2@buddy", "paged"]
"""


@pytest.fixture(scope="module")
def cluster():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utils = pytest.importorskip("ray.cluster_utils")
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), known)))  # for the workers
    nodes = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()
    if known is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = known


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Return the grid and what one machine finds."""
    folder = tmp_path_factory.mktemp("local")
    grid = folder / "grid.toml"
    grid.write_text(GRID)
    subprocess.run(command("sweep", grid, "-o", folder / "r.parquet", "-q"), check=True, env=environment(), timeout=300)
    return grid, (folder / "r.parquet").read_bytes()


def workers_of(cluster):
    """Return the processes that run a cell now, by the title that Ray gives them."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in raylets and b"ray::run_cell" in title:
                found.append(int(entry.name))
    return found


def test_a_cluster_finds_what_one_machine_finds_though_a_worker_is_killed(cluster, local, tmp_path):
    grid, expected = local
    out = tmp_path / "r.parquet"
    line = command("sweep", grid, "-o", out, "--ray", cluster.address, "--json", "-q")
    process = subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (running := workers_of(cluster)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running
    os.kill(running[0], signal.SIGKILL)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    found = json.loads(printed)
    assert (found["cells"], found["failures"]) == (12, [])
    assert out.read_bytes() == expected
