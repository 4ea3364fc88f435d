"""Times as people write them."""

import pytest

from kvledger.cli.measure_options import parse_duration, read_pace
from kvledger.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("1h", 3600), ("500ms", 0.5), ("2d", 172_800), ("7", 7), (" 1.5s ", 1.5)]
)
def test_times_are_read_with_their_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "ten", "1y", "-1s", "nan", "inf", "1e9d", "5mm"])
def test_other_texts_are_no_times(text):
    with pytest.raises(UsageError):
        parse_duration(text)


def test_a_pace_is_at_least_a_hundredth_of_a_second():
    assert read_pace("1m", "10ms").for_seconds == 60
    with pytest.raises(UsageError, match="--every"):
        read_pace("1m", "1ms")
