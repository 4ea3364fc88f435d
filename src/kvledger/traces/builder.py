"""Rows become a workload: one place where every reader's rows are judged, counted, sorted and packed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.pool.policy import MOST_SAMPLES
from kvledger.replay.observed import Observed
from kvledger.replay.workload import Beams, Content, SharedPrefix, Workload
from kvledger.traces.batch import Batch, Identity, IdentityKind
from kvledger.traces.growing import GrowingColumn
from kvledger.traces.record import Trace, TraceAccuracy, TraceFormat
from kvledger.units import counted

__all__ = ["MAX_LENGTH_TOKENS", "WorkloadBuilder"]

MAX_LENGTH_TOKENS = 100_000_000
"""Longest prompt, output or limit that is believed."""
MAX_ROWS = 200_000_000
MAX_IDS = 1 << 28
_MAX_SECONDS = 1e10
_PIECE = 1 << 20

_Floats = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)


class _Columns:
    def __init__(self) -> None:
        self.arrival = GrowingColumn(np.float64)
        self.prompt = GrowingColumn(np.int32)
        self.output = GrowingColumn(np.int32)
        self.limit = GrowingColumn(np.int32)
        self.shared = GrowingColumn(np.int32)
        self.session = GrowingColumn(np.int32)
        self.counts = GrowingColumn(np.int64)
        self.ids = GrowingColumn(np.int64)
        self.lengths = GrowingColumn(np.int32)
        self.samples = GrowingColumn(np.int32)
        self.beams = GrowingColumn(np.bool_)
        self.first_token = GrowingColumn(np.float64)
        self.end = GrowingColumn(np.float64)


class WorkloadBuilder:
    """Collect rows and build the trace; mutable, used by one reader at a time.

    A row is dropped, with its reason counted, when its arrival or a length is missing, not finite, not a whole number,
    below 1 or beyond belief. Times that go backwards are sorted, stably, and counted. A reader sets ``absolute`` when
    its clock counts from an epoch: the first arrival becomes 0, and times before the first row are no fault. It sets
    ``interleaved`` when rows come source by source, so that sorting them is no news.
    """

    def __init__(self, trace_format: TraceFormat, *, source: str, identity: IdentityKind | None = None) -> None:
        self.format = trace_format
        self.source = source
        self.identity = identity
        self.dropped: Counter[str] = Counter()
        self.adjusted: Counter[str] = Counter()
        self.notes: list[str] = []
        self.accuracy = TraceAccuracy()
        self.hint = "each reason says what the rows lack"
        self.absolute = False
        self.interleaved = False
        self.rows_read = 0
        self._kept = 0
        self._ids = 0
        self._tells_sharing = False
        self._columns = _Columns()

    def __len__(self) -> int:
        """Return the rows kept so far."""
        return self._kept

    def drop(self, reason: str, count: int = 1) -> None:
        """Count rows that a reader leaves out itself."""
        if count:
            self.rows_read += count
            self.dropped[reason] += count

    def leave_out_identity(self, count: int) -> None:
        """Count rows whose content ids are missing or unreadable; the rows are kept."""
        self._adjust("content ids missing or not a list: left out", count)

    def note(self, sentence: str) -> None:
        """Add a sentence for the reader of any result, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def add(self, batch: Batch) -> None:
        """Judge the rows of a batch and keep the good ones.

        Raises:
            TraceError: The trace has more rows or ids than can be held.
        """
        rows = len(batch.prompt_tokens)
        self.rows_read += rows
        keep = self._judge(batch)
        self._observe(batch, keep)
        self._kept += int(keep.sum())
        self._append(batch, keep)
        if self._kept > MAX_ROWS or self._ids > MAX_IDS:
            raise TraceError(
                f"{self.source} has more than {counted(self._kept - 1, 'request')} with {self._ids:,} content ids",
                hint="split the trace by time and look at one part",
            )

    def _judge(self, batch: Batch) -> NDArray[np.bool_]:
        keep = np.ones(len(batch.prompt_tokens), dtype=bool)

        def reject(bad: NDArray[np.bool_], reason: str) -> None:
            bad &= keep
            if count := int(bad.sum()):
                self.dropped[reason] += count
                keep[bad] = False

        if batch.arrival_seconds is not None:
            reject(np.isnan(batch.arrival_seconds), "arrival time missing or not a time")
            with np.errstate(invalid="ignore"):
                reject(~(np.abs(batch.arrival_seconds) <= _MAX_SECONDS), "arrival time beyond belief")
                if not self.absolute:
                    reject(batch.arrival_seconds < 0, "arrival before time 0")
        for name, column in (("prompt", batch.prompt_tokens), ("output", batch.output_tokens)):
            reject(np.isnan(column), f"{name} length missing or not a number")
            reject(column < 1, f"{name} below 1 token")
            reject(column > MAX_LENGTH_TOKENS, f"{name} above {MAX_LENGTH_TOKENS:,} tokens")
            reject(column != np.floor(column), f"{name} length not a whole number")
        return keep

    def _append(self, batch: Batch, keep: NDArray[np.bool_]) -> None:
        columns, all_kept = self._columns, bool(keep.all())

        def pick(values: _Floats) -> _Floats:
            return values if all_kept else values[keep]

        if batch.arrival_seconds is not None:
            columns.arrival.append(pick(batch.arrival_seconds))
        prompts = pick(batch.prompt_tokens)
        columns.prompt.append(prompts)
        columns.output.append(pick(batch.output_tokens))
        if batch.max_tokens is not None:
            columns.limit.append(self._bounded(pick(batch.max_tokens), "max_tokens"))
        if batch.shared_prefix_tokens is not None:
            told = pick(batch.shared_prefix_tokens)
            self._tells_sharing |= not bool(np.isnan(told).all())
            shared = self._bounded(told, "shared prefix")
            self._adjust("shared prefix longer than the prompt: cut to the prompt", int((shared > prompts).sum()))
            columns.shared.append(np.minimum(shared, prompts))
        if batch.samples is not None:
            self._append_samples(batch.samples[keep], None if batch.beams is None else batch.beams[keep])
        if batch.session is not None:
            columns.session.append(batch.session[keep])
        if batch.identity is not None:
            self._append_identity(batch.identity, keep)

    def _append_samples(self, samples: _Floats, beams: NDArray[np.bool_] | None) -> None:
        """Keep numbers of answers: one where none is told, cut where it is beyond belief."""
        samples = np.floor(np.nan_to_num(samples, nan=1.0, posinf=MOST_SAMPLES + 1.0, neginf=0.0))
        self._adjust(f"more than {MOST_SAMPLES:,} answers to a prompt: cut", int((samples > MOST_SAMPLES).sum()))
        self._adjust("less than 1 answer to a prompt: taken as 1", int((samples < 1).sum()))
        self._columns.samples.append(np.clip(samples, 1, MOST_SAMPLES))
        self._columns.beams.append(np.zeros(len(samples), np.bool_) if beams is None else beams)

    def _observe(self, batch: Batch, keep: NDArray[np.bool_]) -> None:
        """Keep what was observed, NaN for rows of which nothing was; called before the rows themselves are kept."""
        moments = (batch.first_token_seconds, batch.end_seconds)
        columns = (self._columns.first_token, self._columns.end)
        if batch.arrival_seconds is None or not (columns[0] or any(moment is not None for moment in moments)):
            return
        if not columns[0] and self._kept:
            for column in columns:
                column.append(np.full(self._kept, np.nan))
        arrivals = batch.arrival_seconds[keep]
        first, end = (self._seen(moment, arrivals, keep) for moment in moments)
        unseen = (first == end) & (batch.output_tokens[keep] > 1)
        first[unseen] = np.nan  # the answer came in one piece: its first token was not seen
        columns[0].append(first)
        columns[1].append(end)

    def _seen(self, moment: _Floats | None, arrivals: _Floats, keep: NDArray[np.bool_]) -> _Floats:
        """Return observed moments of the rows kept, NaN where there is none that can be."""
        seen = np.full(len(arrivals), np.nan) if moment is None else moment[keep]
        with np.errstate(invalid="ignore"):
            early = seen < arrivals
            wrong = early | ~(np.abs(seen) <= _MAX_SECONDS)
        self._adjust("observed moment before the arrival: left out", int(early.sum()))
        return np.where(wrong, np.nan, seen)

    def _append_identity(self, identity: Identity, keep: NDArray[np.bool_]) -> None:
        columns = self._columns
        columns.counts.append(identity.counts[keep])
        wanted = slice(None) if keep.all() else np.repeat(keep, identity.counts)
        ids = identity.ids[wanted]
        columns.ids.append(ids)
        self._ids += len(ids)
        if identity.lengths is not None:
            columns.lengths.append(identity.lengths[wanted])

    def _bounded(self, values: _Floats, name: str) -> NDArray[np.int32]:
        """Return an optional length: 0 where none is declared, cut where it is beyond belief."""
        with np.errstate(invalid="ignore"):
            self._adjust(f"{name} above {MAX_LENGTH_TOKENS:,}: cut", int((values > MAX_LENGTH_TOKENS).sum()))
            self._adjust(f"{name} below 0: taken as not declared", int((values < 0).sum()))
        return np.clip(np.nan_to_num(values, nan=0.0), 0, MAX_LENGTH_TOKENS).astype(np.int32)

    def _adjust(self, what: str, count: int) -> None:
        if count:
            self.adjusted[what] += count

    def build(self) -> Trace:
        """Sort, pack and check; the builder is empty afterwards.

        Raises:
            TraceError: No row is left.
        """
        columns, self._columns = self._columns, _Columns()
        if not self._kept:
            raise _nothing_left(self)
        arrivals = columns.arrival.take()
        if arrivals is None:
            arrivals = np.zeros(self._kept)
            self.note(
                "no arrival times: all requests arrive at 0, a queue that is never empty; choose a rate with --rate"
            )
            self.accuracy = replace(self.accuracy, arrivals=Accuracy.MODELLED)
        first, end = columns.first_token.take(), columns.end.take()
        if self.absolute:
            origin = arrivals.min()
            for moments in (arrivals, first, end):
                if moments is not None:
                    moments -= origin
        order = self._order(arrivals)
        prompt, output = _take(columns.prompt.take(), order), _take(columns.output.take(), order)
        assert prompt is not None
        assert output is not None
        limit = _take(columns.limit.take(), order)
        samples, beams = _take(columns.samples.take(), order), _take(columns.beams.take(), order)
        several = samples is not None and bool((samples > 1).any())
        workload = Workload(
            arrival_seconds=arrivals if order is None else arrivals[order],
            prompt_tokens=prompt,
            output_tokens=output,
            max_tokens=limit if limit is not None and limit.any() else None,
            session=_take(columns.session.take(), order),
            content=self._content(columns, order),
            samples=samples if several else None,
            beams=Beams(mask=beams) if several and beams is not None and beams.any() else None,
        )
        return Trace(
            workload=workload,
            format=self.format,
            rows_read=self.rows_read,
            dropped=dict(self.dropped),
            adjusted=dict(self.adjusted),
            notes=tuple(self.notes),
            accuracy=self.accuracy,
            observed=_observed(_take(first, order), _take(end, order)),
        ).check()

    def _order(self, arrivals: _Floats) -> NDArray[np.int64] | None:
        pieces = range(0, len(arrivals), _PIECE)
        backwards = sum(int((np.diff(arrivals[max(0, i - 1) : i + _PIECE]) < 0).sum()) for i in pieces)
        if not backwards:
            return None
        if not self.interleaved:
            self._adjust("arrival earlier than the row before: sorted", backwards)
        return np.argsort(arrivals, kind="stable")

    def _content(self, columns: _Columns, order: NDArray[np.int64] | None) -> Content | None:
        shared = _take(columns.shared.take(), order)
        if shared is not None and self._tells_sharing:
            return SharedPrefix(tokens=shared)
        if self.identity is None or not columns.counts:
            return None
        counts, ids, lengths = columns.counts.take(), columns.ids.take(), columns.lengths.take()
        assert counts is not None
        assert ids is not None
        if not len(ids):
            return None
        if order is not None:
            where = _gather(counts, order)
            counts, ids = counts[order], ids[where]
            lengths = None if lengths is None else lengths[where]
        offsets = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        return self.identity.make(offsets, ids, lengths)


def _observed(first: _Floats | None, end: _Floats | None) -> Observed | None:
    if first is None or end is None:
        return None
    observed = Observed(first_token_seconds=first, end_seconds=end)
    return observed if observed.moments else None


def _take(column: NDArray[T] | None, order: NDArray[np.int64] | None) -> NDArray[T] | None:
    return column if column is None or order is None else column[order]


def _gather(counts: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of the ids of rows ``order`` in the flat id column."""
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))[order]
    sizes = counts[order]
    first = np.cumsum(sizes) - sizes
    where: NDArray[np.int64] = np.arange(int(sizes.sum())) - np.repeat(first, sizes) + np.repeat(starts, sizes)
    return where


def _nothing_left(builder: WorkloadBuilder) -> TraceError:
    if not builder.rows_read:
        return TraceError(
            f"{builder.source} was recognised as {builder.format.name}, but holds no request",
            hint="is the file cut off after its first line?",
        )
    reasons = "; ".join(f"{reason}: {count:,}" for reason, count in builder.dropped.most_common(5))
    return TraceError(
        f"none of the {builder.rows_read:,} rows of {builder.source} ({builder.format.name}) can be used: {reasons}",
        hint=builder.hint,
        dropped=dict(builder.dropped),
    )
