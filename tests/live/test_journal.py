"""Lines on their way to files: all of them in order, bounded, and never in the way."""

import json
import threading
import time

import pytest

from kvledger.live.journal import Journal


def test_lines_are_appended_in_order_and_the_newest_stands_alone(tmp_path):
    journal = Journal(tmp_path / "deep" / "folder", 2)
    for number in range(500):
        journal.write(json.dumps(number))
    journal.close()
    assert (tmp_path / "deep/folder/engine-2.jsonl").read_text().split() == [str(n) for n in range(500)]
    assert (tmp_path / "deep/folder/engine-2.json").read_text() == "499"
    assert journal.dropped == 0


def test_a_second_server_appends(tmp_path):
    for number in range(2):
        journal = Journal(tmp_path, 0)
        journal.write(str(number))
        journal.close()
    assert (tmp_path / "engine-0.jsonl").read_text() == "0\n1\n"


def test_no_more_than_two_files_of_lines_are_kept(tmp_path):
    for number in range(12):
        journal = Journal(tmp_path, 0, max_bytes=40)
        journal.write(f"{number:019}")
        journal.close()
    sizes = [path.stat().st_size for path in tmp_path.glob("*.jsonl")]
    assert len(sizes) == 2
    assert max(sizes) <= 60
    assert int((tmp_path / "engine-0.json").read_text()) == 11


def test_a_disk_that_hangs_drops_lines_and_never_holds_up_the_writer(tmp_path, monkeypatch):
    hanging = threading.Event()
    journal = Journal(tmp_path, 0)
    monkeypatch.setattr(journal, "_put", lambda lines: hanging.wait(30))
    began = time.monotonic()
    for number in range(5000):
        journal.write(str(number))
    assert time.monotonic() - began < 1
    assert journal.dropped >= 5000 - 2 * 1024
    hanging.set()
    journal.close()


def test_a_disk_that_refuses_drops_lines(tmp_path, monkeypatch):
    journal = Journal(tmp_path, 0)

    def refuse(lines):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_put", refuse)
    journal.write("x")
    journal.close()
    assert journal.dropped == 1


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Journal(tmp_path / "file", 0)
