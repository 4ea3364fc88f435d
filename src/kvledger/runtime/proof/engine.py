"""The sides that kvledger's own engine runs: extents and block tables, with everything else the same."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from kvledger.errors import Error
from kvledger.runtime.engine import Engine
from kvledger.runtime.options import Generation, Options, Reservation
from kvledger.runtime.proof.side import Progress, Recorder, Side, Task, Way
from kvledger.units import agree, counted

__all__ = ["run_engine"]

_MOST_RUNNING = 256
"""vLLM's default; enough that memory, not the number of seats, is what requests wait for."""
_RESERVATIONS = {Way.MAX: Reservation.MAX, Way.EXACT: Reservation.DECLARED, Way.BLOCKS: Reservation.BLOCKS}


def run_engine(
    model: Any,
    tasks: Sequence[Task],
    way: Way,
    *,
    memory_bytes: int,
    max_model_len: int,
    block_size: int,
    progress: Progress = lambda _: None,
) -> Side:
    """Serve all tasks at once in ``memory_bytes`` of KV cache, and measure.

    A task that the engine refuses has no answer; when the engine cannot be made, the side has its error.
    """
    reservation = _RESERVATIONS[way]
    options = Options(
        reservation=reservation,
        prefix_caching=False,
        max_model_len=max_model_len,
        max_num_seqs=min(len(tasks), _MOST_RUNNING),
    )
    try:
        engine = Engine(model, memory_bytes, block_size=block_size if way is Way.BLOCKS else 1, options=options)
    except Error as error:
        return Side(way=way, capacity_bytes=0, error=error)
    try:
        _warm_up(engine)
        return _serve(engine, tasks, way, progress)
    finally:
        engine.close()


def _warm_up(engine: Engine) -> None:
    """Load the compiled kernels, which is not what is measured."""
    engine.generate([[0, 0]], Generation(max_tokens=2, ignore_eos=True))


def _serve(engine: Engine, tasks: Sequence[Task], way: Way, progress: Progress) -> Side:
    recorder = Recorder()
    before, begun = engine.tally.preemptions, perf_counter()
    asked: list[Any] = []
    for task in tasks:
        try:
            asked.append(engine.submit(task.prompt, Generation(max_tokens=task.output_tokens, ignore_eos=True)))
        except Error as error:
            asked.append(error)
    while not engine.is_idle:
        step = engine.step()
        recorder.add(
            step.ledger, running=step.running, waiting=step.waiting, refused=step.refused, seconds=step.seconds
        )
        recorder.count(prefill_tokens=step.prefill_tokens, decode_tokens=step.decode_sequences, seconds=step.seconds)
        progress(len(step.tokens))
    seconds = perf_counter() - begun
    answers: list[tuple[int, ...] | None] = []
    for number in asked:
        result = None if isinstance(number, Error) else engine.take(number)
        answers.append(result.token_ids if result is not None and result.error is None else None)
    side = recorder.side(way, capacity_bytes=engine.pages.nbytes, answers=answers, seconds=seconds)
    refused = [error for error in asked if isinstance(error, Error)]
    return _with(side, engine.tally.preemptions - before, refused)


def _with(side: Side, preemptions: int, refused: list[Error]) -> Side:
    from dataclasses import replace

    notes = (
        (
            f"{counted(len(refused), 'request')} {agree(len(refused), 'was', 'were')} refused; the first: "
            f"{refused[0].message}",
        )
        if refused
        else ()
    )
    return replace(side, preemptions=preemptions, notes=notes)
