"""Cells over processes of this machine: one at a time each; a lost process is replaced and its cell done again."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import cast

__all__ = ["MOST_LOSSES", "Answer", "Lost", "Run", "run_in_processes"]

MOST_LOSSES = 3
"""A cell whose worker was lost that often is given up: it takes its worker down."""

_GRACE_SECONDS = 2.0

Run = Callable[[bytes], bytes]
"""Does one cell; a function of a module, so that another process can find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A cell that was given up, and why."""

    reason: str


Answer = bytes | Lost


def run_in_processes(jobs: Sequence[bytes], run: Run, *, workers: int) -> Iterator[tuple[int, Answer]]:
    """Yield the index and the answer of every job, in the order in which they are done.

    The processes end with the iteration, however it ends, and with this process, however that ends.
    """
    waiting = deque(range(len(jobs)))
    losses = [0] * len(jobs)
    crew = [_Worker(run) for _ in range(min(workers, len(jobs)))]
    try:
        while waiting or any(worker.job is not None for worker in crew):
            for i, worker in enumerate(crew):
                if worker.job is None and waiting:
                    if worker.begin(waiting[0], jobs[waiting[0]]):
                        waiting.popleft()
                    else:  # it was lost while it had nothing to do
                        crew[i] = _replaced(worker, run)
            busy = {worker.connection: i for i, worker in enumerate(crew) if worker.job is not None}
            for ready in wait(list(busy)):
                i = busy[cast(Connection, ready)]
                job, answer = crew[i].take()
                if answer is not None:
                    yield job, answer
                    continue
                crew[i] = _replaced(crew[i], run)
                losses[job] += 1
                if losses[job] < MOST_LOSSES:
                    waiting.appendleft(job)
                else:
                    yield job, Lost(reason=f"its worker was lost {MOST_LOSSES} times, at last {crew[i].predecessor}")
    finally:
        for worker in crew:
            worker.stop()


class _Worker:
    """One process and the line to it."""

    def __init__(self, run: Run, *, predecessor: str = "") -> None:
        self.predecessor = predecessor
        """How the process ended whose place this one has taken."""
        context = get_context("spawn")  # a fork would copy the locks of the threads of Arrow and Numba
        self.connection, theirs = context.Pipe()
        self.job: int | None = None
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, run), daemon=True)
        self._process.start()
        theirs.close()  # so that the line breaks when the process ends

    def begin(self, job: int, payload: bytes) -> bool:
        """Give it a job; False when it is gone."""
        try:
            self.connection.send_bytes(payload)
        except OSError:
            return False
        self.job = job
        return True

    def take(self) -> tuple[int, bytes | None]:
        """Take its job and the answer to it; None when it is gone."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            return job, self.connection.recv_bytes()
        except (EOFError, OSError):
            return job, None

    def stop(self) -> str:
        """End the process, whatever it does, and say how it ended."""
        self.connection.close()
        self._process.join(timeout=_GRACE_SECONDS if self._process.exitcode is None and self.job is None else 0)
        self._process.terminate()
        self._process.join()
        code = self._process.exitcode or 0
        if code >= 0:
            return f"with exit code {code}"
        with suppress(ValueError):
            return f"by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
        return f"by signal {-code}"


def _replaced(worker: _Worker, run: Run) -> _Worker:
    return _Worker(run, predecessor=worker.stop())


def _serve(connection: Connection, run: Run) -> None:
    """Do jobs until the line breaks. An interruption is for the process at the other end to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(run(connection.recv_bytes()))
