"""The options that `measure`, `watch` and `check` share; nothing heavy is imported for ``--help``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvledger.errors import UsageError

if TYPE_CHECKING:
    from kvledger.sources.servers import Pace

__all__ = ["access_options", "parse_duration", "read_pace", "refuse_own_source", "server_options", "source_options"]

Function = Callable[..., Any]
_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_SECONDS = 366 * 86400.0


def parse_duration(text: str) -> float:
    """Read a time such as ``10m``, ``1.5h``, ``500ms`` or seconds.

    >>> parse_duration("10m")
    600.0
    """
    number = text.strip().rstrip("smhd")
    unit = text.strip()[len(number) :]
    try:
        value = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise UsageError(f"`{text[:40]}` is not a time", hint="write it as `10m`, `1h` or `30s`") from None
    if not 0 <= value <= _LONGEST_SECONDS:
        raise UsageError(f"`{text[:40]}` is not between 0 and 366 days")
    return value


def source_options(function: Function) -> Function:
    """Add the options that say what a token costs and what the scrape does not tell."""
    for option in reversed(
        (
            click.option(
                "--model", help="The served model: a catalogue name, a config.json, a folder or a .gguf file."
            ),
            click.option("--kv-dtype", help="Dtype of the KV cache (default: what the server says)."),
            click.option("--bytes-per-token", type=click.IntRange(1), help="What a token costs, by hand."),
            click.option("--kv-memory", help="Bytes of the pool, such as 16GiB, when the model is not known."),
            click.option("--max-model-len", type=click.IntRange(1, 2**40), help="Longest request, when not told."),
            click.option(
                "--scheduling",
                type=click.Choice(["unknown", "ahead", "in-step"]),
                default="unknown",
                help="`ahead` for asynchronous scheduling, `in-step` for none (default: found out).",
            ),
            click.option("--log", help="Start-up log of the server, for what it does not export."),
            click.option(
                "--kv-unified/--no-kv-unified",
                default=None,
                help="Of llama.cpp: slots share all cells, or own a strip each (default: found out).",
            ),
        )
    ):
        function = option(function)
    return function


def access_options(function: Function) -> Function:
    """Add the options that say how a server is asked."""
    for option in reversed(
        (
            click.option("--timeout", default="5s", show_default=True, help="For one answer, connecting included."),
            click.option("--max-size", default="32MiB", show_default=True, help="Largest answer that is read."),
            click.option("--token-file", help="File with a bearer token (or the variable KVLEDGER_TOKEN)."),
            click.option("--ca-file", help="Certificates to trust, for https."),
            click.option("--insecure", is_flag=True, help="Do not check the server's certificate."),
        )
    ):
        function = option(function)
    return function


def server_options(function: Function) -> Function:
    """Add the options that say how a server is asked, which time of a Prometheus server, and what of it all counts."""
    for option in reversed(
        (
            click.option("--selector", default="{}", help="Of a Prometheus server: labels, such as '{job=\"vllm\"}'."),
            click.option("--since", default="1h", show_default=True, help="Of a Prometheus server: begin, before now."),
            click.option("--until", default="0s", help="Of a Prometheus server: end, before now."),
            click.option("--server", type=click.IntRange(1), help="Only this server of several, from 1."),
            click.option("--engine", type=click.IntRange(0), help="Only this engine of those behind a server."),
        )
    ):
        function = option(function)
    return access_options(function)


def read_pace(for_: str, every: str) -> Pace:
    """Read how long and how often to sample."""
    from kvledger.sources.servers import Pace

    seconds = parse_duration(every)
    if not 0.01 <= seconds <= 86400:
        raise UsageError(f"--every is {seconds:g} s, but must be 0.01 s to one day")
    return Pace(every_seconds=seconds, for_seconds=parse_duration(for_))


def refuse_own_source(record: str | None, sources: Sequence[str]) -> None:
    """Raise when a recording would be appended to while it is read: its samples would come twice."""
    if record is None:
        return
    target = Path(record)
    for source in sources:
        with suppress(OSError, ValueError):
            if target.samefile(source):
                raise UsageError(
                    f"--record {target.name} is the source itself: its samples would be appended to it once more",
                    hint="give another file, for instance to cut out one of several with --server or --engine",
                )
