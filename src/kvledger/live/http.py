"""The HTTP server of the exporter, until it is told to stop."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

import click
from prometheus_client import CollectorRegistry, start_http_server

from kvledger.errors import UsageError
from kvledger.live.exporter import LedgerCollector

__all__ = ["serve"]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(collector: LedgerCollector, *, host: str, port: int) -> None:
    """Serve the collector until SIGTERM; an interrupt goes on to the caller once the port is closed.

    Raises:
        UsageError: The port is taken, or the address is not of this machine.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"port {port} on {host} cannot be listened on: {getattr(error, 'strerror', None) or error}",
            hint="choose another with --port, or 0 for a free one",
        ) from None
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"Serving http://{shown}:{server.server_port}/metrics", err=True)
    if host not in _LOOPBACK:
        click.echo("hint: whoever reaches this port can read the numbers; there is no password", err=True)
    sys.stderr.flush()
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        stop.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
        server.shutdown()
        server.server_close()
        thread.join(5)
        collector.close()
