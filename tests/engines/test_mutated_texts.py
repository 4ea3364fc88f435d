"""Texts of every engine, damaged at random: a reader gives facts or our error, never another one."""

import contextlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.facts import Engine
from kvledger.engines.readers import read_snapshots
from kvledger.engines.recognise import recognise
from kvledger.errors import Error
from tests.engines.log_samples import READERS, SAMPLES
from tests.engines.sglang.test_metrics import FRONT, FULL
from tests.engines.tensorrt_llm.test_metrics import ITERATION

DATA = Path(__file__).parents[1] / "data" / "llamacpp-b11434"
ANSWERS = [
    *((DATA / name).read_text() for name in ("slots-split-busy.json", "props-split.json", "metrics-split-busy.prom")),
    FULL + FRONT,
    json.dumps([ITERATION]),
]
SPLINTERS = [
    "9" * 30,
    "-",
    "1e400",
    "nan",
    "\n",
    "\r",
    "(",
    "[[",
    "{",
    "}",
    "None",
    "\u0663",
    "-0",
    ",",
    "." * 3,
    " " * 50,
]


def damage(text, chance):
    """Replace, delete, insert and repeat pieces of a text."""
    letters = list(text)
    for _ in range(chance.randrange(1, 30)):
        at = chance.randrange(len(letters) + 1)
        match chance.randrange(4):
            case 0:
                letters[at : at + 1] = chr(chance.choice([chance.randrange(32, 127), 10, 13, 27, 0, 0x663, 0x2028]))
            case 1:
                del letters[at : at + chance.randrange(40)]
            case 2:
                letters[at:at] = chance.choice(SPLINTERS)
            case _:
                start = chance.randrange(len(letters) + 1)
                letters[at:at] = letters[start : start + chance.randrange(200)]
    return "".join(letters)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**40), engine=st.sampled_from(list(Engine)))
def test_a_damaged_log_raises_nothing(seed, engine):
    text = damage(SAMPLES[engine], random.Random(seed))
    READERS[engine](text)
    recognise(text)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**40), answer=st.sampled_from(range(len(ANSWERS))))
def test_a_damaged_answer_raises_only_our_error(seed, answer):
    with contextlib.suppress(Error):
        read_snapshots(damage(ANSWERS[answer], random.Random(seed)))


@pytest.mark.parametrize("unit", ["iB", "XiB", "", "MB"])
def test_a_size_in_an_unknown_unit_is_no_fact(unit):
    line = f'time=2026-03-04T10:00:06Z level=INFO source=d.go:1 msg="kv cache" device=CUDA0 size="1.0 {unit}"'
    assert READERS[Engine.OLLAMA](line).startups == ()
