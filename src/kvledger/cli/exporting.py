"""From sources and options to the collector that `export` serves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from kvledger.cli.completing import Completer, read_background, read_facts
from kvledger.cli.measuring import read_access
from kvledger.cli.output import hint
from kvledger.errors import UsageError
from kvledger.live.exporter import Follower, LedgerCollector
from kvledger.measure.balance import Scheduling
from kvledger.measure.meter import Meter
from kvledger.measure.pool_meter import PoolMeter
from kvledger.report.prometheus.instant import SourceInstant
from kvledger.sources.http import parse_address
from kvledger.sources.servers import is_server

__all__ = ["make_collector", "name_sources"]

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,64})=(?P<url>(?:https?://|unix:).*)", re.DOTALL)


def make_collector(specs: Sequence[str], options: dict[str, Any]) -> LedgerCollector:
    """Return the collector of these servers; none is asked yet.

    Raises:
        UsageError: A source is no server, or two have one name.
    """
    access, facts = read_access(options), read_facts(options)
    scheduling = Scheduling(options["scheduling"])
    followers, completers = [], []
    for name, url in name_sources(specs):
        completer = Completer(facts, access=access, server=url)
        meter = Meter(complete=completer, started=facts.startup, scheduling=scheduling, window_samples=1)
        background = read_background(options, facts, completer)
        pools = PoolMeter(complete=background.complete, expand=background.expand, window_samples=1)
        followers.append(Follower(name, parse_address(url, default_path="/metrics"), access, meter=meter, pools=pools))
        completers.append(completer)
    told = (lambda _: None) if options["quiet"] else _Teller(completers).tell
    return LedgerCollector(followers, on_look=told)


def name_sources(specs: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, URL) of each source; a name that is not given holds no address.

    Raises:
        UsageError: A source is no server, or two have one name.
    """
    found = []
    for number, spec in enumerate(specs, start=1):
        match = _NAMED.fullmatch(spec)
        name = match["name"] if match else "server" if len(specs) == 1 else f"server {number}"
        url = match["url"] if match else spec
        if not is_server(url) or url.startswith("prometheus:"):
            raise UsageError(
                f"source {number} is no running server: only those can be exported",
                hint="give a URL such as http://host:8000; inside a Prometheus, `kvledger export --rules vllm` "
                "needs no exporter",
            )
        found.append((name, url))
    twice = [name for name, count in Counter(name for name, _ in found).items() if count > 1]
    if twice:
        raise UsageError(f"two sources are named `{twice[0]}`", hint="give each its own name: NAME=URL")
    return found


class _Teller:
    """Says on stderr when a server goes, comes back, or has no ledger; each once until it changes."""

    def __init__(self, completers: Sequence[Completer]) -> None:
        self._completers = completers
        self._told: dict[str, str] = {}

    def tell(self, sources: Sequence[SourceInstant]) -> None:
        for source, completer in zip(sources, self._completers, strict=True):
            self._change(source.name, "" if source.is_up else f"is down: {source.error}", back="is up")
            for pool in source.pools:
                problem = f"has no ledger: {pool.problem}" if pool.problem else ""
                self._change(f"{source.name}, engine {pool.engine}, pool {pool.pool}", problem, back="has a ledger")
            for told in completer.take_hints():
                hint(told)

    def _change(self, name: str, now: str, *, back: str) -> None:
        before = self._told.get(name, "")
        if now != before:
            self._told[name] = now
            click.echo(f"{name} {now or back}", err=True)
