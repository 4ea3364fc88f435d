"""Results as Parquet: stable columns, and back again."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvledger.errors import UsageError
from kvledger.ledger import Account
from kvledger.pool.policy import parse_policy
from kvledger.replay import Pool, Settings, replay
from kvledger.sweep.columns import IDENTITY, RESULTS, Column, Kind, result_of
from kvledger.sweep.job import JobResult, failed
from kvledger.sweep.results import Provenance, columns_of, read_results, write_results

from ..replay.by_hand import workload

SETTINGS = (Column(name="rate", kind=Kind.NUMBER, meaning=""), Column(name="trace", kind=Kind.TEXT, meaning=""))
FROM = Provenance(kvledger_version="1", plan="p", grid="settings.rate = 1", inputs={"t.csv": "abc"})


def outcome(policy="paged", **pool):
    requests = workload((0.0, 40, 10), (1.0, 60, 20), (1.0, 500, 20))
    settings = Settings(max_model_len=400)
    return replay(requests, parse_policy(policy), pool=Pool(bytes_per_token=8, capacity_tokens=160), settings=settings)


def written(results):
    stream = io.BytesIO()
    write_results(stream, iter(results), settings=SETTINGS, provenance=FROM)
    stream.seek(0)
    return stream


def test_a_result_has_a_value_for_every_column_that_a_policy_alone_decides():
    row = result_of(outcome())
    named = {column.name for column in RESULTS}
    assert row.keys() <= named
    where = {"model_name", "token_bytes", "longest_tokens", "trace_format", "trace_span_seconds", "notes"}
    assert {name for name in named - row.keys() if not name.startswith(("clock_", "prefix_"))} == where


def test_the_accounts_of_a_row_sum_to_the_pool():
    row = result_of(outcome("exact"))
    assert sum(row[f"mean_{account}_ratio"] for account in Account) == pytest.approx(1)
    assert row["wasted_bytes"] == pytest.approx(row["wasted_ratio"] * row["capacity_bytes"])


def test_results_are_read_back_as_they_were_written():
    results = [JobResult(key="a", rows=[{"policy": "paged", **result_of(outcome())}, {"policy": "max", "steps": 3}])]
    results += [failed("b", code="KVE001", message="no")]
    stream = written([(result, {"rate": float("inf"), "trace": "t.csv"}) for result in results])
    provenance, found = read_results(stream, settings=SETTINGS, name="r")
    assert provenance == FROM
    assert [result.key for result in found] == ["a", "b"]
    for result, read in zip(results, found):
        kept = [{name: value for name, value in row.items() if value is not None} for row in result.rows]
        assert read.rows == kept


def test_the_columns_have_the_types_that_are_documented():
    schema = pq.ParquetFile(written([])).schema_arrow
    assert schema.names == [column.name for column in columns_of(SETTINGS)]
    assert {str(field.type) for field in schema} <= {str(kind) for kind in Kind}
    assert schema.metadata[b"kvledger.schema"] == b"kvledger.sweep"


def test_no_column_has_two_meanings():
    names = [column.name for column in (*IDENTITY, *RESULTS)]
    assert len(names) == len(set(names))


def test_another_parquet_file_or_none_at_all_is_refused():
    other = io.BytesIO()
    pq.write_table(pa.table({"x": [1]}), other)
    for content in (other.getvalue(), b"", b"hello", written([]).getvalue()[:-9]):
        with pytest.raises(UsageError, match="not of a sweep"):
            read_results(io.BytesIO(content), settings=SETTINGS, name="r")
