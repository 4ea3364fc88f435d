"""``kvledger export``: the ledgers of running servers for Prometheus."""

from __future__ import annotations

from typing import Any

import click

from kvledger.cli.measure_options import access_options, source_options

__all__ = ["command"]

_EPILOG = """\b
Exit codes: 0 stopped by SIGTERM; 2 could not run; 130 interrupted."""
_HELP = """\
Serve the ledgers of running servers to Prometheus. Each scrape asks every server once.

SOURCE is a URL or unix:/run/vllm.sock, `NAME=` before it names it in the label `source`.

\b
Examples:
  kvledger export http://localhost:8000
  kvledger export chat=http://a:8000 code=http://b:8000 --port 9464
  kvledger export https://vllm.example --token-file token --model llama-3.1-8b
"""


@click.command(help=_HELP, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; loopback by default.")
@source_options
@access_options
@click.option("-q", "--quiet", is_flag=True, help="Do not say which server goes and comes.")
def command(**options: Any) -> None:
    """Serve the ledgers of running servers to Prometheus."""
    from kvledger.cli.exporting import make_collector
    from kvledger.live.http import serve

    collector = make_collector(options["sources"], options)
    serve(collector, host=options["host"], port=options["port"])
