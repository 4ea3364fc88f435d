"""Sending steps through the model, and what the model says of itself: its vocabulary, its ends, its length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvledger.errors import CapacityError, UsageError
from kvledger.pool.groups import BlockGroups
from kvledger.runtime.attention import call_model
from kvledger.runtime.backends import Backend
from kvledger.runtime.batch import pack
from kvledger.runtime.layout import Layout
from kvledger.runtime.options import Generation, Linear, Options
from kvledger.runtime.scheduler import Schedule
from kvledger.runtime.tables import BlockTables
from kvledger.runtime.ways import choose_ways

if TYPE_CHECKING:
    import torch

__all__ = ["Runner", "find_longest"]


class Runner:
    """A model with the tables and the memory its attention reads."""

    def __init__(
        self, model: Any, layout: Layout, tables: BlockTables, backend: Backend, *, linear: Linear = Linear.AUTO
    ) -> None:
        if model.training:
            raise UsageError("the model is in training mode, where dropout is drawn", hint="call model.eval() first")
        self.model = model
        self.layout = layout
        self.tables = tables
        self.backend = backend
        self._ways = choose_ways(linear, model, backend.team)
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)
        ends = getattr(model.generation_config, "eos_token_id", None)
        if ends is None:
            ends = getattr(model.config.get_text_config(), "eos_token_id", None)
        self._ends = frozenset([ends] if isinstance(ends, int) else ends or ())

    def run(self, schedule: Schedule) -> tuple[torch.Tensor, list[int]]:
        """Compute a step (mutates the blocks); return logits (rows, vocabulary), and the sequences they belong to."""
        import torch

        with torch.inference_mode(), self._ways:
            batch = pack(schedule, self.tables, self.layout, self.backend, self.model.device)
            logits = call_model(self.model, batch, batch.tokens, batch.positions, batch.kept)
        batch.check_attended()
        return logits, batch.sampling

    def find_likeliest(self, logits: torch.Tensor) -> tuple[list[int], list[bool]]:
        """Return the likeliest token of each row, and whether the row holds numbers."""
        import torch

        if not len(logits):
            return [], []
        team = self.backend.team
        if team is None or logits.dtype is not torch.float32 or not logits.is_contiguous():
            values, tokens = logits.max(-1)
        else:
            from kvledger.runtime._rows import find_likeliest

            values, tokens = logits.new_empty(len(logits)), logits.new_empty(len(logits), dtype=torch.int64)
            lie = logits.data_ptr(), tokens.data_ptr(), values.data_ptr()
            team.run(find_likeliest, *logits.shape, *lie, numbers=logits.numel())
        return tokens.tolist(), torch.isfinite(values).tolist()

    def close(self) -> None:
        """Let go of threads (mutates)."""
        self.backend.close()

    def stop_ids(self, generation: Generation) -> frozenset[int]:
        """Return the tokens that end an answer."""
        return frozenset(generation.stop_token_ids) | (frozenset() if generation.ignore_eos else self._ends)

    def check_tokens(self, tokens: list[int]) -> None:
        """Refuse an empty prompt, and what is no token of the model.

        Raises:
            UsageError: It is named.
        """
        if not tokens:
            raise UsageError("the prompt has no tokens", hint="begin it with the model's first token, or with any text")
        if min(tokens) < 0 or max(tokens) >= self.vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < self.vocabulary)
            raise UsageError(f"token {wrong} is not one of the model's {self.vocabulary}")


def find_longest(model: Any, options: Options, groups: BlockGroups, blocks: int) -> int:
    """Return the longest sequence that is served: what was asked, or what the model and the pool allow.

    Raises:
        UsageError: More was asked than the model has positions for.
        CapacityError: The pool serves no sequence of two tokens.
    """
    own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    asked = options.max_model_len
    if asked is not None:
        if own is not None and asked > own:
            raise UsageError(f"max_model_len is {asked}, and the model has positions for {own} tokens")
        return asked
    most = own or 2**20
    for _ in range(64):
        served = groups.most_tokens(blocks, in_flight_tokens=options.max_num_batched_tokens, max_model_len=most) + 1
        if served >= most:
            break
        most = served
    if most < 2:
        raise CapacityError(
            f"{blocks} blocks of {groups.block_bytes} bytes serve no sequence of two tokens",
            hint="give more kv_memory, or a smaller block_size",
        )
    return most
