"""A recording of a server becomes requests: counts and sums as measured, the rest drawn."""

import io
import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.cli.trace import command
from kvledger.engines.facts import HistogramReading
from kvledger.engines.vllm.metrics import VllmEngine, VllmScrape
from kvledger.errors import Error, TraceError
from kvledger.ledger import Accuracy
from kvledger.measure.recording import MAGIC, FrameWriter, RecordedSample
from kvledger.sources.files import load_trace
from kvledger.sources.recordings import Recorder
from kvledger.traces import ReadOptions, read_trace
from kvledger.traces.portions import draw_lengths
from kvledger.traces.recorded import Minute, Series, gather
from tests.measure.recorded import rows, scrapes
from tests.measure.simulated_server import Server, drive

LENGTHS = ("request_prompt_tokens", "request_generation_tokens")
EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, float("inf"))


def write(samples):
    writer = FrameWriter()
    return MAGIC + b"".join([writer.write(sample) for sample in samples])


def recorded(name, source=0):
    pairs = zip(rows(name), scrapes(name), strict=True)
    return [RecordedSample(seconds=row["seconds"], source=source, scrape=scrape) for row, scrape in pairs]


def read(content, seed=0):
    return read_trace(io.BytesIO(content), name="`r.kvr`", options=ReadOptions(seed=seed))


def grown(samples, name):
    first, last = (sample.scrape.engines[0].histograms[name] for sample in (samples[0], samples[-1]))
    return last.count - first.count, last.total - first.total


def with_floats(engine):
    found = engine.histograms.items()
    return replace(engine, histograms={name: replace(one, total=float(one.total)) for name, one in found})


def sample(seconds, lengths, *, limits=(), latency=0.0, running=0, start=1.0, source=0, index=0):
    """One sample of a server in which requests of these (prompt, output) have ended since its start."""

    def histogram(values):
        counts = tuple(float(sum(value <= edge for value in values)) for edge in EDGES)
        return HistogramReading(name="h", edges=EDGES, counts=counts, count=len(values), total=float(sum(values)))

    prompts, outputs = [prompt for prompt, _ in lengths], [output for _, output in lengths]
    readings = {
        "request_prompt_tokens": histogram(prompts),
        "request_generation_tokens": histogram(outputs),
        "request_params_max_tokens": histogram(limits),
        "e2e_request_latency_seconds": replace(histogram([latency] * len(lengths)), edges=(), counts=()),
    }
    engine = VllmEngine(index=index, running=running, waiting=0, generation_tokens=sum(outputs), histograms=readings)
    return RecordedSample(seconds=seconds, source=source, scrape=VllmScrape(engines=(engine,), start_seconds=start))


@pytest.mark.parametrize("name", ["async", "sync"])
def test_requests_and_sums_of_tokens_are_those_of_the_server(name):
    samples = recorded(name)
    workload = read(write(samples)).workload
    assert (len(workload), workload.prompt_tokens.sum()) == grown(samples, LENGTHS[0])
    assert (len(workload), workload.output_tokens.sum()) == grown(samples, LENGTHS[1])


def test_drawn_lengths_fill_the_buckets_of_every_minute_as_the_requests_did():
    generator = np.random.default_rng(4)
    ended, samples = [], [sample(0.0, [])]
    for second in range(1, 182):
        scale = 200 if second <= 60 else 30
        lengths = generator.exponential((scale, 100), (generator.poisson(4), 2))
        ended += [(1 + int(prompt), 1 + int(output)) for prompt, output in lengths]
        samples.append(sample(float(second), tuple(ended)))
    workload = read(write(samples)).workload
    drawn = (workload.prompt_tokens, workload.output_tokens)
    for lengths, truth in zip(drawn, np.array(ended).T, strict=True):
        first_minute = int(samples[60].scrape.engines[0].histograms[LENGTHS[0]].count)
        for part in (slice(None), slice(0, first_minute)):
            wanted, found = (
                np.bincount(np.searchsorted(EDGES, values[part]), minlength=len(EDGES)) for values in (truth, lengths)
            )
            assert np.abs(found - wanted).sum() / 2 <= 0.15 * wanted.sum()


def test_a_recording_below_one_minute_is_drawn_from_what_ended_before_it():
    trace = read(write([sample(0.0, [(3, 3), (900, 3)] * 20), sample(9.0, [(3, 3), (900, 3)] * 40)]))
    assert trace.workload.prompt_tokens.max() > 10 * trace.workload.prompt_tokens.min()
    assert trace.workload.prompt_tokens.sum() == 20 * 903
    assert trace.adjusted["length without buckets of its minute: drawn from those of other minutes"] == 80


def test_every_interval_keeps_its_own_count_and_sums():
    samples = recorded("async")
    engine = gather(samples).engines[0]
    lengths = draw_lengths(engine.prompts, np.random.default_rng(5))
    counts = np.array(engine.prompts.counts)
    interval = np.repeat(np.arange(len(counts)), counts)
    assert np.array_equal(np.bincount(interval, lengths, minlength=len(counts)), engine.prompts.totals)


def test_a_simulated_server_without_buckets_keeps_counts_and_sums():
    seen = [scrape.engines[0] for scrape, _, _ in drive(Server(seed=3), seed=3, steps=400)]
    samples = [
        RecordedSample(seconds=float(n), source=0, scrape=VllmScrape(engines=(with_floats(engine),), start_seconds=1.0))
        for n, engine in enumerate(seen)
    ]
    trace = read(write(samples))
    workload = trace.workload
    assert trace.adjusted["length without any buckets: an even share of its interval's sum"] > 0
    assert (len(workload), workload.prompt_tokens.sum()) == grown(samples, LENGTHS[0])
    assert workload.output_tokens.sum() == grown(samples, LENGTHS[1])[1]


def test_a_request_that_ended_alone_has_its_exact_lengths_and_time():
    trace = read(write([sample(100.0, []), sample(101.0, [(317, 41)]), sample(110.0, [(317, 41), (7, 9)])]))
    assert trace.workload.prompt_tokens.tolist() == [317, 7]
    assert trace.workload.output_tokens.tolist() == [41, 9]
    assert 0 <= trace.workload.span_seconds <= 10


def test_arrivals_lie_the_mean_end_to_end_time_before_the_interval_they_ended_in():
    samples = [sample(0.0, []), sample(1.0, [(8, 8)], latency=30.0), sample(2.0, [(8, 8)], latency=30.0)]
    samples.append(sample(50.0, [(8, 8)] * 2, latency=30.0))
    samples.append(sample(51.0, [(8, 8)] * 3, latency=30.0))
    arrivals = read(write(samples)).workload.arrival_seconds
    assert 1.0 <= arrivals[1] <= 50.0
    assert 49.0 <= arrivals[2] <= 51.0


def test_the_same_seed_gives_the_same_requests_and_another_seed_others():
    content = write(recorded("async"))
    one, same, other = (read(content, seed).workload for seed in (1, 1, 2))
    assert np.array_equal(one.prompt_tokens, same.prompt_tokens)
    assert np.array_equal(one.arrival_seconds, same.arrival_seconds)
    assert not np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert one.prompt_tokens.sum() == other.prompt_tokens.sum()


def test_declared_limits_hold_their_outputs():
    ended = [(10, 5), (10, 90), (10, 30)]
    workload = read(write([sample(0.0, []), sample(1.0, ended, limits=(100, 40))])).workload
    assert workload.max_tokens is not None
    declared = workload.max_tokens > 0
    assert declared.sum() == 2
    assert (workload.max_tokens[declared] >= workload.output_tokens[declared]).all()


def test_limits_that_add_up_to_the_outputs_are_the_outputs():
    workload = read(write(recorded("async"))).workload
    assert workload.max_tokens is not None
    assert np.array_equal(workload.max_tokens, workload.output_tokens)


def test_requests_under_way_at_the_end_are_counted_and_left_out():
    trace = read(write([sample(0.0, [], running=2), sample(1.0, [(5, 5)], running=3)]))
    assert trace.dropped == {"under way when the recording ended": 3}
    assert (trace.rows_read, len(trace)) == (4, 1)
    assert any(note.startswith("2 requests were under way when the recording began") for note in trace.notes)


def test_a_restart_begins_at_zero_and_loses_no_count():
    before = [sample(0.0, [(5, 5)] * 4), sample(1.0, [(5, 5)] * 6, running=2)]
    after = [sample(2.0, [(70, 3)], start=60.0), sample(3.0, [(70, 3)] * 9, start=60.0)]
    trace = read(write(before + after))
    assert len(trace) == 2 + 9
    assert trace.workload.prompt_tokens.sum() == 2 * 5 + 9 * 70
    assert trace.dropped == {"under way when the server restarted: never counted": 2}


def test_engines_and_servers_are_put_together():
    alone, both = recorded("async"), [*recorded("async"), *recorded("sync", source=1)]
    trace = read(write(both))
    assert len(trace) == len(read(write(alone))) + len(read(write(recorded("sync"))))
    assert any("2 engines is put together" in note for note in trace.notes)


def test_nothing_but_the_sums_is_called_measured():
    trace = read(write(recorded("async")))
    accuracy = trace.accuracy
    assert {accuracy.arrivals, accuracy.prompts, accuracy.outputs} == {Accuracy.MODELLED}
    assert "are measured" in trace.notes[0]


def test_a_recording_torn_anywhere_still_gives_what_ended_before():
    samples = recorded("async")
    content = write(samples)
    whole, torn = read(content), read(content[: len(content) * 2 // 3])
    assert 0 < len(torn) < len(whole)
    assert read(content[:-1]).workload.prompt_tokens.sum() <= whole.workload.prompt_tokens.sum()


def test_an_idle_recording_says_that_no_request_ended():
    with pytest.raises(TraceError, match=r"no request ended in the 3 samples \(20 s\) of `r.kvr`; 1 were under way"):
        read(write([sample(float(at), [(5, 5)], running=1) for at in (0, 10, 20)]))


def test_a_recording_without_an_answer_or_without_histograms_says_so():
    failed = RecordedSample(seconds=0.0, source=0, scrape=None, error="refused")
    with pytest.raises(TraceError, match="none of the 1 samples"):
        read(write([failed]))
    bare = VllmScrape(engines=(VllmEngine(index=0, running=1),))
    with pytest.raises(TraceError, match="no histograms"):
        read(write([RecordedSample(seconds=0.0, source=0, scrape=bare)]))


def test_commands_tell_a_recording_by_its_content(tmp_path):
    path = tmp_path / "monday.csv"
    with Recorder(str(path)) as recorder:
        for one in recorded("async"):
            recorder.write(one)
    shown = json.loads(CliRunner().invoke(command, [str(path), "--json"]).stdout)
    assert shown["format"]["name"] == "recording"
    assert shown["requests"] == len(load_trace(str(path))) == grown(recorded("async"), LENGTHS[0])[0]


def test_numbers_no_server_has_are_refused_or_left_out():
    good = write([sample(0.0, []), sample(1.0, [(5, 5)] * 2)])
    for text in (b"Infinity", b"NaN", b"1e300", b"-7"):
        frames = [{"t": 0, "n": start()}, {"t": 1, "d": [*hostile(json.loads(text))]}]
        with pytest.raises(Error):
            read(MAGIC + b"".join(packed(frames)))
    assert len(read(good)) == 2


def start():
    names = [f"0/0/h/{name}/{part}" for name in LENGTHS for part in ("count", "total")]
    return [value for name in [*names, "0/0/running"] for value in (name, 0)]


def hostile(value):
    return [item for number in range(5) for item in (number, [value])]


def packed(frames):

    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    for number, frame in enumerate(frames):
        payload = packer.compress(json.dumps(frame).encode()) + packer.flush(zlib.Z_SYNC_FLUSH)
        yield struct.pack("<IIc", len(payload), zlib.crc32(payload), b"C" if number else b"S") + payload


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.lists(st.integers(1, 3000), max_size=6), min_size=1, max_size=8),
    lost=st.booleans(),
    seed=st.integers(0, 9),
)
def test_lengths_of_any_intervals_add_up(values, lost, seed):
    flat = [value for interval in values for value in interval]
    counts = tuple(int(count) for count in np.bincount(np.searchsorted(EDGES, flat), minlength=len(EDGES)))
    minute = Minute(end=len(values)) if lost else Minute(end=len(values), edges=EDGES, counts=counts)
    series = Series(counts=[len(v) for v in values], totals=[float(sum(v)) for v in values], minutes=[minute])
    drawn = draw_lengths(series, np.random.default_rng(seed))
    ends = np.cumsum([len(interval) for interval in values])
    parts = np.split(drawn, ends[:-1])
    assert [int(part.sum()) for part in parts] == [sum(interval) for interval in values]
    assert not len(drawn) or drawn.min() >= 1
