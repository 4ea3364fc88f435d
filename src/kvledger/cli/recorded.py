"""A replay of a recording: the server's own limits and pool where none are given, and a warning where others are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.core import ParameterSource

from kvledger.sources.recordings import is_recording
from kvledger.units import counted

if TYPE_CHECKING:
    import click

    from kvledger.cli.question import Question
    from kvledger.replay.settings import Pool
    from kvledger.traces.served import Served

__all__ = ["OF_RECORDING", "WARNING", "as_recorded", "clock_source", "find_defaulted", "is_recorded", "warnings_of"]

OF_RECORDING = "the recorded server's"
WARNING = "warning: "
_SETTINGS = (("max_model_len", "max_model_len"), ("block_size", "block_tokens"), ("max_num_seqs", "max_num_seqs"))
"""Option, and what a recording calls it."""


def find_defaulted(context: click.Context) -> frozenset[str]:
    """Return the options that were not given on the command line."""
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE
    )


def is_recorded(question: Question) -> bool:
    """Tell whether the trace of a question is a recording, whose server may tell what was not given."""
    return question.defaulted is not None and "\0" not in question.trace and is_recording(Path(question.trace))


def as_recorded(question: Question, served: Served | None) -> tuple[Question, tuple[str, ...]]:
    """Fill what was not given with what the recording tells of its server, and say which values came from there."""
    if served is None or question.defaulted is None:
        return question, ()
    told = {
        option: value
        for option, field in _SETTINGS
        if option in question.defaulted and (value := getattr(served, field)) is not None
    }
    said = [f"{option} {value:,}" for option, value in told.items()]
    new: dict[str, Any] = dict(told)
    has_pool = (question.memory, question.capacity_tokens, question.num_blocks) != (None, None, None)
    if not has_pool and served.usable_tokens is not None:
        new["capacity_tokens"] = served.usable_tokens
        said.append(f"a pool of {served.usable_tokens:,} tokens ({served.usable_blocks:,} usable blocks)")
    if question.clock is None and served.step_seconds is not None:
        new["clock"] = f"{served.step_seconds:.4g},0,0,0"
        said.append(f"a step of {1000 * served.step_seconds:.4g} ms, the mean time between two tokens")
    notes = [f"as recorded: {', '.join(said)}"] if said else []
    limits = ("max_model_len", "max_num_seqs")
    unsaid = [name for name in limits if name in question.defaulted and getattr(served, name) is None]
    if unsaid:
        options = " and ".join("--" + name.replace("_", "-") for name in unsaid)
        notes.append(f"the recording does not tell {', '.join(unsaid)} of its server: give {options} as it was started")
    return replace(question, **new), tuple(notes)


def clock_source(question: Question, name: str) -> str:
    """Return what the clock is called: ``name``, or where it was taken from."""
    is_taken = question.clock is not None and "clock" in (question.defaulted or ())
    return "mean time between two tokens in the recording" if is_taken else name


def warnings_of(question: Question, served: Served | None, pool: Pool) -> tuple[str, ...]:
    """Warn of every given option that makes the replayed server another one than the recorded."""
    if served is None or question.defaulted is None:
        return ()
    differs = []
    for option, field in _SETTINGS:
        asked, was = getattr(question, option), getattr(served, field)
        if option not in question.defaulted and was is not None and asked != was:
            differs.append(f"--{option.replace('_', '-')} {asked:,} (recorded: {was:,})")
    tokens = _tokens_of(pool)
    if served.usable_tokens is not None and tokens != served.usable_tokens:
        was = f"{served.usable_tokens:,} in {served.usable_blocks:,} usable blocks"
        differs.append(f"a pool of {counted(tokens, 'token')} (recorded: {was})")
    return (f"{WARNING}this is not the server that was recorded: {', '.join(differs)}",) if differs else ()


def _tokens_of(pool: Pool) -> int:
    if pool.memory_bytes is not None:
        return pool.memory_bytes // pool.bytes_per_token
    if pool.capacity_tokens is not None:
        return pool.capacity_tokens
    return (pool.num_blocks or 0) * (pool.block_size or 1)
