import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvledger.errors import UsageError
from kvledger.ledger import Accuracy
from kvledger.replay.workload import HashIds, SharedPrefix, Workload
from kvledger.traces import synthesise
from kvledger.traces.prefix import prefix_share
from kvledger.traces.synthetic import CATALOGUE, draw, parse_recipe
from kvledger.traces.synthetic.lengths import calibrated, calibrated_under, gamma, lognormal

# name -> mean prompt and output as published (PagedAttention paper, figure 11), and the longest total
PUBLISHED = {"sharegpt": (161.31, 337.99, 2048), "alpaca": (19.31, 58.45, 2048)}

PINNED = (
    [176, 23, 103, 161],
    [108, 395, 5, 883],
    [1.431804523690508, 1.6219497215531842, 2.262633350808836, 2.3297437861860644],
)


def workload(spec: str, seed: int = 0) -> Workload:
    return synthesise(f"synthetic:{spec}", seed=seed).workload


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_law_that_is_drawn_has_the_published_means_after_the_cut(name: str) -> None:
    prompt_mean, output_mean, total = PUBLISHED[name]
    shape = parse_recipe(f"synthetic:{name}", seed=0).shape
    caps = total - np.arange(shape.prompt.smallest_tokens, shape.prompt.largest_tokens + 1)
    assert shape.prompt.mean_tokens == pytest.approx(prompt_mean, rel=1e-6)
    drawn = float(shape.prompt.probabilities() @ shape.output.means_below(caps))
    assert drawn == pytest.approx(output_mean, rel=1e-6)


@pytest.mark.parametrize("name", PUBLISHED)
def test_drawn_lengths_have_the_published_means_within_a_percent_and_stay_within_the_total(name: str) -> None:
    prompt_mean, output_mean, total = PUBLISHED[name]
    drawn = workload(f"{name},requests=200000")
    assert float(drawn.prompt_tokens.mean()) == pytest.approx(prompt_mean, rel=0.01)
    assert float(drawn.output_tokens.mean()) == pytest.approx(output_mean, rel=0.01)
    assert drawn.longest_tokens <= total


@pytest.mark.parametrize("turns", [1, 3, 8])
def test_a_conversation_of_any_number_of_turns_ends_at_800_tokens_on_average(turns: int) -> None:
    drawn = workload(f"chat,turns={turns},requests={40_000 * turns}")
    total = drawn.prompt_tokens.astype(np.int64) + drawn.output_tokens
    if drawn.session is not None:
        ends = np.zeros(int(drawn.session.max()) + 1, dtype=np.int64)
        np.maximum.at(ends, drawn.session, total)
        total = ends
    assert float(total.mean()) == pytest.approx(800, rel=0.015)
    assert int(total.max()) <= 4096


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    first, again, other = (workload("sharegpt,requests=1000", seed) for seed in (7, 7, 8))
    for column in ("arrival_seconds", "prompt_tokens", "output_tokens"):
        assert (getattr(first, column) == getattr(again, column)).all()
        assert (getattr(first, column) != getattr(other, column)).any()


def test_a_seed_in_the_description_wins_over_the_callers() -> None:
    assert (workload("chat,seed=3", seed=9).prompt_tokens == workload("chat", seed=3).prompt_tokens).all()


def test_fewer_requests_are_the_beginning_of_more_across_block_borders() -> None:
    many, few = workload("bursts,requests=140000"), workload("bursts,requests=70000")
    assert (many.arrival_seconds[:70000] == few.arrival_seconds).all()
    assert (many.prompt_tokens[:70000] == few.prompt_tokens).all()
    assert (many.output_tokens[:70000] == few.output_tokens).all()


def test_these_are_the_requests_of_seed_0_for_good() -> None:
    drawn = workload("sharegpt,requests=4")
    assert drawn.prompt_tokens.tolist() == PINNED[0]
    assert drawn.output_tokens.tolist() == PINNED[1]
    assert drawn.arrival_seconds == pytest.approx(PINNED[2], rel=1e-12)


@pytest.mark.parametrize("cv", [0, 0.5, 1, 3])
def test_gaps_have_the_rate_and_the_variation_that_were_asked_for(cv: float) -> None:
    gaps = np.diff(workload(f"fixed,requests=400000,rate=5,cv={cv}").arrival_seconds)
    assert float(gaps.mean()) == pytest.approx(0.2, rel=0.02)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(cv, rel=0.03, abs=1e-6)


def test_on_and_off_periods_keep_the_mean_rate_and_leave_the_off_periods_empty() -> None:
    arrivals = workload("fixed,requests=60000,rate=2,on=10,off=50").arrival_seconds
    assert float((arrivals % 60).max()) <= 10
    assert len(arrivals) / float(arrivals[-1]) == pytest.approx(2, rel=0.03)


def test_a_swing_moves_the_rate_over_each_day_and_keeps_its_mean() -> None:
    arrivals = workload("fixed,requests=700000,rate=1,swing=0.8").arrival_seconds
    assert (np.diff(arrivals) >= 0).all()
    whole = arrivals[arrivals < 8 * 86400]
    assert len(whole) / (8 * 86400) == pytest.approx(1, rel=0.01)
    counts, _ = np.histogram(whole % 86400, bins=24, range=(0, 86400))
    hours = np.arange(25) * 3600.0
    expected = np.diff(hours - 0.8 * 86400 / (2 * np.pi) * np.sin(2 * np.pi * hours / 86400))
    assert counts / 8 == pytest.approx(expected, rel=0.06)


def test_a_swing_leaves_lengths_and_other_arrivals_alone() -> None:
    flat, swung = workload("chat,requests=2000"), workload("chat,requests=2000,swing=1")
    assert (flat.prompt_tokens == swung.prompt_tokens).all()
    assert not workload("chat,requests=2000,swing=1,rate=inf").arrival_seconds.any()


def test_an_infinite_rate_is_a_queue_that_is_never_empty() -> None:
    for turns in (1, 2):
        assert not workload(f"chat,turns={turns},rate=inf,requests=100").arrival_seconds.any()


def test_a_shared_prefix_comes_on_top_and_is_the_contents_identity() -> None:
    plain, shared = workload("sharegpt,requests=500"), workload("sharegpt,requests=500,shared_prefix=100")
    assert (shared.prompt_tokens == plain.prompt_tokens + 100).all()
    assert isinstance(shared.content, SharedPrefix)
    assert set(shared.content.tokens.tolist()) == {100}


def test_turns_repeat_what_was_said_and_nothing_else_is_shared() -> None:
    drawn = workload("chat,turns=4,requests=400,shared_prefix=100")
    content = drawn.content
    assert isinstance(content, HashIds)
    assert (np.diff(content.offsets) == -(-drawn.prompt_tokens // 16)).all()
    assert drawn.session is not None
    expected, before = 0, dict[int, int]()
    for number, (prompt, session) in enumerate(zip(drawn.prompt_tokens.tolist(), drawn.session.tolist())):
        system = 96 if number else 0  # 6 full blocks of the shared 100 tokens
        expected += max(before.get(session, 0) // 16 * 16, system)
        before[session] = prompt
    share = prefix_share(drawn)
    assert share is not None
    assert share.shared_tokens == expected


def test_declared_limits_are_written_only_when_asked_for() -> None:
    assert workload("chat,requests=5").max_tokens is None
    limits = workload("chat,requests=5,max_tokens=512").max_tokens
    assert limits is not None
    assert limits.tolist() == [512] * 5


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_named_workload_says_what_it_is_shaped_to_and_that_it_is_modelled(name: str) -> None:
    trace = synthesise(f"synthetic:{name},requests=50")
    assert trace.check() is trace
    assert len(trace) == trace.rows_read == 50
    assert trace.format.name == f"synthetic:{name}"
    assert CATALOGUE[name].shaped_to.format(**CATALOGUE[name].defaults) in trace.notes[0]
    assert {trace.accuracy.arrivals, trace.accuracy.prompts, trace.accuracy.outputs} == {Accuracy.MODELLED}


@pytest.mark.parametrize(
    ("spec", "says", "hint"),
    [
        ("sharegtp", "no synthetic workload `sharegtp`", "did you mean `sharegpt`?"),
        ("chat,reqests=5", "no parameter `reqests`", "did you mean `requests`?"),
        ("chat,requests=many", "not a whole number", ""),
        ("chat,requests=1.5", "not a whole number", ""),
        ("chat,requests=0", "outside 1 to", ""),
        ("chat,rate=-1", "outside 1e-09 to inf", ""),
        ("fixed,prompt=99999999", "`prompt=99,999,999` is outside 1 to 4,194,304", ""),
        ("chat,requests=5,requests=6", "given `requests` twice", ""),
        ("chat,rate=nan", "not a number", ""),
        ("chat,on=5", "belong together", ""),
        ("chat,turns=100,max_total=150", "do not fit", ""),
        ("lognormal,prompt_mean=5000,max_total=5001", "cannot be had", "raise max_total"),
        ("uniform,prompt_min=9,prompt_max=5", "above the largest", ""),
        ("", "no synthetic workload", "chat"),
    ],
)
def test_a_description_that_cannot_be_drawn_says_what_could(spec: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        synthesise(f"synthetic:{spec}")
    assert hint in str(caught.value.hint)


def test_a_cut_law_without_calibration_would_miss_its_mean() -> None:
    uncut, cut = (calibrated(lognormal(1.0), 161.31, largest=largest) for largest in (10**6, 600))
    assert float(uncut.means_below(np.array([600]))[0]) < 0.9 * 161.31
    assert cut.mean_tokens == pytest.approx(161.31, rel=1e-6)


def test_a_cap_is_never_exceeded_by_any_draw() -> None:
    prompt = calibrated(lognormal(1.0), 20, largest=99)
    law = calibrated_under(gamma(1.2), 30, others=prompt, total=100)
    caps = np.arange(1, 100)
    for uniform in (0.0, 0.5, np.nextafter(1.0, 0.0)):
        drawn = law.draw(np.full(99, uniform), caps)
        assert (drawn <= caps).all()
        assert (drawn >= 1).all()


_FILE_SCHEMA = pa.schema(
    [("arrival_seconds", pa.float64()), ("prompt_tokens", pa.int32()), ("output_tokens", pa.int32())]
)


def peak_mib(program: str) -> int:
    """Run a program and return the most memory it held; VmHWM, since ru_maxrss starts at the parent's."""
    show = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    result = subprocess.run([sys.executable, "-c", f"{program}\n{show}"], check=True, capture_output=True, timeout=300)
    return int(result.stdout) // 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to see the peak of memory")
def test_ten_million_requests_are_drawn_within_500_mib() -> None:
    program = (
        "from kvledger.traces import synthesise\n"
        "assert len(synthesise('synthetic:sharegpt,requests=10000000')) == 10**7"
    )
    assert peak_mib(program) < 500


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to see the peak of memory")
def test_ten_million_rows_of_csv_are_read_within_a_gib(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    block = "".join(f"{i % 7919 + 1},{i % 499 + 1}\n" for i in range(100_000))
    with path.open("w") as file:
        file.write("prompt_tokens,output_tokens\n")
        for _ in range(100):
            file.write(block)
    program = (
        f"from kvledger.sources.files import load_trace\nassert len(load_trace({str(path)!r}, identity=False)) == 10**7"
    )
    assert peak_mib(program) < 800


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to see the peak of memory")
@pytest.mark.parametrize("rows_a_group", [100_000, 10_000_000])
def test_ten_million_rows_of_parquet_take_little_more_than_their_arrays(tmp_path: Path, rows_a_group: int) -> None:
    path = tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, _FILE_SCHEMA) as writer:
        for group in range(10_000_000 // rows_a_group):
            first = group * rows_a_group
            rows = np.arange(first, first + rows_a_group)
            columns = {"arrival_seconds": rows / 7, "prompt_tokens": rows % 7919 + 1, "output_tokens": rows % 499 + 1}
            table = pa.table(columns, schema=_FILE_SCHEMA)
            writer.write_table(table, row_group_size=rows_a_group)
    program = "from kvledger.sources.files import load_trace\nimport pyarrow.parquet\n"
    bare = peak_mib(program)
    arrays_mib = 10_000_000 * 16 // 2**20
    read = peak_mib(f"{program}assert len(load_trace({str(path)!r}, identity=False)) == 10**7")
    assert read - bare < 1.5 * arrays_mib


def test_a_recipe_draws_what_its_description_does() -> None:
    recipe = parse_recipe("synthetic:alpaca,requests=9", seed=4)
    assert (draw(recipe).workload.output_tokens == workload("alpaca,requests=9", 4).output_tokens).all()


def test_the_notes_name_the_parameters_that_were_drawn_from_not_the_defaults() -> None:
    trace = synthesise("synthetic:sharegpt,requests=2,sigma=1.5,shape=2")
    assert "log-normal prompts (sigma 1.5), gamma outputs (shape 2)" in trace.notes[0]
