"""``kvledger replay``: what each way of managing the memory would have done with a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvledger.cli.output import hint, print_result, refuse_input, refuse_overwrite, render_as, wants_color
from kvledger.cli.paging import check_page, html_option, write_page
from kvledger.cli.question import Question
from kvledger.cli.sampling import sample_options
from kvledger.cli.swapping import swap_options
from kvledger.errors import UsageError
from kvledger.pool.policy import Eviction

__all__ = ["command"]

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

_HELP = """\
Replay TRACE under every memory policy, and show what each does with every byte.

TRACE is a file (its format is found by content; gzip and zstd are read), a folder, `-`, or a seeded workload such
as synthetic:chat,requests=10000,rate=inf.

\b
Examples:
  kvledger replay azure.csv --model llama-3-8b --memory 50GiB
  kvledger replay synthetic:sharegpt --model opt-13b --memory 12GiB --policy max@buddy,paged
  kvledger replay log.jsonl --bytes-per-token 131072 --num-blocks 28000 --series steps.csv
  kvledger replay log.jsonl --model llama-3-8b --memory 20GiB --try kv-dtype=fp8
"""
_EPILOG = """\b
Exit codes: 0 ran; 2 could not run; 130 interrupted."""


def _options(*groups: Decorator) -> Decorator:
    def decorate(function: Function) -> Function:
        for option in reversed(groups):
            function = option(function)
        return function

    return decorate


@click.command(help=_HELP, epilog=_EPILOG, context_settings={"max_content_width": 100})
@click.argument("trace")
@_options(
    click.option("--model", help="What a token costs: a catalogue name, a config.json, a folder, or a .gguf file."),
    click.option("--bytes-per-token", type=click.IntRange(1), help="What a token costs, by hand, all layers together."),
    click.option("--kv-dtype", help="Dtype of the KV cache, with --model (default: the model's)."),
    click.option("--layers", type=click.IntRange(1, 10_000), help="Layers, with --bytes-per-token; `vmm` maps each."),
)
@_options(
    click.option("--memory", help="KV memory, such as 50GiB."),
    click.option("--capacity-tokens", type=click.IntRange(0), help="KV memory in tokens."),
    click.option("--num-blocks", type=click.IntRange(0), help="KV memory in usable blocks of --block-size."),
)
@_options(
    click.option(
        "--policy",
        "policies",
        default="max,pow2,exact,paged",
        show_default=True,
        help="Comma-separated: max, declared, pow2, exact [@best|first|next|worst|buddy], "
        "grow [@exact|doubling|step|segments], static-batch, paged, upfront, no-evict [@BLOCK], "
        "paged[@BLOCK]:blocks|radix|pools, vmm, or all.",
    ),
    click.option(
        "--placement", default="best", show_default=True, help="Where extents go: best, first, next, worst, buddy."
    ),
    click.option("--buffer", type=click.IntRange(0, 2**40), default=0, help="Tokens added to every extent."),
    click.option(
        "--granularity", type=click.IntRange(1, 2**40), default=1, help="Extents are multiples of this many tokens."
    ),
    click.option(
        "--grow-step",
        type=click.IntRange(1, 2**40),
        default=256,
        show_default=True,
        help="Step of `grow@step`, tokens.",
    ),
    click.option(
        "--block-size",
        type=click.IntRange(1, 2**20),
        default=16,
        show_default="16, or as recorded",
        help="Tokens a block.",
    ),
    click.option(
        "--watermark", type=click.FloatRange(0, 1), default=0.0, help="Share of the blocks kept free at admission."
    ),
    click.option(
        "--full-sequence-must-fit/--no-full-sequence-must-fit",
        default=True,
        show_default=True,
        help="Admit a request only if all its known tokens fit.",
    ),
    click.option(
        "--prefix-caching",
        type=click.Choice(["on", "off"]),
        default="off",
        show_default=True,
        help="Keep and share full blocks of `paged` by content, as far as the trace tells it.",
    ),
    click.option(
        "--eviction",
        type=click.Choice([str(eviction) for eviction in Eviction]),
        default="lru",
        show_default=True,
        help="Which cached block of `paged` goes first, with --prefix-caching on; belady knows the future.",
    ),
    click.option(
        "--swa-full-tokens-ratio",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.8,
        show_default=True,
        help="`paged:pools`: tokens of the window's pool over those of the pool for full attention.",
    ),
    click.option("--page-size", default="2MiB", show_default=True, help="Page of `vmm`."),
    sample_options,
    swap_options,
)
@_options(
    click.option(
        "--max-model-len",
        type=click.IntRange(2, 2**40),
        help="Longest sequence (default: a recording's, else the model's, else the trace's).",
    ),
    click.option(
        "--max-num-seqs",
        type=click.IntRange(1, 2**20),
        default=1024,
        show_default="1024, or as recorded",
        help="Most requests at a time.",
    ),
    click.option("--max-num-batched-tokens", type=click.IntRange(1, 2**40), default=8192, show_default=True),
    click.option(
        "--clock",
        help="Seconds of a step: `steps`, a roofline GPU[:PARAMETERS] such as h100-80gb:70b, base,a,b,c[,d], or "
        "fit[:PART] to what a recorded run observed in its first part (1/3). Default: the mean step of a recording, "
        "else a100-80gb, the model's parameters or 8B.",
    ),
    click.option(
        "--block-overhead",
        type=click.FloatRange(0, 1024),
        default=0.0,
        show_default=True,
        help="Reading a block takes as long as so many tokens more (3.7: the kernel of the PagedAttention paper).",
    ),
    click.option(
        "--restart-every", type=click.FloatRange(0), default=0.0, help="Restart the server every so many seconds."
    ),
)
@_options(
    click.option("--columns", help="Columns of a generic file: arrival=...,prompt=...,output=..."),
    click.option(
        "--content", help="Another trace of the same requests, which knows their content (token or block ids)."
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is drawn."),
    click.option("--rate", type=float, help="Draw Poisson arrivals anew, so many a second; inf: all at 0."),
    click.option(
        "--session-starts",
        default="rate:0.1",
        show_default=True,
        help="For traces without a common clock: zero, every:SECONDS or rate:PER_SECOND.",
    ),
    click.option("--mitigations", help="Replay the usual mitigations of these contiguous policies."),
    click.option(
        "--try",
        "tries",
        multiple=True,
        metavar="SETTING=VALUE,...",
        help="What if: block-size, kv-dtype, tp, memory, max-model-len, max-num-seqs, max-num-batched-tokens, "
        "prefix-caching, eviction or preemption had another value; each alone. Repeatable.",
    ),
    click.option(
        "--findings",
        type=click.Choice(["auto", "all", "off"]),
        default="auto",
        show_default=True,
        help="What would give memory back, each proved by a replay; auto: proofs up to 100,000 requests.",
    ),
    click.option(
        "--layout",
        is_flag=True,
        help="Say in --json what lies where in the pool when it is fullest and when most is wasted, which takes a "
        "second replay; --html does so, too.",
    ),
    click.option("--series", help="Write every step of the policy to this CSV file (of several: FILE.POLICY.csv)."),
    click.option("--format", "format_", type=click.Choice(["text", "json", "md"]), default="text", show_default=True),
    click.option("--json", "as_json", is_flag=True, help="Short for --format json."),
    html_option,
    click.option("-o", "--output", help="Write the result to a file."),
    click.option("--force", is_flag=True, help="Overwrite files."),
    click.option("-q", "--quiet", is_flag=True, help="No progress and no hints."),
    click.option("--no-color", is_flag=True),
)
def command(**options: Any) -> None:
    """Replay TRACE under every memory policy, and show what each does with every byte."""
    from kvledger.cli.answer import ask
    from kvledger.cli.recorded import WARNING, find_defaulted

    output, series = options["output"], options["series"]
    if output is not None:
        refuse_input(Path(output), options["trace"])
        refuse_overwrite(Path(output), force=options["force"])
        if series is not None and Path(series).resolve() == Path(output).resolve():
            raise UsageError(f"--output and --series are the same file `{output}`", hint="give two names")
    check_page(options["html"], output=output, force=options["force"], source=options["trace"])
    options["layout"] = options["layout"] or options["html"] is not None
    options["defaulted"] = find_defaulted(click.get_current_context())
    question = Question(**{name: options[name] for name in Question.__slots__})
    report = ask(question)
    if options["as_json"] or options["format_"] == "json":
        from kvledger.report.replay_json import replay_json

        text = json.dumps(replay_json(report), indent=2, allow_nan=False)
    else:
        from kvledger.report.replay_text import replay_text

        color = wants_color(no_color=options["no_color"]) and output is None
        text = render_as(options["format_"], replay_text(report), color=color)
    print_result(text, output=output, force=options["force"])
    if options["html"] is not None:
        from kvledger.report.replay_json import replay_json

        write_page(options["html"], replay_json(report), name=report.source, force=options["force"])
    if not options["quiet"]:
        for note in report.notes:
            if note.startswith(WARNING):
                click.echo(note, err=True)
            else:
                hint(note)
