"""Making sure, before anything is served, that attention over block tables gives what the model's own gives.

A model may mean something by its attention that the interface does not say (a bias in a mask, tokens that come later).
Two short sequences of arbitrary tokens go through the model's own attention, and then as one packed batch through
blocks: first whole, then one more token each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvledger.errors import ModelError
from kvledger.runtime.backends import choose_backend
from kvledger.runtime.layout import Layout
from kvledger.runtime.options import Options
from kvledger.runtime.pages import Pages
from kvledger.runtime.runner import Runner
from kvledger.runtime.scheduler import Scheduler
from kvledger.runtime.sequence import RequestId, Sequence

if TYPE_CHECKING:
    import torch

__all__ = ["compute_plainly", "draw_sequences", "verify"]

_LENGTHS = (11, 6)
_MOST_DIFFERENCE = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.1}
"""Mean difference of logits, of their standard deviation; unequal attention gives about one."""


def draw_sequences(model: Any) -> list[list[int]]:
    """Return arbitrary tokens of a model, the same each time."""
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    return [[(7919 * (at + 1) * (length + 3)) % vocabulary for at in range(length + 1)] for length in _LENGTHS]


def compute_plainly(model: Any, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Return the logits of the last two tokens of each sequence, by the model's own attention: (2, vocabulary) each."""
    import torch

    with torch.inference_mode():
        asked = [torch.tensor([tokens], device=model.device) for tokens in sequences]
        return [model(input_ids=tokens, use_cache=False).logits[0, -2:] for tokens in asked]


def verify(
    model: Any, layout: Layout, options: Options, sequences: list[list[int]], expected: list[torch.Tensor]
) -> None:
    """Compare logits over block tables with ``expected``.

    Raises:
        ModelError: They differ by more than rounding.
    """
    runner, scheduler = _assemble(model, layout, options)
    try:
        running = []
        for number, tokens in enumerate(sequences):
            sequence = Sequence(
                request=RequestId(number), tokens=tokens[:-1], prompt_tokens=len(tokens) - 1, most_tokens=len(tokens)
            )
            running.append(sequence)
            scheduler.add(sequence)
        for step in range(2):
            schedule = scheduler.schedule()
            logits, places = runner.run(schedule)
            for row, place in enumerate(places):
                sequence = schedule.sequences[place]
                _compare(model, logits[row], expected[sequence.request][step], layout.shape.dtype)
                sequence.tokens.append(sequences[sequence.request][-1])
    finally:
        runner.close()


def _assemble(model: Any, layout: Layout, options: Options) -> tuple[Runner, Scheduler]:
    longest = max(_LENGTHS) + 2
    small = Options(
        max_num_seqs=len(_LENGTHS),
        max_num_batched_tokens=64,
        prefix_caching=False,
        attention=options.attention,
        linear=options.linear,
    )
    blocks = sum(len(_LENGTHS) * (-(-longest // group.block_tokens) + 1) for group in layout.groups.groups)
    pages = Pages(layout, blocks=blocks, device=model.device)
    scheduler = Scheduler(layout.groups, small, blocks=blocks, max_model_len=longest, store=pages)
    backend = choose_backend(small.attention, layout, pages, scheduler.tables)
    return Runner(model, layout, scheduler.tables, backend, linear=small.linear), scheduler


def _compare(model: Any, given: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    difference = float((given.float() - expected.float()).abs().mean() / expected.float().std().clamp_min(1e-30))
    if not difference <= _MOST_DIFFERENCE[dtype]:
        raise ModelError(
            f"attention over block tables does not give what the attention of `{type(model).__name__}` gives: logits "
            f"differ by {difference:.2g} of their spread, more than {_MOST_DIFFERENCE[dtype]}",
            hint="its layers mean more by their attention than they say; such a model is not paged here",
        )
