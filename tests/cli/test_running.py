"""Notices of the compiler, and the progress bar."""

import io
import sys

import pytest

from kvledger.cli.running import KernelNotice, progress_bar
from kvledger.pool import parse_policy


class Remembers:
    """A cache that holds what it was told."""

    def __init__(self, *kernels):
        self.kernels = set(kernels)

    def holds(self, kernel):
        return kernel in self.kernels

    def note(self, kernel):
        self.kernels.add(kernel)


def notice(*kernels, quiet=False):
    made = KernelNotice(quiet=quiet)
    made._cache = Remembers(*kernels)
    return made


def test_the_first_compilation_is_announced_once(capsys):
    first = notice()
    with first.around(parse_policy("paged")):
        assert capsys.readouterr().err.startswith("compiling the replay kernels, once")
    assert capsys.readouterr().err.startswith("compiled and ran in")
    with first.around(parse_policy("max")):
        pass
    assert capsys.readouterr().err == ""


def test_static_batches_have_a_kernel_of_their_own(capsys):
    with notice("loop").around(parse_policy("static-batch")):
        assert "compiling" in capsys.readouterr().err
    with notice("static").around(parse_policy("static-batch")):
        assert capsys.readouterr().err.count("compiling") == 0


def test_quiet_announces_nothing_and_remembers_all_the_same(capsys):
    quiet = notice(quiet=True)
    with quiet.around(parse_policy("paged")):
        pass
    assert capsys.readouterr().err == ""
    assert quiet._cache.holds("loop")


def test_a_compilation_that_fails_is_not_remembered():
    failing = notice(quiet=True)
    with pytest.raises(KeyboardInterrupt), failing.around(parse_policy("paged")):
        raise KeyboardInterrupt
    assert not failing._cache.holds("loop")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "quiet", "shown"), [(Terminal, False, True), (Terminal, True, False),
                                                        (io.StringIO, False, False)])  # fmt: skip
def test_a_bar_is_shown_on_a_terminal_only(monkeypatch, stream, quiet, shown):
    monkeypatch.setattr(sys, "stderr", stream())
    with progress_bar("paged", 10, quiet=quiet) as advance:
        assert (advance is not None) == shown
        if advance:
            advance(3)


def test_a_bar_stays_away_from_what_takes_less_than_half_a_second(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("paged", 10, quiet=False) as advance:
        advance(10)
    assert "paged" not in terminal.getvalue()
