"""``kvledger export``: the ledgers of running servers for Prometheus, or what a Prometheus needs to do without."""

from __future__ import annotations

from typing import Any

import click

from kvledger.cli.measure_options import access_options, source_options
from kvledger.cli.output import hint
from kvledger.errors import UsageError

__all__ = ["command"]

_EPILOG = """\b
Exit codes: 0 wrote a file, or stopped by SIGTERM; 2 could not run; 130 interrupted."""
_HELP = """\
Serve the ledgers of running servers to Prometheus; each scrape asks every server once.

SOURCE is a URL or unix:/run/vllm.sock, `NAME=` before it names it in the label `source`. With --rules no exporter is
needed: Prometheus draws up the ledger from the engine's own metrics.

\b
Examples:
  kvledger export chat=http://a:8000 code=http://b:8000 --port 9464
  kvledger export --rules vllm -o kvledger-rules.yml
  kvledger export --dashboard exporter -o kvledger.json
"""
_WRITTEN = ("rules", "dashboard", "alerts", "scrape_config")


@click.command(help=_HELP, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; loopback by default.")
@click.option("--rules", type=click.Choice(["vllm", "sglang"]), help="Write recording rules over an engine's metrics.")
@click.option("--dashboard", type=click.Choice(["exporter", "rules"]), help="Write a Grafana dashboard over either.")
@click.option("--alerts", type=click.Choice(["exporter", "rules"]), help="Write alerting rules over either.")
@click.option("--scrape-config", is_flag=True, help="Write how a Prometheus scrapes the exporter.")
@click.option("--prefix", help="How the engine's metrics begin in this Prometheus, such as `vllm_` (default: `vllm:`).")
@click.option("--assume-one-table", is_flag=True, help="Rules: before vLLM 0.26, every layer keeps every token.")
@source_options
@access_options
@click.option("-o", "--output", help="Write it to this file.")
@click.option("--force", is_flag=True, help="Overwrite the file of --output.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say which server goes and comes.")
def command(**options: Any) -> None:
    """Serve the ledgers of running servers to Prometheus, or write what a Prometheus needs."""
    asked = [f"--{name.replace('_', '-')}" for name in _WRITTEN if options.get(name)]
    if len(asked) > 1 or (asked and options["sources"]):
        given = " and ".join([*asked, *(["SOURCE"] if options["sources"] else [])])
        raise UsageError(f"{given} were given together", hint="serve sources, or write one file at a time")
    if not options["quiet"]:
        from kvledger.cli.unused import find_given, unused_by_export

        for told in unused_by_export(options, find_given()):
            hint(told)
    if asked:
        from kvledger.cli.output import print_result
        from kvledger.cli.provisioning import write_asked

        print_result(write_asked(options), output=options["output"], force=options["force"])
        return
    if not options["sources"]:
        raise UsageError("no SOURCE was given", hint="give a URL such as http://localhost:8000, or --rules vllm")
    from kvledger.cli.exporting import make_collector
    from kvledger.live.http import serve

    serve(make_collector(options["sources"], options), host=options["host"], port=options["port"])
