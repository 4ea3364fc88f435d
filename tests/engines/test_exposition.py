"""Prometheus text read by name, within bounds."""

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvledger.engines.exposition import MAX_TEXT, SeriesTable, expand_names, read_exposition, read_histogram
from kvledger.errors import Error, SourceError

WANTED = expand_names(["a:running", "a:tokens_total"], ["a:length"])
TEXT = """\
# HELP a:running Requests that run.
# TYPE a:running gauge
a:running{engine="0",model="x\\"y"} 3.0
a:running{engine="1",model="x"} NaN
a:tokens_total{engine="0"} 1.5e+03 1700000000000
a:tokens_created{engine="0"} 1.7e+09
# TYPE a:length histogram
a:length_bucket{engine="0",le="1.0"} 1.0
a:length_bucket{engine="0",le="+Inf"} 4.0
a:length_sum{engine="0"} 90.0
a:length_count{engine="0"} 4.0
b:running 7
"""


def test_only_wanted_names_are_read():
    found = read_exposition(TEXT, WANTED)
    assert {series.name for series in found.series} == {
        "a:running", "a:tokens_total", "a:length_bucket", "a:length_sum", "a:length_count",
    }  # fmt: skip
    assert found.declared == {"a:running", "a:length"}
    assert found.malformed == 0
    assert found.series[0].labels == {"engine": "0", "model": 'x"y'}


def test_series_are_grouped_by_labels():
    groups = read_exposition(TEXT, WANTED).group(["engine"])
    assert set(groups) == {(("engine", "0"),), (("engine", "1"),)}
    table = SeriesTable.of(groups[("engine", "0"),])
    assert table.find("a:tokens_total").value == 1500
    assert SeriesTable.of(groups[("engine", "1"),]).find("a:running") is None


def test_a_histogram_has_the_edges_of_the_scrape():
    histogram = read_histogram(read_exposition(TEXT, WANTED).series, "a:length")
    assert histogram.edges == (1.0, float("inf"))
    assert histogram.counts == (1.0, 4.0)
    assert (histogram.count, histogram.total) == (4.0, 90.0)


def test_names_without_samples_are_declared_only():
    found = read_exposition("# HELP a:running x\n# TYPE a:running gauge\n", WANTED)
    assert (found.series, found.declared) == ((), {"a:running"})


@pytest.mark.parametrize(
    "line",
    ["a:running{", 'a:running{x="1} 2', "a:running", "a:running 1_000", "a:running x",
     "a:running{" + 'l="v",' * 300 + "} 1", 'a:running{l="' + "\\\\" * 100 + '"} 1'],
)  # fmt: skip
def test_a_bad_line_is_counted_and_the_rest_is_read(line):
    found = read_exposition(f"{line}\na:tokens_total 5\n", WANTED)
    assert [series.value for series in found.series] == [5]
    assert found.malformed == 1


def test_a_value_beyond_all_numbers_is_no_number():
    found = read_exposition("a:running " + "9" * 5000 + "\na:tokens_total 1e30\n", WANTED)
    table = SeriesTable.of(found.series)
    assert table.find("a:running") is None
    assert table.find("a:tokens_total") is None


def test_a_text_beyond_the_bound_is_refused():
    with pytest.raises(SourceError, match="characters"):
        read_exposition("x" * (MAX_TEXT + 1), WANTED)
    with pytest.raises(SourceError, match="samples"):
        read_exposition("a:running 1\n" * 100_001, WANTED)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300), st.integers(0, len(TEXT)))
def test_random_bytes_raise_only_our_error(data, place):
    with contextlib.suppress(Error):
        read_exposition(TEXT[:place] + data.decode("utf-8", errors="replace") + TEXT[place:], WANTED)


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(max_size=20), max_size=4),
    st.floats(allow_nan=False),
)
def test_what_the_reference_parser_reads_is_what_is_read(labels, value):
    def escape(text):
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    line = "a:running{" + ",".join(f'{k}="{escape(v)}"' for k, v in labels.items()) + f"}} {value!r}\n"
    try:
        plain = [s for f in text_string_to_metric_families(line) for s in f.samples]
    except ValueError:
        plain = []
    found = read_exposition(line, WANTED)
    assert [(s.labels, s.value) for s in found.series] == [(s.labels, s.value) for s in plain]


def test_64_kilobytes_are_read_in_a_fraction_of_the_budget():
    """The whole way from text to ledger has 5 ms; half of it is left for the law even on a slow, shared machine."""
    buckets = "".join(
        f'a:other_{i}_bucket{{engine="0",le="{edge}.0",model_name="organisation/model-of-some-length"}} 12.0\n'
        for i in range(32)
        for edge in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
    )
    text = TEXT + buckets
    text += buckets[: max(0, 65_536 - len(text))]
    assert len(text) >= 40_000

    def once():
        start = time.perf_counter()
        read_exposition(text, WANTED)
        return time.perf_counter() - start

    assert min(once() for _ in range(20)) < 0.005
