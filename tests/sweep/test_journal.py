"""What a sweep has done survives its end."""

import pytest

from kvledger.errors import UsageError
from kvledger.sweep.job import JobResult
from kvledger.sweep.journal import Journal

ONE = JobResult(key="1", rows=[{"policy": "paged", "steps": 7, "used_ratio": 0.5, "held_up": True, "error": None}])
TWO = JobResult(key="2", rows=[{"policy": None, "error_code": "KVE001", "error": "no"}])


def test_what_was_added_is_read_again(tmp_path):
    with Journal(tmp_path / "j") as journal:
        assert journal.read() is None
        journal.begin("plan", [ONE])
        journal.add(TWO)
    with Journal(tmp_path / "j") as journal:
        progress = journal.read()
        assert progress.plan == "plan"
        assert progress.results == [ONE, TWO]
        journal.remove()
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("kept", range(0, 60, 3))
def test_a_journal_that_was_cut_off_anywhere_gives_its_whole_lines(tmp_path, kept):
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.begin("plan", [ONE])
        whole = path.stat().st_size
        journal.add(TWO)
    written = path.read_bytes()
    assert whole + kept < len(written)
    path.write_bytes(written[: whole + kept])
    with Journal(path) as journal:
        assert journal.read().results == [ONE]
        journal.add(TWO)
    with Journal(path) as journal:
        assert journal.read().results == [ONE, TWO]


def test_a_journal_cut_off_in_its_first_line_is_none(tmp_path):
    (tmp_path / "j").write_bytes(b'{"schema":"kvled')
    with Journal(tmp_path / "j") as journal:
        assert journal.read() is None


@pytest.mark.parametrize("content", [b"hello\n", b'{"schema":"x","schema_version":1,"plan":""}\n', b"\xff\n"])
def test_another_file_is_not_taken_for_a_journal(tmp_path, content):
    (tmp_path / "j").write_bytes(content)
    with Journal(tmp_path / "j") as journal, pytest.raises(UsageError, match="no journal of a sweep"):
        journal.read()
    assert (tmp_path / "j").read_bytes() == content


def test_two_sweeps_do_not_share_a_journal(tmp_path):
    pytest.importorskip("fcntl")
    with Journal(tmp_path / "j"), pytest.raises(UsageError, match="another sweep is at work"), Journal(tmp_path / "j"):
        pass


def test_a_journal_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"), Journal(tmp_path / "none" / "j"):
        pass
