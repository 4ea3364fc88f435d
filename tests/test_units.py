"""Sizes as people write them."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import Error, UsageError
from kvledger.units import GIB, KIB, MIB, agree, counted, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "value_bytes"),
    [
        ("0", 0),
        ("1", 1),
        ("17179869184", 16 * GIB),
        ("512B", 512),
        ("512 b", 512),
        ("4KiB", 4096),
        ("4kib", 4096),
        ("4kB", 4000),
        ("4KB", 4000),
        ("2MiB", 2 * MIB),
        ("2MB", 2_000_000),
        ("16GiB", 16 * GIB),
        ("16 GB", 16 * 10**9),
        ("  16 gib  ", 16 * GIB),
        ("1TiB", 2**40),
        ("1TB", 10**12),
        ("0.5GiB", GIB // 2),
        ("1.5KiB", 1536),
        ("0.1B", 0),
        ("0.3 KiB", 307),
        ("1,024", 1024),
        ("1,234,567.5 KiB", 1_264_197_120),
        ("1048576TiB", 2**60),
    ],
)
def test_sizes_are_read_exactly_and_fractions_of_a_byte_rounded_down(text, value_bytes):
    assert parse_bytes(text) == value_bytes


@pytest.mark.parametrize("text", ["16G", "16g", "16 M", "1.5T", "4k", "1,024K"])
def test_a_unit_that_may_be_binary_or_decimal_is_refused_with_both_ways_out(text):
    number, unit = text[:-1].strip(), text[-1].upper()
    with pytest.raises(UsageError, match="ambiguous") as caught:
        parse_bytes(text)
    assert caught.value.hint == f"write `{number}{unit}iB` (powers of 1024) or `{number}{unit}B` (powers of 1000)"


@pytest.mark.parametrize("unit", ["PiB", "GiBs", "Gib/s", "tokens", "%"])
def test_an_unknown_unit_is_refused(unit):
    with pytest.raises(UsageError):
        parse_bytes(f"3{unit}")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "GiB", "-1", "-1GiB", "+1", "1e9", "0x10", "1_000", "1.2.3", "1.", ".5", "1,02", "12,345,67", "1,,000",
        ",000", "nan", "inf", "NaNGiB", "1 2", "١٦GiB", "１６GiB", "²", "16\u00a0GiB", "1\x00", "16GiB; rm", "1\n2",
    ],
)  # fmt: skip
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1048577TiB", "99999999999999999999", "1152921504606846977", "2000000TB"])
def test_more_than_an_exbibyte_is_refused(text):
    with pytest.raises(UsageError, match="1 EiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "text", ["9" * 10**6, "1" + " " * 10**5 + "!", "1" + "a" * 10**6, "1," * 10**5, "0." + "1" * 10**6]
)
def test_a_long_hostile_text_is_refused_at_once_with_a_short_message(text):
    began = time.perf_counter()
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert time.perf_counter() - began < 0.1
    assert len(caught.value.message) < 200


@given(st.text(max_size=40))
def test_any_text_is_a_size_or_an_error_of_ours(text):
    with contextlib.suppress(Error):
        assert 0 <= parse_bytes(text) <= 2**60


@given(st.integers(0, 2**60), st.sampled_from([("", 1), ("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("MB", 10**6)]))
def test_whole_numbers_of_any_unit_round_trip(value_bytes, unit):
    name, factor = unit
    count = value_bytes // factor
    assert parse_bytes(f"{count}{name}") == count * factor


@given(st.integers(0, 2**60))
def test_what_is_written_reads_back_within_half_a_hundredth_of_its_unit(value_bytes):
    text = format_bytes(value_bytes)
    unit = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}[text.split()[1]]
    if value_bytes < 1023.99 * 2**50:
        assert abs(parse_bytes(text) - value_bytes) <= 0.0051 * unit + 1


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (131072, "128.00 KiB"), (MIB - 1, "1024.00 KiB"),
        (MIB, "1.00 MiB"), (50 * GIB, "50.00 GiB"), (2**40, "1.00 TiB"), (2**60, "1048576.00 TiB"), (-1, "-1 B"),
        (-1536, "-1.50 KiB"), (0.4, "0 B"), (104_026_521.6, "99.21 MiB"),
    ],
)  # fmt: skip
def test_sizes_are_written_in_binary_units_with_two_decimals(value_bytes, text):
    assert format_bytes(value_bytes) == text


def test_a_fraction_without_a_unit_is_refused():
    with pytest.raises(UsageError, match=r"`1\.5` has no unit") as caught:
        parse_bytes("1.5")
    assert caught.value.hint == "write `1.5GiB` or `1.5GB`"


def test_a_count_has_its_noun_in_the_plural_unless_it_is_one():
    assert counted(0, "request") == "0 requests"
    assert counted(1, "request") == "1 request"
    assert counted(1, "copy", "copies") == "1 copy"
    assert counted(1200, "copy", "copies") == "1,200 copies"


def test_a_verb_agrees_with_its_count():
    assert [agree(count, "fits", "fit") for count in (0, 1, 2)] == ["fit", "fits", "fit"]
