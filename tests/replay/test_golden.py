"""Recorded runs of vLLM's own scheduler, equal at every step."""

import csv
import json

import numpy as np
import pytest

from kvledger.pool import Kind, Policy
from kvledger.replay import Pool, Settings, Workload, replay


def column(rows, name, dtype):
    return np.array([row[name] for row in rows], dtype=np.float64).astype(dtype)


@pytest.mark.parametrize("run", ["plain-a", "plain-b"])
def test_every_step_of_a_recorded_vllm_run_is_equal(shared, run):
    folder = shared / "golden" / "vllm-0.32.0" / run
    config = json.loads((folder / "config.json").read_text())
    requests = list(csv.DictReader((folder / "requests.csv").read_text().splitlines()))
    steps = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    workload = Workload(
        arrival_seconds=column(requests, "arrival_seconds", np.float64),
        prompt_tokens=column(requests, "prompt_tokens", np.int32),
        output_tokens=column(requests, "output_tokens", np.int32),
    )
    chunks = []
    replay(
        workload,
        Policy(name="paged", kind=Kind.PAGED, block_size=config["block_size"]),
        pool=Pool(bytes_per_token=1, num_blocks=config["usable_blocks"]),
        settings=Settings(
            max_model_len=config["max_model_len"],
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
        ),
        series=chunks.append,
    )
    for name in ("running", "waiting", "used_blocks", "preemptions"):
        ours = np.concatenate([getattr(chunk, name) for chunk in chunks])
        assert ours.tolist() == column(steps, name, np.int64).tolist(), name
