"""Fixtures of the command line's tests."""

import pytest

from .calling import CHAT


@pytest.fixture
def trace(tmp_path):
    """Return the path of a trace of three requests."""
    path = tmp_path / "chat.csv"
    path.write_text(CHAT)
    return path


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
