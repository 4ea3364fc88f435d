"""One benchmark: what is run and how often, and its row of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RUNS = 7


@dataclass(frozen=True)
class Benchmark:
    """What is run, how its figure is written, and what it is meant to reach."""

    run: Callable[[], float]
    figure: Callable[[float], str]
    target: str
    runs: int = RUNS


def run_benchmark(name: str, benchmark: Benchmark) -> str:
    """Run one benchmark and return its row of the table."""
    try:
        figures = [benchmark.run() for _ in range(benchmark.runs)]
    except FileNotFoundError as missing:
        return f"| {name} | skipped: {Path(str(missing)).name} is not here | | {benchmark.target} |"
    every = ", ".join(benchmark.figure(value) for value in figures)
    return f"| {name} | **{benchmark.figure(statistics.median(figures))}** | {every} | {benchmark.target} |"
