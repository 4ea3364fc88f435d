"""What the page on accuracy counts is what the records of the tests hold."""

import json
import re
from pathlib import Path

import pytest

from .measure.recorded import rows

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"


def read(name):
    return json.loads((DATA / name).read_text("utf-8"))


def steps_of(name):
    return sum(len(run["steps"]["running"]) for run in read(name))


COUNTS = {
    "plans": lambda: sum(len(read(path)["records"]) for path in DATA.glob("vllm-*/planner*.json")),
    "12 starts": lambda: len(read("vllm-0.32.0/cpu-servers.json")),
    "pools": lambda: len(read("sglang-sizing/sizing.json")["runs"]),
    "44 starts": lambda: sum(len(read(path)["runs"]) for path in DATA.glob("llamacpp-*/startup.json")),
    "steps of 3 runs": lambda: steps_of("vllm-0.32.0/sample-runs.json"),
    "steps of 5 runs": lambda: steps_of("vllm-0.32.0/hybrid-runs.json"),
    "operations of 8 kinds": lambda: sum(len(read(path)["operations"]) for path in DATA.glob("vllm-*/manager-*.json")),
    "operations of 10 schedules": lambda: sum(
        len(run["results"]) for path in DATA.glob("sglang-0.5.18/radix-*.json") for run in read(path)
    ),
    "311 samples": lambda: len(rows("sync")) + len(rows("async")),
}


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_what_the_readme_counts_is_on_the_page(name):
    line = next(
        line for line in (ROOT / name).read_text("utf-8").split("\n\n") if "vLLM 0.32.0" in line and "2,334" in line
    )
    counts = re.findall(r"\d,\d{3}", line)
    assert len(counts) >= 3
    page = (ROOT / "docs" / "accuracy.md").read_text("utf-8")
    assert [count for count in counts if f"| {count} " not in page] == []


@pytest.mark.parametrize("what", COUNTS)
def test_what_the_page_counts_is_what_the_records_hold(what):
    unit = what.split(" ", 1)[1] if what[0].isdigit() else what
    assert f"| {COUNTS[what]():,} {unit} |" in (ROOT / "docs" / "accuracy.md").read_text("utf-8")
