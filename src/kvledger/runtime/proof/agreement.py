"""Whether two ways gave the same tokens, and honestly so: near ties may fall either way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvledger.runtime.proof.side import Side, Task

__all__ = ["TOLERANCES", "Agreement", "agree"]

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""Logits that are closer than this are a tie: sums in another order differ by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Answers compared: ``same`` to the last token, parted at a ``tie``, or parted without one (``different``)."""

    same: int = 0
    tie: int = 0
    different: int = 0
    missing: int = 0
    """Answers that one of the two does not have."""


def agree(model: Any, tasks: Sequence[Task], reference: Side, other: Side) -> Agreement:
    """Compare the answers of two sides token by token.

    Where two greedy answers part, everything after is in another context. There the model is asked itself: if its own
    logits of both tokens are within the tolerance, rounding has decided, and it counts as a tie.
    """
    counts = {"same": 0, "tie": 0, "different": 0, "missing": 0}
    for task, theirs, ours in zip(tasks, reference.answers, other.answers, strict=True):
        if theirs is None or ours is None or len(theirs) != len(ours):
            counts["missing"] += 1
            continue
        parted = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b), None)
        if parted is None:
            counts["same"] += 1
        else:
            tied = _is_tie(model, [*task.prompt, *theirs[:parted]], theirs[parted], ours[parted])
            counts["tie" if tied else "different"] += 1
    return Agreement(**counts)


def _is_tie(model: Any, context: list[int], first: int, second: int) -> bool:
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([context], device=model.device)).logits[0, -1].float()
    tolerance = TOLERANCES.get(str(model.dtype).removeprefix("torch."), 0.0)
    return bool(abs(float(logits[first] - logits[second])) <= tolerance)
