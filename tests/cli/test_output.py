"""Where a result goes."""

import os
import stat
import threading

import pytest

from kvledger.cli import output
from kvledger.errors import UsageError


def test_a_file_appears_whole_and_says_so(tmp_path, capsys):
    target = tmp_path / "out.txt"
    with output.new_file(str(target), force=False) as stream:
        stream.write(b"half")
        stream.flush()
        assert not target.exists()
    assert target.read_bytes() == b"half"
    assert capsys.readouterr().err == f"Wrote {target}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, BrokenPipeError])
def test_nothing_is_left_when_the_writer_fails_and_the_old_file_stays(tmp_path, error):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(error):  # noqa: PT012, SIM117
        with output.new_file(str(target), force=True) as stream:
            stream.write(b"half")
            raise error
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_disk_that_fills_up_is_an_error_of_ours(tmp_path):
    with (
        pytest.raises(UsageError, match="cannot be written: No space left"),
        output.new_file(str(tmp_path / "out.txt"), force=False),
    ):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(UsageError, match="exists") as caught:
        output.refuse_overwrite(target, force=False)
    assert caught.value.hint == "add --force to overwrite it"
    output.refuse_overwrite(target, force=True)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("name", "message"),
    [(".", "is a folder"), ("missing/out.txt", "there is no folder"), ("a\0b", "not a"), ("x" * 5000, "cannot be")],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, name, message, force):
    with pytest.raises(UsageError, match=message) as caught:
        output.refuse_overwrite(tmp_path / name, force=force)
    assert len(caught.value.message) < 6000


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="read-only"):
        output.refuse_overwrite(tmp_path / "out.txt", force=False)


def test_a_folder_that_refuses_writing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(output.os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="read-only"):
        output.refuse_overwrite(tmp_path / "out.txt", force=False)


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "out.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    with output.new_file(str(link), force=True) as stream:
        stream.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_named_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    with output.new_file(str(pipe), force=False) as stream:
        stream.write(b"through")
    reader.join(10)
    assert got == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_result_ends_with_one_newline(capsys):
    output.print_result("a", output=None, force=False)
    output.print_result("b\n", output=None, force=False)
    assert capsys.readouterr().out == "a\nb\n"


def test_a_hint_goes_to_stderr(capsys):
    output.hint("do this")
    assert capsys.readouterr() == ("", "hint: do this\n")


@pytest.mark.parametrize(
    ("variables", "flag", "color"),
    [
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": ""}, False, False),
        ({"FORCE_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, False),
    ],
)
def test_colour_follows_the_conventions(monkeypatch, variables, flag, color):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.wants_color(no_color=flag) is color


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ("80", 80),
        ("132", 132),
        ("20", 80),
        ("0", 100),
        ("-5", 100),
        ("99999999999", 500),
        ("x", 100),
        ("²", 100),
        ("", 100),
    ],
)
def test_the_width_is_that_of_the_terminal_within_reason(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert output.terminal_width() == width
