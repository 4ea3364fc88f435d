"""From the options of ``prove`` to its report: loads the model, draws the prompts, runs one way after the other."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from kvledger.cli.answer import source_name
from kvledger.cli.running import progress_bar
from kvledger.errors import CapacityError, UsageError
from kvledger.report.prove import ProveReport
from kvledger.runtime.attention import load_transformers
from kvledger.runtime.load import Loaded, load_model
from kvledger.runtime.probe import find_token_bytes
from kvledger.runtime.proof import Agreement, Side, Task, Way, agree, run_engine, run_transformers
from kvledger.sources.files import load_trace
from kvledger.units import counted, parse_bytes

__all__ = ["Proof", "ProofQuestion", "serve_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofQuestion:
    """The options of ``prove``, as given."""

    model: str
    kv_memory: str
    max_model_len: int
    block_size: int
    ways: str
    trace: str
    requests: int
    seed: int
    dtype: str
    device: str
    threads: int | None


class Proof:
    """One run of all ways."""

    def __init__(self, question: ProofQuestion, *, quiet: bool) -> None:
        self._question = question
        self._quiet = quiet
        self._memory_bytes = parse_bytes(question.kv_memory)
        self._ways = _read_ways(question.ways)
        self._notes: list[str] = []

    def run(self) -> ProveReport:
        """Run everything and return the report.

        Raises:
            MissingExtra: torch, transformers or the demo's weights are not installed.
            SourceError: The model or the trace cannot be read.
            UsageError: An option cannot be understood.
            CapacityError: No request of the trace fits.
        """
        question = self._question
        trace = load_trace(_with_requests(question.trace, question.requests), seed=question.seed, identity=False)
        loaded = _load(question, quiet=self._quiet)
        import torch

        if question.threads:
            torch.set_num_threads(question.threads)
        longest = self._longest(loaded.model)
        tasks = self._tasks(trace.workload, loaded.model, longest)
        token_bytes = self._price(loaded.model, longest)
        sides = [self._run_way(way, loaded, tasks, token_bytes, longest) for way in self._ways]
        return ProveReport(
            model=loaded.name,
            dtype=question.dtype,
            threads=torch.get_num_threads(),
            trace=source_name(question.trace),
            requests=len(tasks),
            prompt_tokens=sum(len(task.prompt) for task in tasks),
            output_tokens=sum(task.output_tokens for task in tasks),
            memory_bytes=self._memory_bytes,
            token_bytes=token_bytes,
            max_model_len=longest,
            block_size=question.block_size,
            sides=sides,
            agreements=_compare(loaded.model, tasks, sides),
            versions=_versions(),
            notes=(*(note for note in trace.notes if not note.startswith("arrivals")), *self._notes),
        )

    def _longest(self, model: Any) -> int:
        own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if own is not None and self._question.max_model_len > own:
            self._notes.append(f"max_model_len is the model's own {own:,}, not {self._question.max_model_len:,}")
            return int(own)
        return self._question.max_model_len

    def _tasks(self, workload: Any, model: Any, longest: int) -> list[Task]:
        """Draw prompts of random tokens with the lengths of a trace; what is too long is cut and said."""
        random = np.random.default_rng(self._question.seed)
        vocabulary = int(model.get_input_embeddings().num_embeddings)
        tasks, cut = [], 0
        for prompt, output in zip(
            workload.prompt_tokens[: self._question.requests].tolist(),
            workload.output_tokens[: self._question.requests].tolist(),
            strict=True,
        ):
            kept = min(prompt, longest - 1)
            answer = min(output, longest - kept)
            cut += (kept, answer) != (prompt, output)
            tasks.append(Task(prompt=tuple(random.integers(0, vocabulary, kept).tolist()), output_tokens=answer))
        if cut:
            self._notes.append(f"{counted(cut, 'request')} cut to {counted(longest, 'token')}")
        self._notes.append(f"prompts are random tokens, drawn with seed {self._question.seed}")
        return tasks

    def _price(self, model: Any, longest: int) -> int:
        """Return the bytes of one token in all layers, as the layers ask for them."""
        price = find_token_bytes(model, max_model_len=longest)
        if self._memory_bytes < price:
            raise CapacityError(f"{self._memory_bytes} bytes hold no token of {price} bytes", hint="give more memory")
        return price

    def _run_way(self, way: Way, loaded: Loaded, tasks: list[Task], token_bytes: int, longest: int) -> Side:
        total = sum(task.output_tokens for task in tasks)
        with progress_bar(str(way), total, quiet=self._quiet) as bar:
            progress = _Sum(bar)
            if way.is_own:
                return run_transformers(
                    loaded.model,
                    tasks,
                    way,
                    memory_bytes=self._memory_bytes,
                    token_bytes=token_bytes,
                    max_model_len=longest,
                    progress=progress,
                )
            return run_engine(
                loaded.model,
                tasks,
                way,
                memory_bytes=self._memory_bytes,
                max_model_len=longest,
                block_size=self._question.block_size,
                progress=progress,
            )


class _Sum:
    """Adds up tokens for a bar that wants the count reached."""

    def __init__(self, bar: Callable[[int], None] | None) -> None:
        self._bar = bar
        self._reached = 0

    def __call__(self, tokens: int) -> None:
        self._reached += tokens
        if self._bar is not None:
            self._bar(self._reached)


def serve_model(question: ProofQuestion, *, host: str, port: int, quiet: bool) -> None:
    """Serve a model from block tables until SIGINT or SIGTERM.

    Raises:
        MissingExtra: torch, transformers, starlette or uvicorn is not installed.
        SourceError: The model cannot be read, or the address not listened on.
        CapacityError: The memory is too small.
    """
    from kvledger.runtime.engine import Engine
    from kvledger.runtime.options import Options
    from kvledger.runtime.serve import serve

    memory_bytes = parse_bytes(question.kv_memory)
    loaded = _load(question, quiet=quiet)
    if question.threads:
        import torch

        torch.set_num_threads(question.threads)
    own = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    longest = min(question.max_model_len, own or question.max_model_len)
    engine = Engine(
        loaded.model,
        memory_bytes,
        block_size=question.block_size,
        tokenizer=loaded.tokenizer,
        options=Options(max_model_len=longest),
    )

    name = loaded.plain_name
    shown = loaded.name if name == loaded.name else f"{loaded.name} as `{name}`"

    def announce(address: str) -> None:
        if not quiet:
            click.echo(f"serving {shown} on {address}; kvledger watch {address}", err=True)

    try:
        serve(engine, model_name=name, host=host, port=port, ready=announce)
    finally:
        engine.close()


def _load(question: ProofQuestion, *, quiet: bool) -> Loaded:
    """Load the model; Transformers draws its bars only where ours are drawn."""
    if quiet or not sys.stderr.isatty():
        before = os.environ.get("TQDM_DISABLE")
        os.environ["TQDM_DISABLE"] = "1"  # tqdm reads it when it is imported, which Transformers does
        try:
            load_transformers()
        finally:
            if before is None:
                del os.environ["TQDM_DISABLE"]
            else:
                os.environ["TQDM_DISABLE"] = before
    return load_model(question.model, dtype=question.dtype, device=question.device)


def _read_ways(text: str) -> list[Way]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in list(Way)]
    if unknown or not names:
        raise UsageError(
            f"`{unknown[0] if unknown else text}` is no way to hold the cache", hint=f"the ways are {', '.join(Way)}"
        )
    return [Way(name) for name in dict.fromkeys(names)]


def _with_requests(trace: str, requests: int) -> str:
    """Return the description of a synthetic workload of that many requests; a trace as it is."""
    if trace.startswith("synthetic:") and "requests=" not in trace:
        return f"{trace},requests={requests}"
    return trace


def _compare(model: Any, tasks: list[Task], sides: list[Side]) -> dict[Way, Agreement]:
    """Compare every side with the first that answered, which is Transformers' own where it ran."""
    done = [side for side in sides if side.answers]
    reference = next((side for side in done if side.way.is_own), done[0] if done else None)
    if reference is None:
        return {}
    return {side.way: agree(model, tasks, reference, side) for side in done if side is not reference}


def _versions() -> dict[str, str]:
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }
