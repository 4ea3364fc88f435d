"""The sides that Transformers runs itself: batches of `generate`, and `generate_batch`; measured, not imitated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvledger.errors import CapacityError, Error, ModelError
from kvledger.ledger import Ledger
from kvledger.runtime.books import Row, find_cache, take_ledger, take_paged_ledger
from kvledger.runtime.proof.side import Progress, Recorder, Side, Task, Way
from kvledger.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["run_transformers"]

_PAGE_TOKENS = 256
_MOST_BATCH_TOKENS = 2048


def run_transformers(
    model: Any,
    tasks: Sequence[Task],
    way: Way,
    *,
    memory_bytes: int,
    token_bytes: int,
    max_model_len: int,
    progress: Progress = lambda _: None,
) -> Side:
    """Run all tasks through Transformers' own loop in ``memory_bytes`` of KV cache, and measure the tensors it holds.

    ``token_bytes`` are those of one token in all layers that keep it. A way that this version of Transformers does not
    have, or that does not fit, has its error.
    """
    try:
        match way:
            case Way.GENERATE_STATIC:
                row_tokens = max_model_len
            case Way.GENERATE_DYNAMIC:
                row_tokens = max(len(task.prompt) for task in tasks) + max(task.output_tokens for task in tasks)
            case _:
                return _run_generate_batch(model, tasks, memory_bytes, token_bytes, progress)
        rows = memory_bytes // (row_tokens * token_bytes)
        if rows < 1:
            raise CapacityError(
                f"{memory_bytes} bytes hold no row of {counted(row_tokens, 'token')} of {token_bytes} bytes each",
                hint="give more memory, or a smaller max_model_len",
            )
        return _run_batches(model, tasks, way, min(rows, len(tasks)), memory_bytes, max_model_len, progress)
    except Error as error:
        return Side(way=way, capacity_bytes=0, error=error)


def _run_batches(
    model: Any,
    tasks: Sequence[Task],
    way: Way,
    rows: int,
    memory_bytes: int,
    max_model_len: int,
    progress: Progress,
) -> Side:
    watch = _Batches(memory_bytes, progress)
    hooks = [
        model.register_forward_pre_hook(watch.begin, with_kwargs=True),
        model.register_forward_hook(watch.end, with_kwargs=True),
    ]
    answers: list[tuple[int, ...] | None] = []
    begun = perf_counter()
    try:
        for first in range(0, len(tasks), rows):
            batch = tasks[first : first + rows]
            watch.start(batch, waiting=len(tasks) - first - len(batch))
            answers += _generate(model, batch, way, max_model_len)
    finally:
        for hook in hooks:
            hook.remove()
    seconds = perf_counter() - begun
    return watch.recorder.side(way, capacity_bytes=memory_bytes, answers=answers, seconds=seconds)


def _generate(model: Any, batch: Sequence[Task], way: Way, max_model_len: int) -> list[tuple[int, ...]]:
    """Return the answers of one batch of `generate`, padded on the left, that runs until its longest row ends."""
    import torch
    from transformers import StaticCache, StoppingCriteria, StoppingCriteriaList

    longest = max(len(task.prompt) for task in batch)
    limits = torch.tensor([task.output_tokens for task in batch], device=model.device)

    class RowLengths(StoppingCriteria):  # type: ignore[misc]
        """Ends each row at its own length, as an end-of-sequence token would."""

        def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
            return limits <= input_ids.shape[1] - longest

    tokens = torch.tensor([[0] * (longest - len(task.prompt)) + list(task.prompt) for task in batch])
    mask = torch.tensor([[0] * (longest - len(task.prompt)) + [1] * len(task.prompt) for task in batch])
    settings: dict[str, Any] = {}
    if way is Way.GENERATE_STATIC:
        name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        settings[name] = StaticCache(config=model.config, max_cache_len=max_model_len)
    answer = model.generate(
        tokens.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=int(limits.max()),
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([RowLengths()]),
        disable_compile=True,
        **settings,
    )
    rows = answer[:, longest:].tolist()
    return [tuple(row[: task.output_tokens]) for row, task in zip(rows, batch, strict=True)]


class _Batches:
    """The hooks around the forwards of `generate`: forward ``k`` of a batch makes the token ``k + 1`` of every row."""

    def __init__(self, memory_bytes: int, progress: Progress) -> None:
        self.recorder = Recorder()
        self._memory_bytes = memory_bytes
        self._progress = progress
        self._batch: Sequence[Task] = ()
        self._waiting = 0
        self._forward = 0
        self._begun = 0.0

    def start(self, batch: Sequence[Task], *, waiting: int) -> None:
        self._batch, self._waiting, self._forward = batch, waiting, 0

    def begin(self, _module: Any, _args: Any, _kwargs: Any) -> None:
        self._begun = perf_counter()

    def end(self, _module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
        seconds, k = perf_counter() - self._begun, self._forward
        rows = [Row(tokens=len(t.prompt) + k, ended=k >= t.output_tokens) for t in self._batch]
        running = sum(not row.ended for row in rows)
        held = take_ledger(find_cache(output), rows)
        ledger = within(held, self._memory_bytes)
        self.recorder.add(ledger, running=running, waiting=self._waiting, refused=True, seconds=seconds)
        prefill = sum(len(task.prompt) for task in self._batch) if k == 0 else 0
        self.recorder.count(prefill_tokens=prefill, decode_tokens=running, seconds=seconds)
        self._progress(running)
        self._forward += 1


def within(held: Ledger, memory_bytes: int) -> Ledger:
    """Return the ledger of a pool of ``memory_bytes`` in which a cache holds what its ledger says.

    Raises:
        CapacityError: The cache holds more than the pool has.
    """
    if held.capacity > memory_bytes:
        raise CapacityError(
            f"the cache grew to {held.capacity} bytes, and the memory is {memory_bytes}",
            hint="give more memory, or shorter requests",
        )
    return replace(held, capacity=memory_bytes, free=held.free + memory_bytes - held.capacity).check()


def _run_generate_batch(
    model: Any, tasks: Sequence[Task], memory_bytes: int, token_bytes: int, progress: Progress
) -> Side:
    """Run Transformers' continuous batching; each answer ends at its own length because each is asked for it."""
    from transformers import GenerationConfig

    try:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
    except ImportError:
        raise ModelError(
            "this version of Transformers has no `ContinuousBatchingConfig`", hint="upgrade transformers"
        ) from None
    blocks = memory_bytes // (_PAGE_TOKENS * token_bytes) - 2  # two of its sectors are never given out
    if blocks < 1:
        raise CapacityError(
            f"{memory_bytes} bytes hold no page of {_PAGE_TOKENS} tokens beside the two that Transformers keeps back",
            hint="give more memory",
        )
    watch = _Paged(progress, len(tasks))
    hooks = [
        model.register_forward_pre_hook(watch.begin, with_kwargs=True),
        model.register_forward_hook(watch.end, with_kwargs=True),
    ]
    setting = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    paging = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=_MOST_BATCH_TOKENS)
    try:
        with model.continuous_batching_context_manager(
            generation_config=setting, continuous_batching_config=paging, timeout=5
        ) as manager:
            begun = perf_counter()
            for number, task in enumerate(tasks):
                manager.add_request(list(task.prompt), request_id=str(number), max_new_tokens=task.output_tokens)
            results = _collect(manager, watch, len(tasks))
            seconds = perf_counter() - begun
    finally:
        for hook in hooks:
            hook.remove()
    answers = [results.get(str(number)) for number in range(len(tasks))]
    side = watch.recorder.side(
        Way.GENERATE_BATCH, capacity_bytes=watch.capacity_bytes, answers=answers, seconds=seconds
    )
    return replace(side, notes=tuple(watch.notes))


def _collect(manager: Any, watch: _Paged, count: int) -> dict[str, tuple[int, ...] | None]:
    """Return the tokens of every request; None for one that failed, and nothing for those after the loop has died."""
    results: dict[str, tuple[int, ...] | None] = {}
    while len(results) < count:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            results[result.request_id] = None if result.error else tuple(result.generated_tokens)
            watch.finished = len(results)
        elif result is None and not manager.is_running():
            watch.notes["its thread ended before all requests had"] = None
            break
    return results


class _Paged:
    """The hooks around the forwards of `generate_batch`, in the thread that it runs in."""

    def __init__(self, progress: Progress, tasks: int) -> None:
        self.recorder = Recorder()
        self.capacity_bytes = 0
        self.notes: dict[str, None] = {}
        self.finished = 0
        self._progress = progress
        self._tasks = tasks
        self._begun = 0.0

    def begin(self, _module: Any, _args: Any, _kwargs: Any) -> None:
        self._begun = perf_counter()

    def end(self, _module: Any, _args: Any, kwargs: dict[str, Any], _output: Any) -> None:
        seconds = perf_counter() - self._begun
        ledger, sequences = None, 0
        try:
            ledger, sequences = take_paged_ledger(kwargs)
            self.capacity_bytes = ledger.capacity
        except ModelError as error:
            self.notes[f"its ledger was not seen: {error.message}"] = None
        waiting = max(0, self._tasks - self.finished - sequences)
        fed = kwargs["cu_seq_lens_q"].diff()
        refused = int(fed.sum()) < _MOST_BATCH_TOKENS  # else the forward was full, and they wait for the next
        self.recorder.add(ledger, running=sequences, waiting=waiting, refused=refused, seconds=seconds)
        decodes = int((fed == 1).sum())
        self.recorder.count(prefill_tokens=int(fed.sum()) - decodes, decode_tokens=decodes, seconds=seconds)
        self._progress(sequences)
