"""``kvledger cache``: what a prefix cache of every size would find, and how far its eviction is from the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kvledger.cli.output import hint, print_result, refuse_overwrite, terminal_width, wants_color
from kvledger.cli.paging import check_page, html_option, write_page

__all__ = ["command"]

_HELP = """\
Show how much of the prompts a prefix cache would find, by its size and by what it evicts.

TRACE must tell what its requests share: block ids, token ids, or a stated common prefix.

\b
Examples:
  kvledger cache mooncake.jsonl.gz --model llama-3.1-70b
  kvledger cache mooncake.jsonl.gz --model llama-3.1-70b --budget 64GiB,...,8TiB --live
  kvledger cache mooncake.jsonl.gz --model llama-3.1-70b --html cache.html
  kvledger cache log.csv --bytes-per-token 131072 --eviction lru --warm-up 0 --json
"""


@click.command(
    help=_HELP,
    epilog="Exit codes: 0 ran; 2 could not run; 130 interrupted.",
    context_settings={"max_content_width": 100},
)
@click.argument("trace")
@click.option("--model", help="What a token costs: a catalogue name, a config.json, a folder, or a .gguf file.")
@click.option("--bytes-per-token", type=click.IntRange(1), help="What a token costs, by hand, all layers together.")
@click.option("--kv-dtype", help="Dtype of the KV cache, with --model (default: the model's).")
@click.option("--budget", help="Sizes, such as 1GiB,64GiB or 1GiB,...,8TiB, doubling (default: up to all blocks).")
@click.option("--eviction", default="lru,fifo,belady", show_default=True, help="Comma-separated: lru, fifo, belady.")
@click.option("--block-size", type=click.IntRange(1, 2**20), help="Tokens a block (default: the trace's ids, else 16).")
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.5,
    show_default=True,
    help="Share of the requests that only fill the cache; the rest is measured.",
)
@click.option("--live", is_flag=True, help="Replay each size with live requests, too, to see what they change.")
@click.option(
    "--clock", default="a100-80gb:8b", show_default=True, help="Seconds of a step, with --live; as in `replay`."
)
@click.option("--max-model-len", type=click.IntRange(2, 2**40), help="Longest sequence, with --live.")
@click.option("--max-num-seqs", type=click.IntRange(1, 2**20), default=256, show_default=True)
@click.option("--max-num-batched-tokens", type=click.IntRange(1, 2**40), default=8192, show_default=True)
@click.option("--columns", help="Columns of a generic file: arrival=...,prompt=...,output=...,hash_ids=...")
@click.option("--content", help="Another trace of the same requests, which knows their content.")
@click.option("--session-starts", default="rate:0.1", show_default=True, help="For traces without a common clock.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("-o", "--output", help="Write the result to a file.")
@html_option
@click.option("--force", is_flag=True, help="Overwrite files.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no hints.")
@click.option("--no-color", is_flag=True)
def command(**options: Any) -> None:
    """Show how much of the prompts a prefix cache would find, by its size and by what it evicts."""
    from kvledger.cli.caching import CacheQuestion, ask

    output = options["output"]
    if output is not None:
        refuse_overwrite(Path(output), force=options["force"])
    check_page(options["html"], output=output, force=options["force"], source=options["trace"])
    report = ask(CacheQuestion(**{name: options[name] for name in CacheQuestion.__slots__}))
    if options["html"] is not None:
        from kvledger.report.cache import cache_json

        write_page(options["html"], cache_json(report), name=report.source, force=options["force"])
    if options["as_json"] or options["format_"] == "json":
        from kvledger.report.cache import cache_json

        text = json.dumps(cache_json(report), indent=2, allow_nan=False)
    else:
        from kvledger.report.cache import cache_text
        from kvledger.report.tables import render

        color = wants_color(no_color=options["no_color"]) and output is None
        text = render(cache_text(report), width=terminal_width(), color=color)
    print_result(text, output=output, force=options["force"])
    if not options["quiet"]:
        for note in report.notes:
            hint(note)
