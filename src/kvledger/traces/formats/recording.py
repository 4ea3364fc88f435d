"""Recordings of `kvledger measure --record`: the requests that ended, as far as counters and histograms tell them."""

from __future__ import annotations

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
from kvledger.traces.registry import Given, Reader

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
    builder.accuracy = TraceAccuracy(arrivals=Accuracy.MODELLED, prompts=Accuracy.MODELLED, outputs=Accuracy.MODELLED)
    for engine in histories.engines:
        if sum(engine.prompts.counts):
            _add(engine, builder, given.options.seed)
        builder.drop("under way when the server restarted: never counted", engine.restarts_open)
        builder.drop("under way when the recording ended", under_way(engine.last))
    _say(histories, builder, given.options.seed)
    return builder.build()


def _require_requests(histories: Histories, name: str) -> None:
    engines = histories.engines
    if not engines:
        raise TraceError(
            f"none of the {histories.samples:,} samples of {name} has an answer of a server",
            hint="`kvledger measure` on the same file says why they failed",
        )
    if not any(engine.tells_lengths for engine in engines):
        raise TraceError(
            f"the samples of {name} have no histograms of the lengths of requests",
            hint="request_prompt_tokens and request_generation_tokens are needed; was only a selection recorded?",
        )
    all_series = [series for one in engines for series in (one.prompts, one.outputs, one.limits)]
    if (most := max(sum(series.counts) for series in all_series)) > _MAX_REQUESTS:
        raise TraceError(
            f"in {name} {most:,} requests of one engine ended, more than {_MAX_REQUESTS:,}",
            hint="record a shorter time",
        )
    if not any(sum(engine.prompts.counts) for engine in engines):
        seconds = max(engine.last_seconds for engine in engines) - min(
            (engine.began or [engine.last_seconds])[0] for engine in engines
        )
        still = sum(under_way(engine.last) for engine in engines)
        raise TraceError(
            f"no request ended in the {histories.samples:,} samples ({seconds:,.0f} s) of {name}; "
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


def _say(histories: Histories, builder: WorkloadBuilder, seed: int) -> None:
    engines = [engine for engine in histories.engines if engine.ended]
    counts = np.concatenate([np.array(engine.prompts.counts, dtype=np.int64) for engine in engines])
    alone, ended = int((counts == 1).sum()), int(counts.sum())
    builder.note(
        f"{ended:,} requests ended between the {histories.samples:,} samples; per interval their number and the sums "
        f"of their prompt and generated tokens are measured, so the lengths of {alone:,} that ended alone are exact; "
        f"the others are drawn from histograms, prompts apart from outputs (seed {seed})"
    )
    builder.note(
        "arrivals are modelled: ends spread evenly between two samples, less the mean end-to-end time of the interval"
    )
    early = sum(under_way(engine.first) for engine in histories.engines)
    if early:
        builder.note(f"{early:,} requests were under way when the recording began: those that ended in it are here")
    builder.note("requests whose client went away are in no histogram, and what requests share is not recorded")
    if len(engines) > 1:
        builder.note(
            f"the traffic of {len(engines)} engines is put together: "
            "replay it on the pool of all of them, or record one alone"
        )
    if histories.failed:
        builder.note(f"{histories.failed:,} samples had no answer: what ended meanwhile counts with the next one")


READER = Reader(format=FORMAT, matches=_matches, read=_read)
