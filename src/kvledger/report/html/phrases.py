"""Every phrase of the page in English and Chinese, read from ``assets/phrases.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

__all__ = ["phrases", "read_asset"]


@cache
def phrases() -> dict[str, tuple[str, str]]:
    """Return (English, Chinese) by key."""
    return {key: (english, chinese) for key, (english, chinese) in tomllib.loads(read_asset("phrases.toml")).items()}


def read_asset(name: str) -> str:
    """Return the text of a file that is shipped with the page."""
    return (files("kvledger.report.html") / "assets" / name).read_text("utf-8")
