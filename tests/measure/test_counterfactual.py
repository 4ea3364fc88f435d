"""What reservation would hold for the requests that run: arithmetic by hand."""

import math

import pytest

from kvledger.engines.facts import HistogramReading
from kvledger.ledger import Accuracy
from kvledger.measure.balance import Balance
from kvledger.measure.counterfactual import Lengths, compare_reservations
from kvledger.measure.figure import Span
from kvledger.measure.pool import NullBlock, PoolShape, Structure

NOTHING = Span(0, 0)


def shape(length=4096):
    """50 GiB of an 8B model in blocks of 16: 25,600 blocks, 409,600 tokens."""
    return PoolShape(
        blocks=25_601,
        block_tokens=16,
        null_block=NullBlock.OUTSIDE,
        structure=Structure.ONE_GROUP,
        structure_source="",
        max_model_len=length,
        max_model_len_source="test",
    )


def balance(held, used):
    return Balance(
        held=held,
        used=Span.exact(used),
        live=Span.exact(used),
        stored=Span.exact(used),
        shared_saving=NOTHING,
        preempted=NOTHING,
        prefilling=NOTHING,
        causes=(),
    )


def histogram(*buckets, total):
    edges, counts = zip(*buckets, strict=True)
    return HistogramReading(name="h", edges=edges, counts=counts, count=counts[-1], total=total)


def test_the_case_of_the_8b_model_admits_five_times_as_many():
    """100 requests of 800 tokens: `max` holds 409,600 tokens, of which 80,000 are used: 19.5 %; blocks hold 80,000."""
    found = compare_reservations(shape(), balance(80_000, 80_000), 100, Lengths())
    longest = found.find("max")
    assert longest.reserved_tokens == Span.exact(409_600)
    assert longest.admitted == Span.exact(100)
    assert found.reservation_usable_ratio == pytest.approx(0.1953, abs=1e-4)
    assert found.block_tables.admitted.low == 512
    assert found.times_more == pytest.approx(5.12)
    assert found.product_ratio == pytest.approx((0.1953 * 0.9 * 0.8, 0.1953 * 0.9 * 0.9), abs=1e-3)


def test_declared_uses_the_mean_of_max_tokens_and_never_exceeds_the_longest():
    lengths = Lengths(
        prompt=histogram((500, 10), (math.inf, 10), total=3000),
        output=histogram((500, 10), (math.inf, 10), total=1000),
        max_tokens=histogram((500, 10), (math.inf, 10), total=5120),
    )
    found = compare_reservations(shape(), balance(3000, 3000), 10, lengths)
    assert found.find("declared").per_request_tokens == Span.exact(300 + 512)
    assert found.find("exact").per_request_tokens == Span.exact(400)
    assert found.find("declared").accuracy is Accuracy.MODELLED
    short = compare_reservations(shape(length=600), balance(3000, 3000), 10, lengths)
    assert short.find("declared").per_request_tokens == Span.exact(600)


def test_powers_of_two_are_bounded_by_their_buckets():
    """Outputs of 101 to 200 tokens round up to 128 or 256; no number exceeds its power, so the mean is at least 150."""
    lengths = Lengths(
        prompt=histogram((100, 4), (math.inf, 4), total=400),
        output=histogram((100, 0), (200, 4), (math.inf, 4), total=600),
    )
    found = compare_reservations(shape(), balance(800, 800), 4, lengths).find("pow2")
    assert found.per_request_tokens == Span(100 + 150, 100 + 256)


def test_without_buckets_a_power_of_two_is_once_to_twice_the_output():
    """A short window of a recording has sums and no buckets: outputs of 150 on average round up to 150 to 300."""
    bare = HistogramReading(name="h", edges=(), counts=(), count=4, total=600)
    stale = HistogramReading(name="h", edges=(200, math.inf), counts=(0, 0), count=4, total=600)
    for output in (bare, stale):
        lengths = Lengths(prompt=histogram((100, 4), (math.inf, 4), total=400), output=output)
        found = compare_reservations(shape(), balance(800, 800), 4, lengths)
        assert found.find("pow2").per_request_tokens == Span(250, 400)
        assert found.find("exact").per_request_tokens == Span.exact(250)
        assert "buckets" in found.missing[-1]


def test_a_reservation_holds_at_least_what_is_stored_and_pow2_at_least_what_exact_does():
    """Requests of 700 tokens run where those that ended had 250: none was reserved less than it has."""
    lengths = Lengths(
        prompt=histogram((100, 4), (math.inf, 4), total=400),
        output=histogram((100, 0), (200, 4), (math.inf, 4), total=600),
    )
    for used in (400, 1000, 2800):
        found = compare_reservations(shape(), balance(2816, used), 4, lengths)
        exact, rounded = found.find("exact"), found.find("pow2")
        assert exact.reserved_tokens.low >= used
        assert rounded.reserved_tokens.low >= exact.reserved_tokens.low
        assert max(item.used_ratio[1] for item in found.alternatives) <= 1.0
    assert found.find("exact").reserved_tokens == Span.exact(2800)


def test_what_is_missing_is_named():
    found = compare_reservations(shape(length=None), balance(800, 800), 4, Lengths())
    assert found.alternatives == ()
    assert found.times_more is None
    assert next(text.partition(":")[0] for text in found.missing) == "the longest request is not known"


def test_nothing_running_has_no_counterfactual():
    assert compare_reservations(shape(), balance(0, 0), 0, Lengths()) is None
