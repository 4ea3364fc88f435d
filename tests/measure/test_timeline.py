"""The timeline of a measurement: nothing is lost by joining, and gaps stay gaps."""

from dataclasses import replace
from itertools import pairwise

import pytest

from kvledger.ledger import Account
from kvledger.measure import timeline as module
from kvledger.measure.timeline import draw_timeline

from .recorded import measure


def readings(name="sync"):
    return [reading for _, reading in measure(name)]


def test_each_sample_is_a_stretch_that_ends_where_the_next_begins():
    found = draw_timeline(readings())
    assert len(found) == len(readings())
    assert found[0].start_seconds == 0
    for one, other in pairwise(found):
        assert one.start_seconds + one.seconds == pytest.approx(other.start_seconds)
    for one, reading in zip(found, readings(), strict=True):
        assert one.ratio[Account.USED] == pytest.approx(reading.sheet.ledger.utilisation)
        assert sum(one.ratio.values()) == pytest.approx(1)


def test_joined_stretches_keep_means_peaks_and_counts(monkeypatch):
    whole = draw_timeline(readings())
    monkeypatch.setattr(module, "_MOST_STRETCHES", 10)
    joined = draw_timeline(readings())
    assert len(joined) <= 10
    assert sum(one.samples for one in joined) == len(whole)
    assert max(one.peak_held_ratio for one in joined) == max(one.peak_held_ratio for one in whole)
    assert joined[-1].preemptions == whole[-1].preemptions

    def mean(stretches):
        return sum(s.ratio[Account.USED] * s.seconds for s in stretches) / sum(s.seconds for s in stretches)

    assert mean(joined) == pytest.approx(mean(whole), rel=0.01)


def test_a_sample_does_not_stand_for_hours_in_which_nobody_looked():
    early = readings()[:20]
    late = [replace(one, seconds=one.seconds + 7200) for one in readings()[20:40]]
    found = draw_timeline([*early, *late])
    assert found[19].seconds == 60


def test_samples_without_a_ledger_leave_a_gap():
    some = [replace(one, sheet=None) if 5 <= i < 10 else one for i, one in enumerate(readings()[:20])]
    found = draw_timeline(some)
    assert len(found) == 15
    gap = found[5].start_seconds - (found[4].start_seconds + found[4].seconds)
    assert gap == pytest.approx(some[10].seconds - some[5].seconds)


def test_nothing_is_drawn_without_a_ledger():
    assert draw_timeline([replace(readings()[0], sheet=None)]) == ()
