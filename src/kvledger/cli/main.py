"""The command ``kvledger``: finds the subcommand, and turns errors into messages and exit codes."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import sys
import traceback
from itertools import pairwise
from typing import NoReturn

import click

import kvledger
from kvledger.errors import Error, SourceError, UnbalancedLedger, UsageError

__all__ = ["main"]

_COMMANDS = {
    "cache": "what a prefix cache of every size would find, and how far its eviction is from the best",
    "check": "exit code 1 when a running server breaks a limit, for CI and alerts",
    "demo": "the main job with nothing but the package: one case under every memory policy",
    "export": "the ledgers of running servers for Prometheus, with dashboards, alerts and rules",
    "doctor": "what is installed, whether the kernels compile, and what to do about what is wrong",
    "explain": "what a finding means, what to change, and what gets worse",
    "measure": "the ledger of a running server, exact from its public counters",
    "prove": "the cure on real tensors: one model, one memory, block tables beside reservation",
    "replay": "what each way of managing the memory would have done with your traffic",
    "report": "one offline HTML page of saved results, or of two compared",
    "schema": "the JSON Schema of what `--json` prints",
    "size": "what a model's KV cache costs, and what the engine will print",
    "sweep": "replay over a grid of settings: which waste least, which wait least",
    "trace": "what a request trace holds: counts, rates, lengths; converts to Parquet",
    "watch": "the ledger of a running server, again every second",
}
_HELP = """\
Where every byte of KV-cache memory goes in LLM serving, and what would give it back.

\b
Examples:
  kvledger demo
  kvledger replay azure.csv --model llama-3-8b --memory 50GiB --policy paged,max
  kvledger trace mooncake.jsonl.gz
"""
_RAN, _COULD_NOT, _INTERRUPTED = 0, 2, 130


class _ReaderGone(Exception):
    """The reader of our output has gone away. Click would exit with 1, which here means that a limit was broken."""


class _LazyGroup(click.Group):
    """A group that imports a subcommand only when it is called."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            meant = f" Did you mean `{near[0]}`?" if near else ""
            ctx.fail(f"No such command `{name}`.{meant} The commands are {', '.join(_COMMANDS)}.")
        command: click.Command = importlib.import_module(f"kvledger.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ran; 1 a limit was broken; 2 could not run; 130 interrupted.",
)
@click.version_option(kvledger.__version__, prog_name="kvledger")
def _kvledger() -> None:
    """Where every byte of KV-cache memory goes in LLM serving, and what would give it back."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    as_json = _wants_json(arguments)
    try:
        result = _kvledger.main(args=arguments, prog_name="kvledger", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else _RAN
    except (_ReaderGone, BrokenPipeError):
        return _stop_quietly()
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        return _interrupted(error.__cause__ or error)
    except click.ClickException as error:
        if as_json:
            return _report(UsageError(error.format_message()), as_json=True)
        error.show()
        return _COULD_NOT
    except Error as error:
        if isinstance(error, UnbalancedLedger):
            traceback.print_exc()
        return _report(error, as_json=as_json)
    except OSError as error:
        return _report(SourceError(f"reading or writing failed: {error}"), as_json=as_json)
    except MemoryError as error:
        return _report(_explain(error), as_json=as_json)
    except Exception as error:
        traceback.print_exc()
        fault = Error(f"{type(error).__name__}: {error}", hint="this is a fault of kvledger; please report it")
        return _report(fault, as_json=as_json)


def _explain(error: MemoryError) -> Error:
    from kvledger.sources.memory import available_bytes, explain_memory

    return explain_memory(error, available=available_bytes())


def _wants_json(arguments: list[str]) -> bool:
    return "--json" in arguments or "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def _stop_quietly() -> int:
    """Stop without a word: the reader of our output has gone away, as is its right."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # Python would complain once more when it flushes at exit
            os.dup2(nowhere, stream.fileno())
    return _RAN


def _interrupted(error: BaseException) -> int:
    """Say so, with what the interrupted writing of a file says of it."""
    click.echo("; ".join(["interrupted", *getattr(error, "__notes__", ())]), err=True)
    return _INTERRUPTED


def _report(error: Error, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(error.as_record()), err=True)
    else:
        click.echo(f"error: {_printable(error.message)}", err=True)
        if error.hint:
            click.echo(f"hint: {_printable(error.hint)}", err=True)
    return _COULD_NOT


def _printable(text: str) -> str:
    """Replace what would steer the terminal: messages quote names and cells that come from outside."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
