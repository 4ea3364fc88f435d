"""The verdict: full, room, or another limit, each with its numbers."""

from pathlib import Path

import pytest

from kvledger.measure.verdict import Diagnosis, Signs, judge, tell_missed


def signs(**changes):
    base = {
        "samples": 60,
        "peak_held_ratio": 0.6,
        "peak_used_ratio": 0.55,
        "peak_waiting": 0,
        "peak_running": 10,
        "waiting_ratio": 0.0,
        "held_ratio_while_waiting": None,
        "preemptions": 0,
        "finished": 100,
        "generated_tokens": 1000,
        "seconds": 60.0,
    }
    found = {**base, **changes}
    return Signs(**{"peak_used_high_ratio": found["peak_used_ratio"], **found})


@pytest.mark.parametrize(
    ("changes", "diagnosis"),
    [
        ({}, Diagnosis.BETWEEN),
        ({"peak_used_ratio": 0.3, "peak_held_ratio": 0.35}, Diagnosis.ROOM),
        ({"peak_used_ratio": 0.8, "peak_held_ratio": 0.85}, Diagnosis.FULL),
        ({"peak_used_ratio": 0.4, "peak_held_ratio": 0.97}, Diagnosis.FULL),
        ({"peak_running": 0, "peak_waiting": 0}, Diagnosis.IDLE),
        ({"generated_tokens": 0}, Diagnosis.STALLED),
        ({"generated_tokens": 0, "seconds": 1.0}, Diagnosis.BETWEEN),
        ({"preemptions": 40, "peak_held_ratio": 1.0}, Diagnosis.THRASHING),
        ({"preemptions": 5, "peak_used_ratio": 0.9}, Diagnosis.FULL),
        ({"peak_waiting": 30, "held_ratio_while_waiting": 0.3}, Diagnosis.OTHER_LIMIT),
        ({"peak_waiting": 30, "held_ratio_while_waiting": 0.98, "peak_used_ratio": 0.9}, Diagnosis.FULL),
    ],
)
def test_signs_lead_to_one_diagnosis(changes, diagnosis):
    assert judge(signs(**changes)).diagnosis is diagnosis


def test_complaints_of_users_get_their_answer():
    """K3-054: 23-45 % held and nothing waits: not memory. K3-015, K3-017: preemptions in circles. K3-018: a stall."""
    assert judge(signs(peak_held_ratio=0.45, peak_used_ratio=0.44)).diagnosis is Diagnosis.ROOM
    assert judge(signs(preemptions=1000, finished=50)).diagnosis is Diagnosis.THRASHING
    assert judge(signs(generated_tokens=0, peak_waiting=9, held_ratio_while_waiting=1.0)).diagnosis is Diagnosis.STALLED


def test_requests_that_ended_between_samples_are_told():
    verdict = judge(signs(peak_running=0, finished=5))
    assert verdict.diagnosis is Diagnosis.IDLE
    assert "--every" in verdict.advice
    assert "5 requests ended" in verdict.sentence


def test_the_sentence_carries_its_numbers():
    assert "80.0 % of the pool holds tokens" in judge(signs(peak_used_ratio=0.8)).sentence
    assert "1,000 preemptions for 50" in judge(signs(preemptions=1000, finished=50)).sentence


def test_one_sample_is_told_as_one_instant_with_the_way_to_measure_longer():
    verdict = judge(signs(samples=1, peak_waiting=1, held_ratio_while_waiting=0.42, generated_tokens=None))
    assert verdict.diagnosis is Diagnosis.OTHER_LIMIT
    assert verdict.sentence == (
        "at this one instant, 1 request waits while at most 42.0 % of the pool is held: memory is not the limit"
    )
    assert "--for 10m" in verdict.advice
    assert "max_num_seqs" in verdict.advice


def test_two_samples_are_no_instant():
    verdict = judge(signs(samples=2, peak_waiting=30, held_ratio_while_waiting=0.3))
    assert verdict.sentence.startswith("up to 30 requests wait while")
    assert "--for" not in verdict.advice


@pytest.mark.parametrize(
    "changes", [{}, {"peak_used_ratio": 0.1}, {"peak_used_ratio": 0.9}, {"peak_waiting": 2, "peak_used_ratio": 0.1}]
)
def test_no_verdict_of_one_sample_speaks_of_a_peak(changes):
    verdict = judge(signs(samples=1, generated_tokens=None, **changes))
    assert verdict.sentence.startswith("at this one instant, ")
    assert "peak" not in verdict.sentence
    assert "--for 10m" in verdict.advice


def test_room_is_told_only_when_the_most_that_may_be_used_leaves_room():
    """Layers in groups without a model: what is used lies between nothing and what is held."""
    verdict = judge(signs(peak_used_ratio=0.0, peak_used_high_ratio=0.6, peak_held_ratio=0.6))
    assert verdict.diagnosis is Diagnosis.BETWEEN
    assert "0.0 to 60.0 % of the pool holds tokens" in verdict.sentence


def test_room_is_not_told_while_requests_wait_in_a_pool_that_is_held():
    verdict = judge(signs(peak_used_ratio=0.4, peak_held_ratio=0.8, peak_waiting=3, held_ratio_while_waiting=0.8))
    assert verdict.diagnosis is Diagnosis.BETWEEN
    assert verdict.sentence.endswith("80.0 % is held, and up to 3 requests wait")


def test_every_diagnosis_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "measure.md").read_text("utf-8")
    assert [one for one in Diagnosis if f"`{one}`" not in page.partition("## JSON")[2]] == []


def test_preemptions_stand_in_the_verdict_on_a_full_pool():
    verdict = judge(signs(preemptions=5, peak_used_ratio=0.9, peak_held_ratio=1.0))
    assert verdict.sentence.endswith("5 preemptions took it from running requests")


def test_a_window_of_which_most_samples_failed_says_so_first():
    idle = judge(signs(peak_running=0, finished=0))
    gone = tell_missed(idle, answered=1, samples=41, error="connection refused")
    assert (gone.diagnosis, gone.sentence) == (Diagnosis.UNKNOWN, "only 1 of 41 samples answered")
    assert "connection refused" in gone.advice
    assert tell_missed(judge(signs()), answered=1, samples=41, error="x").sentence.startswith("only 1 of 41")
    assert tell_missed(idle, answered=40, samples=41, error="x") is idle


def test_a_few_preemptions_in_a_short_window_are_told_and_are_no_circle():
    """Three of them for four requests that ended in eight seconds say little; five for four are many."""
    few = judge(signs(preemptions=3, finished=4, peak_held_ratio=0.98))
    assert few.diagnosis is Diagnosis.FULL
    assert few.sentence.endswith("and 3 preemptions took it from running requests")
    assert judge(signs(preemptions=5, finished=4, peak_held_ratio=0.98)).diagnosis is Diagnosis.THRASHING


def test_one_line_of_a_log_asks_for_a_longer_log():
    assert "--for" not in judge(signs(samples=1), is_log=True).advice
    assert judge(signs(samples=1), is_log=True).advice.startswith(
        "one line is no verdict on a server: give a longer log"
    )
    assert judge(signs(peak_running=0, finished=None), is_log=True).advice == "give a log of the server at work"
