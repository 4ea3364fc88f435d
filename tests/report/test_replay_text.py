"""What the report says in words, and how it writes numbers."""

import re
from types import SimpleNamespace

import pytest

from kvledger.pool import parse_policy
from kvledger.replay import Clock, Pool, Settings, replay
from kvledger.report.replay import ReplayReport
from kvledger.report.replay_answer import answer
from kvledger.report.replay_text import replay_text
from kvledger.report.tables import percent, render, signed_points
from tests.replay.by_hand import workload

TRACE = SimpleNamespace(
    format=SimpleNamespace(name="hand", sentence="written by hand"),
    accuracy=SimpleNamespace(prompts="measured", arrivals="measured"),
    notes=(), dropped={}, adjusted={}, rows_read=0,
)  # fmt: skip
BURST = [(0, 40, 20)] * 12
SPARSE = [(200 * i, 40, 20) for i in range(6)]


def report_of(requests, *policies, tokens=200, seats=64):
    traffic = workload(*requests)
    settings = Settings(max_model_len=80, max_num_seqs=seats, clock=Clock(base=1.0, name="steps"))
    pool = Pool(bytes_per_token=1, capacity_tokens=tokens)
    parsed = [parse_policy(name) for name in policies]
    return ReplayReport(
        source="hand",
        trace=SimpleNamespace(workload=traffic, **vars(TRACE)),
        model="given",
        pool=pool,
        settings=settings,
        max_model_len_origin="given",
        policies=parsed,
        outcomes=[replay(traffic, policy, pool=pool, settings=settings) for policy in parsed],
    )


def test_two_policies_that_both_let_requests_wait_are_set_in_ratio():
    """200 tokens hold two reservations of 80; block tables hold three and more of 40 to 59 tokens."""
    said = answer(report_of(BURST, "max", "paged@4"))
    assert said.startswith("`max` runs 2.0 requests at a time")
    assert "times the requests in the same memory" in said


def test_traffic_that_never_waits_is_not_set_in_ratio():
    said = answer(report_of(SPARSE, "max", "paged@4"))
    assert said.startswith("Requests never waited.")
    assert "times" not in said


def test_the_balance_says_never_where_nothing_ever_waited():
    report = report_of(SPARSE, "max", "paged", tokens=2000)
    assert not any(outcome.saturated_seconds for outcome in report.outcomes)
    text = render(replay_text(report), width=100, color=False)
    assert "while requests run; none ever waited" in text


def test_one_policy_that_waits_beside_one_that_does_not():
    said = answer(report_of([(0, 40, 20)] * 3, "max", "paged@4"))
    assert said.startswith("`max` lets requests wait")
    assert "times the requests" not in said


@pytest.mark.parametrize("policies", [("max",), ("paged@4",)])
def test_one_policy_alone_is_described(policies):
    assert answer(report_of(BURST, *policies)).startswith(f"`{policies[0]}` fills")
    assert "while requests wait" in answer(report_of(BURST, *policies))
    assert "no request ever waited" in answer(report_of(SPARSE, *policies))


def test_policies_of_other_kinds_are_ranked_by_use():
    report = report_of(BURST, "static-batch", "grow@doubling")
    best = max(report.outcomes, key=lambda outcome: outcome.utilisation)
    assert answer(report).startswith(f"`{best.policy}` fills {percent(best.utilisation)}")


def test_a_policy_that_can_serve_nothing_says_so():
    """Reserving 80 never fits 70; block tables hold the 59."""
    said = answer(report_of(BURST, "max", "paged@4", tokens=70))
    assert said == "`max` can serve none of these requests in this pool; `paged@4` serves 12 of 12."


def test_traffic_that_nothing_can_serve_says_so():
    assert answer(report_of(BURST, "max", "paged@4", tokens=30)).startswith("None of these 12 requests can be served")


def test_rejections_are_part_of_the_answer():
    said = answer(report_of([*BURST, (0, 90, 1)], "exact", "paged@4"))
    assert "`exact` rejects 1 of 13 requests." in said
    assert "`paged@4` rejects 1 of 13 requests." in said


def test_a_lack_of_seats_is_not_blamed_on_memory():
    said = answer(report_of(BURST, "exact", "paged@4", seats=1))
    assert "What holds `exact` back is max_num_seqs 1, not memory." in said
    assert "What holds `paged@4` back is max_num_seqs 1, not memory." in said


def test_idle_stretches_of_the_uptime_are_dashes_not_zeros():
    text = render(replay_text(report_of([(0, 40, 20), (10_000, 40, 20)], "paged@4")), width=80, color=False)
    row = next(line for line in text.partition("Over uptime")[2].splitlines() if line.startswith("paged@4"))
    assert row.split()[1:-2].count("-") == 4


def test_no_line_ends_in_spaces_and_none_is_too_wide():
    text = render(replay_text(report_of(BURST, "max", "paged@4")), width=80, color=False)
    assert all(line == line.rstrip() and len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text


def test_colour_is_only_emphasis():
    report = report_of(BURST, "max", "paged@4")
    colored = render(replay_text(report), width=80, color=True)
    plain = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines()) + "\n"
    assert "\x1b[" in colored
    assert plain == render(replay_text(report), width=80, color=False)


@pytest.mark.parametrize(("ratio", "text"), [(0.0, "0.0 %"), (1.0, "100.0 %"), (0.9634, "96.3 %"), (1e-9, "0.0 %")])
def test_shares_are_written_with_one_decimal(ratio, text):
    assert percent(ratio) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0, "."), (0.0004, "."), (-0.0004, "."), (0.05, "+5.0"), (-0.1, "-10.0")]
)
def test_changes_are_written_in_points_and_nothing_as_a_dot(ratio, text):
    assert signed_points(ratio) == text
