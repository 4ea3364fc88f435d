"""Our block tables answer as vLLM's own KV cache manager does, at every operation.

The records were made by ``benchmarks/oracle_kv_cache_manager.py`` with vLLM 0.32; the ``live`` test makes longer ones
with the Python that ``KVLEDGER_VLLM_PYTHON`` names.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvledger.pool.groups import GroupKind, LayerGroup

from .manager_records import ADMIT, answer, prompt_tokens

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "tests" / "data" / "vllm-0.32.0").glob("manager-*.json"))
CASES = ("full", "window", "mixed", "sizes", "windows", "chunk", "state", "uncached")


def assert_equal_at_every_operation(record):
    ours, theirs = answer(record).results, np.array(record["results"])
    wrong = np.flatnonzero((ours != theirs).any(axis=1))
    first = int(wrong[0]) if len(wrong) else 0
    assert not len(wrong), (
        f"{record['case']} seed {record['seed']}: operation {first}, {record['operations'][first]}: "
        f"vLLM {theirs[first].tolist()}, here {ours[first].tolist()}"
    )


@pytest.mark.parametrize("path", RECORDS, ids=[path.stem for path in RECORDS])
def test_every_operation_of_a_recorded_manager_is_equal(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    assert_equal_at_every_operation(record)


def test_the_records_hold_hits_refusals_and_preemptions():
    assert {path.stem.removeprefix("manager-") for path in RECORDS} == set(CASES)
    for path in RECORDS:
        record = json.loads(path.read_text(encoding="utf-8"))
        results, operations = np.array(record["results"]), np.array(record["operations"])
        assert (results[operations[:, 0] == ADMIT, 0] == 0).sum() >= 10, path.stem
        assert (results[:, 1] > 0).sum() >= 10 or not record["case"]["caching"], path.stem


@pytest.mark.live
@pytest.mark.parametrize("case", CASES)
def test_every_operation_of_a_live_manager_is_equal(case, tmp_path):
    python = os.environ.get("KVLEDGER_VLLM_PYTHON")
    if not python:
        pytest.skip("KVLEDGER_VLLM_PYTHON does not name the Python of an installed vLLM 0.32")
    out = tmp_path / "records.json"
    seeds = [word for seed in range(100, 105) for word in ("--seed", str(seed))]
    command = [python, str(ROOT / "benchmarks" / "oracle_kv_cache_manager.py"), str(out), "--case", case]
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, *seeds, "--operations", "12000"], check=True, env=environment, capture_output=True)
    for record in json.loads(out.read_text(encoding="utf-8")):
        assert len(record["operations"]) >= 12000
        assert_equal_at_every_operation(record)


def test_the_recorder_and_the_records_agree_on_the_content_of_a_prompt():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import oracle_kv_cache_manager
    finally:
        sys.path.pop(0)
    assert oracle_kv_cache_manager.prompt_tokens(3, (9, 1, 2, 4)) == prompt_tokens(3, (9, 1, 2, 4))


@pytest.mark.parametrize(
    ("kind", "span", "tokens", "most"),
    [("full", 0, 100, 7), ("window", 33, 100, 5), ("window", 33, 30, 2), ("chunk", 32, 100, 4), ("state", 0, 100, 2)],
)
def test_admission_counts_of_a_window_what_it_can_hold(kind, span, tokens, most):
    """Blocks of 16, 32 tokens in flight.

    Full attention ceil(100 / 16) = 7; window ceil((32 + 32) / 16) + 1 = 5; chunk ceil((32 + 32) / 16) = 4.
    """
    group = LayerGroup(kind=GroupKind(kind), block_tokens=16, payload_bytes=16, span_tokens=span)
    assert group.most_blocks(tokens, in_flight_tokens=32, max_model_len=1000) == most
