import gzip
import io

import pyarrow as pa
import pytest

from kvledger.errors import SourceError
from kvledger.traces.stream import Limits, TraceInput
from tests.traces.reading import CSV, read


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def input_of(data: bytes, **limits: int) -> TraceInput:
    return TraceInput(io.BytesIO(data), name="`t`", limits=Limits(**limits))


@pytest.mark.parametrize("pack", [gzip.compress, zstd, lambda d: gzip.compress(zstd(d)), lambda d: b"\xef\xbb\xbf" + d])
def test_a_trace_reads_the_same_packed_or_with_a_byte_order_mark(pack) -> None:
    assert read(pack(CSV.encode())).workload.prompt_tokens.tolist() == [10, 20, 30]


def test_several_gzip_members_are_one_stream() -> None:
    head, tail = CSV[:60].encode(), CSV[60:].encode()
    assert len(read(gzip.compress(head) + gzip.compress(tail))) == 3


def test_more_layers_of_compression_than_anybody_uses_are_refused() -> None:
    with pytest.raises(SourceError, match="more than 2 times over"):
        read(gzip.compress(gzip.compress(gzip.compress(CSV.encode()))))


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_cut_off_archive_is_an_error_and_not_a_short_trace(pack) -> None:
    rows = "".join(f"{i},{i % 997 + 1},{i % 89 + 1}\n" for i in range(200_000))
    data = pack((CSV + rows).encode())
    with pytest.raises(SourceError, match="damaged"):
        read(data[: len(data) // 2])


def test_a_bomb_stops_at_the_ratio_no_trace_has() -> None:
    source = input_of(gzip.compress(gzip.compress(b"a" * (8 << 20))), ratio_from_bytes=1 << 20)
    with pytest.raises(SourceError, match="no trace is that regular"):
        source.read_document()


def test_a_document_beyond_the_limit_is_refused() -> None:
    with pytest.raises(SourceError, match="has more than 1,000 bytes"):
        input_of(b"x" * 2_000_000, document_bytes=1000).read_document()


def test_an_endless_line_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(SourceError, match="a line of more than 2,000,000 bytes"):
        list(input_of(b"x" * 5_000_000, line_bytes=2_000_000).lines())


def test_lines_lose_their_ends_and_blank_ones_are_skipped() -> None:
    long = b"y" * 1_500_000
    lines = list(input_of(b"a\r\n\r\n  \nb\n" + long + b"\n" + long + b"\nc").lines())
    assert lines == [b"a", b"b", long, long, b"c"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b" \n\r\n\t", "is empty"),
        (b"BZh91AY&SY" + b"0" * 50, "bzip2"),
        (b"\xfd7zXZ\x00" + b"0" * 50, "xz"),
        (b"PK\x03\x04" + b"0" * 50, "zip"),
        (CSV.encode("utf-16"), "UTF-16"),
        (bytes(range(256)) * 20, "neither text nor Parquet"),
        (b"PAR1 and then nothing of the kind", "not a readable Parquet file"),
        (gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_what_is_no_trace_is_named_with_a_way_on(data: bytes, says: str) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        read(data)
    assert caught.value.hint or "Parquet file" in says
