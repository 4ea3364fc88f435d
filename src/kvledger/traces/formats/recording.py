"""Recordings of `kvledger measure --record`: the requests that ended, as far as counters and histograms tell them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.measure.recording import FrameReader
from kvledger.traces.batch import Batch
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape
from kvledger.traces.portions import count_untold, draw_lengths, hand_out_limits
from kvledger.traces.record import Trace, TraceAccuracy, TraceFormat
from kvledger.traces.recorded import Histories, RecordedEngine, gather, under_way
from kvledger.traces.recorded_served import read_served
from kvledger.traces.recorded_slots import SlotHistory
from kvledger.traces.registry import Given, Reader
from kvledger.units import agree, counted

__all__ = ["READER"]

FORMAT = TraceFormat(
    name="recording", sentence="a recording of `kvledger measure --record`: requests drawn from a server's counters"
)
_MAX_REQUESTS = 20_000_000
_LONG_GAP_SECONDS = 60.0
_STREAM = 0x5EC0


def _matches(head: Head) -> bool:
    return head.shape is Shape.RECORDING


def _read(given: Given) -> Trace:
    name = given.source.name
    histories = gather(FrameReader().read(given.source.read_document()))
    _require_requests(histories, name)
    builder = WorkloadBuilder(FORMAT, source=name)
    builder.absolute = builder.interleaved = True
    lengths = _length_accuracy(histories)
    builder.accuracy = TraceAccuracy(arrivals=Accuracy.MODELLED, prompts=lengths, outputs=lengths)
    for engine in histories.engines:
        if sum(engine.prompts.counts):
            _add(engine, builder, given.options.seed)
        builder.drop("under way when the server restarted: never counted", engine.restarts_open)
        builder.drop("under way when the recording ended", under_way(engine.last))
    for slots in histories.slots:
        _add_slots(slots, builder)
    _say(histories, builder, given.options.seed)
    return replace(builder.build(), served=read_served(histories))


def _length_accuracy(histories: Histories) -> Accuracy:
    """Return how lengths are known: those of slots one by one, those of counters drawn."""
    exact = all(one.is_exact for slots in histories.slots for one in slots.requests)
    return Accuracy.DERIVED if exact and histories.slots and not histories.engines else Accuracy.MODELLED


def _require_requests(histories: Histories, name: str) -> None:
    engines = histories.engines
    if any(slots.requests for slots in histories.slots):
        return
    if histories.slots and not engines:
        raise TraceError(
            f"no slot was seen to end a request in the {counted(histories.samples, 'sample')} of {name}",
            hint="a request is known when a slot was seen at work and then at rest: "
            "record longer, or with a smaller --every",
        )
    if not engines:
        raise TraceError(
            f"none of the {histories.samples:,} samples of {name} tells of ended requests",
            hint="`kvledger measure` on the same file says what is in it",
        )
    if not any(engine.tells_lengths for engine in engines):
        raise TraceError(
            f"the samples of {name} have no histograms of the lengths of requests",
            hint="request_prompt_tokens and request_generation_tokens are needed; was only a selection recorded?",
        )
    all_series = [series for one in engines for series in (one.prompts, one.outputs, one.limits)]
    if (most := max(sum(series.counts) for series in all_series)) > _MAX_REQUESTS:
        raise TraceError(
            f"in {name} {counted(most, 'request')} of one engine ended, more than {_MAX_REQUESTS:,}",
            hint="record a shorter time",
        )
    if not any(sum(engine.prompts.counts) for engine in engines):
        seconds = max(engine.last_seconds for engine in engines) - min(
            (engine.began or [engine.last_seconds])[0] for engine in engines
        )
        still = sum(under_way(engine.last) for engine in engines)
        raise TraceError(
            f"no request ended in the {counted(histories.samples, 'sample')} ({seconds:,.0f} s) of {name}; "
            f"{still:,} were under way in the last",
            hint="requests are counted when they end, between two samples: record while the server works, for longer",
        )


def _add(engine: RecordedEngine, builder: WorkloadBuilder, seed: int) -> None:
    generator = np.random.Generator(np.random.PCG64([seed, _STREAM, engine.source, engine.index]))
    prompts, outputs = draw_lengths(engine.prompts, generator), draw_lengths(engine.outputs, generator)
    limits, raised = hand_out_limits(
        outputs, engine.outputs.counts, draw_lengths(engine.limits, generator), engine.limits.counts, generator
    )
    pairs = min(len(prompts), len(outputs))
    counts = np.array(engine.prompts.counts, dtype=np.int64)
    interval = np.repeat(np.arange(len(counts)), counts)[:pairs]
    began, ended = np.array(engine.began)[interval], np.array(engine.ended)[interval]
    arrivals = began + (ended - began) * generator.random(pairs)
    latency = engine.mean_latencies()[interval]
    builder.add(
        Batch(
            arrival_seconds=arrivals - np.nan_to_num(latency, nan=0.0),
            prompt_tokens=prompts[:pairs].astype(np.float64),
            output_tokens=outputs[:pairs].astype(np.float64),
            max_tokens=limits[:pairs].astype(np.float64),
        )
    )
    builder.drop("prompt and output not both counted", max(len(prompts), len(outputs)) - pairs)
    elsewhere, evenly = np.sum([count_untold(engine.prompts), count_untold(engine.outputs)], axis=0).tolist()
    changed = {
        "length without buckets of its minute: drawn from those of other minutes": elsewhere,
        "length without any buckets: an even share of its interval's sum": evenly,
        "declared limit drawn below the output: raised to it": raised,
        "ended in a gap of more than 60 s between samples: spread over it": int(
            (ended - began > _LONG_GAP_SECONDS).sum()
        ),
        "end-to-end time not told: arrives when it ends": int(np.isnan(latency).sum()),
    }
    for what, count in changed.items():
        if count:
            builder.adjusted[what] += count


def _add_slots(slots: SlotHistory, builder: WorkloadBuilder) -> None:
    requests = slots.requests
    if requests:
        builder.add(
            Batch(
                arrival_seconds=np.array([one.arrival_seconds for one in requests]),
                prompt_tokens=np.array([one.prompt_tokens for one in requests], dtype=np.float64),
                output_tokens=np.array([one.output_tokens for one in requests], dtype=np.float64),
                max_tokens=np.array(
                    [np.nan if one.declared_tokens is None else one.declared_tokens for one in requests],
                    dtype=np.float64,
                ),
            )
        )
    for reason, count in slots.dropped.items():
        builder.drop(reason, count)
    builder.drop("under way when the server restarted: never counted", slots.restarts_open)
    builder.drop("under way when the recording ended", slots.under_way())
    exact = sum(one.is_exact for one in requests)
    if requests:
        builder.note(
            f"{counted(len(requests), 'request')} {agree(len(requests), 'was', 'were')} seen in the slots of "
            f"llama.cpp; the lengths of {exact:,} are exact, the output of the others is what was seen last"
        )
        builder.note("a request arrives half a sample before it was first seen at work: what it waited is not told")


def _say(histories: Histories, builder: WorkloadBuilder, seed: int) -> None:
    engines = [engine for engine in histories.engines if engine.ended and sum(engine.prompts.counts)]
    if not engines:
        return
    counts = np.concatenate([np.array(engine.prompts.counts, dtype=np.int64) for engine in engines])
    alone, ended = int((counts == 1).sum()), int(counts.sum())
    builder.note(
        f"{counted(ended, 'request')} ended between the {counted(histories.samples, 'sample')}; per interval their "
        "number and the sums of their prompt and generated tokens are measured, so the lengths of "
        f"{alone:,} that ended alone are exact; "
        f"the others are drawn from histograms, prompts apart from outputs (seed {seed})"
    )
    builder.note(
        "arrivals are modelled: ends spread evenly between two samples, less the mean end-to-end time of the interval"
    )
    early = sum(under_way(engine.first) for engine in histories.engines)
    if early:
        were = f"{counted(early, 'request')} {'was' if early == 1 else 'were'}"
        builder.note(f"{were} under way when the recording began: those that ended in it are here")
    builder.note("requests whose client went away are in no histogram, and what requests share is not recorded")
    if len(engines) > 1:
        builder.note(
            f"the traffic of {counted(len(engines), 'engine')} is put together: "
            "replay it on the pool of all of them, or record one alone"
        )
    if histories.failed:
        builder.note(
            f"{counted(histories.failed, 'sample')} had no answer: what ended meanwhile counts with the next one"
        )


READER = Reader(format=FORMAT, matches=_matches, read=_read)
