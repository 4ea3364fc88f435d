"""The blocks of code of a page, and what running their commands prints."""

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from .cli.calling import MODULE

CHECKED, NOT_RUN = "<!-- checked -->", "<!-- not run:"
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_NOTICES = ("compiling the replay kernels", "compiled and ran in")
_TERMINAL = {"COLUMNS": "100", "TERM": "dumb"}


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line above it."""

    before: str
    language: str
    body: str


def blocks_of(path):
    """Return the fenced blocks of a page."""
    text = path.read_text("utf-8")
    return [Block(m["before"].strip(), m["language"], m["body"]) for m in _BLOCK.finditer(text)]


@dataclass(frozen=True)
class Command:
    """A command line, and the lines that a page shows below it."""

    line: str
    expected: tuple[str, ...]


def commands_of(block):
    """Read ``$ command`` lines, their ``> `` continuations, and the output below each."""
    commands, line, expected = [], None, []
    for text in block.body.splitlines():
        if text.startswith("$ "):
            if line is not None:
                commands.append(Command(line, tuple(expected)))
            line, expected = text[2:], []
        elif text.startswith("> ") and not expected:
            line += "\n" + text[2:]
        else:
            expected.append(text)
    return [*commands, Command(line, tuple(expected))] if line is not None else commands


def words_of(line):
    """Return the words of a line that needs no shell, or None."""
    lexer = shlex.shlex(line.replace("\\\n", ""), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    needs_a_shell = "\n" in line.replace("\\\n", "") or any(not set(word) - set("();<>|&") for word in words)
    return None if needs_a_shell or "$" in line else words


def run(line, folder):
    """Return the exit code of a command line and the lines it prints: kvledger alone in this process, all else in bash.

    Starting Python and loading the kernels would take most of the time of most commands.
    """
    words = words_of(line)
    code, printed = _here(words[1:], folder) if words and words[0] == "kvledger" else _in_a_shell(line, folder)
    return code, [text for text in printed.splitlines() if not text.startswith(_NOTICES)]


def _here(arguments, folder):
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) as stream:
        environment = mock.patch.dict(os.environ, _TERMINAL)
        with environment, chdir(folder), redirect_stdout(stream), redirect_stderr(stream):
            for name in ("FORCE_COLOR", "NO_COLOR"):
                os.environ.pop(name, None)
            code = MODULE._run(arguments)
        return code, stream.buffer.getvalue().decode()


def _in_a_shell(line, folder):
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | _TERMINAL
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def missing_line(expected, printed):
    """Return the first expected line that is not where it should be; ``...`` stands for any lines."""
    at, loose = 0, False
    for line in expected:
        if line == "...":
            loose = True
            continue
        found = [i for i in range(at, len(printed)) if printed[i].rstrip() == line.rstrip()]
        if not found or (found[0] != at and not loose):
            return line
        at, loose = found[0] + 1, False
    return None if loose or at == len(printed) else "(the end)"
