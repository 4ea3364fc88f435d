"""``kvledger size``: what a model's KV cache costs, and what an engine will allocate and print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from kvledger.cli.output import hint, print_result, refuse_overwrite, render_as, wants_color
from kvledger.cli.paging import check_page, html_option, write_page
from kvledger.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["command"]

_EPILOG = """\b
Exit codes: 0 ran; 2 could not run; 130 interrupted."""
_HELP = """Compute what MODEL's KV cache costs, what the engine will allocate and print, and what is lost to structure.

MODEL is a catalogue name, a config.json, a folder, a .gguf file, or hf:organisation/name.

\b
Examples:
  kvledger size llama-3.1-8b --kv-memory 17.21GiB
  kvledger size gemma-3-27b --gpu H100-80GB --weights 52GiB --length 800 --concurrency 32
  kvledger size qwen3.5-27b --log server.log
  kvledger size deepseek-v3 --tp 8 --kv-memory 30GiB --engine all
  kvledger size qwen3-32b --gpu H100-80GB --tp 2 --html size.html
  kvledger size --list models
"""
_DEVICES = ["cuda", "rocm", "xpu", "cpu", "metal", "vulkan", "mps"]
_POSITIVE = click.IntRange(1, 2**40)
_RANKS = click.IntRange(1, 2**16)


@click.command(help=_HELP, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("model", required=False)
@click.option("--layers", help="Layers by hand instead of MODEL, such as 32x(kv=8,head=128).")
@click.option("--engine", help="vllm, sglang, llama.cpp, ... or all (default: that of the log, else vllm).")
@click.option("--engine-version", help="Version of the engine (default: the newest whose rules are known).")
@click.option("--kv-memory", help="KV memory of a rank, such as 17.21GiB; several with commas, one a stage or a rank.")
@click.option("--log", help="Start-up log: its bytes instead of --kv-memory, and a check of its figures.")
@click.option("--gpu", help="Device, such as H100-80GB, to estimate the KV memory from.")
@click.option("--gpu-memory-utilization", type=click.FloatRange(0, 1, min_open=True), help="With --gpu.")
@click.option("--weights", help="Weights on one rank, such as 15GiB, with --gpu (default: from the parameters).")
@click.option("--device", type=click.Choice(_DEVICES), default="cuda", show_default=True, help="Kind of device.")
@click.option("--tp", type=_RANKS, default=1, help="Tensor-parallel ranks.")
@click.option("--pp", type=_RANKS, default=1, help="Pipeline stages.")
@click.option("--dcp", type=_RANKS, default=1, help="Decode context parallelism.")
@click.option("--pcp", type=_RANKS, default=1, help="Prefill context parallelism.")
@click.option("--dp", type=_RANKS, default=1, help="Data-parallel replicas.")
@click.option("--kv-dtype", default="auto", show_default=True, help="auto, bfloat16, fp8, nvfp4, q8_0, ...")
@click.option("--block-size", type=_POSITIVE, help="Tokens a block (default: the engine's).")
@click.option("--max-model-len", help="Longest request, or auto: the longest that fits (default: the model's).")
@click.option("--max-num-seqs", type=_POSITIVE, help="Requests that run at once at most.")
@click.option("--max-num-batched-tokens", type=_POSITIVE, help="Tokens of a batch; windows are charged for them.")
@click.option("--prefix-caching", type=click.Choice(["on", "off"]), help="Default: as the version decides.")
@click.option("--speculative-tokens", type=click.IntRange(0, 1024), default=0, help="Tokens proposed by a draft.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting that only this engine has.")
@click.option("--length", type=_POSITIVE, help="Length of the requests you expect, tokens.")
@click.option("--concurrency", type=_POSITIVE, help="How many of them at once, with --length.")
@click.option("--fit", type=click.Choice(["max-model-len", "concurrency", "memory"]), help="Solve for this.")
@click.option("--list", "listed", type=click.Choice(["models", "gpus"]), help="List what is known by name, and stop.")
@click.option("--format", "format_", type=click.Choice(["text", "json", "md"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("-o", "--output", help="Write the result to a file.")
@html_option
@click.option("--force", is_flag=True, help="Overwrite the files of --output and --html.")
@click.option("-q", "--quiet", is_flag=True, help="No hints.")
@click.option("--no-color", is_flag=True)
def command(**options: Any) -> None:
    """Compute what a model's KV cache costs; the help text is above."""
    from pathlib import Path

    if options["output"] is not None:
        refuse_overwrite(Path(options["output"]), force=options["force"])
    check_page(options["html"], output=options["output"], force=options["force"])
    if options["listed"] is not None:
        _list(options)
        return
    from kvledger.cli.sizing import ask_size

    report = ask_size(options)
    if options["html"] is not None:
        from kvledger.report.size_json import size_json

        write_page(options["html"], size_json(report), name=report.model, force=options["force"])
    if _wants_json(options):
        from kvledger.report.size_json import size_json

        _print_json(size_json(report), options)
    else:
        from kvledger.report.size import size_text

        _print_text(size_text(report), options)
    if not options["quiet"]:
        for note in report.notes:
            hint(note)


def _list(options: dict[str, Any]) -> None:
    if options["model"] is not None or options["layers"] is not None:
        raise UsageError(f"`--list {options['listed']}` sizes no model", hint="leave MODEL and `--layers` out")
    if options["html"] is not None:
        raise UsageError(f"`--list {options['listed']}` has no page", hint="leave `--html` out")
    from kvledger.cli.catalogues import Known, known_json, known_text

    known = Known(options["listed"])
    if _wants_json(options):
        _print_json(known_json(known), options)
    else:
        _print_text(known_text(known), options)


def _wants_json(options: dict[str, Any]) -> bool:
    return bool(options["as_json"]) or options["format_"] == "json"


def _print_json(record: dict[str, Any], options: dict[str, Any]) -> None:
    text = json.dumps(record, indent=2, allow_nan=False)
    print_result(text, output=options["output"], force=options["force"])


def _print_text(shown: RenderableType, options: dict[str, Any]) -> None:
    color = wants_color(no_color=options["no_color"]) and options["output"] is None
    print_result(render_as(options["format_"], shown, color=color), output=options["output"], force=options["force"])
