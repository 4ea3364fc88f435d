"""vLLM's own scheduler, drawing up its ledger: ``vllm serve ... --scheduler-cls`` with the name of this class.

The scheduler lives in the engine-core process, where the block tables are; statistics that reach the front end hold
only sums. The class vLLM would have chosen does all the work. After each step, when vLLM has just taken its own
statistics, the ledger is drawn up if it is due. Whatever goes wrong in that is logged once and ends the ledgers, never
the server. Tried with vLLM 0.32.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvledger.live.journal import FOLDER_VARIABLE, Journal
from kvledger.live.vllm_state import is_ahead, read_model, read_pool, read_state
from kvledger.measure.inside import InsideReading, draw_inside
from kvledger.report.measure_inside import InsideMoment, inside_json, inside_line

__all__ = ["LedgerScheduler", "SchedulerLedger"]

EVERY_VARIABLE = "KVLEDGER_VLLM_EVERY"
REQUESTS_VARIABLE = "KVLEDGER_VLLM_REQUESTS"
_EVERY_SECONDS = 1.0
_LOG_SECONDS = 10.0
_LOGGER = logging.getLogger("vllm.kvledger")


class LedgerScheduler:
    """Makes the scheduler that vLLM would have made, with a ledger."""

    def __new__(cls, vllm_config: Any, *args: Any, **options: Any) -> Any:
        """Return a scheduler of vLLM's own class (asynchronous or not) that also draws up its ledger."""
        base = _find_base(vllm_config)
        made = type("LedgerScheduler", (_Watched, base), {})
        return made(vllm_config, *args, **options)


def _find_base(vllm_config: Any) -> type:
    """Ask vLLM which class it takes when none is named."""
    unnamed = copy.copy(vllm_config.scheduler_config)
    unnamed.scheduler_cls = None
    found: type = unnamed.get_scheduler_cls()
    return found


class _Watched:
    """Stands before vLLM's class and looks on; every method does what the class does, and then its own."""

    _kvledger: SchedulerLedger | None

    def __init__(self, vllm_config: Any, *args: Any, **options: Any) -> None:
        super().__init__(vllm_config, *args, **options)  # type: ignore[call-arg]
        self._kvledger = None
        try:
            index = int(getattr(vllm_config.parallel_config, "data_parallel_index", 0) or 0)
            self._kvledger = SchedulerLedger(self, engine=index, environment=os.environ)
        except Exception:
            _LOGGER.exception("kvledger draws up no ledger: the scheduler is not as expected")

    def update_from_output(self, *args: Any, **options: Any) -> Any:
        outputs = super().update_from_output(*args, **options)  # type: ignore[misc]
        if self._kvledger is not None:
            self._kvledger.step(outputs)
        return outputs

    def finish_requests(self, *args: Any, **options: Any) -> Any:
        finished = super().finish_requests(*args, **options)  # type: ignore[misc]
        if self._kvledger is not None:
            self._kvledger.leave()
        return finished

    def shutdown(self) -> Any:
        if self._kvledger is not None:
            self._kvledger.close()
        return super().shutdown()  # type: ignore[misc]


class SchedulerLedger:
    """Draws up the ledger of one scheduler when it is due; no method raises."""

    def __init__(self, scheduler: Any, *, engine: int, environment: Mapping[str, str]) -> None:
        self._scheduler, self._engine = scheduler, engine
        self._pool = read_pool(scheduler)
        self._model, self._is_ahead = read_model(scheduler), is_ahead(scheduler)
        self._every = _read_seconds(environment.get(EVERY_VARIABLE, ""))
        self._with_requests = environment.get(REQUESTS_VARIABLE, "") == "1"
        folder = environment.get(FOLDER_VARIABLE, "")
        self._journal = Journal(Path(folder), engine) if folder else None
        self._steps = self._emitting_steps = self._generated = 0
        self._due = self._log_due = 0.0
        self._was_busy = False
        self._is_broken = False

    def step(self, outputs: Mapping[int, Any]) -> None:
        """Count what one step has handed out; draw up the ledger at intervals, and when the last request has left."""
        self._look_on(outputs)

    def leave(self) -> None:
        """Draw up the ledger when the last request has left with its client: no step may follow for long."""
        self._look_on(None)

    def _look_on(self, outputs: Mapping[int, Any] | None) -> None:
        if self._is_broken:
            return
        try:
            if outputs is not None:
                self._count(outputs)
            now, is_busy = time.monotonic(), bool(self._scheduler.running)
            is_due = outputs is not None and now >= self._due
            if is_due or (self._was_busy and not is_busy):
                self._draw(now)
            self._was_busy = is_busy
        except Exception:
            self._is_broken = True
            _LOGGER.exception("kvledger draws up no more ledgers")

    def _count(self, outputs: Mapping[int, Any]) -> None:
        self._steps += 1
        emitted = [len(output.new_token_ids) for batch in outputs.values() for output in batch.outputs]
        self._generated += sum(emitted)
        self._emitting_steps += bool(emitted)

    def close(self) -> None:
        """Write what is left."""
        if self._journal is not None:
            self._journal.close()

    def _draw(self, now: float) -> None:
        to_log = now >= self._log_due and bool(self._scheduler.running)
        self._due = now + self._every
        if self._journal is None and not to_log:
            return
        reading = draw_inside(self._pool, read_state(self._scheduler))
        if self._journal is not None:
            self._journal.write(self._write(reading, self._journal.dropped))
        if to_log:
            self._log_due = now + _LOG_SECONDS
            _LOGGER.info(inside_line(self._engine, reading))

    def _write(self, reading: InsideReading, dropped: int) -> str:
        moment = InsideMoment(
            seconds=time.time(),
            engine=self._engine,
            model=self._model,
            block_tokens=self._pool.block_tokens,
            is_ahead=self._is_ahead,
            step=self._steps,
            emitting_steps=self._emitting_steps,
            generated_tokens=self._generated,
            dropped=dropped,
        )
        return json.dumps(inside_json(moment, reading, with_requests=self._with_requests), separators=(",", ":"))


def _read_seconds(text: str) -> float:
    try:
        seconds = float(text) if text else _EVERY_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        _LOGGER.warning("%s is no time in seconds from 0 to 86400: a ledger is drawn up every second", EVERY_VARIABLE)
        return _EVERY_SECONDS
    return seconds
