"""Rows one at a time, gathered into batches for the builder."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from kvledger.traces.batch import Batch, Identity
from kvledger.traces.builder import WorkloadBuilder

__all__ = ["RowBuffer"]

_FLUSH_ROWS = 1 << 16
_FLUSH_IDS = 1 << 22


class RowBuffer:
    """Rows one at a time for a builder, handed over in batches.

    Args:
        timed: Whether rows have an arrival.
        sessions: Whether rows have a session.
        identified: Whether :meth:`identify` is called for rows.
        sampled: Whether rows say how many answers they have.
        observed: Whether rows come with moments of their first token and their end.
    """

    def __init__(
        self,
        builder: WorkloadBuilder,
        *,
        timed: bool = True,
        sessions: bool = False,
        identified: bool = False,
        sampled: bool = False,
        observed: bool = False,
    ) -> None:
        self._builder, self._sampled = builder, sampled
        self._timed, self._sessions, self._identified, self._observed = timed, sessions, identified, observed
        self._clear()

    def _clear(self) -> None:
        self._arrival, self._prompt, self._output = array("d"), array("d"), array("d")
        self._limit, self._session = array("d"), array("q")
        self._counts, self._ids, self._lengths = array("q"), array("q"), array("i")
        self._first, self._end = array("d"), array("d")
        self._samples, self._beams = array("d"), array("b")

    def add(
        self,
        prompt_tokens: object,
        output_tokens: object,
        *,
        arrival_seconds: object = None,
        max_tokens: object = None,
        session: int = -1,
        samples: object = None,
        searches: bool = False,
        moments: tuple[object, object] = (None, None),
    ) -> None:
        """Take one row; None, or what is no number, means missing. ``moments``: of the first token and of the end."""
        if len(self._prompt) >= _FLUSH_ROWS or len(self._ids) >= _FLUSH_IDS:
            self.flush()
        self._prompt.append(_float(prompt_tokens))
        self._output.append(_float(output_tokens))
        self._arrival.append(_float(arrival_seconds))
        self._limit.append(_float(max_tokens))
        self._session.append(session)
        self._counts.append(0)
        if self._sampled:
            self._samples.append(_float(samples))
            self._beams.append(searches)
        if self._observed:
            self._first.append(_float(moments[0]))
            self._end.append(_float(moments[1]))

    def identify(self, ids: Sequence[int], lengths: Iterable[int] | None = None) -> None:
        """Give the row just added its content ids."""
        self._counts[-1] = len(ids)
        self._ids.extend(ids)
        if lengths is not None:
            self._lengths.extend(lengths)

    def flush(self) -> None:
        """Hand what is buffered to the builder."""
        if not self._prompt:
            return
        identity = None
        if self._identified:
            identity = Identity(
                counts=np.array(self._counts, dtype=np.int64),
                ids=np.array(self._ids, dtype=np.int64),
                lengths=np.array(self._lengths, dtype=np.int32) if self._lengths else None,
            )
        self._builder.add(
            Batch(
                prompt_tokens=np.array(self._prompt),
                output_tokens=np.array(self._output),
                arrival_seconds=np.array(self._arrival) if self._timed else None,
                max_tokens=np.array(self._limit),
                session=np.array(self._session) if self._sessions else None,
                identity=identity,
                samples=np.array(self._samples) if self._sampled else None,
                beams=np.array(self._beams, dtype=np.bool_) if self._sampled else None,
                first_token_seconds=np.array(self._first) if self._observed else None,
                end_seconds=np.array(self._end) if self._observed else None,
            )
        )
        self._clear()


def _float(value: object) -> float:
    if isinstance(value, float | int | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    return math.nan
