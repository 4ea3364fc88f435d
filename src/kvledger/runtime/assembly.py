"""Putting an engine together: what the model keeps, how many blocks the memory holds, who computes attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvledger.errors import CapacityError, Error, ModelError
from kvledger.runtime.attention import attach, load_transformers
from kvledger.runtime.backends import choose_backend
from kvledger.runtime.layout import Layout, arrange_layers
from kvledger.runtime.options import Options
from kvledger.runtime.pages import Pages
from kvledger.runtime.probe import check_config, find_layers
from kvledger.runtime.runner import Runner, find_longest
from kvledger.runtime.scheduler import Scheduler
from kvledger.runtime.verify import compute_plainly, draw_sequences, verify
from kvledger.units import counted

__all__ = ["Parts", "assemble"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one engine; ``detach`` gives the model its own attention back."""

    layout: Layout
    pages: Pages
    scheduler: Scheduler
    runner: Runner
    detach: Callable[[], None]


def assemble(model: Any, memory_bytes: int, *, block_size: int, options: Options) -> Parts:
    """Put an engine together; when that fails, the model is as it was.

    Raises:
        UsageError: A setting cannot be used with this model.
        CapacityError: The memory is too small, or is not there.
        ModelError: The model cannot be paged; what stands in the way is named.
        MissingExtra: torch or transformers is not installed.
    """
    load_transformers()
    if not hasattr(getattr(model, "config", None), "get_text_config") or not hasattr(model, "forward"):
        raise ModelError(
            f"`{type(model).__name__}` is not a model of Transformers",
            hint="load it: AutoModelForCausalLM.from_pretrained(...)",
        )
    check_config(model, max_model_len=options.max_model_len)
    sequences = draw_sequences(model)
    with _trying(model):
        expected = compute_plainly(model, sequences)
    detach = attach(model)
    try:
        with _trying(model):
            layout = arrange_layers(find_layers(model, max_model_len=options.max_model_len), block_size=block_size)
            verify(model, layout, options, sequences, expected)
        return _assemble(model, layout, memory_bytes, options, detach)
    except BaseException:
        detach()
        raise


@contextmanager
def _trying(model: Any) -> Iterator[None]:
    """Say of whatever a model raises on its first tokens that the model cannot be served."""
    try:
        yield
    except Error:
        raise
    except Exception as cause:
        said = f"{type(cause).__name__}: {cause}".split("\n", 1)[0][:200]
        raise ModelError(f"`{type(model).__name__}` could not be tried with a few tokens: {said}") from cause


def _assemble(model: Any, layout: Layout, memory_bytes: int, options: Options, detach: Callable[[], None]) -> Parts:
    groups = layout.groups
    blocks = memory_bytes // groups.block_bytes
    if blocks < 1:
        raise CapacityError(
            f"{memory_bytes} bytes hold no block of {counted(groups.groups[0].block_tokens, 'token')}, which has "
            f"{groups.block_bytes} bytes",
            hint="give more kv_memory, or a smaller block_size",
        )
    longest = find_longest(model, options, groups, blocks)
    pages = Pages(layout, blocks=blocks, device=model.device, swap_bytes=options.swap_bytes)
    scheduler = Scheduler(groups, options, blocks=blocks, max_model_len=longest, store=pages)
    backend = choose_backend(options.attention, layout, pages, scheduler.tables)
    runner = Runner(model, layout, scheduler.tables, backend, linear=options.linear)
    return Parts(layout=layout, pages=pages, scheduler=scheduler, runner=runner, detach=detach)
