"""Recordings: what is read is what was written, whatever happened to the writer."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import SourceError, UsageError
from kvledger.measure.recording import MAGIC, FrameReader, FrameWriter, RecordedSample
from kvledger.sources.recordings import Recorder, is_recording, read_recording
from tests.measure.recorded import scrapes


def samples(count=40, source=0):
    return [
        RecordedSample(seconds=1000.0 + n, source=source, scrape=scrape)
        for n, scrape in enumerate(scrapes("async")[:count])
    ]


def same(one, other):
    assert (one.seconds, one.source, one.error) == (other.seconds, other.source, other.error)
    for first, second in zip(one.scrape.engines, other.scrape.engines, strict=True):
        for name in first.__slots__:
            if name != "histograms":
                assert getattr(first, name) == getattr(second, name), name
        for name, histogram in first.histograms.items():
            assert second.histograms[name].count == histogram.count
            assert second.histograms[name].total == pytest.approx(histogram.total, abs=1e-5)


def test_samples_come_back_as_they_were(tmp_path):
    written = samples()
    with Recorder(str(tmp_path / "r")) as recorder:
        for sample in written:
            recorder.write(sample)
    assert is_recording(tmp_path / "r")
    for one, other in zip(written, read_recording(tmp_path / "r"), strict=True):
        same(one, other)


def test_several_sources_and_failures_are_kept_apart(tmp_path):
    written = [*samples(3), *samples(3, source=1), RecordedSample(seconds=9.0, source=1, scrape=None, error="late")]
    with Recorder(str(tmp_path / "r")) as recorder:
        for sample in written:
            recorder.write(sample)
    back = list(read_recording(tmp_path / "r"))
    assert [(s.seconds, s.source) for s in back] == [(s.seconds, s.source) for s in written]
    assert (back[-1].scrape, back[-1].error) == (None, "late")
    same(written[4], back[4])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_torn_end_loses_at_most_the_last_sample(data):
    writer = FrameWriter()
    frames = [writer.write(sample) for sample in samples(6)]
    whole = MAGIC + b"".join(frames)
    cut = data.draw(st.integers(len(MAGIC), len(whole)))
    reader = FrameReader()
    back = list(reader.read(whole[:cut]))
    ends = [len(MAGIC) + sum(map(len, frames[: n + 1])) for n in range(6)]
    assert len(back) == sum(end <= cut for end in ends)


def test_appending_to_a_torn_recording_keeps_what_was_whole(tmp_path):
    path = tmp_path / "r"
    written = samples(8)
    with Recorder(str(path)) as recorder:
        for sample in written[:4]:
            recorder.write(sample)
    path.write_bytes(path.read_bytes()[:-3])
    with Recorder(str(path)) as recorder:
        for sample in written[4:]:
            recorder.write(sample)
    back = list(read_recording(path))
    assert [sample.seconds for sample in back] == [1000, 1001, 1002, 1004, 1005, 1006, 1007]
    same(written[7], back[-1])


def test_a_killed_writer_loses_at_most_its_last_sample(tmp_path):
    script = (
        "import sys, time\n"
        "from kvledger.sources.recordings import Recorder\n"
        "from tests.sources.test_recordings import samples\n"
        "recorder = Recorder(sys.argv[1])\n"
        "for sample in samples(100):\n"
        "    recorder.write(sample); print(sample.seconds, flush=True); time.sleep(0.002)\n"
        "time.sleep(60)\n"
    )
    path = tmp_path / "r"
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    for _ in range(10):
        said = process.stdout.readline()
    time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    said = [said, *process.stdout.read().split("\n")]
    process.stdout.close()
    last = float([line for line in said if line.strip()][-1])
    assert list(read_recording(path))[-1].seconds >= last


def test_a_week_of_samples_stays_under_100_mb():
    """A sample a second of a busy server: 604,800 samples."""
    writer = FrameWriter()
    sizes = [len(writer.write(sample)) for sample in samples(160)]
    assert sum(sizes[1:]) / len(sizes[1:]) * 604_800 < 100e6


@pytest.mark.parametrize("content", [b"", b"hello", MAGIC[:-1]])
def test_other_files_are_no_recordings(tmp_path, content):
    path = tmp_path / "r"
    path.write_bytes(content)
    assert not is_recording(path)
    with pytest.raises(SourceError, match="no recording"):
        list(read_recording(path))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_recording_is_read_up_to_the_damage_or_refused(data):
    writer = FrameWriter()
    whole = bytearray(MAGIC + b"".join(writer.write(sample) for sample in samples(5)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(len(MAGIC), len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    try:
        back = list(FrameReader().read(bytes(whole)))
    except SourceError:
        return
    assert len(back) <= 5


def test_a_recording_into_a_folder_that_is_not_there_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"the folder of x\.kvr does not exist"):
        Recorder(str(tmp_path / "nodir" / "x.kvr"))


def test_a_file_that_is_no_recording_is_left_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is no recording") as raised:
        Recorder(str(tmp_path / "notes.txt"))
    assert raised.value.hint == "choose another file"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_new_recording_without_a_sample_is_not_left_behind(tmp_path):
    with Recorder(str(tmp_path / "r")):
        pass
    assert not (tmp_path / "r").exists()
    (tmp_path / "empty").touch()
    with Recorder(str(tmp_path / "empty")):
        pass
    assert is_recording(tmp_path / "empty")


def test_a_damaged_recording_says_how_to_keep_what_is_before_the_damage(tmp_path):
    writer = FrameWriter()
    frames = [writer.write(one) for one in samples(3)]
    good = MAGIC + frames[0]
    content = good + frames[1][:-1] + bytes([frames[1][-1] ^ 1]) + frames[2]
    with pytest.raises(SourceError) as raised:
        list(FrameReader().read(content))
    assert f"`head -c {len(good)} damaged.kvr > kept.kvr`" in (raised.value.hint or "")
    assert len(list(FrameReader().read(content[: len(good)]))) == 1
    with pytest.raises(SourceError) as raised:
        list(FrameReader().read(MAGIC + frames[1][:-1] + bytes([frames[1][-1] ^ 1]) + frames[2]))
    assert raised.value.hint == "no sample lies before the damage: record anew"
