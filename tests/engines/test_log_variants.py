"""The same log through any carrier gives the same facts, and no text makes a reader fail."""

import json
import random
import textwrap
import time
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.facts import Engine
from tests.engines.log_samples import READERS, SAMPLES

PLACES = {"line", "first_line", "lines", "cut_lines", "seconds", "text"}
HEADED = [engine for engine in Engine if engine is not Engine.LLAMACPP]


def facts(value):
    """Return a log without the places where its facts stood."""
    if is_dataclass(value):
        return {f.name: facts(getattr(value, f.name)) for f in fields(value) if f.name not in PLACES}
    if isinstance(value, tuple):
        return [facts(item) for item in value]
    return value


def read(engine, text):
    return facts(READERS[engine](text))


def each_line(change):
    return lambda text: "".join(change(line) + "\n" for line in text.splitlines())


def colour(line):
    half = len(line) // 2
    return f"\x1b[32m{line[:4]}\x1b[0m{line[4:half]}\x1b[1;36m\x1b[K{line[half:]}\x1b[0m"


VARIANTS = {
    "colours": each_line(colour),
    "Docker JSON": each_line(lambda line: json.dumps({"log": line + "\n", "time": "2026-03-04T00:00:00.5Z"})),
    "Kubernetes CRI": each_line(lambda line: f"2026-03-04T00:00:00.123456789Z stdout F {line}"),
    "Kubernetes CRI in parts": each_line(
        lambda line: f"2026-03-04T00:00:00.1Z stdout P {line[:40]}\n2026-03-04T00:00:00.1Z stdout F {line[40:]}"
    ),
    "kubectl --prefix": each_line(lambda line: f"[pod/serve-0-abc/engine] {line}"),
    "docker compose": each_line(lambda line: f"engine-1  | {line}"),
    "docker --timestamps": each_line(lambda line: f"2026-03-04T00:00:00.123456789Z {line}"),
    "journald": each_line(lambda line: f"Mar 04 10:00:00 node-7 engine[123]: {line}"),
    "journald ISO": each_line(lambda line: f"2026-03-04T10:00:00+0000 node-7 engine[123]: {line}"),
    "JSON lines": each_line(lambda line: json.dumps({"level": "info", "message": line, "ts": "2026-03-04T10:00:00Z"})),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "BOM": lambda text: "\ufeff" + text,
    "progress bars": each_line(lambda line: f"Loading: 50%|###   |\rLoading: 100%|######|\r{line}"),
    "blank lines": each_line(lambda line: f"\n{line}\n"),
}  # fmt: skip


@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_carrier_changes_no_fact(engine, variant):
    assert read(engine, VARIANTS[variant](SAMPLES[engine])) == read(engine, SAMPLES[engine])


@pytest.mark.parametrize("engine", HEADED)
@pytest.mark.parametrize("width", [60, 80, 97, 120, 160])
def test_wrapping_at_spaces_changes_no_fact(engine, width):
    def wrap(line):
        return "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False))

    assert read(engine, each_line(wrap)(SAMPLES[engine])) == read(engine, SAMPLES[engine])


@pytest.mark.parametrize("engine", HEADED)
@pytest.mark.parametrize("width", [80, 97, 120, 132, 160])
def test_a_terminal_of_fixed_width_changes_no_fact(engine, width):
    def wrap(line):
        return "\n".join(line[i : i + width] for i in range(0, len(line), width))

    assert read(engine, each_line(wrap)(SAMPLES[engine])) == read(engine, SAMPLES[engine])


@pytest.mark.parametrize("engine", [Engine.VLLM, Engine.SGLANG])
def test_glued_lines_are_told_apart(engine):
    assert read(engine, SAMPLES[engine].replace("\n", "")) == read(engine, SAMPLES[engine])


@pytest.mark.parametrize("engine", Engine)
def test_lines_of_other_programs_between_change_no_fact(engine):
    noise = 'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    text = "".join(noise + line + "\n" for line in SAMPLES[engine].splitlines())
    assert read(engine, text) == read(engine, SAMPLES[engine])


@pytest.mark.parametrize("engine", Engine)
def test_lines_can_come_as_a_stream(engine):
    assert read(engine, iter(SAMPLES[engine].splitlines(keepends=True))) == read(engine, SAMPLES[engine])


@pytest.mark.parametrize("engine", Engine)
def test_facts_name_the_line_they_stand_on(engine):
    lines = SAMPLES[engine].splitlines()
    log = READERS[engine]("\n" * 7 + SAMPLES[engine])
    found = [pool for startup in log.startups for pool in startup.pools]
    assert found
    for pool in found:
        quantity = pool.size_bytes or pool.blocks or pool.tokens
        shown = lines[quantity.line - 8]
        assert any(digit in shown for digit in "0123456789")
        assert log.lines == len(lines) + 7


@pytest.mark.parametrize("engine", Engine)
def test_no_secret_is_kept(engine):
    assert "sk-" not in repr(READERS[engine](SAMPLES[engine]))


ALL = "".join(SAMPLES.values())


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400), engine=st.sampled_from(list(Engine)), place=st.integers(0, len(ALL)))
def test_garbage_in_a_log_raises_nothing(data, engine, place):
    READERS[engine](ALL[:place] + data.decode("utf-8", errors="replace") + ALL[place:])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), engine=st.sampled_from(list(Engine)))
def test_cut_and_interleaved_lines_raise_nothing(seed, engine):
    chance = random.Random(seed)
    lines = ALL.splitlines()
    pieces = [line[: chance.randrange(len(line) + 1)] for line in lines] + [
        line[chance.randrange(len(line)) :] for line in lines
    ]
    chance.shuffle(pieces)
    READERS[engine](chance.choice(["\n", "", " ", "\r\n"]).join(pieces))


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(list(Engine)),
    digits=st.text("0123456789.,-eE", min_size=1, max_size=400),
    place=st.integers(0, 10**6),
)
def test_absurd_numbers_raise_nothing(engine, digits, place):
    text = SAMPLES[engine]
    numbers = [i for i, character in enumerate(text) if character.isdigit()]
    at = numbers[place % len(numbers)]
    READERS[engine](text[:at] + digits + text[at + 1 :])


def test_a_line_beyond_the_bound_is_cut_and_counted():
    line = "INFO 03-04 10:00:00 [a.py:1] # GPU blocks: 12, # CPU blocks: 3 " + "x" * 100_000
    log = READERS[Engine.VLLM](line)
    assert log.cut_lines == 1
    assert log.startups[0].pools[0].blocks.value == 12


def test_a_number_beyond_belief_is_no_fact():
    log = READERS[Engine.VLLM](
        "# GPU blocks: 999999999999, # CPU blocks: 3\nAvailable KV cache memory: 99999999999.9 GiB"
    )
    assert log.startups[0].pools[0].size_bytes is None


def test_a_reader_survives_a_hostile_line_in_linear_time():
    for filler in (
        "(A pid=1) " * 1600,
        "[" * 16_000,
        "1," * 8000,
        "# GPU blocks: " * 1100,
        "INFO " * 3000,
        "\x1b[" * 8000,
    ):
        for engine in Engine:
            start = time.perf_counter()
            READERS[engine](filler)
            assert time.perf_counter() - start < 0.5, (engine, filler[:40])
