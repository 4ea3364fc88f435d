import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.replay.workload import Content, HashIds, HashKind, SharedPrefix, TokenIds, Workload
from kvledger.traces import ErrorBand, ReadOptions, Trace, TraceAccuracy, TraceFormat, read_trace
from kvledger.traces.formats import own


def written(trace: Trace) -> bytes:
    out = io.BytesIO()
    own.write_trace(trace, out)
    return out.getvalue()


def arrays_of(content: Content | None) -> list[object]:
    if content is None:
        return []
    names = [name for name in type(content).__slots__ if getattr(content, name) is not None]
    values = [getattr(content, name) for name in names]
    return [(v.dtype.name, v.tolist()) if isinstance(v, np.ndarray) else v for v in values]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 6))
    tokens = st.lists(st.integers(1, 10**8), min_size=count, max_size=count)
    prompts = draw(tokens)
    counts = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    offsets = np.cumsum([0, *counts]).astype(np.int64)
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=sum(counts), max_size=sum(counts)))
    lengths = np.ones(len(ids), dtype=np.int32) if draw(st.booleans()) else None
    kind = draw(st.sampled_from(list(HashKind)))
    content = draw(
        st.sampled_from(
            [
                None,
                SharedPrefix(tokens=np.array(prompts, dtype=np.int32)),
                TokenIds(offsets=offsets, ids=np.array(ids, dtype=np.int32)),
                HashIds(
                    offsets=offsets,
                    ids=np.array(ids, dtype=np.int64) * 2**31,
                    block_tokens=16,
                    kind=kind,
                    lengths=lengths,
                ),
            ]
        )
    )
    times = draw(st.lists(st.floats(0, 1e9), min_size=count, max_size=count))
    dropped = draw(st.dictionaries(st.text(max_size=9), st.integers(1, 99), max_size=2))
    return Trace(
        workload=Workload(
            arrival_seconds=np.sort(np.array(times)),
            prompt_tokens=np.array(prompts, dtype=np.int32),
            output_tokens=np.array(draw(tokens), dtype=np.int32),
            max_tokens=np.array(draw(tokens), dtype=np.int32) if draw(st.booleans()) else None,
            session=np.full(count, -1, dtype=np.int32) if draw(st.booleans()) else None,
            content=content,
        ),
        format=TraceFormat(name="n", sentence=draw(st.text(max_size=9))),
        rows_read=count + sum(dropped.values()),
        dropped=dropped,
        adjusted={"a": 3},
        notes=tuple(draw(st.lists(st.text(max_size=9), max_size=2))),
        accuracy=TraceAccuracy(prompts=Accuracy.MODELLED, prompt_band=ErrorBand(low_ratio=0.5, high_ratio=2)),
    )


@settings(max_examples=60, deadline=None)
@given(traces())
def test_what_is_written_is_read_back_without_loss(trace: Trace) -> None:
    back = read_trace(io.BytesIO(written(trace)))
    for name in ("arrival_seconds", "prompt_tokens", "output_tokens", "max_tokens", "session"):
        before, after = getattr(trace.workload, name), getattr(back.workload, name)
        assert (before is None) == (after is None)
        assert before is None or (before.dtype == after.dtype and before.tolist() == after.tolist())
    assert type(back.workload.content) is type(trace.workload.content)
    assert arrays_of(back.workload.content) == arrays_of(trace.workload.content)
    assert (back.format, back.rows_read, back.notes, back.accuracy) == (
        trace.format,
        trace.rows_read,
        trace.notes,
        trace.accuracy,
    )
    assert (dict(back.dropped), dict(back.adjusted)) == (dict(trace.dropped), dict(trace.adjusted))


def trace_of(count: int) -> Trace:
    offsets = np.arange(count + 1) * 3
    workload = Workload(
        arrival_seconds=np.arange(count, dtype=float),
        prompt_tokens=np.full(count, 48, dtype=np.int32),
        output_tokens=np.full(count, 2, dtype=np.int32),
        content=HashIds(offsets=offsets, ids=np.arange(3 * count), block_tokens=16, kind=HashKind.CHAIN),
    )
    return Trace(workload=workload, format=TraceFormat(name="n", sentence="s"), rows_read=count)


def test_row_groups_are_bounded_and_put_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_GROUP_IDS", 10)
    data = written(trace_of(11))
    assert pq.ParquetFile(io.BytesIO(data)).num_row_groups == 4
    content = read_trace(io.BytesIO(data)).workload.content
    assert isinstance(content, HashIds)
    assert content.ids.tolist() == list(range(33))


def test_a_packed_file_is_read_as_well_as_a_plain_one() -> None:
    assert len(read_trace(io.BytesIO(gzip.compress(written(trace_of(5)))))) == 5


def test_identity_is_not_read_when_nobody_wants_it() -> None:
    trace = read_trace(io.BytesIO(written(trace_of(3))), options=ReadOptions(identity=False))
    assert trace.workload.content is None


def test_a_file_of_another_version_says_so() -> None:
    table = pa.table({"arrival_seconds": [0.0]}).replace_schema_metadata(
        {"kvledger.schema": "kvledger.trace", "kvledger.schema_version": "99"}
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    with pytest.raises(TraceError, match="version `99`"):
        read_trace(io.BytesIO(out.getvalue()))


def test_a_file_whose_rows_break_the_invariant_is_refused() -> None:
    table = pq.read_table(io.BytesIO(written(trace_of(3))))
    broken = table.set_column(1, "prompt_tokens", pa.array([5, 0, 5], pa.int32()))
    out = io.BytesIO()
    pq.write_table(broken.replace_schema_metadata(table.schema.metadata), out)
    with pytest.raises(TraceError, match="below 1"):
        read_trace(io.BytesIO(out.getvalue()))


def test_ids_that_do_not_fit_their_rows_are_refused() -> None:
    trace = trace_of(3)
    data = written(trace)
    table = pq.read_table(io.BytesIO(data))
    broken = table.set_column(3, "content_ids", pa.array([[1], None, [2]], pa.list_(pa.int64())))
    out = io.BytesIO()
    pq.write_table(broken.replace_schema_metadata(table.schema.metadata), out)
    with pytest.raises(TraceError):
        read_trace(io.BytesIO(out.getvalue()))
