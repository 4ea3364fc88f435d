"""Snapshots in recordings: what is read is what was written, and hostile numbers are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.facts import Engine, EngineSnapshot, HistogramReading, PoolReading, SlotReading
from kvledger.engines.quantity import Quantity, exact
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy
from kvledger.measure.recorded_snapshots import build_snapshots, flatten_snapshots
from kvledger.measure.recording import MAGIC, FrameReader, FrameWriter, RecordedSample

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=12)
NAMES = st.text("abcdefgh_", min_size=1, max_size=9)
NUMBERS = st.integers(0, 2**50) | st.floats(0, 1e9, width=32)


@st.composite
def quantities(draw):
    if draw(st.booleans()):
        return exact(draw(NUMBERS), source=draw(WORDS))
    low, value, high = sorted(draw(st.lists(st.integers(0, 2**40), min_size=3, max_size=3)))
    return Quantity(value=value, low=low, high=high, accuracy=draw(st.sampled_from(Accuracy)), source="x / y")


MAYBE = st.none() | quantities()


@st.composite
def snapshots(draw):
    edges = sorted(draw(st.sets(st.floats(0.001, 1e6), min_size=1, max_size=4)))
    return EngineSnapshot(
        engine=draw(st.sampled_from(Engine)),
        model=draw(st.none() | WORDS),
        version=draw(st.none() | WORDS),
        engine_index=draw(st.integers(0, 99)),
        labels=draw(st.dictionaries(NAMES, WORDS, max_size=2)),
        seconds=draw(st.none() | st.floats(0, 1e10)),
        pools=tuple(
            PoolReading(
                name=draw(NAMES),
                unit="blocks",
                capacity=draw(MAYBE),
                used=draw(MAYBE),
                usage_ratio=draw(MAYBE),
                stored=draw(MAYBE),
                lost=draw(MAYBE),
                shared_saving=draw(MAYBE),
            )
            for _ in range(draw(st.integers(0, 2)))
        ),
        slots=tuple(
            SlotReading(
                slot_id=draw(st.integers(0, 9)),
                task_id=draw(st.none() | st.integers(0, 2**40)),
                is_processing=draw(st.booleans()),
                tokens=draw(MAYBE),
                declared_tokens=draw(MAYBE),
            )
            for _ in range(draw(st.integers(0, 3)))
        ),
        running=draw(MAYBE),
        prompt_tokens_total=draw(MAYBE),
        others=draw(st.dictionaries(NAMES, st.integers(0, 2**40).map(float), max_size=2)),
        missing=tuple(draw(st.lists(WORDS, max_size=2))),
        histograms=(
            HistogramReading(
                name=draw(NAMES), edges=tuple(edges), counts=tuple(map(float, range(len(edges)))), count=3.0, total=9.0
            ),
        ),
    )


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(snapshots(), min_size=1, max_size=2), min_size=1, max_size=3))
def test_a_recording_of_snapshots_comes_back_as_it_was(samples):
    writer = FrameWriter()
    written = [
        RecordedSample(seconds=100.0 * number, source=number % 2, snapshots=tuple(one))
        for number, one in enumerate(samples)
    ]
    content = MAGIC + b"".join(writer.write(sample) for sample in written)
    assert list(FrameReader().read(content)) == written


def test_servers_of_different_engines_share_a_recording():
    from tests.measure.recorded import scrapes

    writer = FrameWriter()
    slots = EngineSnapshot(engine=Engine.LLAMACPP, slots=(SlotReading(slot_id=0, tokens=exact(5)),))
    written = [
        RecordedSample(seconds=1.0, source=0, scrape=scrapes("async")[0]),
        RecordedSample(seconds=1.0, source=1, snapshots=(slots,)),
        RecordedSample(seconds=2.0, source=1, error="late"),
        RecordedSample(seconds=3.0, source=0, scrape=scrapes("async")[1]),
    ]
    back = list(FrameReader().read(MAGIC + b"".join(writer.write(sample) for sample in written)))
    assert [sample.has_failed for sample in back] == [False, False, True, False]
    assert back[1].snapshots == (slots,)
    assert back[3].scrape.engines[0].prompt_tokens == scrapes("async")[1].engines[0].prompt_tokens


def test_a_slot_or_a_pool_that_goes_away_is_gone():
    pools = tuple(PoolReading(name=name, used=exact(1)) for name in ("full", "swa"))
    written = [
        RecordedSample(seconds=float(n), source=0, snapshots=(EngineSnapshot(engine=Engine.SGLANG, pools=pools[:k]),))
        for n, k in enumerate((2, 1, 2))
    ]
    writer = FrameWriter()
    back = list(FrameReader().read(MAGIC + b"".join(writer.write(sample) for sample in written)))
    assert back == written


def test_an_hour_of_slots_stays_small():
    """4 slots that generate: at a sample a second, a week stays below 100 MB."""
    from tests.measure.slot_server import slot, snapshot_of

    writer = FrameWriter()
    sizes = []
    for second in range(200):
        slots = [slot(n, tokens=100 + 20 * second + n, prompt=90, busy=True, task=n) for n in range(4)]
        sizes.append(
            len(writer.write(RecordedSample(seconds=float(second), source=0, snapshots=(snapshot_of(*slots),))))
        )
    assert sum(sizes[1:]) / len(sizes[1:]) * 604_800 < 100e6


@pytest.mark.parametrize(
    "change",
    [
        {"@0/engine": "nonsense"},
        {"@0/n/running": "many"},
        {"@0/n/running": [1, 2]},
        {"@0/n/running": float("inf")},
        {"@0/n/running": True},
        {"@5000/engine": "sglang"},
        {"@x/engine": "sglang"},
        {"@0/s/0/busy": 1},
    ],
)
def test_values_that_were_never_written_are_refused(change):
    flat = dict(flatten_snapshots([EngineSnapshot(engine=Engine.SGLANG)], prefix="", buckets=False)) | change
    with pytest.raises((ValueError, LookupError, TypeError)):
        build_snapshots(flat)


@given(st.data())
def test_a_damaged_recording_of_snapshots_is_read_up_to_the_damage_or_refused(data):
    writer = FrameWriter()
    samples = [
        RecordedSample(seconds=float(n), source=0, snapshots=(EngineSnapshot(engine=Engine.TGI, running=exact(n)),))
        for n in range(4)
    ]
    whole = bytearray(MAGIC + b"".join(writer.write(sample) for sample in samples))
    at = data.draw(st.integers(len(MAGIC), len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        back = list(FrameReader().read(bytes(whole)))
    except SourceError:
        return
    assert len(back) <= 4
