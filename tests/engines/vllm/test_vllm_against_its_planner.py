"""Our planner gives the numbers of vLLM's own, recorded with ``benchmarks/oracle_vllm.py``."""

import pytest

from tests.engines.vllm.vllm_oracle import DATA, comparable, load_records, our_answer

FILES = sorted(str(path.relative_to(DATA)) for path in DATA.glob("vllm-*/planner*.json"))
CASES = [(version, record) for version, records in map(load_records, FILES) for record in records]


@pytest.mark.parametrize(
    ("version", "record"), CASES, ids=[f"{version}: {record['case']['name']}" for version, record in CASES]
)
def test_groups_blocks_printed_numbers_and_errors_are_those_of_vllm(version, record):
    case = record["case"]
    ours = our_answer(case, version, brief="members" not in record["answer"])
    assert comparable(ours, case, version) == comparable(record["answer"], case, version)
