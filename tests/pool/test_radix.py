"""Our radix tree answers as SGLang's own radix cache does, at every operation.

The records were made by ``benchmarks/oracle_radix_cache.py`` with SGLang 0.5.18; the ``live`` test makes longer ones
with the Python that ``KVLEDGER_TORCH_PYTHON`` names, from the source in ``KVLEDGER_SGLANG_SOURCE``.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.pool import radix
from kvledger.pool.compiled import compiled
from kvledger.pool.content import UNKNOWN, Content

from .radix_records import ADMIT, DROP, answer

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "tests" / "data" / "sglang-0.5.18").glob("radix-*.json"))
CASES = ("token", "page", "wide", "fifo", "pages-fifo")


def assert_equal_at_every_operation(record):
    ours, theirs = answer(record).results, np.array(record["results"])
    wrong = np.flatnonzero((ours != theirs).any(axis=1))
    first = int(wrong[0]) if len(wrong) else 0
    assert not len(wrong), (
        f"{record['case']} seed {record['seed']}: operation {first}, {record['operations'][first]}: "
        f"SGLang {theirs[first].tolist()}, here {ours[first].tolist()}"
    )


@pytest.mark.parametrize("path", RECORDS, ids=[path.stem for path in RECORDS])
def test_every_operation_of_a_recorded_cache_is_equal(path):
    for record in json.loads(path.read_text(encoding="utf-8")):
        assert_equal_at_every_operation(record)


def test_the_records_hold_hits_refusals_and_preemptions():
    assert {path.stem.removeprefix("radix-") for path in RECORDS} == set(CASES)
    for path in RECORDS:
        records = json.loads(path.read_text(encoding="utf-8"))
        results = np.concatenate([record["results"] for record in records])
        what = np.concatenate([record["operations"] for record in records])[:, 0]
        assert ((what == ADMIT) & (results[:, 1] > 0)).sum() >= 20, path.stem
        assert ((what == ADMIT) & (results[:, 0] == 0)).sum() >= 20, path.stem
        assert (what == DROP).sum() >= 5, path.stem


@pytest.mark.live
@pytest.mark.parametrize("case", CASES)
def test_every_operation_of_a_live_cache_is_equal(case, tmp_path):
    python, source = os.environ.get("KVLEDGER_TORCH_PYTHON"), os.environ.get("KVLEDGER_SGLANG_SOURCE")
    if not (python and source):
        pytest.skip("KVLEDGER_TORCH_PYTHON and KVLEDGER_SGLANG_SOURCE do not name torch and SGLang 0.5.18")
    seeds = [word for seed in range(100, 108) for word in ("--seed", str(seed))]
    command = [python, str(ROOT / "benchmarks/oracle_radix_cache.py"), source, str(tmp_path / "r"), "--case", case]
    subprocess.run([*command, *seeds, "--operations", "8000"], check=True, capture_output=True)
    for record in json.loads((tmp_path / "r").read_text()):
        assert_equal_at_every_operation(record)


@compiled
def store_and_drain(tree, content, steps, locked, sums):
    """Store and lock as room allows, four at a time; note what is free, evictable and locked; then give all back."""
    held = 0
    for i in range(steps.shape[0]):
        whole = radix.whole_pages(tree, steps[i, 1])
        if radix.take(tree, whole):
            node, there = radix.insert(tree, content, steps[i, 0], steps[i, 1])
            tree.counts[radix.FREE] += there
            radix.lock(tree, node)
            locked[held] = node
            held += 1
        if held > 3:
            radix.unlock(tree, locked[0])
            for j in range(held - 1):
                locked[j] = locked[j + 1]
            held -= 1
        sums[i] = tree.counts[radix.FREE] + tree.counts[radix.CACHED] + tree.counts[radix.LOCKED]
    for i in range(held):
        radix.unlock(tree, locked[i])
    radix.evict(tree, 120)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=30), st.sampled_from([1, 4]))
def test_tokens_are_free_evictable_or_locked_and_all_come_back(steps, page):
    empty = np.zeros(0, np.int64)
    content = Content(how=np.array([UNKNOWN, 1]), offsets=empty, ids=empty, covered=np.zeros(0, np.int32))
    tree, sums = radix.new_tree(120, page_tokens=page, by_birth=False), np.zeros(len(steps), np.int64)
    store_and_drain(tree, content, np.array(steps, np.int64).reshape(-1, 2), np.zeros(5, np.int64), sums)
    assert set(sums.tolist()) <= {120}
    assert tree.counts[[radix.FREE, radix.CACHED, radix.LOCKED, radix.LEAVES]].tolist() == [120, 0, 0, 0]
    assert (tree.slots == radix.NOBODY).all()
