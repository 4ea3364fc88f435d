"""Cells over an existing Ray cluster; Ray does the cells of a lost worker or node again."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from kvledger.errors import MissingExtra, SourceError
from kvledger.sweep.workers import MOST_LOSSES, Answer, Lost, Run

__all__ = ["run_on_ray"]

_AHEAD = 2
_KNOCK_SECONDS = 5.0


def run_on_ray(jobs: Sequence[bytes], run: Run, *, address: str) -> Iterator[tuple[int, Answer]]:
    """Yield the index and the answer of every job, in the order in which they are done.

    Args:
        jobs: What ``run`` is given.
        run: A function of a module that every node can import.
        address: Of the cluster: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.

    Raises:
        MissingExtra: Ray is not installed.
        SourceError: No cluster answers there.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtra.for_package("ray", extra="ray") from None
    _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from error
    try:
        yield from _run(ray, jobs, run)
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Knock before Ray does: it would try for minutes where nobody is."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> SourceError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return SourceError(
        f"no Ray cluster answers at `{address[:80]}`: {why[:200]}",
        hint="`ray start --head` prints the address; `auto` finds the cluster of this machine",
    )


def _run(ray: Any, jobs: Sequence[bytes], run: Run) -> Iterator[tuple[int, Answer]]:
    task = ray.remote(num_cpus=1, max_retries=MOST_LOSSES - 1)(run)
    most = max(1, _AHEAD * int(ray.cluster_resources().get("CPU", 1)))
    waiting = iter(range(len(jobs)))
    running: dict[Any, int] = {}
    while True:
        while len(running) < most and (index := next(waiting, None)) is not None:
            running[task.remote(jobs[index])] = index
        if not running:
            return
        ready, _ = ray.wait(list(running), num_returns=1)
        for reference in ready:
            index = running.pop(reference)
            try:
                answer: Answer = ray.get(reference)
            except ray.exceptions.RayError as error:
                answer = Lost(reason=f"Ray gave it up: {str(error).splitlines()[0][:200]}")
            yield index, answer
