"""Running replays from the command line: the compiler's first run, progress, and interruption."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from kvledger.pool.policy import Kind, Policy
from kvledger.replay.samples import shares_forks
from kvledger.replay.workload import Workload
from kvledger.sources.kernels import KernelCache

__all__ = ["KernelNotice", "progress_bar"]


class KernelNotice:
    """Says once on stderr when kernels are about to be compiled, which takes seconds at first use."""

    def __init__(self, *, quiet: bool) -> None:
        self._cache = KernelCache()
        self._cache.activate()
        self.quiet = self._quiet = quiet

    @contextmanager
    def around(self, policy: Policy, workload: Workload | None = None) -> Iterator[None]:
        """Announce the compilation of what ``policy`` needs for ``workload``, if it was never compiled here."""
        several = workload is not None and workload.samples is not None
        with self.compiling(_kernel_of(policy, several=several)):
            yield

    @contextmanager
    def compiling(self, kernel: str) -> Iterator[None]:
        """Announce the compilation of ``kernel``, if it was never compiled here."""
        first = not self._cache.holds(kernel)
        if first and not self._quiet:
            click.echo("compiling the replay kernels, once (about 10 s) ...", err=True)
        began = time.perf_counter()
        yield
        if first:
            self._cache.note(kernel)
            if not self._quiet:
                click.echo(f"compiled and ran in {time.perf_counter() - began:.1f} s", err=True)


def _kernel_of(policy: Policy, *, several: bool) -> str:
    if policy.swaps or (several and shares_forks(policy)):
        return "forks"
    if policy.block_groups is not None:
        return "groups"
    if policy.pools_apart is not None:
        return "pools"
    if policy.is_radix:
        return "radix"
    if policy.caches:
        return "prefix"
    if policy.kind is Kind.GROW and policy.segments:
        return "segments"
    return "static" if policy.kind is Kind.STATIC_BATCH else "loop"


@contextmanager
def progress_bar(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on stderr when it is a terminal; yields what to call with the count reached."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=False) as progress:
        task = progress.add_task(title, total=total, visible=False)
        began = time.perf_counter()

        def advance(reached: int) -> None:
            progress.update(task, completed=reached, visible=time.perf_counter() - began > 0.5)

        yield advance
