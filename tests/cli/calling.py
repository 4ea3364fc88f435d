"""Calling the command line: in this process for speed, in another one for signals and pipes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

MODULE = importlib.import_module("kvledger.cli.main")

CHAT = "arrival_seconds,prompt_tokens,output_tokens\n0,40,10\n0,60,2\n5,10,100\n"
SMALL = ("--bytes-per-token", "100", "--capacity-tokens", "200", "--clock", "steps")


@dataclass(frozen=True)
class Called:
    """What one call did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Read stdout as JSON."""
        return json.loads(self.out)

    def error(self) -> Any:
        """Read the error that ``--json`` printed."""
        return json.loads(self.err.strip().splitlines()[-1])


def call(capsys: Any, *arguments: object) -> Called:
    """Run the command line here."""
    capsys.readouterr()
    code = MODULE._run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Called(code, captured.out, captured.err)


def command(*arguments: object) -> list[str]:
    """Return the command line of another process."""
    return [sys.executable, "-m", "kvledger", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """Return the environment without what would colour or widen the output, and with ``changes``."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")}
    return kept | changes


def spawn(*arguments: object, **changes: str) -> Called:
    """Run the command line in another process."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=240, env=environment(**changes), check=False
    )
    return Called(done.returncode, done.stdout, done.stderr)
