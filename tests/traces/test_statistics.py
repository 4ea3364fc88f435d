import numpy as np
import pytest

from kvledger.replay.workload import Workload
from kvledger.traces.statistics import describe


def of(arrivals: list[float], prompts: list[int] | None = None) -> Workload:
    count = len(arrivals)
    return Workload(
        arrival_seconds=np.array(arrivals, dtype=float),
        prompt_tokens=np.array(prompts or [1] * count, dtype=np.int32),
        output_tokens=np.full(count, 2, dtype=np.int32),
        max_tokens=np.array([0] * (count - 1) + [64], dtype=np.int32),
    )


def test_rates_are_gaps_over_span_and_peaks_are_of_the_fullest_window() -> None:
    stats = describe(of([0, 1, 2, 3, 25, 26, 100]))
    assert stats.mean_rate == pytest.approx(6 / 100)
    assert stats.peak_10s_rate == pytest.approx(4 / 10)
    assert stats.peak_60s_rate == pytest.approx(6 / 60)


@pytest.mark.parametrize(("span", "peaks"), [(9.9, (None, None)), (29, (3 / 10, None)), (60, (3 / 10, 3 / 60))])
def test_a_window_longer_than_the_trace_has_no_rate(span, peaks) -> None:
    stats = describe(of([0, 1, 2, span]))
    assert (stats.peak_10s_rate, stats.peak_60s_rate) == peaks
    assert stats.mean_rate == pytest.approx(3 / span)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
def test_statistics_do_not_depend_on_the_pieces_they_are_taken_in(piece, monkeypatch) -> None:
    arrivals = np.cumsum(np.random.default_rng(1).exponential(3.0, 90)).tolist()
    whole = describe(of(arrivals))
    monkeypatch.setattr("kvledger.traces.statistics._PIECE", piece)
    pieces = describe(of(arrivals))
    assert (pieces.peak_10s_rate, pieces.peak_60s_rate) == (whole.peak_10s_rate, whole.peak_60s_rate)
    assert pieces.arrival_cv == pytest.approx(whole.arrival_cv, rel=1e-12)
    assert whole.arrival_cv == pytest.approx(np.diff(arrivals).std() / np.diff(arrivals).mean(), rel=1e-12)


def test_a_metronome_has_no_variation() -> None:
    assert describe(of([0, 1, 2, 3])).arrival_cv == pytest.approx(0)


def test_time_that_stands_still_has_no_rate() -> None:
    stats = describe(of([0, 0, 0]))
    assert (stats.mean_rate, stats.peak_10s_rate, stats.arrival_cv) == (None, None, None)


def test_percentiles_are_values_that_occur() -> None:
    stats = describe(of([0] * 20, list(range(1, 21))))
    prompt = stats.prompt
    assert (prompt.min_tokens, prompt.p50_tokens, prompt.p90_tokens, prompt.p95_tokens) == (1, 10, 18, 19)
    assert (prompt.p99_tokens, prompt.max_tokens, prompt.sum_tokens, prompt.mean_tokens) == (20, 20, 210, 10.5)
    assert stats.total.max_tokens == 22


def test_only_declared_limits_are_counted() -> None:
    declared = describe(of([0, 1, 2])).declared
    assert declared is not None
    assert (declared.count, declared.max_tokens) == (1, 64)


def test_a_single_request_is_described() -> None:
    assert describe(of([5])).span_seconds == 0
